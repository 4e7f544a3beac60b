"""Importing once for all workers: real processes, real packages, and what must not be shared by forks."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfci.system.child import Arena
from perfci.system.process import Parent
from perfci.worker.preload.steps import _answer

SUITE = """
import json, os, sys
{imports}
told = {{}}
for name in {names!r}:
    module = sys.modules.get(name)
    told[name] = None if module is None else getattr(module, "PID", None) != os.getpid()
told["value"] = {value}
with open({out!r}, "w") as file:
    json.dump(told, file)
"""
PID = "import os\nPID = os.getpid()\n"


class Place:
    """A parent with packages beside it, and a side."""

    def __init__(self, root: Path, packages: dict[str, str]) -> None:
        self.root, self.out = root, root / "told.json"
        for name, text in packages.items():
            file = root / "packages" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(PID + text)
        self.sides = []
        for side in ("base", "head"):
            for folder in ("tree/kernels", "site", "cache"):
                (root / side / folder).mkdir(parents=True)
            tree, site = root / side / "tree", root / side / "site"
            self.sides.append({"tree": str(tree), "path": [str(site)], "suite": ["kernels/*.py"]})
        self.nowhere = root / "none"
        self.nowhere.mkdir()
        self.parent = Parent(sys.executable, root, self.env("none"))

    def env(self, side: str) -> dict[str, str]:
        folder = self.root / side
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(self.root / "packages"),
            "PERFCI_SITE": str(folder / "site"),
            "SOME_CACHE": str(folder / "cache"),
        }

    def preload(self, imports: str, names: list[str], value: str = "None") -> dict[str, Any] | None:
        self.write(imports, names, value)
        return self.parent.preload_suite(self.sides, self.nowhere, [str(self.root / "checkout")])

    def write(self, imports: str, names: list[str], value: str = "None") -> None:
        """The suite of both sides."""
        for side in self.sides:
            text = SUITE.format(imports=imports, names=names, value=value, out=str(self.out))
            Path(side["tree"], "kernels/s.py").write_text(text)

    def told(self, side: str = "head") -> dict[str, Any]:
        """What a worker of the side finds: module → was it imported beforehand."""
        arena = Arena(
            self.root / side / "tree", self.root / side / "site", [str(self.root / side / "site")],
            self.env(side), sys.executable, 1,
        )  # fmt: skip
        worker = self.parent.worker(arena, self.root / "worker.log")
        reply = worker.ask("load", 60, suite=["kernels/*.py"], forbidden=[])
        assert [file["error"] for file in reply["files"]] == [None]
        worker.dismiss()
        ended = worker.finish(10)
        assert ended is not None and ended.code == 0, "the parent tells of exits"
        told: dict[str, Any] = json.loads(self.out.read_text())
        return told


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Any]:
    places: list[Place] = []

    def make(packages: dict[str, str]) -> Place:
        places.append(Place(tmp_path, packages))
        return places[-1]

    yield make
    for place in places:
        place.parent.close()


def test_what_both_suites_import_is_imported_once(made):
    place = made({"dear/__init__.py": "from . import part\n", "dear/part.py": ""})
    report = place.preload("import dear", ["dear", "dear.part"])
    assert report is not None and report["refused"] == {} and report["modules"] >= 2
    assert place.told("base") == {"dear": True, "dear.part": True, "value": None}
    assert place.told("head")["dear"] is True


def test_what_one_side_imports_is_left_to_it(made):
    place = made({"dear.py": "", "other.py": ""})
    place.write("import dear, other", ["dear", "other"])
    base = Path(place.sides[0]["tree"], "kernels/s.py")
    base.write_text(base.read_text().replace("import dear, other", "import dear"))
    assert place.parent.preload_suite(place.sides, place.nowhere, []) is not None
    assert place.told("base") == {"dear": True, "other": None, "value": None}
    assert place.told("head") == {"dear": True, "other": False, "value": None}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n", "starts a thread"),
        ("import subprocess\nP = subprocess.Popen(['sleep', '60'])\n", "leaves a child"),
        ("import socket\nS = socket.socket()\n", "opens a descriptor"),
        ("F = open(__file__)\n", "opens a descriptor"),
        ("os.chdir('/')\n", "changes the folder"),
        ("import random\nrandom.seed(0)\n", "seeds Python's random numbers"),
        ("import signal\nsignal.signal(signal.SIGUSR1, print)\n", "handles signals"),
        ("import mmap\nM = mmap.mmap(-1, 4096)\n", "shares memory"),
        ("os.register_at_fork(after_in_child=print)\n", "has a handler of forks"),
        ("def f(where=os.environ['SOME_CACHE']): pass\n", "keeps a path of a side"),
        ("LIST = [os.environ['SOME_CACHE'] + '/x']\n", "keeps a path of a side"),
        ("import functools\n@functools.lru_cache\ndef f(): return os.environ['SOME_CACHE']\nf()\n", "keeps a path of a side"),
        ("MINE = os.environb[b'SOME_CACHE'] + b'/x'\n", "keeps a path of a side"),
        ("os.environ['OTHER'] = os.environ['SOME_CACHE'] + '/y'\n", "keeps a path of a side"),
        ("raise ValueError('no')\n", "cannot be imported here (ValueError)"),
        ("raise SystemExit\n", "cannot be imported here (SystemExit)"),
        ("os._exit(3)\n", "ends the process"),
        ("os.kill(os.getpid(), 11)\n", "ends the process"),
    ],
)  # fmt: skip
def test_what_forks_must_not_share_is_left_to_each_worker(made, text, why):
    place = made({"good.py": "", "bad.py": text, "later.py": ""})
    report = place.preload("import good, bad, later", ["good", "bad", "later"])
    assert report is not None and report["refused"] == {"bad": why}
    place.write("import good, later", ["good", "bad", "later"])  # the bad one would end the worker, too
    assert place.told() == {"good": True, "bad": None, "later": True, "value": None}


def test_what_needs_a_refused_module_goes_with_it_and_what_that_imports_stays(made):
    bad = "import random\nrandom.seed(0)\n"
    place = made(
        {
            "top/__init__.py": "import one\nfrom . import part\nimport two\n",
            "top/part.py": "import bad\n",
            "bad.py": bad, "one.py": "", "two.py": "import three\n", "three.py": "",
            "asks.py": "import importlib.util\nHAS = importlib.util.find_spec('bad') is not None\n",
        }
    )  # fmt: skip
    names = ["top", "top.part", "bad", "one", "two", "three", "asks"]
    report = place.preload("import top, asks", names, value="sys.modules['asks'].HAS")
    assert report is not None and report["refused"]["bad"] == "seeds Python's random numbers"
    assert place.told() == {
        "top": False, "top.part": False, "bad": False, "one": True, "two": True, "three": True, "asks": True,
        "value": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    "bad", ["import mmap\nM = mmap.mmap(-1, 4096)\n", "os._exit(3)\n", "import random\nrandom.seed(0)\n"]
)
def test_a_package_goes_with_the_module_that_it_imports(made, bad):
    place = made(
        {"top/__init__.py": "from . import part, fine\n", "top/part.py": bad, "top/fine.py": "", "other.py": ""}
    )
    names = ["top", "top.fine", "other"]
    report = place.preload("import top.fine, other", names)
    assert report is not None and "top.fine" in report["refused"]
    place.write("import other", names)
    assert place.told() == {"top": None, "top.fine": None, "other": True, "value": None}


def test_threads_that_forks_do_without_are_no_reason(made):
    """jemalloc's, as pyarrow starts it; a name is given after the start."""
    text = (
        "import ctypes, threading, time\n"
        "def run():\n"
        "    time.sleep(0.01)\n"
        "    ctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0)\n"
        "    time.sleep(60)\n"
        "threading.Thread(target=run, daemon=True).start()\n"
    )
    place = made({"quiet.py": text.format(name=b"jemalloc_bg_thd"), "loud.py": text.format(name=b"jemalloc")})
    report = place.preload("import quiet, loud", ["quiet", "loud"])
    assert report is not None and report["refused"] == {"loud": "starts a thread"}
    assert place.told() == {"quiet": True, "loud": False, "value": None}


