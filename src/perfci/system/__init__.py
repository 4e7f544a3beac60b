"""Layer 1: facts of the machine, its processes, files and leases."""
