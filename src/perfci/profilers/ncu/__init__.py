"""Nsight Compute: hardware counters of kernels."""
