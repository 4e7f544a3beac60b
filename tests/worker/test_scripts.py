"""Benchmark scripts in a worker: what tells calls apart, replaced timers, and functions held on a thread."""

import builtins
import enum
import io
import random
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.benchmark import Timer

from perfci.worker import tuners
from perfci.worker.bench import Bench, prepare
from perfci.worker.checks.check import check_case, verify
from perfci.worker.scripts import timers
from perfci.worker.scripts.calls import Counter, label, stable, telling
from perfci.worker.scripts.held import Gone, Held, leave_all
from perfci.worker.scripts.kernel import ScriptKernel, kernel_of
from perfci.worker.scripts.reached import device_bytes
from perfci.worker.scripts.script import Script, Unlisted, Unsupported, kernel_names, said

VALUES = st.one_of(st.integers(-2, 2), st.sampled_from(["a", "b"]), st.booleans())
WORDS = st.lists(st.dictionaries(st.sampled_from(["n", "dtype", "mode", "in"]), VALUES, max_size=4), max_size=12)


@given(WORDS)
def test_no_two_calls_have_one_name(calls: list[dict]) -> None:
    names = telling(calls, stable(calls, calls))
    counter = Counter(names)
    named = [repr(sorted(counter.name(words).items())) for words in calls]
    assert len(set(named)) == len(named)
    for name in names:  # none is there for nothing
        rest = [one for one in names if one != name]
        before = names[: names.index(name)]
        parts = {tuple(repr(words.get(one)) for one in before) for words in calls}
        assert len({tuple(repr(words.get(one)) for one in [*before, name]) for words in calls}) > len(parts), rest


@given(WORDS, st.lists(st.sampled_from(["n", "dtype", "mode"]), unique=True))
def test_names_of_base_come_first(calls: list[dict], base: list[str]) -> None:
    names = telling(calls, stable(calls, calls), base)
    used = [name for name in base if any(name in words for words in calls)]
    assert names[: len(used)] == used


def test_times_tell_no_calls_apart_and_a_script_that_picks_by_them_is_refused() -> None:
    first = [{"n": 1, "ms": 0.1}, {"n": 2, "ms": 0.2}]
    second = [{"n": 1, "ms": 0.3}, {"n": 2, "ms": 0.4}]
    assert telling(first, stable(first, second)) == ["n"]
    with pytest.raises(ValueError, match="picks by time"):
        stable(first, second[:1])


