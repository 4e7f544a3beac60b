"""Layer 2: profilers, in passes of their own, and what follows from what they saw."""
