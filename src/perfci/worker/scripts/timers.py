"""Timers of benchmark scripts, replaced: what they are to time becomes a case."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any, Callable, Optional, Protocol, Union

from ..imports import Finder

KNOWN: Mapping[str, str] = {
    "triton.testing.do_bench": "fn",
    "triton.testing.do_bench_cudagraph": "fn",
    "flashinfer.testing.bench_gpu_time": "fn",
    "flashinfer.testing.bench_gpu_time_with_cuda_event": "fn",
    "flashinfer.testing.bench_gpu_time_with_cudagraph": "fn",
    "flashinfer.testing.bench_gpu_time_with_cupti": "fn",
}
"""Timer → the parameter that it calls."""
LISTING = "flashinfer."
"""Timers that return the time of each execution."""
TUNERS = ("triton.runtime.autotuner", "torch._inductor")
"""Modules that time to choose: theirs are no cases."""
MARK, TIMER, FIXTURE = "triton.testing", "torch.utils.benchmark", "pytest_benchmark.fixture"
SEEDING = (
    "torch.manual_seed",
    "torch.cuda.manual_seed",
    "torch.cuda.manual_seed_all",
    "random.seed",
    "numpy.random.seed",
)


class Running(Protocol):
    """A script that runs."""

    def seeded(self, name: str, seed: int, function: Callable[[int], Any]) -> Any:
        """Seed a generator, by another number in each draw."""

    def called(self, fn: Callable[[], Any], frame: FrameType) -> float:
        """Take what a timer is to time, and return made-up seconds. `frame`: the caller's."""

    def driven(self, words: Mapping[str, Any], call: Callable[[], Any]) -> Any:
        """Call a driver's combination `words`, or return None where another is asked for."""


class _Here(threading.local):
    running: Optional[Running] = None
    within = False
    """True while its code runs, in executions of a case, too, where timers are as they were."""


here = _Here()
"""The script that this thread runs."""
MAIN, OWN = "__main__.", "__perfci_timers__"
"""Before names that a script defines, and what it names its timers by."""
_replaced: dict[str, Any] = {}


def exchange(own: Mapping[str, str]) -> None:
    """Put ours in the place of timers, of seeding functions and drivers, wherever modules hold them; in that of later
    modules, once they are imported.

    `own`: the project's timers, as `KNOWN`. Raises ValueError for one that there is not.
    """
    for path, parameter in own.items():
        if path not in _replaced and not path.startswith(MAIN):
            try:
                _exchange(path, parameter)
            except (ImportError, AttributeError) as error:
                raise ValueError(f"timers: {path}: {' '.join(str(error).split())[:400]}") from None
    if not any(isinstance(finder, _Later) for finder in sys.meta_path):
        modules = {MARK, TIMER, FIXTURE, *(path.rpartition(".")[0] for path in (*KNOWN, *SEEDING))}
        for module in modules & sys.modules.keys():
            _replace_in(module)
        sys.meta_path.insert(0, _Later(modules - sys.modules.keys()))


def mark_own(program: ast.Module, timers: Mapping[str, str]) -> Iterator[str]:
    """Decorate those of `timers` that a script defines itself by the entries of its name `OWN`, and yield them."""
    for path in timers:
        found: list[ast.AST] = [program]
        for name in path.split(".")[1:] if path.startswith(MAIN) else ():
            found = [node for scope in found for node in _defined(scope) if node.name == name]
        functions = [node for node in found if isinstance(node, ast.FunctionDef)]
        for node in functions:
            place = ast.Subscript(ast.Name(OWN, ast.Load()), ast.Constant(path), ast.Load())
            node.decorator_list.append(ast.fix_missing_locations(ast.copy_location(place, node)))
        if functions:
            yield path


def _defined(scope: ast.AST) -> Iterator[Union[ast.ClassDef, ast.FunctionDef]]:
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
            yield from _defined(node)


def replaced(parameter: str, path: str, timer: Callable[..., Any]) -> Any:
    """Return ours in the place of a timer that calls `parameter`. Raises ValueError where it has none of that name."""
    return _timer(timer, parameter, path)


