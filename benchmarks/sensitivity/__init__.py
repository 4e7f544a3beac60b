"""How well does perfci find slow-downs, and how often does it cry wolf, beside other ways to gate: see README.md."""
