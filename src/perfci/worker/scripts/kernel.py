"""A benchmark script: its calls of timers as kernels, and a run of it to one of them."""

from __future__ import annotations

import builtins
import contextlib
import fnmatch
import io
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Optional

from ..bench import Bench
from ..checks.check import copied
from ..checks.compare import leaves
from ..checks.plain import Refused, is_array, is_number, plain
from ..declare import CaseSpec, Kernel, Params, Variant, case_id
from .calls import FUNCTION, ORDINAL, Counter, Scalar, Words, same, stable, telling
from .copies import Copies
from .held import Gone, Held
from .reaching import Reaching, session_of
from .runs import FALLING, RISING, End, Listing
from .script import Script, Unlisted, Unsupported
from .tests import TEST
from .timers import exchange

MOST_TOLD = 3
"""Ends of runs, and places of each."""


class Expected:
    """The result of a script's call, of a run of its own: nothing of it stands while the case executes."""

    def __init__(self, run: Callable[[], Held], known: dict[str, Any], key: str) -> None:
        """`known`: results by `key`, of which two are kept."""
        self.run, self.known, self.key = run, known, key
        self.drawn = _nothing_drawn

    def __call__(self) -> Any:
        """Raises ValueError where the result holds no number."""
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

    def __init__(self, script: Script, tree: str, listed: Mapping[str, Any]) -> None:
        """`listed`: see `listing`. Raises Unlisted."""
        devices = {script.device: Variant({}, {})}
        super().__init__(script.kernel, self.build, devices, file=script.file, line=1, suite=script.file)
        self.script, self.tree, self.listed = script, tree, listed
        self.names: Sequence[str] = listed["names"]
        self.calls: Sequence[Params] = listed["calls"]
        self.lines = script.lines(tree)
        self.results: dict[str, Any] = {}
        """Of the reference, while one case is checked."""

    def alone(self) -> ScriptKernel:
        """Return these calls without a reference."""
        return ScriptKernel(replace(self.script, reference={}), self.tree, self.listed)

    def cases(self, device: str) -> list[CaseSpec]:
        """See `Kernel`."""
        if device != self.script.device:
            return []
        return [
            CaseSpec(case_id(self.name, call), self.name, call, device, self.file, place)
            for call, place in zip(self.calls, self.listed["places"])
            if _selected(call, self.script.select)
        ]

    def has(self, wanted: Params) -> bool:
        """Tell whether the script makes a call."""
        return any(same(wanted, call) for call in self.calls)

    def build(self, bench: Bench, /, **params: Any) -> Held:
        """Run the script to a case's call."""
        if (text := self._newly_failed(params)) != "":
            raise RuntimeError(f"its test fails, and does not in base: {text}")
        wanted = first_left_out({**params, **self.script.reference})
        if not same(wanted, params) and self.has(wanted):
            key = f"{bench._seed} {sorted(wanted.items())}"
            reference = Expected(lambda: self._held(bench, wanted)[0], self.results, key)
            bench.reference(reference, self.script.rtol, self.script.atol)
            if bench._poison:  # when it is checked: before anything of the case stands
                reference()
        held, found = self._held(bench, params)
        bench._held.append(held)
        alike = sum(all(call.get(name) == params.get(name) for name in self.names) for call in self.calls)
        asked = self.script.base.get(self.script.file, self.listed)["stable"]
        bench._question = repr([alike, *((name, found.get(name)) for name in asked if name != FUNCTION)])
        return held

    def _newly_failed(self, params: Params) -> str:
        base = self.script.base.get(self.script.file)
        own, theirs = (_failed(listed, params) for listed in (self.listed, base or self.listed))
        return own if own and theirs == "" else ""

    def _held(self, bench: Bench, wanted: Params) -> tuple[Held, Words]:
        stream = None
        if bench.device_name.startswith("cuda"):
            from ..gpu import rig

            stream = rig().stream
        runs: list[Reaching] = []
        lines = [self.lines[at] for at, call in zip(self.listed["lines"], self.calls) if same(wanted, call)]
        if not lines:
            raise Gone(f"the script makes no call {case_id(self.name, wanted)}")

        def go(held: Held) -> None:
            runs.append(Reaching(self.script, self.tree, lines[0], self.names, wanted, bench, held, session))
            runs[0].go()

        session = session_of(self.script, self.tree, lines[0]) if self.script.tests else None
        bench.seed_everything()  # for each of them the same
        return Held(go, stream), runs[0].found


def _failed(listed: Mapping[str, Any], params: Params) -> Optional[str]:
    return next((text for call, text in zip(listed["calls"], listed["failed"]) if same(call, params)), None)


def first_left_out(params: Params) -> Params:
    """Return parameters as names have them: of equal calls the first has no ordinal."""
    return {name: value for name, value in params.items() if (name, value) != (ORDINAL, 1)}


def kernel_of(script: Script, tree: str, listed: Optional[Mapping[str, Any]] = None) -> ScriptKernel:
    """Return a script's kernel. `listed`: of an earlier process; None lists its calls. Raises Unlisted."""
    try:
        exchange(script.timers)
        if not isinstance(builtins.open, Copies):
            builtins.open = io.open = Copies(tree)
        kernel = ScriptKernel(script, tree, listing(script, tree) if listed is None else listed)
    except Unlisted:
        raise
    except ValueError as error:
        raise Unlisted(str(error)) from None
    cases = kernel.cases(script.device)
    kernel.listed = {**kernel.listed, "alone": _without_reference(kernel, cases)}
    if not cases:
        count, some = len(kernel.calls), kernel.calls[0]
        raise Unlisted(f"select: it leaves none of the {count} calls: write values such as {some}")
    seen: dict[str, Params] = {}
    for case in cases:
        if case.id in seen:
            raise Unlisted(f"{seen[case.id]} and {case.params} make the same id {case.id!r}: change one value")
        seen[case.id] = case.params
    return kernel


