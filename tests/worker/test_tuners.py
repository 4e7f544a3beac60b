"""Traces of tuners, in a process of their own: what is watched there stays watched."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("torch")  # perfci runs without it, and then watches nothing

from perfci.worker import tuners  # not without torch

SOURCE = Path(__file__).parents[2] / "src"
SETUP = """
import json, sys, types
import torch
from perfci.worker import tuners

class Autotuner:
    '''As triton.runtime.autotuner's: the first run with a key times every configuration, unless a file knows.'''
    def __init__(self, configs, file=None):
        self.configs, self.cache, self.file = configs, {}, file
    def run(self, *args):
        if len(self.configs) > 1 and args not in self.cache:
            self.cache[args] = self.file or min(self.configs, key=lambda config: timed())
        return self.configs[0]

def timed():
    try:
        torch.cuda.synchronize()
    except Exception:  # no GPU here
        return 0.0

def import_triton():
    module = types.ModuleType("triton.runtime.autotuner")
    module.Autotuner = Autotuner
    sys.modules["triton.runtime.autotuner"] = module

def say(name):
    told[name] = tuners.told()

told = {}
tuners.watch()
"""


FORKS = """
import json, os, sys, traceback
import torch
from perfci.worker import tuners

for line in sys.stdin:
    request = json.loads(line)
    pid = os.fork()
    if not pid:
        os.environ.update(request["env"])
        try:
            exec(request["script"], {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""Importing torch takes longer than a script."""


@cache
def forks() -> subprocess.Popen:
    """A process that has imported torch and forks one for each script; it ends with this one, which closes its stdin."""
    env, pipe = os.environ | {"PYTHONPATH": str(SOURCE)}, subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", FORKS], env=env, stdin=pipe, stdout=pipe, text=True)


def told_by(script: str, **env: str) -> dict[str, str]:
    """What a process tells that runs this."""
    text = SETUP + textwrap.dedent(script) + "\nprint(json.dumps(told))\n"
    process = forks()
    print(json.dumps({"script": text, "env": env}), file=process.stdin, flush=True)
    said = []
    while not (line := process.stdout.readline()).strip().lstrip("-").isdigit():
        assert line, "it has ended"
        said.append(line)
    assert int(line) == 0, said
    return dict(json.loads(said[-1]))


def test_plain_torch_leaves_no_trace() -> None:
    told = told_by("""
        tuners.begin()
        torch.relu(torch.ones(4)) @ torch.ones(4)
        say("case")
    """)
    assert told == {"case": ""}


def test_where_nothing_was_watched_that_is_told() -> None:
    told = told_by("""
        tuners._before = None  # as where torch comes with the suite
        tuners.begin()
        say("case")
    """)
    assert "nothing was watched" in told["case"]


def test_an_autotuner_is_told_of_the_cases_that_it_chooses_for() -> None:
    """Also where it has chosen before, in this process or in a file; one configuration is no choice."""
    told = told_by("""
        import_triton()
        one, two, known = Autotuner([1]), Autotuner([1, 2]), Autotuner([1, 2], file=1)
        for name, run in (("one", one), ("two", two), ("again", two), ("known", known), ("plain", None)):
            tuners.begin()
            if run is not None:
                run.run(64)
            say(name)
    """)
    assert told.pop("one") == told.pop("plain") == ""
    assert told == dict.fromkeys(("two", "again", "known"), "Triton's autotuner chooses for a kernel")


def test_an_autotuner_that_is_imported_while_a_case_is_prepared_is_seen() -> None:
    told = told_by("""
        tuners.begin()
        import_triton()
        tuners.find()
        Autotuner([1, 2]).run(64)
        say("case")
    """)
    assert "Triton's autotuner" in told["case"]


CONFIGURED = """
    class Config:  # as triton.runtime.autotuner's, of Triton 3
        def __init__(self, kwargs, num_warps=4, num_stages=3, num_ctas=1, maxnreg=None):
            self.kwargs, self.num_warps, self.num_stages = kwargs, num_warps, num_stages
            self.num_ctas, self.maxnreg = num_ctas, maxnreg

    def add(): pass

    class Chooses(Autotuner):
        base_fn = staticmethod(add)
        def run(self, *args):
            super().run(*args)
            self.best_config = self.cache.get(args, self.configs[0])

    def import_choosing():
        import_triton()
        sys.modules["triton.runtime.autotuner"].Autotuner = Chooses
"""


def test_configurations_that_were_chosen_are_told_of_the_case_that_ran_them() -> None:
    """One that was given alone is a configuration like any other, and no trace of a tuner."""
    script = """
        import_choosing()
        small, large = Config({"BLOCK": 64}, num_warps=8), Config({"BLOCK": 128}, maxnreg=96)
        tuner, fixed = Chooses([small, large], file=large), Chooses([small])
        for name, runs in (("tuned", [tuner, tuner]), ("fixed", [fixed]), ("none", []), ("both", [fixed, tuner])):
            tuners.begin()
            for one in runs:
                one.run(64)
            told[name] = tuners.chosen()
            say(name + " tuner")
    """
    told = told_by(textwrap.dedent(CONFIGURED) + textwrap.dedent(script))
    large = {"BLOCK": "128", "num_warps": "4", "num_stages": "3", "num_ctas": "1", "maxnreg": "96"}
    small = {"BLOCK": "64", "num_warps": "8", "num_stages": "3", "num_ctas": "1"}
    assert told["tuned"] == [{"kernel": "add", "config": large}]
    assert told["fixed"] == [{"kernel": "add", "config": small}]
    assert told["both"] == [{"kernel": "add", "config": small}, {"kernel": "add", "config": large}]
    assert told["none"] == []
    assert told["fixed tuner"] == "" and "chooses for add" in told["tuned tuner"]


@pytest.mark.parametrize(
    ("does", "words"), [("timed()", "waits for the GPU"), ("timed_by_events()", "reads events of the GPU")]
)
def test_code_that_times_the_gpu_itself_is_told_from_then_on(does: str, words: str) -> None:
    """What it has chosen may serve the next case, too."""
    told = told_by(f"""
        def timed_by_events():
            try:
                torch.cuda.Event.elapsed_time(None, None)
            except Exception:  # no GPU here
                pass
        tuners.begin()
        say("before")
        {does}
        say("case")
        tuners.begin()
        say("next")
    """)
    assert told["before"] == ""
    assert told["case"] == told["next"] == f"__main__ {words}, as code does that picks the fastest kernel"


def test_a_case_is_told_what_it_does_itself_beside_what_was_known_before() -> None:
    """As between a check and the estimate of its case, while other cases were checked in the same process."""
    told = told_by("""
        def after(name, does):
            tuners.begin()
            known = tuners.told()
            does()
            told[name] = tuners.told(known)
        import_triton()
        after("tunes", timed)
        after("innocent", lambda: None)
        after("again", timed)
        after("triton", lambda: Autotuner([1, 2]).run(64))
        torch.backends.cudnn.benchmark = True
        after("flag before", lambda: None)
        torch.backends.cudnn.benchmark = False
        after("flag", lambda: setattr(torch.backends.cudnn, "benchmark", True))
    """)
    assert told.pop("innocent") == told.pop("flag before") == ""
    assert told.pop("triton") == "Triton's autotuner chooses for a kernel"
    assert told.pop("flag") == "torch.backends.cudnn.benchmark is on"
    assert [words.partition(",")[0] for words in told.values()] == ["__main__ waits for the GPU"] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("torch.backends.cudnn.benchmark = True", "torch.backends.cudnn.benchmark is on"),
        ("import torch._inductor.config as c; c.autotune_in_subproc = True", "autotune_in_subproc is on"),
        ("sys.modules['numba.cuda'] = types.ModuleType('numba.cuda')", "numba.cuda works on the GPU"),
    ],
)
def test_settings_and_packages_that_may_choose_are_told(setting: str, words: str) -> None:
    assert words in told_by(f"{setting}\ntuners.begin()\nsay('case')")["case"]


@pytest.mark.slow
def test_what_was_imported_for_the_suite_beforehand_is_not_taken_for_torchs(tmp_path: Path) -> None:
    """As in the parent, which imports torch, then what suites import, and then forks."""
    path = tmp_path / "launches.so"
    subprocess.run(
        ["cc", "-shared", "-x", "c", "-", "-o", path],
        input=b'char n[] = "cudaLaunchKernel"; int f() {return 1;}',
        check=True,
    )
    told = told_by(
        f"""
        from perfci.worker import parent
        tuners._before = None
        parent.preload()
        import ctypes
        ctypes.CDLL({str(path)!r})
        tuners.watch()
        say("beforehand")
        """
    )
    assert told == {"beforehand": "launches.so works on the GPU, and what it chooses cannot be told"}


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_library_that_launches_work_by_itself_is_told(tmp_path: Path) -> None:
    """Built here from C: `cudaLaunchKernel` stands in it. Another one, and what Triton builds, are not told."""
    for name, symbol in (("launches", "cudaLaunchKernel"), ("harmless", "add"), ("cache/stub", "cuLaunchKernel")):
        path = tmp_path / f"{name}.so"
        path.parent.mkdir(exist_ok=True)
        code = f"int {symbol}(int a) {{ return a; }}"
        build = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
        subprocess.run(build, input=code, text=True, check=True, timeout=60)
    told = told_by(
        f"""
        import ctypes
        for name in ("harmless", "cache/stub", "launches"):
            ctypes.CDLL({str(tmp_path)!r} + "/" + name + ".so")
            say(name)
        """,
        TRITON_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert told["harmless"] == told["cache/stub"] == ""
    assert told["launches"] == "launches.so works on the GPU, and what it chooses cannot be told"


@pytest.mark.parametrize(
    "name",
    [
        "libcublas.so.12", "libcudart.so.12.8.90", "libcudart-d0da41ae.so.11.0", "libcudart.faf08d9a.so.13",
        "libnvjpeg.36e11081.so.13", "libnvidia-ml.so.1", "libnppial.so.12", "libcudnn_ops.so.9", "libcuda.so.1",
    ],
)  # fmt: skip
def test_nvidias_libraries_are_known_by_their_names(name: str) -> None:
    """As the toolkit, wheels and auditwheel name them."""
    assert tuners.NVIDIA.match(name)
    assert not tuners.NVIDIA.match(f"libmy{name}") and not tuners.NVIDIA.match(name.replace("lib", "libx", 1))
