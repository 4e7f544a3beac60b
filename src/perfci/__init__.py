"""perfci: the performance gate for GPU kernels.

A suite file needs one name, `perfci.kernel`. Importing this package loads nothing else: no torch, no numpy.
"""

from perfci.worker.bench import Bench
from perfci.worker.declare import kernel

__all__ = ["Bench", "__version__", "kernel"]
__version__ = "1.0.0"
