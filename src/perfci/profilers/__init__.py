"""Layer 2: profilers, and what follows from what they saw."""
