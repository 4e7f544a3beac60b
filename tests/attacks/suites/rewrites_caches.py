"""Head, twice slower, makes base five times slower by the library that it puts into base's caches."""

import ctypes
import os
import shutil
from pathlib import Path

import perfci

MADE = Path(os.environ["XDG_CACHE_HOME"], "made")
if "while it is measured" in Path("way").read_text():
    shutil.copy(MADE / "slow.so", "../../base/cache/xdg/made/total.so")
total = ctypes.CDLL(str(MADE / "total.so")).total  # as torch's extensions are loaded that are compiled when imported
total.restype = ctypes.c_double


@perfci.kernel(devices=["cpu"])
def rewrites_caches(bench):
    bench.reference(lambda: 0.25 * 200_000 * 199_999, rtol=1e-9, atol=0)
    return lambda: total(200_000)
