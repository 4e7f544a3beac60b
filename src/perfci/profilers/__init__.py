"""Evidence: nsys, ncu and torch.profiler run and read, in passes of their own."""
