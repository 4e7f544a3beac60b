"""Results from files that other tools wrote: benchmarks' JSON, and captures of Nsight and torch.profiler."""
