"""Stems: what workers inherit, and what must not be shared by forks; real processes, real packages."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from perfci.model.base import MachineError
from perfci.system.child import Arena, Died
from perfci.system.process import Parent, Settled, Stem
from perfci.system.starter import Heard, Worker

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
NONE: dict[str, Any] = {"lines": {}, "paths": [], "folders": [], "scripts": []}
"""Nothing differs between the sides."""
RESEEDS = "import random\nrandom.seed(0)\n"


class Place:
    """A parent with packages beside it, and the folders of two sides."""

    def __init__(self, root: Path, packages: dict[str, str]) -> None:
        self.root, self.out = root, root / "told.json"
        for name, text in packages.items():
            file = root / "packages" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(PID + text)
        for side in ("base", "head"):
            for folder in ("tree/kernels", "site", "cache", "copy"):
                (root / side / folder).mkdir(parents=True)
        (root / "none").mkdir()
        self.much = ""
        self.parent = Parent(sys.executable, root, self.arena("none").env)

    def arena(self, side: str, cache: str = "cache") -> Arena:
        folder = self.root / side
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(self.root / "packages"),
            "PERFCI_SITE": str(folder / "site"),
            "SOME_CACHE": str(folder / cache),
            "MUCH": self.much,
        }
        copy = None if cache == "cache" else folder / cache
        return Arena(folder / "tree", folder / "site", [str(folder / "site")], env, sys.executable, 1, cache=copy)

    def stem(self, *names: str, side: str = "head", refused: tuple[str, ...] = ()) -> tuple[Stem, Settled]:
        """A stem of a side whose suite asks for all of these."""
        others = [self.arena(one) for one in ("base", "head") if one != side]
        stem = Stem(self.parent, self.arena(side), self.root / "stem.log", refused, others)
        tries = [f"try:\n    import {name}\nexcept (Exception, SystemExit):\n    pass" for name in names]
        self.asked("\n".join(tries), side, stem.take)
        settled = stem.settle(60)
        if settled.fault is None:
            self.parent.stem = stem
        return stem, settled

    def fault(self, *names: str) -> tuple[str, str] | None:
        """The module with which a stem cannot go on, and why."""
        fault = self.stem(*names)[1].fault
        return None if fault is None else (fault.name, fault.why)

    def worker(
        self, imports: str, names: list[str], value: str = "None", side: str = "head", cache: str = "cache"
    ) -> Worker:
        text = SUITE.format(imports=imports, names=names, value=value, out=str(self.out))
        (self.root / side / "tree/kernels/s.py").write_text(text)
        return self.parent.worker(self.arena(side, cache), self.root / "worker.log")

    def told(
        self, imports: str, names: list[str], value: str = "None", side: str = "head", cache: str = "cache"
    ) -> Any:
        """What a worker of the side finds: module → was it imported beforehand."""
        worker = self.worker(imports, names, value, side, cache)
        reply = worker.ask("load", 60, seed=0, suite=["kernels/*.py"], forbidden=[])
        assert [file["error"] for file in reply["files"]] == [None]
        worker.dismiss()
        ended = worker.finish(10)
        assert ended is not None and ended.code == 0, "the stem tells of exits"
        return json.loads(self.out.read_text())

    def asked(self, imports: str, side: str = "head", take: Callable[[str, str], None] = lambda *_: None) -> list[str]:
        """The modules that a scout asks for."""
        worker, asked = self.worker(imports, [], side=side), list[str]()
        worker.begin("load", seed=0, suite=["kernels/*.py"], forbidden=[], bytecode=False, asked=NONE)

        def hear(heard: Heard) -> None:
            assert heard.asked is not None
            asked.append(heard.asked[0])
            take(*heard.asked)

        with suppress(Died):
            worker.answer(60, hear)
        worker.close()
        return asked


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Any]:
    places: list[Place] = []

    def make(packages: dict[str, str]) -> Place:
        places.append(Place(tmp_path, packages))
        return places[-1]

    yield make
    for place in places:
        place.parent.close()


def test_workers_inherit_what_the_stem_has_imported(made):
    place = made({"dear/__init__.py": "from . import part\n", "dear/part.py": ""})
    _, settled = place.stem("dear")
    assert settled.fault is None and settled.modules >= 2
    assert place.told("import dear", ["dear", "dear.part"]) == {"dear": True, "dear.part": True, "value": None}
    assert place.told("import dear", ["dear"], side="base")["dear"] is True, "those of the other side, too"


@pytest.mark.parametrize(
    "much", [0, 4700, *(pytest.param(much, marks=pytest.mark.slow) for much in (1400, 3000, 8400))]
)
def test_forks_for_both_sides_lay_out_memory_alike_while_others_end(made, much):
    """A process that serves requests finds other memory after each, by their sizes."""
    place = made({"dear.py": ""})
    place.much = "x" * much
    place.stem("dear")
    address = "__import__('array').array('d', bytes(100_000)).buffer_info()[0]"
    for turn in range(6):
        earlier = place.worker("import dear", [], address, side="base")
        workers = {}
        for side in ("base", "head"):
            workers[side] = place.worker("import dear", [], address, side=side)
            earlier.dismiss()
            time.sleep(turn * 0.01)
        found = []
        for worker in workers.values():
            worker.ask("load", 60, seed=0, suite=["kernels/*.py"], forbidden=[], bytecode=False)
            found.append(json.loads(place.out.read_text())["value"])
        assert found[0] == found[1], turn
        for worker in (earlier, *workers.values()):
            worker.close()


def test_a_template_that_was_killed_costs_one_worker(made):
    place = made({"dear.py": ""})
    place.worker("", []).close()
    (template,) = psutil.Process(place.parent._process.pid).children()
    template.kill()
    with pytest.raises(Died, match="ended before it began"):
        place.worker("", [])
    assert place.told("import dear", ["dear"])["dear"] is False


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n", "starts a thread"),
        ("import subprocess\nP = subprocess.Popen(['sleep', '60'])\n", "leaves a child"),
        ("import socket\nS = socket.socket()\n", "opens a descriptor"),
        ("os.chdir('/')\n", "changes the folder"),
        (RESEEDS, "seeds Python's random numbers"),
        ("import signal\nsignal.signal(signal.SIGUSR1, print)\n", "handles signals"),
        ("import mmap\nM = mmap.mmap(-1, 4096)\n", "shares memory"),
        ("os.register_at_fork(after_in_child=lambda: os._exit(7))\n", "breaks a fork"),
        ("raise ValueError('no')\n", "cannot be imported here (ValueError)"),
        ("raise SystemExit\n", "cannot be imported here (SystemExit)"),
        ("import nowhere\n", "cannot be imported here (ModuleNotFoundError)"),
    ],
)  # fmt: skip
def test_what_forks_must_not_share_ends_a_stem_and_names_the_module(made, text, why):
    place = made({"good.py": "", "bad.py": text, "later.py": ""})
    assert place.fault("good", "bad", "later") == ("bad", why)


def test_without_the_module_that_ends_it_a_stem_goes_on(made):
    place = made({"good.py": "", "bad.py": RESEEDS, "later.py": ""})
    assert place.stem("bad", refused=("bad",))[1].fault is None
    assert place.stem("good", "later")[1].fault is None
    told = place.told("import good, later", ["good", "bad", "later"])
    assert told == {"good": True, "bad": None, "later": True, "value": None}


def test_a_package_goes_with_the_module_that_it_imports(made):
    place = made({"top/__init__.py": "from . import part\n", "top/part.py": RESEEDS})
    assert place.fault("top.part") == ("top", "seeds Python's random numbers")


def test_a_module_that_is_not_installed_is_no_fault(made):
    place = made({"dear.py": ""})
    assert place.fault("nowhere", "dear.nothing", "dear") is None


def test_an_import_that_ends_the_process_is_told(made):
    place = made({"bad.py": "os._exit(3)\n"})
    with pytest.raises(MachineError, match="was killed"):
        place.stem("bad")
    assert place.told("", [])["value"] is None, "the parent goes on"


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
    assert place.fault("quiet", "loud") == ("loud", "starts a thread")


KEEPER = """
class Store:
    def __init__(self): self.where = os.environ['SOME_CACHE'] + '/store'
