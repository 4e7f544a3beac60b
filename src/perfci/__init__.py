"""perfci: the performance gate for GPU kernels.

A suite file needs one name, `perfci.kernel`. Importing this package loads nothing else: no torch, no numpy.
"""

from perfci.worker.declare import Bench, kernel

__all__ = ["Bench", "__version__", "kernel"]
__version__ = "0.1.0"
