"""Nsight Systems: timelines of kernels, copies and calls."""