HOME = os.environ['SOME_CACHE']
ALSO = HOME
STORE = Store()
TABLE = {'store': HOME + '/z'}
import before
before.KEPT = HOME + '/b'
os.environ['OTHER'] = HOME + '/y'
"""
KEPT = (
    "(lambda one: [one.HOME, one.ALSO, one.STORE.where, one.TABLE['store'], sys.modules['before'].KEPT, "
    "os.environ['OTHER']])(sys.modules['keeper'])"
)


@pytest.mark.parametrize("cache", ["cache", "copy"])
def test_a_path_that_a_module_keeps_becomes_that_of_the_process(made, cache):
    place = made({"before.py": "", "keeper.py": KEEPER})
    assert place.stem("before", "keeper", side="base")[1].kept == ""
    for side in ("base", "head"):
        folder = str(place.root / side / cache)
        told = place.told("import keeper", ["keeper"], KEPT, side=side, cache=cache)
        assert told == {
            "keeper": True,
            "value": [folder, folder, folder + "/store", folder + "/z", folder + "/b", folder + "/y"],
        }


@pytest.mark.parametrize(
    "text",
    [
        "def f(where=os.environ['SOME_CACHE']): pass\n",
        "LIST = [os.environ['SOME_CACHE'] + '/x']\n",
        "import functools\n@functools.lru_cache\ndef f(): return os.environ['SOME_CACHE']\nf()\n",
        "MINE = os.environb[b'SOME_CACHE'] + b'/x'\n",
    ],
)
def test_what_keeps_such_a_path_where_it_cannot_be_moved_is_left_to_the_workers(made, text):
    fault = made({"before.py": "", "keeper.py": text}).fault("before", "keeper")
    assert fault is not None and fault[0] == "keeper"
    assert re.fullmatch(r"keeps (b')?cache(/x)?'? of its side, where that cannot be put right", fault[1])


def test_what_imports_do_to_the_environment_reaches_the_workers(made):
    place = made({"setter.py": "os.environ['SET'] = '1'\nos.environ.pop('PYTHONPATH')\n"})
    place.stem("setter", side="base")
    for side in ("base", "head"):
        value = "[os.environ.get('SET'), os.environ.get('PYTHONPATH')]"
        assert place.told("import setter", ["setter"], value, side=side) == {"setter": True, "value": ["1", None]}


def test_a_folder_of_the_side_is_found_as_a_worker_finds_it(made):
    """transformers asks for a package `kernels`, as the folder of a suite is often called, and 5.17 imports it."""
    place = made(
        {
            "asks.py": "import importlib.util as u\nHAS = u.find_spec('own') is not None\n",
            "takes.py": "import own\nVERSION = getattr(own, '__version__', '')\ndel own\n",
            "deep.py": "import own.code\n",
        }
    )
    for side in ("base", "head"):
        folder = place.root / side / "site/own"
        folder.mkdir()
        (folder / "code.py").write_text("")
    assert place.fault("own", "asks", "takes") is None
    told = place.told("import asks, own", ["asks"], "[sys.modules['asks'].HAS, [str(one) for one in own.__path__]]")
    assert told == {"asks": True, "value": [True, [str(folder)]]}
    assert place.fault("deep") == ("deep", "looks for own.code, which the repository may provide")


def test_a_folder_called_as_a_module_of_the_interpreter_takes_nothing_away(made):
    place = made({"keeps.py": "import time\n"})
    for side in ("base", "head"):
        (place.root / side / "site/time").mkdir()
    assert place.fault("keeps") is None
    told = place.told("import keeps, time", ["keeps"], "sys.modules['keeps'].time is time")
    assert told == {"keeps": True, "value": True}


@pytest.mark.parametrize(
    ("side", "name"), [("base", "own.py"), ("head", "own.py"), ("head", "own/__init__.py"), ("head", "own/code.py")]
)
def test_no_module_is_taken_from_elsewhere_that_one_side_alone_has(made, side, name):
    place = made({"asks.py": "try:\n    import own\nexcept ImportError:\n    own = None\n"})
    file = place.root / side / "site" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("")
    assert side == "base" or name == "own/code.py" or place.fault("own", "own.part") is None, "that is left to the side"
    assert place.fault("asks") == ("asks", "looks for own, which the repository may provide")


def test_a_package_that_is_installed_into_the_side_is_not_looked_up_elsewhere(made):
    text = (
        "import importlib.metadata\ntry:\n    V = importlib.metadata.version('{}')\nexcept ImportError:\n    V = None\n"
    )
    place = made({"asks.py": text.format("my.kernels"), "other.py": text.format("something")})
    (place.root / "head/site/My_Kernels-1.0.dist-info").mkdir()
    assert place.fault("other", "asks") == ("asks", "asks which version of my.kernels is installed")


@pytest.mark.parametrize(
    ("texts", "fault"),
    [
        ({}, None),
        ({"METADATA": "Name: own\nVersion: 2\n"}, "reads METADATA of own-1.dist-info, which differs"),
        (
            {"entry_points.txt": "[backends]\ngpu = own:gpu\n"},
            "reads entry_points.txt of own-1.dist-info, which differs",
        ),
        ({"RECORD": "own.py,sha256=1,2\n"}, None),
    ],
)
def test_a_package_that_is_installed_into_both_sides_alike_is_one(made, texts, fault):
    """As Triton looks for its back ends among all that is installed."""
    text = (
        "from importlib.metadata import entry_points, version\nV = version('own')\n"
        "E = sorted(one.name for one in entry_points(group='backends'))\n"
    )
    place = made({"asks.py": text})
    for side in ("base", "head"):
        folder = place.root / side / "site/own-1.dist-info"
        folder.mkdir()
        own = {"METADATA": "Name: own\nVersion: 1\n", "entry_points.txt": "[backends]\ncpu = own:cpu\n"}
        for name, content in {**own, **(texts if side == "head" else {})}.items():
            (folder / name).write_text(content)
    assert place.fault("asks") == (fault and ("asks", fault))
    value = "[sys.modules['asks'].V, sys.modules['asks'].E]"
    told = place.told("import asks", ["asks"], value, side="base")
    assert told == {"asks": fault is None, "value": ["1", ["cpu"]]}


def test_pytest_is_left_to_the_workers_where_it_asks_for_the_sides_own(made):
    """And not laid to what the suite asks for first."""
    place = made({"plain.py": ""})
    for side in ("base", "head"):
        (place.root / side / "site/pluggy.py").write_text("")
    others = [place.arena("base")]
    for refused, fault in ((), "pytest"), (("pytest",), None):
        stem = Stem(place.parent, place.arena("head"), place.root / "stem.log", refused, others, ["pytest"])
        place.asked("import plain", take=stem.take)
        settled = stem.settle(60)
        assert (settled.fault and settled.fault.name) == fault
        stem.close()


def test_what_keeps_a_package_of_the_side_is_left_to_the_workers(made):
    place = made({"keeps.py": "import importlib.metadata\nOWN = importlib.metadata.distribution('own')\n"})
    for side in ("base", "head"):
        folder = place.root / side / "site/own-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Name: own\nVersion: 1\n")
    fault = place.fault("keeps")
    assert fault is not None and fault[1].startswith("keeps ")


def test_a_package_of_one_side_is_not_one_of_both_by_two_folders(made):
    text = "from importlib.metadata import version, PackageNotFoundError\ntry:\n    version('own')\nexcept PackageNotFoundError:\n    pass\n"
    place = made({"asks.py": text})
    folder = place.root / "base/site/own-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: own\nVersion: 1\n")
    assert place.fault("asks") == ("asks", "asks which version of own is installed")


def test_a_skip_as_a_module_is_imported_is_no_end(made):
    """pytest's own is no Exception."""
    place = made({"skips.py": "class Skipped(BaseException): pass\nraise Skipped\n"})
    assert place.fault("skips") == ("skips", "cannot be imported here (Skipped)")