def _without_reference(kernel: ScriptKernel, cases: Sequence[CaseSpec]) -> str:
    """Cases that lack one that others have. Raises Unlisted where none has, or where it is not known which of several
    is a case's."""
    asked = kernel.script.reference
    if not asked or not cases:
        return ""
    wanted = [first_left_out({**case.params, **asked}) for case in cases]
    lacking = [case.id for case, params in zip(cases, wanted) if not kernel.has(params)]
    if len(lacking) == len(cases):
        raise Unlisted(f"reference: it makes no call {case_id(kernel.name, wanted[0])}")
    if ORDINAL in asked and any(call.get(ORDINAL, 1) > 2 for call in kernel.calls):
        raise Unlisted(
            f"reference: {ORDINAL} tells which is right of two calls alike, and here are more: select by what tells "
            "them apart, or leave `reference:` out"
        )
    return f"no call is the reference of {_some(lacking)}, which are compared with base" if lacking else ""


def listing(script: Script, tree: str) -> dict[str, Any]:
    """Return what a script's calls are.

    `names` tell them apart; `stable` are those whose values are compared with base's, of one call; `calls` have the
    parameters, `lines` the number of the run, and `places` the line of the file, of each; `ended` says what ended runs,
    if not themselves, `failed` what the test of each fails by, in both runs. Raises Unlisted, and
    ValueError where calls depend on times.
    """
    found, second = (_listed(script, tree, times) for times in (RISING, FALLING))
    first = found.calls
    known = stable(first, second.calls)
    always = [TEST] if script.tests else []  # else a second test of a file would rename the first one's cases
    names = telling(first, known, [*script.base.get(script.file, {}).get("names", always)])
    for name in (*script.select, *script.reference):
        if name not in (*names, ORDINAL):
            raise Unlisted(f"{name!r} tells none of its {len(first)} calls apart: {_known(names)} does")
    # Ordinals are those of a line's run, in which a call is reached.
    counters = [Counter(names) for _ in script.lines(tree)]
    calls = [counters[line].name(words) for words, line in zip(first, found.lines)]
    ended = _ended(script, found)
    return {
        "names": names, "stable": known, "calls": calls, "lines": found.lines, "places": found.places, "ended": ended,
        "failed": [found.failed.get(index, "") if index in second.failed else "" for index in range(len(calls))],
    }  # fmt: skip


def _known(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


@dataclass
class _Listed:
    calls: list[Words] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)


def _listed(script: Script, tree: str, times: tuple[float, float]) -> _Listed:
    found = _Listed()
    for index, line in enumerate(script.lines(tree)):
        run = Listing(script, tree, line, times, found.calls)
        _run(run)
        found.ends += run.ends
        found.failed.update(run.failed)
        found.places += run.places
        found.lines += [index] * len(run.places)
    if found.calls:
        return found
    if not found.ends:
        raise Unlisted("calls no timer that perfci knows in this process: name its own under `timers:`")
    text = found.ends[0].text
    if "FixtureLookupError: ('benchmark'" in text:
        raise Unlisted("needs the fixture `benchmark`: install pytest-benchmark for the code under test")
    if all(end.skipped for end in found.ends):
        raise Unsupported(text)
    needs = (script.device == "cuda" or script.chosen) and not script.base.get(script.file, {}).get("calls")
    if needs and not _has_gpu():
        raise Unsupported(f"there is no GPU: {text}")
    raise Unlisted(f"fails before its first call of a timer: {text}")


def _run(run: Listing) -> None:
    def go() -> None:
        try:
            run.go()
        except BaseException as error:
            if not isinstance(error, SystemExit) or error.code:
                script = run.script
                run.ended(f"{script.each}:{run.line.number}" if script.each else script.file, error)

    thread = threading.Thread(target=go)  # which has no loop, stream or mode of ours
    thread.start()
    thread.join()


def _ended(script: Script, found: _Listed) -> str:
    if not found.ends:
        return ""
    if not (script.tests or script.each):
        text = found.ends[0].text
        return f"fails behind call {len(found.calls)} of its timer, so that no more calls are cases: {text}"
    told = []
    for skipped, words in ((False, "fails, so that only calls before that are cases"), (True, "skipped")):
        places: dict[str, list[str]] = {}
        for end in found.ends:
            if end.skipped == skipped:
                places.setdefault(end.text, []).append(end.where)
        told += [f"{_some(where)}: {words}: {text}" for text, where in places.items()]
    return _some(told, "; ")


def _some(texts: Sequence[str], between: str = ", ") -> str:
    more = f" and {len(texts) - MOST_TOLD} more" if len(texts) > MOST_TOLD else ""
    return between.join(texts[:MOST_TOLD]) + more


def _has_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())


def _selected(params: Params, select: Mapping[str, Sequence[Scalar]]) -> bool:
    texts = {name: str(value) for name, value in {ORDINAL: 1, **params}.items()}
    return all(
        any(str(value) == texts.get(name) or fnmatch.fnmatchcase(texts.get(name, ""), str(value)) for value in values)
        for name, values in select.items()
    )
