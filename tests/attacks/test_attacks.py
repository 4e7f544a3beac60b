"""Every known way to a flattering number is found out from end to end, and its honest twin is not accused.

Where a suite repeats what somebody once met, it names the report.
"""

import shutil
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Repo, Run

SUITES = Path(__file__).parent / "suites"


def attacked(repo: Repo, device: str, *names: str) -> Run:
    """A run over suites of these names, and the honest one."""
    repo.write(
        "perfci.yaml",
        f"version: 1\nsuite: [kernels/*.py]\npython: {sys.executable}\ndevices: [{device}]\nbudget: 20s\n",
    )
    for name in ("honest", *names):
        (repo.root / "kernels").mkdir(exist_ok=True)
        shutil.copy(SUITES / f"{name}.py", repo.root / "kernels")
    return repo.perfci("run", "--device", device)


def found_out(run: Run, case: str, words: str) -> None:
    """The case has failed for this reason, and so has the gate."""
    assert run.code == 1, run.out + run.err
    assert run.classes().get(case) == "failed", run.out + run.err
    assert words in run.reasons()[case]


@pytest.mark.torch
@pytest.mark.slow
def test_cached_and_lazy_results_on_a_cpu(repo: Repo) -> None:
    run = attacked(repo, "cpu", "cached_output", "lazy_output")
    for case in ("cached_output", "cached_list"):
        found_out(run, case, "its output is cached")
    found_out(run, "lazy_tensor", "Later, a tensor of a class of its own")
    found_out(run, "lazy_generator", "result is a generator")
    assert "honest" not in run.classes()
    assert any(one["case"] == "honest" for one in run.report["measured"])


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "replaced"),
    [
        pytest.param("patched_timer", "time.perf_counter_ns", marks=pytest.mark.slow),
        ("patched_check", "check.compare"),
    ],
)
def test_replaced_functions_on_a_cpu(repo: Repo, name: str, replaced: str) -> None:
    run = attacked(repo, "cpu", name)
    found_out(run, name, f"{replaced}: what was timed and checked with it cannot be trusted")


@pytest.mark.torch
@pytest.mark.slow
def test_more_work_than_a_cpu_can_do_is_not_believed(repo: Repo) -> None:
    """A time under the floor of the declared work is `invalid`, a warning, and its rates are not judged."""
    run = attacked(repo, "cpu", "too_fast")
    assert run.code == 0, run.out + run.err
    assert run.classes().get("too_fast") == "invalid"
    assert "head is faster than this CPU can do the declared operations" in run.reasons()["too_fast"]
    assert "honest" not in run.classes()
    ceilings = run.results["fingerprint"]["extra"]["ceilings"]["cpu"]
    assert ceilings["matmul"]["fp32"]["value"] > 1e9


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("patched_event", "replaced torch.cuda.Event.elapsed_time"),
        ("side_stream", "on another stream that it does not join"),
        ("persisting_l2", "of the L2 aside"),
        ("cached_graph", "its output is cached"),
        ("batch_and_skip", "its output is cached"),
        ("cached_output", "its output is cached"),
        ("lazy_output", "a tensor of a class of its own"),
    ],
)
def test_on_a_gpu(repo: Repo, name: str, words: str) -> None:
    run = attacked(repo, "cuda", name)
    found_out(run, "lazy_tensor" if name == "lazy_output" else name, words)
    if not name.startswith("patched"):
        assert "honest" not in run.classes(), run.reasons()
