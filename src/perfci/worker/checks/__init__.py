"""Right, there, and computed by this call: what an execution must show before it is timed."""