def test_a_path_that_a_module_keeps_becomes_the_sides_own(made):
    text = "class Store:\n    def __init__(self): self.where = os.environ['SOME_CACHE'] + '/store'\n"
    place = made({"keeper.py": text + "HOME = os.environ['SOME_CACHE']\nALSO = HOME\nSTORE = Store()\n"})
    value = "[sys.modules['keeper'].HOME, sys.modules['keeper'].ALSO, sys.modules['keeper'].STORE.where]"
    place.preload("import keeper", ["keeper"], value=value)
    for side in ("base", "head"):
        cache = str(place.root / side / "cache")
        assert place.told(side) == {"keeper": True, "value": [cache, cache, cache + "/store"]}


def test_what_imports_do_to_the_environment_reaches_the_workers(made):
    place = made({"setter.py": "os.environ['SET'] = '1'\nos.environ.pop('PYTHONPATH')\n"})
    place.preload("import setter", ["setter"], value="[os.environ.get('SET'), os.environ.get('PYTHONPATH')]")
    assert place.told() == {"setter": True, "value": ["1", None]}


@pytest.mark.parametrize("where", ["site/own.py", "site/own/__init__.py", "site/own/data.txt", "tree/own.py"])
def test_no_module_is_taken_from_elsewhere_that_a_side_may_have(made, where):
    place = made({"asks.py": "try:\n    import own\nexcept ImportError:\n    own = None\n", "fine.py": ""})
    file = place.root / "head" / where
    file.parent.mkdir(exist_ok=True)
    file.write_text("")
    report = place.preload("import fine, asks", ["fine", "asks"])
    assert report is not None
    assert report["refused"] == {"asks": "looks for own, which the repository may provide"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import importlib.util as u\nHAS = u.find_spec('own') is not None\n", None),
        ("import own\nHAS = getattr(own, 'version', True)\ndel own\n", None),
        ("import own\n", "keeps own, which the repository provides"),
        ("import importlib.util as u\nSPEC = u.find_spec('own')\n", "keeps own, which the repository provides"),
        ("try:\n    import own.part\nexcept ImportError:\n    pass\n", "looks for own.part, which the repository may provide"),
    ],
)  # fmt: skip
def test_a_folder_of_all_sides_may_be_asked_for_but_not_kept(made, text, why):
    """transformers asks whether there is a package `kernels`, as the folder of a suite is often called."""
    place = made({"asks.py": text, "fine.py": ""})
    for side in ("base", "head"):
        (place.root / side / "site/own").mkdir()
        (place.root / side / "site/own/data.txt").write_text("")
    value = "[getattr(sys.modules.get('asks'), 'HAS', None), 'own' in sys.modules]"
    report = place.preload("import fine, asks", ["fine", "asks"], value)
    assert report is not None and report["refused"] == ({} if why is None else {"asks": why})
    place.write("import fine, asks, own", ["fine", "asks"], "[str(one) for one in own.__path__]")
    assert place.told()["value"] == [str(place.root / "head/site/own")], "the side's own, not what stood for it"


