"""A benchmark script: its calls of timers as kernels, and a run of it to one of them."""

from __future__ import annotations

import abc
import builtins
import contextlib
import functools
import io
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Callable, Optional

from ..bench import Bench
from ..checks.check import copied
from ..checks.compare import leaves
from ..checks.plain import Refused, is_array, is_number, plain
from ..declare import CaseSpec, Kernel, Params, Variant, case_id
from .calls import FUNCTION, Counter, Scalar, Words, same, scalar, stable, telling, words_of
from .held import Gone, Held, Left
from .timers import exchange, here

RISING, FALLING = (1e-3, 1e-6), (2.7e-3, -1e-7)
"""Seconds that a timer returns first, and by which later times are longer; the second of the runs that list a script's
calls has falling ones: what picks the fastest picks another one."""
MOST = 10_000
"""Calls of a script."""
SEEDS = 2**32
"""Seeds below, as numpy takes them."""


class Unlisted(ValueError):
    """Why a script's calls are not cases, as one line."""


class Unsupported(Unlisted):
    """Why a script has no case here, in its own words."""


class NoCalls(Unlisted):
    """A script calls no timer."""


@dataclass(frozen=True)
class Script:
    """How a policy names one."""

    file: str
    """Relative to the tree."""
    args: Sequence[str]
    device: str
    select: Mapping[str, Sequence[Scalar]]
    """Name → values of the calls that are cases; all, where it is empty."""
    reference: Mapping[str, Scalar]
    """Name → value: the call that differs in these alone says what is right."""
    rtol: float
    atol: float
    timers: Mapping[str, str]
    base: Mapping[str, Any] = field(default_factory=dict)
    """File → `names` and `stable` of base's entry."""

    @property
    def kernel(self) -> str:
        """Return the kernel's name."""
        name = re.sub(r"\W", "_", Path(self.file).stem)
        return name if not name[:1].isdigit() else f"_{name}"


def _take_path(folder: str) -> None:
    """Put a script's folder first, and forget modules of others' folders that have one of their name here."""
    if sys.path[0] != folder:
        sys.path[:] = [folder, *(entry for entry in sys.path if entry != folder)]
    for name, module in list(sys.modules.items()):
        own = os.path.dirname(getattr(module, "__file__", None) or "")
        if own in _folders and own != folder and os.path.exists(os.path.join(folder, f"{name}.py")):
            del sys.modules[name]
    _folders.add(folder)


_folders: set[str] = set()


class Run(abc.ABC):
    """One run of a script on this thread. See `timers.Running`."""

    def __init__(self, script: Script, tree: str) -> None:
        self.script, self.tree = script, tree
        self.driver: Optional[Words] = None

    def go(self) -> None:
        """Execute the script, as `python FILE ARGS` does. Raises what it raises."""
        path = os.path.join(self.tree, self.script.file)
        main = ModuleType("__main__")
        main.__dict__.update(__file__=path, __builtins__=builtins, __cached__=None)
        before = sys.modules["__main__"], sys.argv, sys.path[:]
        sys.modules["__main__"], sys.argv = main, [path, *self.script.args]
        _take_path(os.path.dirname(path))
        here.running, here.within = self, True
        try:
            with open(path, "rb") as file:
                # Anew: what compiles functions keeps the names that they found by their code.
                exec(compile(file.read(), path, "exec", dont_inherit=True), main.__dict__)
        finally:
            here.running, here.within = None, False
            sys.modules["__main__"], sys.argv, sys.path[:] = before
            main.__dict__.clear()  # its inputs, of which functions and this keep each other

    def words(self, frame: FrameType) -> Words:
        """Return a call's words: its driver's where there is one."""
        own = words_of(frame, os.path.join(self.tree, ""))
        return own if self.driver is None else {**self.driver, "in": own["in"]}

    @abc.abstractmethod
    def called(self, fn: Callable[[], Any], frame: FrameType) -> float:
        """See `timers.Running`."""

    def seeded(self, name: str, seed: int, function: Callable[[int], Any]) -> Any:
        """See `timers.Running`."""
        return function(seed)

    def driven(self, words: Mapping[str, Any], call: Callable[[], Any]) -> Any:
        """See `timers.Running`."""
        told = {name: scalar(value) for name, value in words.items()}
        self.driver = {name: value for name, value in told.items() if value is not None}
        try:
            if self.asked_for():
                return call()
            return None
        finally:
            self.driver = None

    def asked_for(self) -> bool:
        """Tell whether the driver's combination may make the call."""
        return True


class Listing(Run):
    """A run that notes all calls, and makes none."""

    def __init__(self, script: Script, tree: str, times: tuple[float, float]) -> None:
        super().__init__(script, tree)
        self.times = times
        self.calls: list[Words] = []

    def called(self, fn: Callable[[], Any], frame: FrameType) -> float:
        """See `timers.Running`."""
        if not callable(fn):
            raise TypeError(f"it passes a {type(fn).__name__} to its timer, where that takes a function")
        if len(self.calls) == MOST:
            raise RuntimeError(f"it makes more than {MOST} calls of its timer")
        self.calls.append(self.words(frame))
        return self.times[0] + self.times[1] * len(self.calls)


