"""Machine code of kernels, by cuobjdump."""