def test_a_held_function_runs_where_its_script_waits() -> None:
    stood: list[object] = []

    def script(held: Held) -> None:
        try:
            held.hold(threading.get_ident)
        except Exception:  # noqa: BLE001  # as scripts have it around their calls
            stood.append("caught")
        finally:
            stood.append("left")

    held = Held(script)
    assert held() == held.within(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        held.within(lambda: 1 / 0)
    assert stood == []
    held.leave()
    held.leave()
    assert stood == ["left"]
    with pytest.raises(RuntimeError, match="closed"):
        held.fn()


def test_a_script_that_does_not_reach_its_call_says_why() -> None:
    with pytest.raises(Gone, match="without this call"):
        Held(lambda held: None)
    with pytest.raises(Gone, match="requires SM100"):
        Held(lambda held: sys.exit("requires SM100"))
    with pytest.raises(KeyError):
        Held(lambda held: {}["missing"])


def script(tmp_path: Path, text: str, name: str = "sums.py", **fields: object) -> Script:
    tmp_path.joinpath(name).write_text(dedent(text))
    given: dict = {"args": [], "device": "cpu", "select": {}, "reference": {}, "rtol": 0.0, "atol": 0.0, "timers": {}}
    return Script(file=name, kernel="sums", **(given | fields))


def test_files_that_are_called_alike_are_named_with_their_folders() -> None:
    files = ["a/flagship.py", "a/2d.py", "b/flagship.py", "b/c-d/other.py", "b/c-d/same.py", "x/c-d/same.py"]
    assert kernel_names(files + files, {}) == {
        "a/flagship.py": "a_flagship", "a/2d.py": "_2d", "b/flagship.py": "b_flagship", "b/c-d/other.py": "other",
        "b/c-d/same.py": "b_c_d_same", "x/c-d/same.py": "x_c_d_same",
    }  # fmt: skip
    assert kernel_names(["/abs/one.py", "/abs/**/one.py"], {}) == {"/abs/one.py": "abs_one", "/abs/**/one.py": "___one"}
    known = {"gemm/run.py": "run", "gone/old.py": "old"}
    assert kernel_names(["attn/run.py", "gemm/run.py"], known) == {"attn/run.py": "attn_run", "gemm/run.py": "run"}


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Its `testing`, as of Triton 3: what scripts see of it."""
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton/__init__.py").touch()
    (tmp_path / "triton/testing.py").write_text(
        dedent(
            """
            def do_bench(fn, warmup=25, rep=100, grad_to_none=None, quantiles=None, return_mode="mean"):
                raise RuntimeError("there is no GPU")

            class Benchmark:
                def __init__(self, x_names, x_vals, line_arg, line_vals, line_names, plot_name, args, **rest):
                    self.x_names, self.x_vals, self.line_arg, self.line_vals = x_names, x_vals, line_arg, line_vals
                    self.plot_name, self.args = plot_name, args

            class Mark:
                def __init__(self, fn, benchmarks):
                    self.fn, self.benchmarks = fn, benchmarks

                def run(self, show_plots=False, print_data=False, save_path="", return_df=False, **kwargs):
                    raise RuntimeError("not replaced")

            def perf_report(benchmarks):
                return lambda fn: Mark(fn, benchmarks)
            """
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(timers, "_replaced", {})
    for module in (builtins, io):
        monkeypatch.setattr(module, "open", open)
    for method in ("timeit", "blocked_autorange", "adaptive_autorange"):
        monkeypatch.setattr(Timer, method, getattr(Timer, method))
    before = set(sys.modules)
    yield
    for path, found in timers._replaced.items():
        setattr(timers._resolved(path)[0], path.rpartition(".")[2], found)
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("triton", "tools"):
            del sys.modules[name]


DRIVEN = """
    import triton.testing
    from triton.testing import do_bench

    @triton.testing.perf_report([
        triton.testing.Benchmark(["M", "N"], [(2, 3), (4, 5)], "provider", ["ours", "other"], ["a", "b"], "sums", {"k": 1}),
    ])
    def bench(M, N, provider, k):
        ms, low, high = do_bench(lambda: (M, N, provider, "forward"), quantiles=[0.5, 0.2, 0.8])
        return ms, high, do_bench(lambda: (M, N, provider, "backward"))

    if __name__ == "__main__":
        bench.run(print_data=True)
"""


def test_a_driver_s_words_name_its_calls_and_each_is_reached_alone(tmp_path: Path, triton: None) -> None:
    kernel = kernel_of(script(tmp_path, DRIVEN, select={"provider": ["ours"]}), str(tmp_path))
    made = {case.id: case.params for case in kernel.cases("cpu")}
    assert sorted(made) == [
        "sums/provider=ours/M=2", "sums/provider=ours/M=2/nth=2",
        "sums/provider=ours/M=4", "sums/provider=ours/M=4/nth=2",
    ]  # fmt: skip
    bench = Bench("cpu", 0, 0)
    assert kernel.fn(bench, **made["sums/provider=ours/M=4/nth=2"])() == (4, 5, "ours", "backward")
    bench.release()


def test_a_tuner_s_timer_is_its_own(tmp_path: Path, triton: None) -> None:
    own = ModuleType("triton.runtime.autotuner")
    exec("def tune(do_bench):\n    return do_bench(lambda: 1)", own.__dict__)
    sys.modules[own.__name__] = own
    text = """
        from triton.testing import do_bench
        from triton.runtime.autotuner import tune
        try:
            tune(do_bench)
        except RuntimeError as error:
            print(do_bench(lambda: str(error)))
        """
    kernel = kernel_of(script(tmp_path, text), str(tmp_path))
    [case] = kernel.cases("cpu")
    bench = Bench("cpu", 0, 0)
    assert kernel.fn(bench, **case.params)() == "there is no GPU"
    bench.release()


def test_seeds_that_a_script_sets_follow_the_draw(tmp_path: Path, triton: None) -> None:
    text = """
        import random
        from triton.testing import do_bench
        random.seed(0)
        value = random.random()
        do_bench(lambda: value)
        """
    kernel = kernel_of(script(tmp_path, text), str(tmp_path))

    def drawn(seed: int, placement: int) -> float:
        bench = Bench("cpu", seed, placement)
        try:
            return kernel.fn(bench)()
        finally:
            bench.release()

    assert drawn(1, 0) == drawn(1, 0)
    assert len({drawn(1, 0), drawn(1, 1), drawn(2, 0)}) == 3


def test_a_statement_of_torch_s_timer_is_a_case(tmp_path: Path, triton: None) -> None:
    text = """
        import torch.utils.benchmark as benchmark
        for n in (1, 2):
            timer = benchmark.Timer("total(values)", globals={"total": sum, "values": [n] * 3})
            print(timer.blocked_autorange(min_run_time=100).median)
        """
    kernel = kernel_of(script(tmp_path, text), str(tmp_path))
    ids = [case.id for case in kernel.cases("cpu")]
    bench = Bench("cpu", 0, 0)
    assert ids == ["sums/n=1", "sums/n=2"] and kernel.fn(bench, n=2)() == 6
    bench.release()


CHECKED = """
    import random
    from triton.testing import do_bench
    from tools import total
    for provider in ("ours", "plain"):
        random.seed(3)
        values = [random.random() for _ in range(100)]
        do_bench(lambda: total(values) if provider == "ours" else sum(values))
"""


@pytest.mark.parametrize(
    ("total", "ok", "text"),
    [
        ("sum(values)", True, ""),
        ("sum(values) + 1", False, "result is"),
        ("KNOWN.setdefault(id(values), sum(values))", False, "it is remembered|is remembered"),
    ],
    ids=["right", "wrong", "memo"],
)
def test_a_call_is_held_to_its_reference(tmp_path: Path, triton: None, total: str, ok: bool, text: str) -> None:
    tmp_path.joinpath("tools.py").write_text(f"KNOWN = {{}}\ndef total(values):\n    return {total}\n")
    named = script(tmp_path, CHECKED, select={"provider": ["ours"]}, reference={"provider": "plain"}, rtol=1e-9)
    kernel = kernel_of(named, str(tmp_path))
    found = check_case(kernel, [{"provider": "ours"}], "cpu", 1)
    leave_all()
    assert (found["ok"], found["unredrawn"]) == (ok, ""), found
    assert re.search(text, found["text"]), found


STANDING = """
    import tools
    from triton.testing import do_bench
    for bench in ("fast", "exact"):
        with tools.use(bench):
            do_bench(lambda: (tools.current, 1.0))
"""
USE = """
import contextlib
current = None

@contextlib.contextmanager
def use(name):
    global current
    before, current = current, name
    try:
        yield
    finally:
        current = before
"""


def test_what_the_reference_switches_on_does_not_stand_while_the_case_executes(tmp_path: Path, triton: None) -> None:
    tmp_path.joinpath("tools.py").write_text(USE)
    named = script(tmp_path, STANDING, select={"bench": ["fast"]}, reference={"bench": "exact"})
    kernel = kernel_of(named, str(tmp_path))
    made = Bench("cpu", 0, 0)
    held = kernel.fn(made, **{"bench": "fast"})
    reference = made.declared_reference()
    assert reference is not None
    assert (held()[0], reference.fn()[0], held()[0]) == ("fast", "exact", "fast")
    made.release()


def question(tmp_path: Path, text: str, name: str, base: ScriptKernel | None = None) -> tuple[ScriptKernel, str]:
    listed = {} if base is None else {name: base.listed}
    kernel = kernel_of(script(tmp_path, text, name, base=listed), str(tmp_path))
    made = Bench("cpu", 0, 0)
    kernel.fn(made, **kernel.cases("cpu")[-1].params)
    digest = made.inputs_digest()
    made.release()
    return kernel, digest


def test_a_call_whose_names_no_longer_mean_the_same_asks_another_question(tmp_path: Path, triton: None) -> None:
    text = """
        from triton.testing import do_bench
        BATCH = 16
        for i, n in enumerate((128, 256)):
            ms = do_bench(lambda: BATCH * n)
            told = f"{ms} ms"
        """
    base, digest = question(tmp_path, text, "sums.py")
    assert base.names == ["i"] and question(tmp_path, text, "sums.py", base)[1] == digest
    more = text.replace("BATCH = 16", "BATCH = 16\n        unrelated = 3")
    assert question(tmp_path, more, "sums.py", base)[1] == digest
    for change in (("16", "8"), ("256", "512")):
        assert question(tmp_path, text.replace(*change), "sums.py", base)[1] != digest
    twice = text.replace("told = f", "do_bench(lambda: 2)\n            told = f")
    assert question(tmp_path, twice, "sums.py", base)[1] != digest


def test_a_script_runs_as_python_runs_it_and_executions_have_the_timers_as_they_were(
    tmp_path: Path, triton: None
) -> None:
    text = """
        from triton.testing import do_bench
        def typed(n: int): pass
        def timed():
            try:
                do_bench(typed)
            except RuntimeError as error:
                return str(error), typed.__annotations__["n"]
        do_bench(timed)
        """
    kernel = kernel_of(script(tmp_path, text), str(tmp_path))
    made = Bench("cpu", 0, 0)
    assert kernel.fn(made)() == ("there is no GPU", int)
    made.release()


def test_gradients_that_a_timer_would_drop_are_dropped(tmp_path: Path, triton: None) -> None:
    text = """
        import torch
        from triton.testing import do_bench
        x = torch.ones(3, requires_grad=True)
        y = (x * 2).sum()
        def back():
            y.backward(retain_graph=True)
            return x.grad.tolist()
        do_bench(back, grad_to_none=[x])
        """
    kernel = kernel_of(script(tmp_path, text), str(tmp_path))
    made = Bench("cpu", 0, 0)
    held = kernel.fn(made)
    for _ in range(2):
        told, grad = held()
        assert told == grad.tolist() == [2.0, 2.0, 2.0]
    made.release()


def test_two_calls_of_one_id_are_refused(tmp_path: Path, triton: None) -> None:
    text = "from triton.testing import do_bench\nfor n in (1, '1'): do_bench(lambda: n)"
    with pytest.raises(Unlisted, match="make the same id 'sums/n=1'"):
        kernel_of(script(tmp_path, text), str(tmp_path))


def test_a_case_that_fails_leaves_no_thread(tmp_path: Path, triton: None) -> None:
    text = "from triton.testing import do_bench\ndo_bench(lambda: 1 / 0)"
    kernel = kernel_of(script(tmp_path, text), str(tmp_path))
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        check_case(kernel, [{}], "cpu", 1)
    leave_all()
    assert threading.active_count() == before


def test_what_lacks_a_gpu_is_skipped_in_its_words(tmp_path: Path, triton: None) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(Unsupported, match="there is no GPU: RuntimeError: needs one"):
        kernel_of(script(tmp_path, "raise RuntimeError('needs one')", device="cuda"), str(tmp_path))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("print('nothing')", "calls no timer that perfci knows"),
        ("import sys; sys.exit('requires SM100')", "^requires SM100$"),
        ("import sys; sys.exit(3)", "fails before its first call of a timer: it ends with 3"),
        ("1 / 0", "fails before its first call of a timer: ZeroDivisionError: division by zero"),
        ("from triton.testing import do_bench\ndo_bench(3)", "passes a int to its timer"),
        (
            "from triton.testing import do_bench\nif do_bench(lambda: 1) > 2: do_bench(lambda: 2)",
            "makes 1 calls of its timer, and 2 in a second run, where that returns other times: it picks by time",
        ),
    ],
)
def test_what_is_no_case_is_said_in_a_line(tmp_path: Path, triton: None, text: str, words: str) -> None:
    with pytest.raises(Unlisted, match=words):
        kernel_of(script(tmp_path, text), str(tmp_path))


def test_what_fails_behind_its_calls_keeps_them(tmp_path: Path, triton: None) -> None:
    text = "from triton.testing import do_bench\nms = do_bench(lambda: 1)\nassert ms < 0, 'too slow'"
    kernel: ScriptKernel = kernel_of(script(tmp_path, text), str(tmp_path))
    assert [case.id for case in kernel.cases("cpu")] == ["sums"]


def test_a_script_that_catches_everything_ends_all_the_same(tmp_path: Path, triton: None) -> None:
    text = """
        from triton.testing import do_bench
        for n in range(3):
            try:
                do_bench(lambda: n)
            except:
                pass
        """
    kernel = kernel_of(script(tmp_path, text), str(tmp_path))
    bench = Bench("cpu", 0, 0)
    before = threading.active_count()
    assert kernel.fn(bench, n=1)() == 1
    assert threading.active_count() == before + 1
    bench.release()
    assert threading.active_count() == before


def checked(tmp_path: Path, text: str, **fields: object) -> dict:
    """As a check finds the first case of a script."""
    kernel = kernel_of(script(tmp_path, text, **fields), str(tmp_path))
    sys.modules.pop("tools", None)  # cases are listed by another process
    try:
        return check_case(kernel, [kernel.cases("cpu")[0].params], "cpu", 1)
    finally:
        leave_all()


def test_a_reference_without_a_result_is_no_reference(tmp_path: Path, triton: None) -> None:
    text = """
        from triton.testing import do_bench
        for provider in ("ours", "plain"):
            do_bench(lambda: None)
        """
    with pytest.raises(ValueError, match="the call that says what is right has no result"):
        checked(tmp_path, text, select={"provider": ["ours"]}, reference={"provider": "plain"})


def test_what_a_case_switches_on_for_good_does_not_stand_while_its_reference_runs(tmp_path: Path, triton: None) -> None:
    tmp_path.joinpath("tools.py").write_text("factor = 1.0\n")
    text = """
        import tools
        from triton.testing import do_bench
        for provider in ("plain", "ours"):
            tools.factor = 2.0 if provider == "ours" else tools.factor
            do_bench(lambda: 3.0 * tools.factor)
        """
    found = checked(tmp_path, text, select={"provider": ["ours"]}, reference={"provider": "plain"})
    assert (found["ok"], found["kind"]) == (False, "wrong")


BACKWARD = """
    import torch
    from triton.testing import do_bench

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 3

        @staticmethod
        def backward(ctx, dy):
            return dy.mul_(FACTOR)  # in place, as kernels do that save memory

    class Layer(torch.nn.Module):
        def forward(self, x):
            return x * 3

    for provider in ("ours", "plain"):
        x = torch.randn(64, requires_grad=True)
        dy = torch.randn(64)
        layer = Layer()
        y = Scale.apply(x) if provider == "ours" else layer(x)
        do_bench(lambda: y.backward(dy, retain_graph=True), grad_to_none=[x])
"""


@pytest.mark.parametrize("factor", [3, 4])
def test_a_backward_pass_that_returns_nothing_is_held_to_its_gradients(
    tmp_path: Path, triton: None, factor: int
) -> None:
    text = BACKWARD.replace("FACTOR", str(factor))
    found = checked(tmp_path, text, select={"provider": ["ours"]}, reference={"provider": "plain"}, rtol=1e-6)
    assert (found["ok"], found["compared"], found["unredrawn"]) == (factor == 3, 1, ""), found


def test_inputs_that_executions_overwrote_are_put_back_before_a_result_counts(tmp_path: Path, triton: None) -> None:
    text = BACKWARD.replace("FACTOR", "3")
    given = script(tmp_path, text, select={"provider": ["ours"]}, reference={"provider": "plain"}, rtol=1e-6)
    kernel = kernel_of(given, str(tmp_path))
    made = prepare(kernel, {"provider": "ours"}, "cpu", 1, 0)
    for _ in range(100):
        made.fn()
    assert verify(made).ok
    made.bench.release()


def test_calls_draw_alike_wherever_they_stand_in_a_script(tmp_path: Path, triton: None) -> None:
    text = """
        import random
        from triton.testing import do_bench
        for provider in ("ours", "plain"):
            value = random.random()
            do_bench(lambda: value)
        """
    found = checked(tmp_path, text, select={"provider": ["ours"]}, reference={"provider": "plain"})
    assert found["ok"], found
    seeded = text.replace("for provider", "random.seed(7)\n        for provider")
    assert checked(tmp_path, seeded, select={"provider": ["ours"]}, reference={"provider": "plain"})["ok"]


def test_a_timer_s_threads_stand_while_its_statement_executes(tmp_path: Path, triton: None) -> None:
    text = """
        import torch
        from torch.utils.benchmark import Timer
        Timer("torch.get_num_threads()", num_threads=2).timeit()
        """
    threads = torch.get_num_threads()
    kernel = kernel_of(script(tmp_path, text), str(tmp_path))
    made = Bench("cpu", 0, 0)
    assert kernel.fn(made)() == 2
    made.release()
    assert torch.get_num_threads() == threads


def test_what_a_driver_is_run_with_reaches_its_calls(tmp_path: Path, triton: None) -> None:
    text = DRIVEN.replace("provider, k):", "provider, k, scale):").replace("print_data=True", "scale=7")
    text = text.replace('"forward")', "scale)")
    kernel = kernel_of(script(tmp_path, text), str(tmp_path))
    made = Bench("cpu", 0, 0)
    assert kernel.fn(made, **kernel.cases("cpu")[0].params)() == (2, 3, "ours", 7)
    made.release()


def test_calls_behind_a_failure_are_told(tmp_path: Path, triton: None) -> None:
    text = "from triton.testing import do_bench\nfor n in (1, 2):\n    do_bench(lambda: n)\n    assert n < 1, 'one'"
    assert kernel_of(script(tmp_path, text), str(tmp_path)).listed["ended"] == (
        "fails behind call 1 of its timer, so that no more calls are cases: AssertionError: one"
    )


def test_each_run_of_a_script_has_code_of_its_own(tmp_path: Path, triton: None) -> None:
    """torch.compile keeps, with a function's code, the names that it found."""
    kernel = kernel_of(script(tmp_path, "from triton.testing import do_bench\ndo_bench(lambda: 1)"), str(tmp_path))
    first, second = (Bench("cpu", 0, number) for number in range(2))
    codes = [kernel.fn(made).fn.__code__ for made in (first, second)]
    assert codes[0] == codes[1] and codes[0] is not codes[1]
    second.release()
    first.release()


def test_a_tuner_of_a_script_keeps_its_choices_for_the_next_run() -> None:
    class Config:
        """As of Triton: it has words, and no representation of its own."""

        def __init__(self, warps: int, pre_hook: object) -> None:
            self.warps, self.pre_hook = warps, pre_hook

        def __str__(self) -> str:
            return f"num_warps: {self.warps}"

    class Tuner:
        keys = ("n",)

        def __init__(self, text: str, pre_hook: object = None) -> None:
            names: dict = {"__name__": "__main__"}
            self.configs = [Config(warps, pre_hook) for warps in (4, 8)]
            exec(compile(text, "script.py", "exec"), names)
            self.base_fn, self.cache = names["kernel"], {}

    first, again, other = (Tuner(text) for text in ("def kernel(x): x", "def kernel(x): x", "def kernel(x): 2 * x"))
    for one in (first, again, other):
        tuners._share(one)
    assert first.cache is again.cache is not other.cache
    hooked = [Tuner("def kernel(x): x", print) for _ in range(2)]  # a hook has names of its run
    for one in hooked:
        tuners._share(one)
    assert len({id(one.cache) for one in (first, *hooked)}) == 3


CACHING = """
    import torch
    from triton.testing import do_bench

    class Cached:
        def __init__(self, x):
            self.x, self.version, self.y = x, x._version, None

        def __call__(self):
            if self.y is None or self.x._version != self.version:
                self.y, self.version = self.x * 2, self.x._version
            return self.y

    for provider in ("ours", "plain"):
        x = torch.randn(64)
        layer = Cached(x)
        assert torch.equal(layer(), x * 2)  # scripts check before they time
        do_bench(layer if provider == "ours" else lambda: x * 2)
"""


def test_a_result_that_the_set_up_computed_is_cached_all_the_same(tmp_path: Path, triton: None) -> None:
    found = checked(tmp_path, CACHING, select={"provider": ["ours"]}, reference={"provider": "plain"})
    assert (found["ok"], found["kind"], found["missed"]) == (False, "wrong", "later"), found


def test_statements_of_a_timer_are_held_to_be_finite_after_timing(tmp_path: Path, triton: None) -> None:
    text = """
        import torch
        from torch.utils.benchmark import Timer
        calls = []
        Timer("calls.append(1) or torch.tensor(1.0 if len(calls) < 3 else float('nan'))", globals=globals()).timeit()
        """
    kernel = kernel_of(script(tmp_path, text), str(tmp_path))
    made = prepare(kernel, {}, "cpu", 1, 0)
    made.fn()
    assert made.fn().isfinite() and verify(made).kind == "nan"
    made.bench.release()


def test_seeds_by_name_are_set_as_without_a_script(tmp_path: Path, triton: None) -> None:
    text = """
        import random
        from triton.testing import do_bench
        random.seed(a=7)
        value = random.random()
        do_bench(lambda: value)
        """
    kernel = kernel_of(script(tmp_path, text), str(tmp_path))
    values = []
    for placement in range(2):
        made = Bench("cpu", 1, placement)
        values.append(kernel.fn(made)())
        made.release()
    assert values[0] != values[1]
    random.seed(a=7)
    assert random.random() == random.Random(7).random()


def test_a_script_leaves_paths_and_arguments_as_they_were(tmp_path: Path, triton: None) -> None:
    before = list(sys.path), list(sys.argv)
    kernel = kernel_of(script(tmp_path, "from triton.testing import do_bench\ndo_bench(lambda: 1)"), str(tmp_path))
    made = Bench("cpu", 0, 0)
    kernel.fn(made)
    made.release()
    assert (sys.path, sys.argv) == before


def test_memory_is_counted_that_a_call_can_reach() -> None:
    x, weight, unused = (torch.zeros(256, requires_grad=True) for _ in range(3))
    y = (x * weight).exp()  # keeps x, weight and its own result
    layer = torch.nn.Linear(16, 16, bias=False)
    assert unused.numel() and device_bytes(lambda: x, "cpu") == 1024
    assert device_bytes(lambda: y.sum().backward(), "cpu") == 3 * 1024
    assert device_bytes(lambda: [layer(one) for one in (x, x)], "cpu") == 2 * 1024
    assert device_bytes(x.sum, "cpu") == device_bytes(lambda: (x.view(16, 16), x), "cpu") == 1024
    assert device_bytes(lambda: x) == 0


def test_a_benchmark_may_return_whatever_it_likes(tmp_path: Path, triton: None) -> None:
    text = """
        from triton.testing import do_bench

        class Registry:
            def __call__(self):
                return self

        do_bench(Registry)
        do_bench(lambda: iter([1, 2]))
        """
    assert checked(tmp_path, text)["ok"]
    assert checked(tmp_path, text, select={"nth": ["2"]})["ok"]
    beside = """
        import torch
        from triton.testing import do_bench
        do_bench(lambda: (torch.full((3,), {}), sum))
        """
    assert checked(tmp_path, beside.format("float('nan')"))["kind"] == "nan"
    assert checked(tmp_path, beside.format(1.0))["result"]
    kernel = kernel_of(script(tmp_path, beside.format(1.0)), str(tmp_path))
    made = prepare(kernel, {}, "cpu", 1, 0)
    assert verify(made).ok
    made.bench.release()


def test_a_timer_of_the_script_s_own_is_one(tmp_path: Path, triton: None) -> None:
    text = """
        class Watch:
            @staticmethod
            def time(call):
                return 1.0

            def other(self, call):
                return self.time(call)

        try:
            from nowhere import measured
        except ImportError:
            def measured(call, twice=False):
                return 2.0

        for n in (1, 2):
            Watch.time(lambda: n)
            measured(lambda: -n)
            Watch().other(lambda: "another timer")
        """
    own = {"__main__.Watch.time": "call", "__main__.measured": "call", "__main__.nothing": "call"}
    kernel = kernel_of(script(tmp_path, text, timers=own), str(tmp_path))
    assert [case.params["n"] for case in kernel.cases("cpu")] == [1, 1, 1, 2, 2, 2]
    assert [case.line for case in kernel.cases("cpu")[:3]] == [17, 18, 8]
    with pytest.raises(Unlisted, match=r"measured\(\) has no parameter 'fn': it has call, twice"):
        kernel_of(script(tmp_path, text, timers={"__main__.measured": "fn"}), str(tmp_path))


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1), min_size=1, max_size=5))
def test_what_arguments_say_tells_them_apart(args: list[str]) -> None:
    assert said(args) == said(list(args))
    option = ["--size", "3", *args]
    assert said(option).keys() >= {"size"}
    assert said(["--size", "4"]) != said(["--size", "3"])


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ('--tag a#b "c # d"', ["--tag", "a#b", "c # d"]), ("--n 1  # one", ["--n", "1"]), ("# all", []), ("  ", []),
        ("--n 1 # it's", ["--n", "1"]), ("--x -3 --y=-4", ["--x", "-3", "--y=-4"]),
    ],
)  # fmt: skip
def test_a_line_s_arguments_are_a_shell_s(tmp_path: Path, text: str, args: list[str]) -> None:
    (tmp_path / "lines.txt").write_bytes(b"\xef\xbb\xbf--first\r\n" + text.encode() + b"\r\n--first\n")
    lines = script(tmp_path, "", each="lines.txt").lines(str(tmp_path))
    assert [line.args for line in lines] == [["--first"], *([args] if args else [])]


