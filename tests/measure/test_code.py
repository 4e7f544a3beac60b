"""Machine code of base and head where counters are forbidden: from the files of a side to the sentence of the report.

`mm_base.so` and `mm_head.so` are what cuobjdump 13.5 printed of one kernel compiled for 9.0: by way of tensor cores, and
with sums in an array that is indexed at run time.
"""

import json
import lzma
import os
import sys
from pathlib import Path

import pytest

from perfci.judge.explain.case import case_profile
from perfci.measure.prepare import SideWork
from perfci.measure.profiling.collect import read_code
from perfci.model.policy import Policy
from perfci.model.profile import Counters, Fault, KernelUse, Profile, Trace
from perfci.model.results import Case, CaseSide, SideCode
from perfci.profilers.base import ProfilerRequest
from perfci.profilers.sass import code as sass
from perfci.profilers.sass.profiler import Sass

HERE = Path(__file__).parent
DATA = HERE.parent / "data" / "sass"
H100 = (9, 0)
FORBIDDEN = Fault(
    tool="ncu",
    part="counters",
    kind="forbidden",
    text="ERR_NVGPUCTRPERM: counters are for administrators",
    remedy="run as root",
)
MM = "void mm<__half>(const T1 *, const T1 *, float *, int)"
CUBLAS = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
READS = 'case "$3" in *plain*) echo broken; exit 3;; esac; tail -n +2 "$3"; echo "$3" >> "$(dirname "$0")/read"'
"""A cuobjdump for files that hold, behind their first line, what the real one prints."""


@pytest.fixture(autouse=True)
def no_toolkit(monkeypatch, tmp_path):
    """Without the cuobjdump of the machine that the tests run on, and of a Triton beside them."""
    monkeypatch.setattr(sass, "PLACE", str(tmp_path / "none"))
    monkeypatch.setattr(sass, "HOMES", ("tools/of/a/wheel",))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    (tmp_path / "bin").mkdir()


def tools(tmp_path, script=READS):
    for name in (sass.TOOL, sass.DISASSEMBLER):
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)


def side(tmp_path, name, *, at="cache/torch_extensions/mm/mm.so", built=True):
    """A side with its own build of `mm`."""
    made = SideWork(
        name, SideCode(), Policy(version=1, suite=["k.py"]), tmp_path / name, sys.executable, env=dict(os.environ)
    )
    for folder in (made.tree, made.site, made.folder / "cache"):
        folder.mkdir(parents=True)
    if built:
        file = made.folder / at
        file.parent.mkdir(parents=True, exist_ok=True)
        text = lzma.decompress((DATA / f"mm_{name}.so.txt.xz").read_bytes())
        file.write_bytes(b"\x7fELF .nv_fatbin\n" + text)
    return made


def profile(*kernels, counters=None):
    used = [
        KernelUse(
            name=name, count=1, seconds=seconds, grid=(64, 1, 1), block=(32, 1, 1), registers=registers, local=local
        )
        for name, seconds, registers, local in kernels
    ]
    device = sum(kernel.seconds for kernel in used)
    trace = Trace(source="nsys", executions=10, wall=device, busy=device, span=device, kernels=used)
    return Profile(trace=trace, counters=counters, faults=[] if counters else [FORBIDDEN])


def changed(base=(MM, 40e-6, 32, 0), head=(MM, 400e-6, 30, 128), **more):
    """A case whose kernel got slower, and one of a library beside it."""
    return Case(
        id="mm/n=64",
        kernel="mm",
        device="cuda",
        sides={
            "base": CaseSide(profile=profile(base, (CUBLAS, 20e-6, 168, 0), **more)),
            "head": CaseSide(profile=profile(head, (CUBLAS, 20e-6, 168, 0), **more)),
        },
    )


def quiet(text):
    pass


@pytest.mark.slow
def test_where_counters_are_forbidden_the_code_says_why(tmp_path):
    tools(tmp_path)
    case = changed()
    read_code(
        Sass(ProfilerRequest(60.0, capability=H100)), [side(tmp_path, "base"), side(tmp_path, "head")], [case], quiet
    )
    base, head = (case.sides[name].profile.code for name in ("base", "head"))
    assert [(one.name, one.arch, one.tensor, one.registers) for one in base] == [(MM, "sm_90", {"HMMA": 10}, 32)]
    assert [(one.name, one.tensor, one.local_loads, one.local_stores, one.stack) for one in head] == [
        (MM, {}, 13, 13, 128)
    ]
    kept = Case.model_validate_json(case.model_dump_json())
    assert kept == case, "as the journal keeps it"
    told = case_profile(kept, [], None)
    alone = case_profile(kept.model_copy(update={"sides": {"head": kept.sides["head"]}}), [], None)
    fields = {"sentences", "next_steps", "sources", "faults"}
    texts = {"compare": told.model_dump(include=fields), "head alone": alone.model_dump(include=fields)}
    text = json.dumps(texts, indent=1, ensure_ascii=False)
    file = HERE / "golden" / "code.json"
    if os.environ.get("PERFCI_UPDATE_GOLDEN") == "1":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text + "\n", encoding="utf-8")
    assert file.read_text(encoding="utf-8") == text + "\n"
    metrics = case.sides["head"].profile.metrics
    assert "spills" not in metrics and "tensor_active" not in metrics, "other quantities: no limit is answered by them"