class Reaching(Run):
    """A run to the call with the parameters `wanted`, which `held` keeps open."""

    def __init__(self, kernel: ScriptKernel, bench: Bench, wanted: Params, held: Held) -> None:
        super().__init__(kernel.script, kernel.tree)
        self.kernel, self.wanted, self.held = kernel, wanted, held
        self.seed = bench.seed_everything
        self.shift = bench._integer("seeds")
        self.seeds: dict[str, Callable[[], Any]] = {}
        self.counter = Counter(kernel.names)
        self.count = 0
        self.found: Words = {}

    def called(self, fn: Callable[[], Any], frame: FrameType) -> float:
        """See `timers.Running`."""
        if self.held.left:
            raise Left
        words = self.words(frame)
        if same(self.counter.name(words), self.wanted):
            self.found = words
            here.running = None  # what it executes has its own timers
            try:
                self.held.hold(fn)
            finally:
                here.running = self
        self.count += 1
        self._seed_again()
        return RISING[0] + RISING[1] * self.count

    def seeded(self, name: str, seed: int, function: Callable[[int], Any]) -> Any:
        """See `Run`."""
        self.seeds.pop(name, None)
        self.seeds[name] = functools.partial(function, (seed + self.shift) % SEEDS)
        return self.seeds[name]()

    def _seed_again(self) -> None:
        """What follows draws as behind the last seed: calls of one shape have the same inputs, wherever they stand."""
        running, here.running = here.running, None  # these seeds are none of the script's
        try:
            self.seed()
            for seed in self.seeds.values():
                seed()
        finally:
            here.running = running

    def driven(self, words: Mapping[str, Any], call: Callable[[], Any]) -> Any:
        """See `Run`."""
        self._seed_again()
        return super().driven(words, call)

    def asked_for(self) -> bool:
        """See `Run`."""
        named = {name: value for name, value in (self.driver or {}).items() if name in self.kernel.names}
        return all(name in self.wanted and same({name: self.wanted[name]}, {name: named[name]}) for name in named)


class Expected:
    """The result of a script's call, of a run of its own: nothing of it stands while the case executes."""

    def __init__(self, run: Callable[[], Held], known: dict[str, Any], key: str) -> None:
        """`known`: results by `key`, of which two are kept."""
        self.run, self.known, self.key = run, known, key
        self.drawn = _nothing_drawn

    def __call__(self) -> Any:
        """Return the result. Raises ValueError where it holds no number."""
        if self.key not in self.known:
            held = self.run()
            try:
                result = held()
                with contextlib.suppress(Refused):  # which comparing will say
                    result = copied(plain(result))
            finally:
                held.leave()
            with contextlib.suppress(Refused):
                if not any(is_array(leaf) or is_number(leaf) for _, leaf in leaves(plain(result), ())):
                    raise ValueError(NOTHING)
            while len(self.known) > 1:
                del self.known[next(iter(self.known))]
            self.known[self.key] = result
        return self.known[self.key]


NOTHING = (
    "reference: the call that says what is right has no result: what it times returns neither tensor nor number, and "
    "names no `grad_to_none`"
)


def _nothing_drawn() -> None:
    """Stand for what is drawn anew in each call."""


class ScriptKernel(Kernel):
    """The calls of a script's timers."""

    def __init__(
        self, script: Script, tree: str, names: Sequence[str], stable: Sequence[str], calls: Sequence[Params]
    ) -> None:
        devices = {script.device: Variant({}, {})}
        super().__init__(script.kernel, self.build, devices, file=script.file, line=1, suite=script.file)
        self.script, self.tree, self.names, self.calls = script, tree, names, calls
        self.stable = stable
        """Names whose values are compared with base's, of one call."""
        self.ended = ""
        """What ended the script behind its calls, if not itself."""
        self.results: dict[str, Any] = {}
        """Of the reference, while one case is checked."""

    def alone(self) -> ScriptKernel:
        """Return these calls without a reference."""
        return ScriptKernel(replace(self.script, reference={}), self.tree, self.names, self.stable, self.calls)

    def cases(self, device: str) -> list[CaseSpec]:
        """See `Kernel`."""
        if device != self.script.device:
            return []
        made = [case for case in self.calls if _selected(case, self.script.select)]
        return [CaseSpec(case_id(self.name, one), self.name, one, device, self.file, self.line) for one in made]

    def build(self, bench: Bench, /, **params: Any) -> Held:
        """Run the script to a case's call."""
        wanted = {**params, **self.script.reference}
        if not any(same(wanted, call) for call in self.calls):
            raise Gone(f"reference: the script makes no call {case_id(self.name, wanted)}")
        if not same(wanted, params):
            key = f"{bench._seed} {sorted(wanted.items())}"
            reference = Expected(lambda: self._held(bench, wanted)[0], self.results, key)
            bench.reference(reference, self.script.rtol, self.script.atol)
            if bench._poison:  # when it is checked: before anything of the case stands
                reference()
        held, found = self._held(bench, params)
        bench._held.append(held)
        alike = sum(all(call.get(name) == params.get(name) for name in self.names) for call in self.calls)
        asked = self.script.base.get(self.script.file, {}).get("stable", self.stable)
        bench._question = repr([alike, *((name, found.get(name)) for name in asked if name != FUNCTION)])
        return held

    def _held(self, bench: Bench, wanted: Params) -> tuple[Held, Words]:
        stream = None
        if bench.device_name.startswith("cuda"):
            from ..gpu import rig

            stream = rig().stream
        bench.seed_everything()  # for each of them the same
        runs: list[Reaching] = []

        def go(held: Held) -> None:
            runs.append(Reaching(self, bench, wanted, held))
            runs[0].go()

        return Held(go, stream), runs[0].found


