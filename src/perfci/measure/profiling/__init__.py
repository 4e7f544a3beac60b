"""The profiling pass: after timing, profilers run the cases that need it."""