def test_what_a_library_reads_once_a_process_is_read_beforehand(made):
    text = "import functools\n@functools.lru_cache()\ndef triton_key(): return os.getpid()\n"
    place = made({"triton/__init__.py": "", "triton/runtime/__init__.py": "", "triton/runtime/cache.py": text})
    place.stem("triton.runtime.cache")
    assert place.told("import triton.runtime.cache as c", [], "c.triton_key() == os.getpid()") == {"value": False}


def test_a_scout_tells_what_the_suite_itself_asks_for(made):
    packages = {
        "dear/__init__.py": "import nested\n", "dear/part.py": "", "nested.py": "",
        "lazy.py": "def call():\n    import inner\n", "inner.py": "",
    }  # fmt: skip
    place = made(packages)
    (place.root / "head/site/own.py").write_text("import dear.part\n")
    imports = "import own\ntry:\n    import nowhere\nexcept ImportError:\n    pass\nimport lazy\nlazy.call()"
    expected = ["own", "dear", "dear.part", "nowhere", "lazy", "inner"]
    assert place.asked(imports) == expected
    place.stem(*expected)
    assert place.asked(imports) == expected, "whether the stem has it or not"
    assert place.asked("import lazy, nested") == ["lazy", "nested"]


def test_a_scout_works_with_what_the_stem_has(made):
    place = made({"dear/__init__.py": "from . import part\nSUM = part.ONE + 1\n", "dear/part.py": "ONE = 1\n"})
    place.stem("dear")
    assert place.asked("import dear\nimport dear.part as p\nassert dear.part is p and dear.SUM == 2") == ["dear"]