def _replace_in(module: str) -> None:
    for path in (*KNOWN, *SEEDING):
        if path.rpartition(".")[0] == module and path not in _replaced and hasattr(sys.modules[module], _name(path)):
            _exchange(path, KNOWN.get(path))
    if module == MARK and hasattr(sys.modules[module], "Mark"):
        mark = sys.modules[module].Mark
        mark.run = _driver(mark.run)
    elif module == TIMER:
        timer = sys.modules[module].Timer
        for name in ("timeit", "blocked_autorange", "adaptive_autorange"):
            setattr(timer, name, _statement(getattr(timer, name)))
    elif module == FIXTURE:
        fixture = sys.modules[module].BenchmarkFixture
        fixture.__call__, fixture.pedantic = _fixture(fixture.__call__), _pedantic(fixture.pedantic)


def _exchange(path: str, parameter: Optional[str]) -> None:
    """`parameter`: of a timer; None for what seeds."""
    owner, found = _resolved(path)
    ours = _seeding(path, found) if parameter is None else _timer(found, parameter, path)
    setattr(owner, _name(path), ours)
    _replaced[path] = found
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and not module.__name__.startswith(__name__.partition(".")[0] + "."):
            for name, value in list(vars(module).items()):
                if value is found:
                    setattr(module, name, ours)


def _name(path: str) -> str:
    return path.rpartition(".")[2]


