"""The work of a GPU: are the machine code and the lists of kernels of base and head the same?"""
