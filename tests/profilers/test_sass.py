"""Machine code as cuobjdump 13.5 printed it, of small kernels for five architectures."""

import hashlib
import json
import lzma
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfci.model.profile import KernelCode, KernelUse
from perfci.profilers.sass import code as sass
from perfci.profilers.sass.code import (
    Inspected,
    Unread,
    _word,
    code_files,
    find,
    inspect,
    match,
    may_name,
    normal,
    parse,
    runner,
    wheels,
)
from tests.system.machines import program

DATA = Path(__file__).parents[1] / "data" / "sass"
MM = "_ZN4demo2mmI6__halfEEvPKT_S4_Pfi"
AXPY = "_Z4axpyfPKfPfi"


def recorded(name):
    return lzma.open(DATA / f"{name}.txt.xz", "rt").read().splitlines()


def code(arch, tensor, loads=0, stores=0, registers=None, stack=0, shared=0):
    return KernelCode(
        name="", arch=arch, tensor=tensor, local_loads=loads, local_stores=stores, registers=registers, stack=stack,
        shared=shared,
    )  # fmt: skip


def use(name, registers=None):
    return KernelUse(name=name, count=1, seconds=1e-6, grid=(1, 1, 1), block=(32, 1, 1), registers=registers)


def test_a_cubin():
    found = parse(recorded("k_80.cubin"), (8, 0))
    assert set(found) == {MM, AXPY, "spills"}
    assert found[MM] == code("sm_80", {"HMMA": 10}, registers=32)
    assert found[AXPY] == code("sm_80", {}, registers=10)
    spills = found["spills"]
    assert (spills.tensor, spills.registers, spills.stack, spills.shared) == ({}, 64, 1152, 1024)
    assert spills.local_loads > 100 and spills.local_stores > 100


@pytest.mark.parametrize(
    ("name", "capability", "tensor"),
    [
        ("m_80", (8, 0), {"imma": {"IMMA": 1}, "dmma": {"DMMA": 1}, "wgmma": {}, "tcgen05": {}}),
        ("m_90a", (9, 0), {"imma": {"IMMA": 1}, "dmma": {"DMMA": 1}, "wgmma": {"HGMMA": 1}, "tcgen05": {}}),
        ("m_100a", (10, 0), {"imma": {"IMMA": 1}, "dmma": {"DMMA": 1}, "wgmma": {}, "tcgen05": {"UTCHMMA": 1}}),
    ],
)  # fmt: skip
def test_the_tensor_cores_of_each_generation(name, capability, tensor):
    found = parse(recorded(f"{name}.cubin"), capability)
    assert {kernel: one.tensor for kernel, one in found.items()} == tensor


def test_opcodes_of_the_tensor_cores_are_told_from_all_others():
    kinds = ("H", "I", "Q", "D", "B", "O", "HG", "IG", "QG", "BG", "UTCH", "UTCI", "UTCQ", "UTCO", "UTCMXQ")
    tensor = [f"{kind}MMA" for kind in kinds]
    others = ["FFMA", "HFMA2", "IMAD", "UMOV", "UTMALDG", "UTCBAR", "UTCCP", "WARPGROUP"]
    head = [" Function k:", "  REG:8 STACK:0 SHARED:0", "\tcode for sm_80", "\t\tFunction : k"]
    code = [f"        /*0010*/       @!UP0 {name}.1688.F32 R4, R12, R20, R4 ;   /* 0x0 */" for name in tensor + others]
    assert parse([*head, *code, "\t\t.........."], (8, 0))["k"].tensor == dict.fromkeys(tensor, 1)


def test_of_a_library_that_code_counts_which_the_chip_runs():
    lines = recorded("lib.so")
    assert parse(lines, (8, 0))["spills"].stack == 1152
    assert parse(lines, (8, 6))["spills"].arch == "sm_80"
    assert parse(lines, (9, 0))["spills"].arch == "sm_90a" and parse(lines, (9, 0))["spills"].stack == 1176
    assert parse(lines, (10, 0)) == {} and parse(lines, (7, 5)) == {}
    assert parse(recorded("k_120a.cubin"), (12, 1)) == {}  # code for 12.0 alone


