"""A GPU's work: are machine code and lists of kernels the same in base and head?"""
