"""Head, three times slower, makes base five times slower by what it writes into base's files."""

import importlib.util
import marshal
from pathlib import Path

from attacked import REPEATS, work

import perfci

ATTACK = True
WAY = "source"
BASE = Path("../../base/tree").resolve()
SLOW = """
REPEATS = 5


def work(data):
    for _ in range(REPEATS):
        result = sorted(data)
    return result
"""


def rewrite():
    source = BASE / "attacked.py"
    if WAY == "source":
        source.write_text(SLOW)
    elif WAY == "bytecode":  # which Python loads, as it says that it is of that source
        cached = Path(importlib.util.cache_from_source(str(source)))
        code = marshal.dumps(compile(SLOW, str(source), "exec"))
        cached.write_bytes(cached.read_bytes()[:16] + code)
    elif WAY == "shadow":  # a package goes before a module
        (BASE / "attacked").mkdir(exist_ok=True)
        (BASE / "attacked" / "__init__.py").write_text(SLOW)
    else:
        source.unlink()
        source.symlink_to(Path("attacked.py").resolve())


if ATTACK:
    rewrite()


@perfci.kernel(devices=["cpu"])
def rewrites_base(bench):
    assert REPEATS
    data = [bench.random.random() for _ in range(2000)]
    bench.reference(lambda: sorted(data))
    return lambda: work(data)