def test_a_function_that_was_not_read_to_its_end_is_left_out():
    lines = recorded("k_80.cubin")
    last = max(at for at, line in enumerate(lines) if "Function :" in line)
    names = {line.split()[-1] for line in lines if "Function :" in line}
    assert set(parse(lines[: last + 5], (8, 0))) == names - {lines[last].split()[-1]}


def test_names_of_nsys_kineto_and_the_code_are_one():
    mangled = (
        "_ZN2at6native29vectorized_elementwise_kernelILi2ENS0_21CUDAFunctorOnSelf_addIlEESt5arrayIPcLm2EEEEviT0_T1_"
    )
    nsys = "void at::native::vectorized_elementwise_kernel<(int)2, at::native::CUDAFunctorOnSelf_add<long>, std::array<char *, (unsigned long)2>>(int, T2, T3)"
    kineto = "void at::native::vectorized_elementwise_kernel<2, at::native::CUDAFunctorOnSelf_add<long>, std::array<char*, 2ul> >(int, at::native::CUDAFunctorOnSelf_add<long>, std::array<char*, 2ul>)"
    assert normal(mangled) == normal(nsys) == normal(kineto)
    other = kineto.replace("<2,", "<4,")
    assert normal(other) != normal(kineto)
    assert normal("void f<(bool)1, (int)-1>(T1 *)") == normal("void f<true, -1>(float*)") == "f<1,-1>"
    assert normal("void g<void h(int)::[lambda(float) (instance 1)]>(T1)") == normal(
        "void g<void h(int)::{lambda(float)#1}>(X)"
    )
    assert normal("(anonymous namespace)::k(int)") == normal("<unnamed>::k(int)") == "(anonymousnamespace)::k"
    assert normal("triton_poi_fused_0") == "triton_poi_fused_0" and normal("") == ""


def test_kernels_find_their_code():
    found = Inspected({name: [one] for name, one in parse(recorded("k_80.cubin"), (8, 0)).items()})
    answers = match(
        [use("void demo::mm<__half>(const T1 *, const T1 *, float *, int)", 32), use("axpy(float, const float *, float *, int)"),
         use("spills", 64), use("spills", 63), use("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", 168)], found,
    )  # fmt: skip
    assert answers[0].name.startswith("void demo::mm<__half>"), "as the trace has it"
    assert answers[0].tensor == {"HMMA": 10} and answers[1].tensor == {} and answers[2].local_stores
    assert answers[3] is None, "other registers: another build of it ran"
    assert answers[4] is None, "code that is not at hand tells nothing"


def test_of_several_configurations_registers_choose_and_else_nothing_is_said():
    with_tensor, without = code("sm_90", {"HGMMA": 4}, registers=168), code("sm_90", {}, registers=40)
    twin = code("sm_90", {"HGMMA": 8}, registers=168)
    answers = match([use("k", 168), use("k", 40), use("k")], Inspected({"k": [with_tensor, without]}))
    assert [one and one.tensor for one in answers] == [{"HGMMA": 4}, {}, None]
    assert match([use("k", 168)], Inspected({"k": [with_tensor, twin]})) == [None]


CODE = b"\x7fELF\2\1\1 ... .nv_fatbin ..."


def tool(tmp_path, script, name="cuobjdump"):
    return Path(program(tmp_path, name, script))


