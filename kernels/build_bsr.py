"""Builds sparse_bsr_gemm.cu with nvcc into $PERFCI_SITE, and reports what the compiler made of it.

    python3 kernels/build_bsr.py              a step of `build:` in perfci.yaml
    python3 kernels/build_bsr.py --arch 90    without a GPU
    python3 kernels/build_bsr.py --report     a command that `reads: perfci`

The library speaks C: no header of torch is needed, and no time to compile one. Beside it lies bsr_gemm.json with
registers, spills and shared memory as ptxas reports them (-Xptxas -v), or with the reason why there is no library.
Where there is neither a GPU nor --arch, or no nvcc, nothing is built and the step succeeds: the CPU needs nothing.
"""

import argparse
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("sparse_bsr_gemm.cu")
LIBRARY, FACTS = "libbsr_gemm.so", "bsr_gemm.json"
UNITS = {"ptxas_registers": "", "ptxas_spills": "B", "ptxas_shared": "B"}


def site():
    """The folder that this side builds into."""
    folder = os.environ.get("PERFCI_SITE")
    if not folder:
        raise SystemExit("build_bsr.py: PERFCI_SITE is not set: perfci sets it, or name a folder yourself")
    return Path(folder)


def find_nvcc():
    """$NVCC, or nvcc on the PATH, or that of $CUDA_HOME or of the usual place; None where there is none."""
    folders = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    candidates = [os.environ.get("NVCC", ""), "nvcc", *(f"{folder}/bin/nvcc" for folder in folders if folder)]
    return next(filter(None, map(shutil.which, filter(None, candidates))), None)


def find_arch():
    """Compute capability of the first GPU, such as "90"; None where there is no GPU."""
    if not shutil.which("nvidia-smi"):
        return None
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", "--id=0"]
    told = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return told.replace(".", "") if re.fullmatch(r"\d+\.\d", told) else None


def parse(log):
    """What `ptxas -v` says of the one kernel: registers a thread, bytes of spills and of static shared memory."""
    registers = re.findall(r"Used (\d+) registers", log)
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if len(registers) != 1 or len(spills) != 1:
        raise SystemExit(f"build_bsr.py: ptxas describes {len(registers)} kernels, not one:\n{log}")
    static = re.search(r"(\d+) bytes smem", log)
    return {
        "ptxas_registers": int(registers[0]),
        "ptxas_spills": sum(map(int, spills[0])),
        "ptxas_shared": int(static[1]) if static else 0,
    }


def build(arch):
    """Compile, and write the facts beside the library. Raises SystemExit where nvcc fails."""
    folder, nvcc = site(), find_nvcc()
    arch = arch or find_arch()
    if nvcc is None or arch is None:
        why = "no nvcc: install the CUDA toolkit" if nvcc is None else "no GPU: name its architecture with --arch"
        (folder / FACTS).write_text(json.dumps({"missing": why}) + "\n")
        sys.stdout.write(f"sparse_bsr_gemm is not built: {why}\n")
        return
    command = [nvcc, "-O3", "-std=c++17", f"-arch=sm_{arch}", "-Xptxas", "-v", "-shared", "-Xcompiler", "-fPIC"]
    with tempfile.TemporaryDirectory() as kept:  # files that are kept have names of their own, not the process's number
        command += ["--keep", "--keep-dir", kept, str(SOURCE), "-o", str(folder / LIBRARY)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    sys.stdout.write(done.stdout + done.stderr)
    if done.returncode:
        raise SystemExit(f"build_bsr.py: nvcc ended with {done.returncode}")
    facts = parse(done.stdout + done.stderr)
    # ptxas knows nothing of dynamic shared memory.
    facts["ptxas_shared"] += ctypes.CDLL(str(folder / LIBRARY)).bsr_gemm_shared_memory()
    (folder / FACTS).write_text(json.dumps({"arch": f"sm_{arch}", **facts}) + "\n")
    sys.stdout.write(lines(facts))


def facts_of(folder):
    """What the build found out. Raises SystemExit with the reason where there is no library."""
    file = Path(folder) / FACTS
    facts = json.loads(file.read_text()) if file.is_file() else {"missing": "build_bsr.py did not run"}
    if "missing" in facts:
        raise SystemExit(f"sparse_bsr_gemm is not built: {facts['missing']}")
    return facts


def lines(facts):
    """One JSON line a metric, as perfci reads them."""
    return "".join(json.dumps({"metric": name, "value": facts[name], "unit": UNITS[name]}) + "\n" for name in UNITS)


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--arch", help="compute capability without the dot, such as 90; by default the GPU's")
    parser.add_argument("--report", action="store_true", help="print the metrics, and write them to $PERFCI_METRICS")
    options = parser.parse_args()
    if options.report:
        told = lines(facts_of(site()))
        sys.stdout.write(told)
        if "PERFCI_METRICS" in os.environ:
            Path(os.environ["PERFCI_METRICS"]).write_text(told)
    else:
        build(options.arch)


if __name__ == "__main__":
    sys.exit(main())
