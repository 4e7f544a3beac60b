"""Effects: all that an import changes for others is told, and nothing of an import that changes nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfci.worker import serve

ROOT = Path(serve.__file__).parents[2]
RUN = """
import collections, json, os, sys, types
sys.path.insert(0, sys.argv[1])
exec(sys.argv[3])
from perfci.worker.proof.effects import Effects

def told(text):
    read, write = os.pipe()
    if os.fork() == 0:
        before = Effects()
        names = {"__name__": "imported"}  # as a module keeps them
        exec(compile(text, "<import>", "exec"), names)
        os.write(write, before.changed().encode() or b"-")
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.wait()
    return said

print(json.dumps([told(text) for text in json.loads(sys.argv[2])]))
"""
HELD = """
held = types.ModuleType("held")
sys.modules["held"] = held
held.flags, held.on, held.off, held.deep = {"a": 1}, True, False, {"x": [collections.namedtuple("N", "y")({"z": {1}})]}
held.plain = lambda n=1: n
class Shape: kind = 1
held.Shape, held.shape = Shape, Shape()
del Shape, held
"""
CHANGES = {
    "import os; os.environ['A_SWITCH'] = '1'": "changes the environment",
    "import ctypes; ctypes.CDLL(None).setenv(b'A_SWITCH', b'1', 1)": "changes the environment",
    "import held; held.flags['a'] = 2": "changes held.flags",
    "import held; held.on = False": "changes held",
    "import held; held.more = 1": "changes held",
    "import held; held.more = None": "changes held",
    "import held; held.flags['b'] = 1": "changes held.flags",
    "import held; held.deep['x'][0].y['z'].add(2)": "changes a set",
    "import held; held.plain.__defaults__ = (2,)": "changes held.plain",
    "import held; held.plain.__code__ = (lambda n=1: n + 1).__code__": "changes held.plain",
    "import held; held.plain.called = True": "changes held.plain",
    "import held; held.Shape.kind = 2": "changes held.Shape",
    "import held; held.shape.kind = 2; vars(held.shape)": "changes held.shape",
    "import sys; sys.modules['held'] = sys": "changes sys.modules",
    "import sys; sys.path.insert(0, '/nowhere')": "changes sys.path",
    "import sys; sys.meta_path.insert(0, object())": "changes sys.meta_path",
    "import sys; sys.setrecursionlimit(5000)": "changes settings of the interpreter",
    "import gc; gc.disable()": "changes settings of the interpreter",
    "import atexit; atexit.register(print)": "changes settings of the interpreter",
    "import warnings; warnings.simplefilter('error')": "changes _warnings.filters",
    "import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN)": "handles signals",
    "import builtins; builtins.sum = max": "changes builtins",
    "import os; os.umask(0o70)": "changes limits of the process",
    "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))": "changes limits of the process",
    "import os; os.chdir('/')": "changes the folder",
    "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()": "starts a thread",
    "import json; json.dumps = str": "changes json",
}  # fmt: skip
TORCH = {
    "import torch; torch.backends.cuda.matmul.allow_tf32 = True": "changes torch's cublas_allow_tf32",
    "import torch; torch.backends.cudnn.benchmark = True": "changes torch's cudnn_benchmark",
    "import torch; torch.set_default_dtype(torch.float64)": "changes torch's get_default_dtype",
    "import torch; torch.set_grad_enabled(False)": "changes torch's is_grad_enabled",
    "import torch; torch.use_deterministic_algorithms(True)": "changes the environment",
    "import torch; torch.manual_seed(7)": "draws torch's random numbers",
    "from torch import library; kept = library.Library('aten', 'IMPL'); kept.impl('mul.Tensor', print, 'CPU')":
        "changes torch's operators",
}  # fmt: skip
NOTHING = """
import abc, collections.abc, dataclasses, enum, functools, inspect, logging, re, typing, xml.dom.minidom
log = logging.getLogger("imported.log")
pattern = re.compile("[a-z]+ of its own")
@dataclasses.dataclass
class Shape:
    n: int = 1
class Kind(enum.Enum):
    A = 1
class Listed(collections.abc.Mapping):
    def __getitem__(self, key): return 1
    def __len__(self): return 0
    def __iter__(self): return iter(())
class Of(typing.Generic[typing.TypeVar("T")]): pass
@functools.lru_cache
def one(): pass
isinstance(Listed(), collections.abc.Sequence), inspect.signature(dataclasses.dataclass)
"""


def told(python: str, texts: list[str], before: str = HELD) -> list[str]:
    argv = [python, "-c", RUN, str(ROOT), json.dumps(texts), before]
    return json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)


def test_what_an_import_changes_for_others_is_told() -> None:
    assert dict(zip(CHANGES, told(sys._base_executable, list(CHANGES)), strict=True)) == CHANGES


@pytest.mark.torch
def test_what_an_import_changes_of_torch_is_told() -> None:
    pytest.importorskip("torch")
    found = told(sys.executable, [*TORCH, NOTHING, "import held; held.on = False"], HELD + "import torch")
    assert found == [*TORCH.values(), "-", "changes held"]


def test_an_import_that_changes_nothing_for_others_is_let_pass() -> None:
    assert told(sys._base_executable, [NOTHING, "import held"]) == ["-", "-"]