def test_files_are_read_through_the_tool_and_what_fails_is_said(tmp_path):
    (tmp_path / "k_80.cubin").write_text("\n".join(recorded("k_80.cubin")) + "\n")
    (tmp_path / "slow.cubin").write_text("")
    (tmp_path / "broken.cubin").write_text("")
    (tmp_path / "lib.so").write_bytes(CODE)
    (tmp_path / "cut.cubin").write_text("")
    script = """
    case $3 in
      *k_80.cubin) cat "$3";;
      *slow.cubin) sleep 600 & sleep 600;;  # longer than a test may take
      *broken.cubin) echo "cuobjdump fatal   : something" >&2; exit 1;;
      *) echo "cuobjdump info    : File '$3' does not contain device code" >&2; exit 255;;
    esac
    """
    files, left = code_files([tmp_path])
    assert len(files) == 5 and left == []
    found = inspect(files, runner(tool(tmp_path, script), seconds=1), (8, 0))
    assert set(found.kernels) == {MM, AXPY, "spills"}
    assert sorted(found.left) == [
        "broken.cubin: cuobjdump exited with status 1: cuobjdump fatal   : something",
        "cut.cubin: no machine code in it: truncated, or for something else",
        "slow.cubin: not read within 1 s",
    ]


@pytest.mark.slow
def test_what_was_read_before_a_bound_counts(tmp_path):
    text = "\n".join(recorded("k_80.cubin")) + "\n"
    (tmp_path / "k.cubin").write_text(text)
    run = runner(tool(tmp_path, 'cat "$3"; sleep 60'), seconds=1)
    found = inspect([tmp_path / "k.cubin"], run, (8, 0))
    assert set(found.kernels) == {MM, AXPY, "spills"} and found.left == ["k.cubin: not read within 1 s"]
    with pytest.raises(Unread, match="the rest is not read"):
        list(runner(tool(tmp_path, "yes"), seconds=20, largest=2**22)(tmp_path / "k.cubin"))
    late = inspect([tmp_path / "k.cubin"] * 3, run, (8, 0), seconds=0)
    assert late.kernels == {} and late.left == ["3 files: not read, 0 s were over"]


def test_a_tool_that_cannot_start_and_a_file_that_is_gone_are_said(tmp_path):
    found = inspect([tmp_path / "gone.cubin"], runner(tool(tmp_path, "")), (8, 0))
    assert found.left == ["gone.cubin: cannot be read (No such file or directory)"]
    (tmp_path / "k.cubin").write_text("")
    found = inspect([tmp_path / "k.cubin"], runner(tmp_path / "none"), (9, 0))
    assert found.kernels == {} and "none: not found" in found.left[0]


def test_the_tool_is_found_where_wheels_keep_it(tmp_path):
    def found(*folders, path=tmp_path / "bin"):
        return find(folders, str(path), tmp_path / "root")

    assert found() is None
    home = tmp_path / "site" / "triton/backends/nvidia/bin"
    home.mkdir(parents=True)
    tool(home, "")
    assert found(tmp_path / "site") is None, "it cannot do without nvdisasm"
    tool(home, "", "nvdisasm")
    assert found(tmp_path / "other", tmp_path / "site") == home / "cuobjdump"
    toolkit = tmp_path / "root" / sass.PLACE
    toolkit.mkdir(parents=True)
    assert tool(toolkit, "") and tool(toolkit, "", "nvdisasm")
    assert found(tmp_path / "site") == toolkit / "cuobjdump"
    (tmp_path / "bin").mkdir()
    tool(tmp_path / "bin", "")
    assert found() == toolkit / "cuobjdump"
    tool(tmp_path / "bin", "", "nvdisasm")
    assert found() == tmp_path / "bin" / "cuobjdump"


@pytest.mark.parametrize("told", ["", "junk", "{}", "3", '["/a"'])
def test_an_interpreter_that_tells_nothing_has_no_wheels(told):
    assert wheels(told) == []


def test_an_interpreter_tells_its_folders():
    told = subprocess.run([sys.executable, "-c", sass.SEARCH], capture_output=True, text=True, check=True).stdout
    assert [str(one) for one in wheels(told)] == [one for one in json.loads(told) if one]
    assert any("site-packages" in str(one) for one in wheels(told))


