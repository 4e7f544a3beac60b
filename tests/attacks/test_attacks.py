"""Every known way to a flattering number is found out from end to end, and its honest twin is not accused.

Where a suite repeats what somebody once met, it names the report.
"""

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import PLAIN_PYTHON, Repo, Run

SUITES = Path(__file__).parent / "suites"


def attacked(repo: Repo, device: str, *names: str) -> Run:
    """A run over suites of these names, and the honest one."""
    repo.write(
        "perfci.yaml",
        f"version: 1\nsuite: [kernels/*.py]\npython: {sys.executable}\ndevices: [{device}]\nbudget: 60s\n",
    )
    for name in ("honest", *names):
        (repo.root / "kernels").mkdir(exist_ok=True)
        shutil.copy(SUITES / f"{name}.py", repo.root / "kernels")
    return repo.perfci("run", "--device", device)


def found_out(run: Run, case: str, words: str) -> None:
    """The case has failed for this reason, and so has the run."""
    assert run.code == 1, run.out + run.err
    assert run.classes().get(case) == "failed", run.out + run.err
    assert words in run.reasons()[case]


MEMO = "its result is remembered, not computed"
INSTEAD = "return tensors, numpy arrays, numbers, text, or lists, tuples and dicts of them"
ON_A_CPU = {
    "cached_output": "its output is cached",
    "cached_list": "its output is cached",
    "lazy_tensor": "Later, a tensor of a class of its own",
    "lazy_generator": "result is a generator",
    "memo_by_address": MEMO,
    "memo_by_version": MEMO,
    "memo_of_its_own": MEMO,
    "memo_when_timed": "after timing: returned what it had computed for earlier values",
    "always_equal": f"result[0] is a L, which cannot be compared: {INSTEAD}",
    "both_agree": "of the reference, result[0] is a L, which cannot be compared",
    "sorted_late": "result is a Sorted, a list of a class of its own: return a plain list",
}


@pytest.mark.torch
@pytest.mark.slow
def test_results_that_are_cached_late_remembered_or_equal_to_all_on_a_cpu(repo: Repo) -> None:
    run = attacked(repo, "cpu", "cached_output", "lazy_output", "memo_copies", "memo_when_timed", "always_equal")
    for case, words in ON_A_CPU.items():
        found_out(run, case, words)
    assert MEMO in run.reasons()["memo_when_timed"]
    assert "honest" not in run.classes()
    assert any(one["case"] == "honest" for one in run.report["measured"])


LIBRARY = """
    REPEATS = {}

    def work(data):
        for _ in range(REPEATS):
            result = sorted(data)
        return result
"""


def compared(repo: Repo, name: str, *replaced: tuple[str, str]) -> Run:
    """A comparison of a suite with itself, whose attack head alone carries out."""
    repo.write(
        "perfci.yaml",
        f"""
        version: 1
        suite: [kernels/*.py]
        python: {PLAIN_PYTHON}
        devices: [cpu]
        budget: 20s
        limits: [{{cases: "*", metric: time, regression: 20%}}]
        """,
    )
    repo.write("attacked.py", LIBRARY.format(1))
    text = (SUITES / f"{name}.py").read_text()
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    assert "ATTACK = True" in text
    (repo.root / "kernels").mkdir()
    suite = repo.root / "kernels" / f"{name}.py"
    suite.write_text(text.replace("ATTACK = True", "ATTACK = False"))
    repo.commit("base")
    suite.write_text(text)
    repo.write("attacked.py", LIBRARY.format(3))
    return repo.perfci("compare", "--base", "HEAD")


def no_verdict(run: Run, said: str, words: str = "") -> None:
    assert run.code == 3, run.out + run.err
    last = run.err.strip().splitlines()[-1]
    assert last.startswith(f"perfci: {said}") and words in last and "there is no verdict" in last
    assert "PASS" not in run.out


@pytest.mark.slow
def test_head_that_ends_base_s_process_gets_no_verdict(repo: Repo) -> None:
    run = compared(repo, "kills_base")
    assert run.code == 3, run.out + run.err
    assert run.report["verdict"] == "error" and "PASS" not in run.out
    assert run.report["sentence"].startswith(
        "kills_base: base failed while it was measured, although it was right before: killed by SIGKILL"
    )
    assert "Nothing can be said of these changes: see logs/base.log" in run.report["advice"]
    assert run.classes() == {"kills_base": "invalid"}
    assert "base failed while it was measured: killed by SIGKILL" in run.reasons()["kills_base"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("source", "tree/attacked.py was changed"),
        ("bytecode", "is not the bytecode of its source"),
        ("shadow", "tree/attacked/__init__.py is new"),
        ("link", "tree/attacked.py was changed"),
    ],
)
def test_head_that_rewrites_base_s_files_gets_no_verdict(repo: Repo, way: str, words: str) -> None:
    run = compared(repo, "rewrites_base", ('WAY = "source"', f'WAY = "{way}"'))
    no_verdict(run, "base's files were changed while it was measured: ", words)
    assert run.report["verdict"] == "error" and "base's files were changed" in run.report["sentence"]