def kernel_of(script: Script, tree: str, listed: Optional[Mapping[str, Any]] = None) -> ScriptKernel:
    """Return a script's kernel. `listed`: `names`, `stable` and `calls` of an earlier process; None lists them. Raises
    Unlisted."""
    try:
        exchange(script.timers)
        if not isinstance(builtins.open, Copies):
            builtins.open = io.open = Copies(tree)
        if listed is None:
            (first, ended), (second, _) = (_listed(script, tree, times) for times in (RISING, FALLING))
            known = stable(first, second)
            names = telling(first, known, script.base.get(script.file, {}).get("names", ()))
            counter = Counter(names)
            listed = {"names": names, "stable": known, "calls": [counter.name(words) for words in first]}
            listed["ended"] = ended
            for name in (*script.select, *script.reference):
                if name not in names:
                    count = len(listed["calls"])
                    raise Unlisted(f"{name!r} tells none of its {count} calls apart: {_known(names)} does")
    except Unlisted:
        raise
    except ValueError as error:
        raise Unlisted(str(error)) from None
    kernel = ScriptKernel(script, tree, listed["names"], listed["stable"], listed["calls"])
    kernel.ended = listed["ended"]
    cases = kernel.cases(script.device)
    if not cases:
        count, some = len(kernel.calls), kernel.calls[0]
        raise Unlisted(f"select: it leaves none of the {count} calls: write values such as {some}")
    seen: dict[str, Params] = {}
    for case in cases:
        if case.id in seen:
            raise Unlisted(f"{seen[case.id]} and {case.params} make the same id {case.id!r}: change one value")
        seen[case.id] = case.params
    return kernel


def _known(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


def _listed(script: Script, tree: str, times: tuple[float, float]) -> tuple[list[Words], str]:
    """Return the words of each call, and what failed behind them, or empty."""
    run = Listing(script, tree, times)
    raised: list[BaseException] = []

    def go() -> None:
        try:
            run.go()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=go)  # which has no loop, stream or mode of ours
    thread.start()
    thread.join()
    failed = bool(raised) and not (isinstance(raised[0], SystemExit) and not raised[0].code)
    ended = explained(raised[0]) if failed else ""
    if not run.calls:
        if failed and isinstance(raised[0], SystemExit) and isinstance(raised[0].code, str):
            raise Unsupported(ended)
        if failed and script.device == "cuda" and not _has_gpu():
            raise Unsupported(f"there is no GPU: {ended}")
        if failed:
            raise Unlisted(f"fails before its first call of a timer: {ended}")
        raise NoCalls("calls no timer that perfci knows: name its own under `timers:`")
    return run.calls, ended


def _has_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())


def explained(error: BaseException) -> str:
    """Return an exception in one short line, as a script tells it."""
    text = " ".join(str(error).split())[:400]
    if isinstance(error, SystemExit):
        return f"it ends with {text}" if text.isdecimal() else text
    return f"{type(error).__name__}: {text}".rstrip(": ")


def _selected(params: Params, select: Mapping[str, Sequence[Scalar]]) -> bool:
    return all(any(str(params.get(name)) == str(value) for value in values) for name, values in select.items())


class Copies:
    """Writes of a script into the tree go into copies elsewhere."""

    def __init__(self, tree: str) -> None:
        self.tree = os.path.join(os.path.realpath(tree), "")
        self.folder = tempfile.mkdtemp(prefix="perfci-written-")
        self.open = builtins.open

    def __call__(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """Open a file, as `open` does."""
        if here.within and isinstance(file, (str, os.PathLike)):
            path = os.path.realpath(os.fspath(file))
            if path.startswith(self.tree):
                copy = os.path.join(self.folder, path[len(self.tree) :])
                if set(mode) & set("wax+"):
                    os.makedirs(os.path.dirname(copy), exist_ok=True)
                    if os.path.exists(path) and not os.path.exists(copy):
                        shutil.copy(path, copy)
                if os.path.exists(copy):
                    file = copy
        return self.open(file, mode, *args, **kwargs)