def test_files_newest_first_within_bounds(tmp_path, monkeypatch):
    for age, name in enumerate(("a.cubin", "b.so", "c.txt", "d.cubin")):
        (tmp_path / name).write_bytes(CODE if name == "b.so" else b"x")
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    assert [path.name for path in code_files([tmp_path, tmp_path])[0]] == ["a.cubin", "b.so", "d.cubin"]
    monkeypatch.setattr(sass, "LARGEST", 4)
    monkeypatch.setattr(sass, "MOST_FILES", 1)
    files, left = code_files([tmp_path, tmp_path / "none"])
    assert [path.name for path in files] == ["a.cubin"]
    assert left == ["b.so: not read, over 0 MiB", "1 of 2 files: not read, the newest 1 are"]


@pytest.mark.parametrize(
    ("name", "mangled", "word"),
    [
        ("_softmax", "_softmax", b"_softmax"),
        ("void ops::scan<float, (int)4>(float*)", "_ZN3ops4scanIfLi4EEEvPf", b"scan"),
        ("_ZN3ops4scanIfLi4EEEvPf", "_ZN3ops4scanIfLi4EEEvPf", b"_ZN3ops4scanIfLi4EEEvPf"),
        ("void (anonymous namespace)::sum<int>(int*)", "_ZN12_GLOBAL__N_13sumIiEEvPi", b""),
        ("std::operator<<(int)", "_ZStlsi", b""),
        ("void ops::run()::{lambda(int)#1}::operator()(int)", "_ZZN3ops3runEvENKUliE_clEi", b"run"),
    ],
)
def test_cubins_without_the_kernels_in_question_are_passed_over(tmp_path, name, mangled, word):
    """cuobjdump takes a fifth of a second a file, and a cache of Triton's holds hundreds."""
    assert _word(name) == word
    kernel = KernelUse(name=name, count=1, seconds=1, grid=(1, 1, 1), block=(1, 1, 1))
    for file, content in {"own.cubin": mangled, "other.cubin": "_another", "lib.so": "compressed"}.items():
        header = b"\x7fELF".ljust(0x28, b"\0") + struct.pack("<Q", 64) + bytes(16)
        (tmp_path / file).write_bytes(header + content.encode() + b"\0")
    (tmp_path / "cut.cubin").write_bytes(header[:60])
    (tmp_path / "empty.cubin").touch()
    told = {file.name: may_name(file, [kernel]) for file in tmp_path.iterdir()}
    assert told == {
        "own.cubin": True, "other.cubin": word == b"", "lib.so": True, "empty.cubin": True, "cut.cubin": True
    }  # fmt: skip


def test_libraries_and_programs_count_where_they_hold_code(tmp_path):
    for name, content in {"libk.so.1": CODE, "bench": CODE, "plain.so": CODE[:8], "run.sh": b"#!/bin/sh\n# .nv_fatbin", "empty.so": b"", "k.o": CODE}.items():  # fmt: skip
        (tmp_path / name).write_bytes(content)
    (tmp_path / "bench").chmod(0o755)
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "libk.so").symlink_to("libk.so.1")
    assert {path.name for path in code_files([tmp_path])[0]} == {"libk.so.1", "bench"}


def test_the_digest_before_a_cubin_of_cupy_is_not_given_to_the_tool(tmp_path):
    text = ("\x7fELF\n" + "\n".join(recorded("k_80.cubin")) + "\n").encode()
    (tmp_path / "cupy.cubin").write_bytes(hashlib.sha1(text).hexdigest().encode() + text)
    run = runner(tool(tmp_path, 'head -c 4 "$3" | grep -q ELF || exit 1; tail -n +2 "$3"'))
    found = inspect([tmp_path / "cupy.cubin"], run, (8, 0))
    assert set(found.kernels) == {MM, AXPY, "spills"} and found.left == []


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_mutated_output_never_invents_tensor_cores(data):
    lines = list(recorded("m_80.cubin"))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(lines) - 1))
        lines[at : at + data.draw(st.integers(0, 30))] = data.draw(st.lists(st.text(max_size=30), max_size=3))
    for one in parse(lines, (8, 0)).values():
        assert sum(one.tensor.values()) <= 2 and one.arch.startswith("sm_8")


@given(st.text(max_size=200))
def test_any_name_has_a_normal_form_that_stays(name):
    once = normal(name)
    assert not any(character.isspace() for character in once)
