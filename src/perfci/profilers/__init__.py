"""Layer 2: profilers, in passes of their own: the protocol, the back ends, and what follows from what they saw."""
