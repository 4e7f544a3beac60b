"""A case's work for the GPU: nodes of the CUDA graph captured for timing."""