def test_lines_that_say_the_same_in_other_words_are_refused(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("--n 1\n--n 1.0\n--causal\n--causal 1\n--x inf\n")
    asked = script(tmp_path, "", each="lines.txt")
    assert [line.words for line in asked.lines(str(tmp_path))] == [
        {"n": 1}, {"n": 1.0}, {"causal": True}, {"causal": 1}, {"x": "inf"},
    ]  # fmt: skip
    (tmp_path / "lines.txt").write_text("--n 1 --m 2\n\n--m=2 --n=1\n")
    with pytest.raises(Unlisted, match=r"each: lines\.txt:3: says what line 1 says"):
        asked.lines(str(tmp_path))


def test_words_of_a_test_s_parameters_are_the_same_in_each_process() -> None:
    class Kind(enum.Enum):
        FAST = 1

    assert label(Kind.FAST) == "Kind.FAST"
    assert label({"m": 1}) == "{'m': 1}"
    assert label((torch.zeros(2, 3), 4, (5, 6))) == "2x3,4,5x6"
    assert label(torch.float16) == "float16"
    assert label("/tmp/somewhere/sizes.json") == "sizes.json"
    assert label(sum) == "sum"
    assert label(object()) is None
    assert label(["/tmp/somewhere"]) is None
    assert len(label("x" * 500)) < 50


def test_a_result_is_told_by_its_numbers_and_by_all_else_in_it_where_it_is_the_same_twice(
    tmp_path: Path, triton: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(result: str) -> tuple[list[float], str]:
        text = f"import itertools\nfrom triton.testing import do_bench\ncount = itertools.count()\ndo_bench({result})\n"
        found = checked(tmp_path, text)
        assert found["ok"], found["text"]
        return found["result"], found["content"]

    right = told('lambda: {"a": [1, 2.5], "b": "text"}')
    assert right == told('lambda: {"b": "text", "a": [1, 2.5]}')
    assert right[1] == told('lambda: {"a": [1, 3.5], "b": "text"}')[1] != ""
    for other in ('{"a_": [1, 2.5], "b": "text"}', '{"a": [1, 2.5], "b": "texts"}', '{"a": [1, 2.5, 0], "b": "text"}'):
        assert told(f"lambda: {other}")[1] != right[1]
    monkeypatch.setenv("PERFCI_SITE", "/tmp/run/base/site")
    in_base = told('lambda: ("/tmp/run/base/tree/a", 1)')
    monkeypatch.setenv("PERFCI_SITE", "/tmp/run/head/site")
    assert in_base == told('lambda: ("/tmp/run/head/tree/a", 1)') != told('lambda: ("/tmp/run/head/tree/b", 1)')
    assert told("lambda: __import__('os').urandom(8)") == ([], "")
    assert told("lambda: [__import__('random').SystemRandom().random() for _ in range(9)]") == ([], "")
