"""The image's entry point on a GPU: perfci as root, the code under test as who owns the sources, profilers beside it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from perfci.profilers.ncu.command import InstalledNcu, admin_only, may_count
from perfci.profilers.ncu.command import find as find_ncu
from perfci.profilers.nsys.command import InstalledNsys
from perfci.profilers.nsys.command import find as find_nsys
from perfci.system.gpu import Gpu, cuda_version
from perfci.system.users import CAP_PERFMON, CAP_SYS_ADMIN, held
from tests.e2e.conftest import CANARY, UID, Repo, Run, as_root

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.usefixtures("gpu"), as_root]

KERNEL = """
    import os
    import re

    import perfci
    import torch
    import triton
    import triton.language as tl

    BLOCK = 1024
    # Not the bounding set: nsys runs in a user namespace of its own, where that one is whole and means nothing.
    told = re.findall(r"(?m)^(?:Cap(?:Eff|Prm|Inh|Amb)|NoNewPrivs):\\s*(\\w+)", open("/proc/self/status").read())
    print("USER", os.getuid(), *sorted(set(told)), flush=True)
    assert not any("canary" in value for value in os.environ.values())

    @triton.jit
    def _scale(x, y, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x + i, mask=i < n)
        tl.store(y + i, tl.exp(v) * v, mask=i < n)

    @perfci.kernel(devices=["cuda"])
    def scale(bench):
        x = bench.randn(1 << 26)
        y = torch.empty_like(x)
        return lambda: (_scale[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), BLOCK=BLOCK, num_warps=4), y)[1]
"""
POLICY = """
    version: 1
    suite: [k.py]
    budget: 120s
    build: id -u
    commands:
      - {{name: app, run: {python} app.py, device: cuda}}
    limits:
      - {{cases: scale, metric: time, regression: 5%}}
      - {{cases: scale, metric: registers, regression: 0%}}
      - {{cases: scale, metric: dram_throughput, min: 20%}}
      - {{cases: app, metric: time, max: 600s}}
      - {{cases: app, metric: kernel_launches, max: 100}}
      - {{cases: app, metric: instructions, regression: 0%}}
"""
APP = """
    import os, torch
    print("USER", os.getuid(), flush=True)
    torch.sin(torch.ones(1 << 20, device="cuda")).sum().item()
"""


def entered(repo: Repo, *args: str) -> Run:
    """perfci as the image starts it, in the repository as its workspace."""
    env = {name: value for name, value in repo.env.items() if name not in ("PERFCI_WORKER", "PYTHONPATH")}
    command = [sys.executable, "-I", "-m", "perfci.container.entry", *args]
    done = subprocess.run(command, cwd=repo.root, env=env, capture_output=True, text=True, timeout=500, check=False)
    return Run(done.returncode, done.stdout, done.stderr, repo.root)


def test_the_entry_point_measures_traces_and_counts_as_the_owner(two_users: Repo) -> None:
    """A regression with its reason: nsys and ncu run as the owner too, ncu with what lets it count and no more."""
    repo = two_users
    gpu, _ = Gpu.open(0)
    assert gpu is not None
    nsys, ncu = find_nsys(), may_count() or find_ncu(cuda_version(gpu.cuda()))
    if not isinstance(nsys, InstalledNsys) or not isinstance(ncu, InstalledNcu):
        # Who runs what is tested without counters: test_two_users.py.
        pytest.skip(f"needs nsys and an ncu that may count: {nsys}, {ncu}")  # a host may forbid counters
    importable = ["setpriv", "--reuid", str(UID), "--clear-groups", sys.executable, "-I", "-c", "import perfci, torch"]
    if subprocess.run(importable, cwd="/", capture_output=True, check=False).returncode:
        # The image's interpreter is open to others, which test_image.py proves.
        pytest.skip(f"user {UID} cannot use {sys.executable}, or perfci is not in it")  # a home folder is closed to it

    repo.env["PATH"] = f"{nsys.path.parent}:{repo.env['PATH']}"
    repo.write("perfci.yaml", POLICY.format(python=sys.executable))
    repo.write("k.py", KERNEL)
    repo.write("app.py", APP)
    repo.commit("base")
    repo.git("switch", "-q", "-c", "change")
    repo.write("k.py", KERNEL.replace("BLOCK = 1024", "BLOCK = 4096"))
    repo.commit("four times the elements a block")
    subprocess.run(["chown", "-R", f"{UID}:{UID}", repo.root], check=True)
    run = entered(repo)
    told = run.out + run.err
    assert run.code == 1, told
    assert "this tree is compared with main" in run.err

    rows = {(row["case"], row["metric"]): row for row in run.report["rows"]}
    assert rows["scale", "registers"]["class"] == "regression", told
    assert rows["scale", "dram_throughput"]["class"] == "unchanged", told
    assert rows["app", "kernel_launches"]["class"] == "unchanged", told
    assert rows["app", "instructions"]["class"] == "unchanged", told
    case = next(case for case in run.results["cases"] if case["id"] == "scale")
    for side in case["sides"].values():
        profile = side["profile"]
        assert (profile["trace"]["source"], profile["faults"]) == ("nsys", []), profile["faults"]
        assert profile["metrics"]["dram_throughput"] > 20
    (first, *_) = next(one["sentences"] for one in run.report["profiles"] if one["case"] == "scale")
    assert re.search(r"registers \d+ → \d+", first), first

    logs = {path.name: path.read_text(errors="replace") for path in (repo.root / "perfci-out" / "logs").iterdir()}
    users = {name: set(re.findall(r"(?m)^USER (\d+.*)$", text)) for name, text in logs.items() if "USER " in text}
    # Capabilities, and that none can be gained.
    lent = sum(1 << one for one in held([CAP_PERFMON, CAP_SYS_ADMIN]))
    nothing, some = f"{UID} {0:016x} 1", f"{UID} {lent:016x} 1"
    for name in ("head.log", "base.log"):
        assert users[name] - {str(UID)} == {nothing}, users
    assert logs["build-head.log"].split() == [str(UID)]
    for side in ("base", "head"):
        (timeline,) = (users[name] for name in users if name.startswith(f"nsys-{side}") and "app" not in name)
        (counts,) = (users[name] for name in users if name.startswith(f"ncu-{side}") and "app" not in name)
        assert timeline == {nothing}, users
        assert counts == {some}, users
    assert lent or not admin_only()

    out = repo.root / "perfci-out"
    assert {path.lstat().st_uid for path in [out, *out.rglob("*")]} == {UID}
    assert CANARY not in "".join(path.read_text(errors="replace") for path in out.rglob("*") if path.is_file())
    assert not list(Path(repo.env["TMPDIR"]).glob("perfci-[0-9]*"))