def test_nothing_is_read_that_counters_tell(tmp_path):
    tools(tmp_path, "exit 9")
    sides = [side(tmp_path, "base"), side(tmp_path, "head")]
    counted, idle = changed(counters=Counters(source="ncu", chip="gh100")), changed()
    idle.sides = {name: CaseSide(profile=Profile(faults=[FORBIDDEN])) for name in ("base", "head")}
    read_code(Sass(ProfilerRequest(60.0, capability=H100)), sides, [counted, idle], quiet)
    read_code(Sass(ProfilerRequest(60.0, capability=H100)), sides, [], quiet)
    read_code(Sass(ProfilerRequest(60.0, capability=None)), sides, [changed()], quiet)
    assert not any(one.profile.code for one in [*counted.sides.values(), *idle.sides.values()])
    assert not (tmp_path / "bin" / "read").exists()


@pytest.mark.slow
def test_a_counter_that_one_side_lacks_has_both_sides_read(tmp_path):
    tools(tmp_path)
    case = changed()
    case.sides["base"].profile.counters = Counters(source="ncu", chip="gh100")
    read_code(
        Sass(ProfilerRequest(60.0, capability=H100)), [side(tmp_path, "base"), side(tmp_path, "head")], [case], quiet
    )
    assert all(one.profile.code for one in case.sides.values())


def test_without_the_tool_each_side_says_so_once(tmp_path):
    case = changed()
    sides = [side(tmp_path, "base"), side(tmp_path, "head")]
    read_code(Sass(ProfilerRequest(60.0, capability=H100)), sides, [case], quiet)
    for one in case.sides.values():
        assert [(fault.tool, fault.kind) for fault in one.profile.faults[1:]] == [("cuobjdump", "absent")]
        assert one.profile.faults[1].remedy.endswith("-m pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
    told = case_profile(case, [], None).faults
    assert any("cuobjdump: there is no cuobjdump with its nvdisasm" in one for one in told)


def test_a_side_that_built_nothing_lacks_nothing(tmp_path):
    case = changed()
    made = side(tmp_path, "head", built=False)
    for place in ("cache/pip/wheel", "cache/uv/wheel"):
        (made.folder / place).mkdir(parents=True)
        (made.folder / place / "lib.so").write_bytes(b"\x7fELF .nv_fatbin\n")
    read_code(Sass(ProfilerRequest(60.0, capability=H100)), [made], [case], quiet)
    assert case.sides["head"].profile.faults == [FORBIDDEN]


def test_files_that_cannot_be_read_are_told_where_a_kernel_is_missing(tmp_path):
    tools(tmp_path)
    made = side(tmp_path, "head", at="site/mm.so")
    (made.tree / "plain.cubin").write_text("")
    whole, part = changed(), changed()
    whole.sides["head"].profile.trace.kernels.pop()
    read_code(Sass(ProfilerRequest(60.0, capability=H100)), [made], [whole, part], quiet)
    assert whole.sides["head"].profile.faults == [FORBIDDEN]
    (fault,) = part.sides["head"].profile.faults[1:]
    assert (fault.tool, fault.kind) == ("cuobjdump", "incomplete")
    assert fault.text == "plain.cubin: cuobjdump exited with status 3: broken"
    assert [one.name for one in part.sides["head"].profile.code] == [MM], "what was read counts"


def test_the_tool_is_found_beside_the_interpreter_under_test(tmp_path):
    """As Triton's wheel has it: on no PATH but on the interpreter's own."""
    tools(tmp_path)
    home = tmp_path / "wheels" / sass.HOMES[0]
    home.parent.mkdir(parents=True)
    (tmp_path / "bin").rename(home)
    made = side(tmp_path, "head", at="tree/build/bench")
    (made.tree / "build/bench").chmod(0o755)
    made.env = {**made.env, "PYTHONPATH": str(tmp_path / "wheels")}
    case = changed()
    read_code(Sass(ProfilerRequest(60.0, capability=H100)), [made], [case], quiet)
    assert [one.name for one in case.sides["head"].profile.code] == [MM]
