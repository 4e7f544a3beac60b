"""Compile the cubins that tests of `perfci.work` compare: `python build.py PTXAS`.

With nvcc and nvlink of CUDA 13.5 on PATH, and PTXAS that of CUDA 12.8 in Triton 3.5, which writes an older ABI:

    pip install nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-cccl nvidia-cuda-runtime
    pip download --no-deps triton==3.5.0  # triton/backends/nvidia/bin/ptxas

One archive an architecture, `sm_90a.tar.xz`: NAME.cubin for each build below, `base` being the sources as they are.
"""

import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")
KERNELS = {
    "base": "",
    "again": "",
    "elsewhere": "",
    "lines": "-lineinfo",
    "comments": "-DCOMMENT=1",
    "comments_lines": "-DCOMMENT=1 -lineinfo",
    "added_before": "-DADDED=1",
    "added_between": "-DADDED=2",
    "added_after": "-DADDED=3",
    "swapped": "-DSWAPPED",
    "factor": "-DFACTOR=2.5f",
    "block": "-DBLOCK=256",
    "type": "-DTYPE=double",
    "first": "-DFIRST=1.5f",
    "bias": "-DBIAS=4.5f",
    "deep": "-DDEEP=3.5f",
    "near": "-DNEAR=0.75f",
    "format": "-DCOLON",
    "scratch": "-DSCRATCH=48",
    "slack": "-DSLACK=128",
    "dynamic": "-DDYNAMIC",
    "alignment": "-DALIGNMENT=64",
    "bounds": "-DTHREADS=256",
    "cluster": "-DCLUSTER=2",
    "parameter": "-DPARAMETER",
    "registers": "-maxrregcount=16",
    "fast": "-use_fast_math",
    "debug": "-G",
}
LINKED = {
    "linked": ("", ""),
    "linked_again": ("", ""),
    "linked_lines": ("-lineinfo", "-lineinfo"),
    "linked_added": ("-DADDED", ""),
    "linked_outer": ("", "-DOUTER=2.0f"),
    "linked_inner": ("", "-DINNER=8.0f"),
    "linked_right": ("-DCALLEE=right", ""),
}
INTERNAL = {
    "internal": "",
    "internal_elsewhere": "",
    "internal_factor": "-DFACTOR=3.0f",
    "internal_first": "-DFIRST=9.0f",
}
OLD = {"old": "", "old_added": "-DADDED=1", "old_factor": "-DFACTOR=2.5f", "old_registers": "-DTHREADS=1024"}


def run(*argv: object) -> None:
    subprocess.run([str(one) for one in argv], check=True)


def kernels(name: str, architecture: str, folder: Path) -> None:
    source = shutil.copy(HERE / "kernels.cu", folder / ("renamed.cu" if name == "elsewhere" else "kernels.cu"))
    run("nvcc", "-cubin", f"-arch={architecture}", *KERNELS[name].split(), source, "-o", folder / f"{name}.cubin")


def linked(name: str, architecture: str, folder: Path) -> None:
    objects = []
    for file, more in zip(("linked.cu", "callees.cu"), LINKED[name], strict=True):
        source = shutil.copy(HERE / file, folder / file)
        objects.append(folder / f"{file}.o")
        run("nvcc", "-rdc=true", "-cubin", f"-arch={architecture}", *more.split(), source, "-o", objects[-1])
    run("nvlink", f"-arch={architecture}", *objects, "-o", folder / f"{name}.cubin")


def internal(name: str, architecture: str, folder: Path) -> None:
    (folder / name).mkdir()
    source = shutil.copy(HERE / "internal.cu", folder / name)
    run("nvcc", "-cubin", f"-arch={architecture}", *INTERNAL[name].split(), source, "-o", folder / f"{name}.cubin")


def old(name: str, architecture: str, folder: Path) -> None:
    ptx = folder / "kernels.ptx"
    run("nvcc", "-ptx", f"-arch={architecture}", *OLD[name].split(), HERE / "kernels.cu", "-o", ptx)
    ptx.write_text(re.sub(r"(?m)^\.version .*", ".version 8.7", ptx.read_text()))
    run(sys.argv[1], f"-arch={architecture}", ptx, "-o", folder / f"{name}.cubin")


def build(name: str, architecture: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        by = next((by for names, by in ((LINKED, linked), (INTERNAL, internal), (OLD, old)) if name in names), kernels)
        by(name, architecture, Path(folder))
        return (Path(folder) / f"{name}.cubin").read_bytes()


def main() -> None:
    with ThreadPoolExecutor() as pool:
        for architecture in ARCHITECTURES:
            names = [one for one in (*KERNELS, *LINKED, *INTERNAL, *OLD) if one != "cluster" or architecture != "sm_80"]
            built = pool.map(build, names, [architecture] * len(names))
            with tarfile.open(HERE / f"{architecture}.tar.xz", "w:xz", preset=9) as archive:
                for name, cubin in zip(names, built, strict=True):
                    member = tarfile.TarInfo(f"{name}.cubin")
                    member.size = len(cubin)
                    archive.addfile(member, io.BytesIO(cubin))


if __name__ == "__main__":
    main()