class _Later(Finder):
    """Replaces what modules have as soon as they are imported."""

    def __init__(self, modules: set[str]) -> None:
        self.modules = modules

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        if name not in self.modules:
            return None
        self.modules.discard(name)
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others if hasattr(finder, "find_spec"))
        spec = next((one for one in specs if one is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]  # has all that loaders have
        return spec


class _Loader:
    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        _replace_in(module.__name__)


def _resolved(path: str) -> tuple[Any, Any]:
    """Return a function with the module or class that has it. Raises ImportError and AttributeError."""
    names = path.split(".")
    for end in range(len(names) - 1, 0, -1):
        name = ".".join(names[:end])
        if name in sys.modules or _is_found(name):
            owner = importlib.import_module(name)
            for step in names[end:-1]:
                owner = getattr(owner, step)
            return owner, getattr(owner, names[-1])
    raise ImportError(f"no module {names[0]!r} is found" if names[1:] else "write its module, too")


def _is_found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _timer(timer: Any, parameter: str, path: str) -> Any:
    signature = inspect.signature(timer)
    if parameter not in signature.parameters:
        raise ValueError(f"timers: {path}() has no parameter {parameter!r}: it has {', '.join(signature.parameters)}")

    @functools.wraps(timer)
    def timed(*args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        if here.running is None or _tunes(frame):
            return timer(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        fn = given.arguments[parameter]
        inputs, named = given.arguments.get("input_args") or (), given.arguments.get("input_kwargs") or {}
        call = functools.partial(fn, *inputs, **named) if inputs or named else fn
        if grads := given.arguments.get("grad_to_none"):
            call = functools.partial(_without_grads, tuple(grads), call)
        return _like(path, given.arguments, here.running.called(call, frame) * 1e3)

    return timed


def _without_grads(tensors: Sequence[Any], call: Callable[[], Any]) -> Any:
    # Gradients are what a backward pass computes.
    for tensor in tensors:
        tensor.grad = None
    result = call()
    grads = [tensor.grad for tensor in tensors]
    return result if all(grad is None for grad in grads) else [result, *grads]


def _like(path: str, given: Mapping[str, Any], milliseconds: float) -> Any:
    quantiles = given.get("quantiles")
    if quantiles is not None:
        return [milliseconds] * len(quantiles) if len(quantiles) != 1 else milliseconds
    if given.get("return_mode") == "all" or path.startswith(LISTING):
        return [milliseconds]
    return milliseconds


def _tunes(frame: Optional[FrameType]) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(TUNERS):
            return True
        frame = frame.f_back
    return False


def _seeding(path: str, function: Any) -> Any:
    @functools.wraps(function)
    def seeded(*args: Any, **kwargs: Any) -> Any:
        name = next((name for name in ("seed", "a") if name in kwargs), None)
        seed = kwargs[name] if name is not None else args[0] if args else None
        if here.running is None or type(seed) is not int:
            return function(*args, **kwargs)
        if name is None:
            return here.running.seeded(path, seed, lambda other: function(other, *args[1:], **kwargs))
        return here.running.seeded(path, seed, lambda other: function(*args, **{**kwargs, name: other}))

    return seeded


def _driver(run: Any) -> Any:
    @functools.wraps(run)
    def driven(
        mark: Any, show_plots: Any = 0, print_data: Any = 0, save_path: Any = "", return_df: Any = 0, **more: Any
    ) -> Any:
        if here.running is None:
            return run(mark, show_plots, print_data, save_path, return_df, **more)
        several = isinstance(mark.benchmarks, (list, tuple))
        plots = [_driven(mark.fn, plot, more) for plot in (mark.benchmarks if several else [mark.benchmarks])]
        if not return_df:
            return None
        frame = importlib.import_module("pandas").DataFrame
        frames = [frame(rows, columns=columns) for rows, columns in plots]
        return frames if several else frames[0]

    return driven


def _driven(fn: Any, plot: Any, more: Mapping[str, Any]) -> tuple[list[list[Any]], list[str]]:
    names, rows = list(plot.x_names), []
    for x in plot.x_vals:
        values = list(x) if isinstance(x, (list, tuple)) else [x] * len(names)
        row = list(values)
        for line in plot.line_vals:
            given = {**dict(zip(names, values)), plot.line_arg: line, **plot.args, **more}
            words = {"plot": plot.plot_name, plot.line_arg: line, **dict(zip(names, values)), **plot.args, **more}
            assert here.running is not None
            told = here.running.driven(words, functools.partial(fn, **given))
            row.append(told[0] if isinstance(told, (list, tuple)) else told)
        rows.append(row)
    return rows, [*names, *plot.line_names]


def _statement(method: Any) -> Any:
    @functools.wraps(method)
    def timed(timer: Any, *args: Any, **kwargs: Any) -> Any:
        if here.running is None:
            return method(timer, *args, **kwargs)
        if timer._language.name != "PYTHON":
            raise RuntimeError("it times a statement in C++, which no Python can call")
        task, scope = timer._task_spec, dict(timer._globals)
        exec(compile(task.setup, "<setup>", "exec", dont_inherit=True), scope)
        try:
            call, code = eval, compile(task.stmt, "<statement>", "eval", dont_inherit=True)
        except SyntaxError:
            call, code = exec, compile(task.stmt, "<statement>", "exec", dont_inherit=True)
        common = importlib.import_module(f"{TIMER}.utils.common")
        with common.set_torch_threads(task.num_threads):
            seconds = here.running.called(functools.partial(call, code, scope), sys._getframe(1))
        return common.Measurement(number_per_run=1, raw_times=[seconds], task_spec=task)

    return timed


def _fixture(method: Any) -> Any:
    @functools.wraps(method)
    def timed(fixture: Any, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if here.running is None:
            return method(fixture, fn, *args, **kwargs)
        return _once(fixture, functools.partial(fn, *args, **kwargs), sys._getframe(1))

    return timed


def _pedantic(method: Any) -> Any:
    @functools.wraps(method)
    def timed(fixture: Any, target: Callable[..., Any], args: Any = (), kwargs: Any = None, **more: Any) -> Any:
        if here.running is None:
            return method(fixture, target, args, kwargs, **more)
        if more.get("teardown") is not None:
            raise RuntimeError("it has a teardown= behind each execution, which none of a case has")
        made = more["setup"]() if more.get("setup") is not None else None
        args, kwargs = made if made is not None else (args, kwargs)
        return _once(fixture, functools.partial(target, *args, **(kwargs or {})), sys._getframe(1))

    return timed


def _once(fixture: Any, call: Callable[[], Any], frame: FrameType) -> Any:
    assert here.running is not None
    fixture._mode = "perfci"  # else it warns that it was not used
    here.running.called(call, frame)
    return call()