BUILDS = r"""
build:
  - mkdir -p "$XDG_CACHE_HOME/made" && echo begun > "$XDG_CACHE_HOME/made/.ninja_log"
  - cc -O0 -shared -fPIC -DTIMES="$(cat times)" -o "$XDG_CACHE_HOME/made/total.so" total.c
  - cc -O0 -shared -fPIC -DTIMES=5 -o "$XDG_CACHE_HOME/made/slow.so" total.c
  - cd "$XDG_CACHE_HOME/made"; if grep -q "while it is built" "$OLDPWD/way"; then cp slow.so ../../../../base/cache/xdg/made/total.so; fi
  - if grep -q "and put back" way; then cc -O0 -shared -fPIC -DTIMES=1 -o ../../base/cache/xdg/made/total.so total.c; fi
limits: [{cases: '*', metric: time, regression: 10%}]
"""
TOTAL = """
double total(long n) {
    double sum = 0;
    for (int k = 0; k < TIMES; k++) { sum = 0; for (long i = 0; i < n; i++) sum += i * 0.5; }
    return sum;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")  # which every host of GPU code has
@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("while it is built", "base's caches were changed while head was built: xdg/made/total.so"),
        ("while it is built, and put back", "base's caches were changed while head was built: xdg/made/total.so"),
        (
            "while it is measured",
            "base's files were changed while it was measured: cache/xdg/made/total.so was changed",
        ),
        ("not at all", ""),
    ],
)
def test_head_that_rewrites_what_base_loads_from_its_caches_gets_no_verdict(repo: Repo, way: str, said: str) -> None:
    repo.policy(BUILDS)
    (repo.root / "kernels").mkdir()
    shutil.copy(SUITES / "rewrites_caches.py", repo.root / "kernels")
    for name, text in (("total.c", TOTAL), ("times", "1"), ("way", "base")):
        repo.write(name, text)
    repo.commit()
    repo.write("way", way)
    repo.write("times", "2")
    run = repo.perfci("compare", "--base", "HEAD", "--budget", "20s")
    if not said:
        assert run.results["error"] is None and run.report["pairs"] > 0, run.out + run.err
        return
    no_verdict(run, said)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kills_base", "rewrites_base"])
def test_the_same_without_the_attack_is_measured(repo: Repo, name: str) -> None:
    """Bytecode and caches that a run leaves behind are no change."""
    run = compared(repo, name, ("if ATTACK", "if False and ATTACK"))
    assert "were changed while" not in run.err and run.results["error"] is None, run.err
    assert run.report["pairs"] > 0 and run.classes()[name] != "invalid"


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "replaced"), [("patched_timer", "time.perf_counter_ns"), ("patched_check", "check.compare")]
)
def test_replaced_functions_on_a_cpu(repo: Repo, name: str, replaced: str) -> None:
    run = attacked(repo, "cpu", name)
    found_out(run, name, f"{replaced}: what was timed and checked with it cannot be trusted")


HONEST = """
    import perfci

    @perfci.kernel(devices=["cpu"])
    def {name}(bench):
        data = [bench.random.random() for _ in range({count})]
        bench.reference(lambda: sorted(data))
        return lambda: sorted(data)
"""


def forged(repo: Repo, name: str, count: int = 20_000) -> Run:
    """A comparison of what sorts with a suite that does the same, and pretends to be faster."""
    repo.policy("budget: 60s\nlimits: [{cases: '*', metric: time, regression: 20%}]")
    repo.write(f"kernels/{name}.py", HONEST.format(name=name, count=count))
    repo.commit("base")
    shutil.copy(SUITES / f"{name}.py", repo.root / "kernels")
    return repo.perfci("compare", "HEAD")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["instance", "frame", "json", "channel", "server", "socket"])
def test_times_that_are_forged_in_the_worker_contradict_the_run_s_own_clock(repo: Repo, way: str) -> None:
    """No function is replaced that times or checks: head would be 2900 times faster."""
    run = forged(repo, f"forged_{way}")
    found_out(run, f"forged_{way}", "fails in head: the worker says ")
    told = r"the worker says [\d.]+ [nµ]s an execution, the machine spent [\d.]+ ms"
    assert re.search(told, run.reasons()[f"forged_{way}"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["forged_slightly", "fewer_executions", "skipped_when_timed"])
def test_what_the_run_s_own_clock_does_not_see_either(repo: Repo, name: str) -> None:
    """As docs/security.md says."""
    run = forged(repo, name, 200 if name == "fewer_executions" else 20_000)
    assert run.code == 0 and run.classes() == {name: "improvement"}, run.out + run.err


@pytest.mark.torch
@pytest.mark.slow
def test_more_work_than_a_cpu_can_do_is_not_believed(repo: Repo) -> None:
    """A time beyond the speed of light of the declared work is `invalid`, a warning, and its rates are not judged."""
    run = attacked(repo, "cpu", "too_fast")
    assert run.code == 0, run.out + run.err
    assert run.classes().get("too_fast") == "invalid"
    assert "head is faster than this CPU can do the declared operations" in run.reasons()["too_fast"]
    assert "honest" not in run.classes()
    ceilings = run.results["fingerprint"]["ceilings"]["cpu"]
    assert ceilings["matmul"]["fp32"]["value"] > 1e9


ON_A_GPU = {
    "lazy_output": ("lazy_tensor",),
    "memo_copies": ("memo_by_address", "memo_by_version", "memo_of_its_own"),
}
"""Suite → its cases, where they are not called as it is."""


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
        ("memo_copies", MEMO),
    ],
)
def test_on_a_gpu(repo: Repo, name: str, words: str) -> None:
    run = attacked(repo, "cuda", name)
    for case in ON_A_GPU.get(name, (name,)):
        found_out(run, case, words)
    if not name.startswith("patched"):
        assert "honest" not in run.classes(), run.reasons()