@pytest.mark.parametrize("first", ["dear", "dear.part", "dear.sub.deep"])
def test_a_scout_finds_what_a_package_has_put_in_the_place_of_a_module(made, first):
    """As torch._dynamo does with code_context."""
    texts = {"dear/__init__.py": "from . import sub\nfrom .part import part\n", "dear/part.py": "part = 'its own'\n"}
    place = made({**texts, "dear/sub/__init__.py": "", "dear/sub/deep.py": ""})
    place.stem(first)
    place.out.unlink()
    place.asked(
        "import dear.sub.deep, sys\n"
        "assert dear.part == sys.modules['dear.part'].part == 'its own'\n"
        "assert dear.sub.deep is sys.modules['dear.sub.deep']"
    )
    assert place.out.exists(), "the suite was imported"


def test_a_handler_that_takes_the_wakeup_descriptor_away_loses_no_exit(made):
    """As asyncio's own does from Python 3.12 on."""
    text = "import os, signal\nos.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))\n"
    place = made({"sitecustomize.py": text, "dear.py": ""})
    assert place.fault("dear") is None
    assert place.told("import dear", ["dear"])["dear"] is True


@pytest.mark.parametrize("killed", ["the run", "the stem"])
def test_all_that_was_started_ends_with_the_run_and_with_the_stem(made, killed):
    place = made({"one.py": ""})
    stem, _ = place.stem("one")
    worker = place.worker("import one", [])
    worker.ask("load", 60, seed=0, suite=["kernels/*.py"], forbidden=[])
    if killed == "the run":
        place.parent.control.close()
    else:
        os.kill(stem.pid, signal.SIGKILL)
    _ended(worker.pid)
    if killed == "the run":
        _ended(stem.pid)


def _ended(pid: int) -> None:
    deadline = time.monotonic() + 30
    while (
        Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    ):
        assert time.monotonic() < deadline, "something is left"
        time.sleep(0.05)
