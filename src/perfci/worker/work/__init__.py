"""A case's work for the GPU: a list of nodes of the CUDA graph that is captured for timing."""