def test_what_a_library_reads_once_a_process_is_read_beforehand(made):
    text = "import functools\n@functools.lru_cache()\ndef triton_key(): return os.getpid()\n"
    place = made({"triton/__init__.py": "", "triton/runtime/__init__.py": "", "triton/runtime/cache.py": text})
    place.preload("import triton.runtime.cache as c", [], "c.triton_key() == os.getpid()")
    assert place.told() == {"value": False}


def test_what_compiling_imports_is_imported_once(made):
    place = made({})
    compiler = "torch._inductor.compile_fx"
    place.parent.preload()
    report = place.preload("import torch\ncompiled = torch.compile(abs)", [compiler])
    assert report is not None and report["modules"] > 500
    assert place.told()[compiler] is True


@pytest.mark.parametrize("how", ["a path", "an editable installation", "a namespace package"])
def test_code_of_the_repository_never_runs_in_the_parent(made, how):
    """It could reach base's workers there, as head's."""
    place = made({"fine.py": ""})
    checkout, ran = place.root / "checkout/python", place.root / "ran"
    checkout.mkdir(parents=True)
    module = checkout / ("spaces/mine.py" if how == "a namespace package" else "mine.py")
    module.parent.mkdir(exist_ok=True)
    module.write_text(f"open({str(ran)!r}, 'w')\n")
    packages = place.root / "packages"
    if how == "an editable installation":
        finder = (
            "import importlib.util, sys\n"
            "class Finder:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            f"        if name == 'mine': return importlib.util.spec_from_file_location(name, {str(module)!r})\n"
            "sys.meta_path.append(Finder())\n"
        )
        (packages / "leads.py").write_text(finder)
    else:
        (packages / "leads.py").write_text(f"import sys\nsys.path.append({str(checkout)!r})\n")
    (packages / "asks.py").write_text("import leads\n" + ("import spaces.mine\n" if "name" in how else "import mine\n"))
    report = place.preload("import fine, asks", ["fine"])
    assert report is not None and report["refused"]["asks"] == "is the repository's own code"
    assert not ran.exists()
    place.write("import fine", ["fine"])
    assert place.told()["fine"] is True


