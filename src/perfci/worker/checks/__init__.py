"""What an execution must show before it is timed."""
