"""A case's work for the GPU: nodes of the CUDA graph that is captured for timing."""
