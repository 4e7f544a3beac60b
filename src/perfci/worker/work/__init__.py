"""The work that a case gives the GPU, as the CUDA graph that is captured for timing holds it: a list of nodes."""
