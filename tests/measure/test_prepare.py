"""Whether head's own policy would judge otherwise than base's: by what it says, not by how it is written."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfci.measure.cases import Declarations, load, lost_gpu, redeclared
from perfci.measure.prepare import _told, judged_otherwise
from perfci.measure.request import What
from perfci.model.fingerprint import Fingerprint
from perfci.model.policy import Policy
from perfci.model.policy_text import parse_policy
from perfci.model.results import Case, CaseSide

POLICY = """
version: 1
suite: [kernels/*.py]
limits:
  - {cases: "*", metric: time, regression: 2%, max: 1ms}
  - {cases: "a/*", metric: bandwidth, min: 2TB/s}
"""


def policy(text: str) -> Policy:
    return parse_policy(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("max: 1ms", "max: 1000us"),
        ("2TB/s", "2000GB/s"),
        ("regression: 2%", "regression: 2.0%"),
        ('cases: "*", ', ""),  # which is what is taken without
        ("version: 1", "# in other words\nversion: 1\nbudget: 15m\nfail_on: [missing, broken]"),
        ("suite: [kernels/*.py]", "suite: [more/*.py]\nbuild: make\nenv: {A: b}\npass_env: [C]\npath: [lib]"),
        ("version: 1", "version: 1\nignore: docs/*\ngpu_hour: 3.50 USD"),
    ],
)
def test_the_same_in_other_words_and_what_each_side_has_for_itself_are_no_difference(old: str, new: str) -> None:
    changed = POLICY.replace(old, new)
    assert changed != POLICY
    assert judged_otherwise(policy(POLICY), policy(changed)) == []


@pytest.mark.parametrize(
    ("old", "new", "keys"),
    [
        ("regression: 2%", "regression: 3%", ["limits"]),
        ("max: 1ms", "max: 2ms", ["limits"]),
        (", metric: bandwidth, min: 2TB/s", ", metric: bandwidth, min: 2TB/s, fail_on: []", ["limits"]),
        ("version: 1", "version: 1\nfail_on: []\nbudget: 1m", ["budget", "fail_on"]),
        ("version: 1", "version: 1\ndevices: [cpu]", ["devices"]),
        ("version: 1", "version: 1\nfail_on: [broken, undecided]", ["fail_on"]),
        ("version: 1", "version: 1\nmetrics: {p99: {unit: s, better: lower}}", ["metrics"]),
        ("version: 1", "version: 1\nthreads: 2", ["threads"]),
    ],
)
def test_what_judges_otherwise_is_named(old: str, new: str, keys: list[str]) -> None:
    for pair in ((POLICY, POLICY.replace(old, new)), (POLICY.replace(old, new), POLICY)):
        assert judged_otherwise(*map(policy, pair)) == keys


def test_of_several_limits_the_last_counts_so_their_order_does() -> None:
    lines = POLICY.strip().splitlines()
    turned = "\n".join([*lines[:-2], lines[-1], lines[-2]])
    assert judged_otherwise(policy(POLICY), policy(turned)) == ["limits"]


def found(*limits: dict) -> Declarations:
    return Declarations(cases={"softmax@cpu": {"id": "softmax", "limits": list(limits)}})


def test_a_kernels_own_limits_are_told_apart_too() -> None:
    case = Case(id="softmax", kernel="softmax", device="cpu", sides={"base": CaseSide(), "head": CaseSide()})

    def notes(base: Declarations, head: Declarations) -> list[str]:
        return redeclared([case], {"base": base, "head": head}, policy(POLICY))

    two = {"metric": "time", "regression": "2%"}
    assert notes(found(two), found(two | {"regression": "2.0%"})) == []
    expected = ["base's limits judge; head's count once merged: the limits that `softmax` declares itself differ"]
    for head in (found(), found(two | {"regression": "9%"}), found(two | {"regresion": "9%"}), found(two, two)):
        assert notes(found(two), head) == expected
    assert redeclared([case], {"head": found(two)}, policy(POLICY)) == []
    assert notes(Declarations(), found(two)) == []  # new in head: its limits count


LOGS = {
    "nvcc": (
        'nvcc -c f.cu\nf.cu(3): error: identifier "x" is undefined\n1 error detected in the compilation\n',
        "f.cu(3)",
    ),
    "g++": (
        "f.cpp:1:10: fatal error: none.h: No such file or directory\ncompilation terminated.\nmake: *** [f.o] Error 1\n",
        "f.cpp:1:10: fatal error: none.h",
    ),
    "linker": ("/usr/bin/ld: f.o: undefined reference to `g()'\ncollect2: error: ld returned 1\n", "/usr/bin/ld: f.o"),
    "CMake": ("CMake Error at CMakeLists.txt:3 (find_package):\n  none\n-- Configuring incomplete\n", "CMake Error at"),
    "rustc": ("error[E0425]: cannot find value\nFor more information, try --explain\n", "error[E0425]"),
    "pip": (
        "  error: subprocess-exited-with-error\n  ModuleNotFoundError: No module named 'torch'\n"
        "  note: This error originates from a subprocess, and is likely not a problem with pip.\n"
        "ERROR: Failed building wheel for k\n",
        "ModuleNotFoundError: No module named 'torch'",
    ),
    "none": ("error-handling.o built\n-Werror is on\nmake: *** [x] Error 1\n", "make: *** [x] Error 1"),
}


@pytest.mark.parametrize("name", LOGS)
def test_a_build_that_fails_quotes_the_error_and_not_what_follows_it(tmp_path: Path, name: str) -> None:
    log = tmp_path / "build.log"
    log.write_text("error: of an earlier step\n")
    before = log.stat().st_size
    text, said = LOGS[name]
    log.write_text(log.read_text() + text)
    kind = "its last line: " if name == "none" else "its first error: "
    assert _told(log, before).startswith(kind + said)


def test_a_build_that_prints_nothing(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    assert _told(log, 0) == "it printed nothing"
    log.write_text("error: of an earlier step\n")
    assert _told(log, log.stat().st_size) == "it printed nothing"


@pytest.mark.parametrize(
    ("torch", "why"),
    [
        (None, "python3 has no torch (--python names another)"),
        ("2.9.0+cpu", "see torch.cuda.is_available()"),
        ("2.9.0+rocm6.4", "torch 2.9.0+rocm6.4 is for ROCm, and perfci measures NVIDIA's GPUs alone"),
    ],
)
def test_a_gpu_that_is_demanded_and_not_there_is_told_with_the_reason(torch: str | None, why: str) -> None:
    what = What(mode="run", devices=["cuda"])
    facts = Fingerprint(perfci="1", host="h", cpu="c", cores=1, python="3.12", torch=torch, devices={"cpu": "c"})
    assert why in lost_gpu(what, policy(POLICY), "perfci.yaml", facts, "python3")


def test_a_side_has_the_modules_of_every_file_that_is_imported_alone() -> None:
    """As where one file ends the process: a proof must know what each imports."""
    side: Any = SimpleNamespace(name="head", info=SimpleNamespace(modules={}))
    for name in ("one", "two"):
        reply = {"foreign": [], "files": [], "cases": [], "scripts": [], "modules": {name: f"tree/{name}.py"}}
        worker: Any = SimpleNamespace(begin=lambda *_, **__: None, answer=lambda *_, reply=reply: reply)
        load(side, worker, [f"kernels/{name}.py"], [], 1.0, [], print)
    assert side.info.modules == {"one": "tree/one.py", "two": "tree/two.py"}