def test_a_package_that_is_installed_into_a_side_is_not_looked_up_elsewhere(made):
    text = (
        "import importlib.metadata\ntry:\n    V = importlib.metadata.version('{}')\nexcept ImportError:\n    V = None\n"
    )
    place = made({"asks.py": text.format("my.kernels"), "other.py": text.format("something")})
    (place.root / "head/site/My_Kernels-1.0.dist-info").mkdir()
    report = place.preload("import asks, other", ["asks", "other"])
    assert report is not None
    assert report["refused"] == {"asks": "asks which version of my.kernels is installed"}


def test_a_handler_that_takes_the_wakeup_descriptor_away_loses_no_exit(made):
    """As asyncio's own does from Python 3.12 on."""
    text = "import os, signal\nos.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))\n"
    place = made({"sitecustomize.py": text, "dear.py": ""})
    assert place.preload("import dear", ["dear"]) is not None
    assert place.told()["dear"] is True


def test_a_step_that_says_nothing_is_given_up():
    read, write = os.pipe()
    assert _answer(read, 0.01) is None
    os.write(write, b'{"ok": fal')
    os.close(write)
    assert _answer(read, 10) is None
    os.close(read)


def test_all_that_was_started_ends_with_the_run(made):
    place = made({"bad.py": "import random\nrandom.seed(0)\n", "one.py": "", "two.py": ""})
    place.preload("import one, bad, two", ["one"])
    first = place.parent._process.pid
    below = _members(first)
    assert len(below) > 1
    place.parent.control.close()
    deadline = time.monotonic() + 30
    while any(_session(pid) == first for pid in below):
        assert time.monotonic() < deadline, "something is left"
        place.parent._process.poll()
        time.sleep(0.05)


def test_the_death_of_the_first_process_ends_its_successors(made):
    place = made({"one.py": ""})
    place.preload("import one", ["one"])
    first = place.parent._process.pid
    below = _members(first)
    os.kill(first, signal.SIGKILL)
    place.parent._process.wait()
    deadline = time.monotonic() + 30
    while any(_session(pid) == first for pid in below):
        assert time.monotonic() < deadline, "something is left"
        time.sleep(0.05)


def _members(session: int) -> list[int]:
    pids = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]
    return [pid for pid in pids if _session(pid) == session]


def _session(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return 0
    return 0 if fields[0] == "Z" else int(fields[3])
