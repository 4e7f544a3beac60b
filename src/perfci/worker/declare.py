"""`@kernel`: how a suite file declares what is measured."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, TypeVar, Union

__all__ = ["CaseSpec", "Kernel", "Variant", "collecting", "kernel"]

DEVICES = ("cuda", "cpu")
MODES = ("auto", "rotating", "cold", "hot")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_.+-]")

Params = dict[str, Any]
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class CaseSpec:
    """One kernel at one set of parameters on one device."""

    id: str
    """Such as `matmul/n=1024/dtype=bf16`."""
    kernel: str
    params: Params
    device: str
    file: str
    line: int


@dataclass(frozen=True)
class Variant:
    """The values that a kernel takes on one device."""

    params: dict[str, list[Any]]
    """Timed: the product, in order."""
    fuzz: dict[str, list[Any]]
    """Checked only: the product, over a case's own parameters."""


@dataclass
class Kernel:
    """A declared function under test."""

    name: str
    fn: Callable[..., Any]
    """`fn(bench, **params)` builds one case and returns what is timed, a callable without arguments."""
    devices: dict[str, Variant]
    limits: list[dict[str, Any]] = field(default_factory=list)
    timing: Optional[str] = None
    """How it is timed on a GPU; None leaves it to the policy."""
    file: str = ""
    line: int = 0
    suite: str = ""
    """The suite file whose import declares it; `file` may be another."""

    def cases(self, device: str) -> list[CaseSpec]:
        """Return the cases on `device` in the order declared."""
        variant = self.devices.get(device)
        return [
            CaseSpec(case_id(self.name, params), self.name, params, device, self.file, self.line)
            for params in (product(variant.params) if variant else [])
        ]

    def fuzz_sets(self, device: str, params: Params) -> list[Params]:
        """Return the sets at which the case with `params` is also checked: each once, without `params`."""
        variant = self.devices.get(device)
        sets: list[Params] = []
        for values in product(variant.fuzz) if variant and variant.fuzz else []:
            candidate = {**params, **values}
            if candidate != params and candidate not in sets:
                sets.append(candidate)
        return sets


def product(values: Mapping[str, Sequence[Any]]) -> list[Params]:
    """Return all combinations of the values of each name, the last name varying fastest."""
    return [dict(zip(values, combination)) for combination in itertools.product(*values.values())]


def case_id(name: str, params: Params) -> str:
    """Return `name/param=value/…`, values by str() with all but [A-Za-z0-9_.+-] as `_`."""
    return "/".join([name, *(f"{key}={NOT_IN_IDS.sub('_', str(value))}" for key, value in params.items())])


_collectors: list[list[Kernel]] = []


@contextlib.contextmanager
def collecting() -> Iterator[list[Kernel]]:
    """Open the registry of one suite file: declarations meanwhile go to the list that it yields."""
    kernels: list[Kernel] = []
    _collectors.append(kernels)
    try:
        yield kernels
    finally:
        _collectors.pop()


def kernel(
    params: Optional[Mapping[str, Sequence[Any]]] = None,
    *,
    devices: Union[str, Sequence[str], Mapping[str, Optional[Mapping[str, Any]]]] = DEVICES,
    fuzz: Optional[Mapping[str, Sequence[Any]]] = None,
    limits: Sequence[Mapping[str, Any]] = (),
    timing: Optional[str] = None,
    name: Optional[str] = None,
    **unknown: Any,
) -> Callable[[Function], Function]:
    """Declare a function as a kernel under test; the function itself stays as it is.

    It gets a `Bench` and one value of each parameter, draws its inputs, and returns what is to be timed::

        @perfci.kernel(params={"n": [1024, 4096]}, devices={"cuda": None, "cpu": {"params": {"n": [256]}}})
        def scale(bench, n):
            x = bench.randn(n, n)
            bench.reference(lambda: x.double() * 2, rtol=1e-6)
            return lambda: x * 2

    `params`: name → list of str, int, float or bool; every combination is a case. `devices`: names out of "cuda" and
    "cpu", or a mapping from these to None or to what differs there: under "params" lists that replace those of the same
    name, under "fuzz" all of `fuzz`. `fuzz`: name → list; every combination, over the case's own parameters, is checked
    and never timed. `limits`: mappings such as `{"metric": "time", "regression": "5%"}`, as in the policy but without
    `cases`. `timing`: on a GPU, "rotating", "cold", "hot" or "auto"; by default as the policy says. `name`: the
    function's own by default.

    Raises TypeError and ValueError with one line that begins with the place of the function.
    """
    if callable(params):  # @perfci.kernel without parentheses
        return kernel()(params)

    def declare(fn: Function) -> Function:
        file, line = _place(fn)
        try:
            for key in unknown:
                raise TypeError(f"@perfci.kernel takes no argument {key!r}")
            label = _name(fn if name is None else name)
            declared = Kernel(label, fn, {}, _limits(limits), _timing(timing), file, line)
            for device, overrides in _devices(devices).items():
                declared.devices[device] = _variant(fn, params or {}, fuzz or {}, device, overrides)
                _distinct(declared.cases(device))
            if _collectors:
                twin = next((other for other in _collectors[-1] if other.name == label), None)
                if twin is not None:
                    raise ValueError(f"kernel {label!r} is declared already in line {twin.line}: rename one of them")
        except (TypeError, ValueError) as error:
            raise type(error)(f"{file}:{line}: {error}") from None
        if _collectors:
            _collectors[-1].append(declared)
        return fn

    return declare


def _place(fn: Any) -> tuple[str, int]:
    code = getattr(inspect.unwrap(fn) if callable(fn) else fn, "__code__", None)
    if code is None:
        raise TypeError(f"@perfci.kernel stands before a function, not before a {type(fn).__name__}")
    return code.co_filename, code.co_firstlineno


def _name(source: Any) -> str:
    label = source if isinstance(source, str) else getattr(source, "__name__", source)
    if not isinstance(label, str) or not NAME.fullmatch(label):
        raise ValueError(f"{label!r} cannot name a kernel: use name= with letters, digits and _")
    return label


def _timing(timing: Any) -> Optional[str]:
    if timing is None:
        return None
    if timing not in MODES:
        raise ValueError(f"timing={timing!r} is unknown: write one of {', '.join(map(repr, MODES))}")
    return str(timing)


def _devices(devices: Any) -> dict[str, Mapping[str, Any]]:
    if isinstance(devices, str):
        devices = [devices]
    if not isinstance(devices, (Mapping, Sequence, set, frozenset)) or not devices:
        raise ValueError("devices names at least one of 'cuda' and 'cpu'")
    overrides = {}
    for device in devices:
        if device not in DEVICES:
            raise ValueError(f"devices: {device!r} is unknown: write 'cuda' or 'cpu'")
        own = devices[device] if isinstance(devices, Mapping) else None
        if own is not None and not isinstance(own, Mapping):
            raise TypeError(f"devices[{device!r}] is None or a mapping with 'params' and 'fuzz', not {own!r}")
        for key in own or ():
            if key not in ("params", "fuzz"):
                raise ValueError(f"devices[{device!r}]: {key!r} is unknown: write 'params' or 'fuzz'")
        overrides[device] = own or {}
    return overrides


def _variant(fn: Callable[..., Any], params: Any, fuzz: Any, device: str, overrides: Mapping[str, Any]) -> Variant:
    own = overrides.get("params") or {}
    timed = {**_values(params, "params"), **_values(own, f"devices[{device!r}]['params']")}
    checked = _values(fuzz, "fuzz")
    if "fuzz" in overrides:
        checked = _values(overrides["fuzz"] or {}, f"devices[{device!r}]['fuzz']")
    _fits(fn, timed, checked, device)
    return Variant(timed, checked)


def _values(given: Any, where: str) -> dict[str, list[Any]]:
    if not isinstance(given, Mapping):
        raise TypeError(f"{where} is a mapping from names to lists, not {given!r}")
    values = {}
    for name, items in given.items():
        if not isinstance(name, str):
            raise TypeError(f"{where}: {name!r} is no parameter's name")
        if isinstance(items, str) or not isinstance(items, Sequence):
            raise TypeError(f"{where}[{name!r}] is a list of values, not {items!r}")
        if not items:
            raise ValueError(f"{where}[{name!r}] is empty: give at least one value")
        for item in items:
            if not isinstance(item, (str, int, float)):
                raise TypeError(
                    f"{where}[{name!r}]: {item!r} is no str, int, float or bool: pass a name and look it up"
                )
            if isinstance(item, float) and not math.isfinite(item):
                raise ValueError(f"{where}[{name!r}]: {item!r} is not finite")
        values[name] = list(items)
    return values


def _fits(fn: Callable[..., Any], timed: Params, checked: Params, device: str) -> None:
    """Raise TypeError where `fn(bench, **params)` cannot be called."""
    parameters = list(inspect.signature(fn).parameters.values())
    if not parameters or parameters[0].name != "bench" or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise TypeError(f"{fn.__name__}() takes 'bench' as its first parameter: def {fn.__name__}(bench, …)")
    rest = parameters[1:]
    keywords = {p.name: p for p in rest if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if not any(p.kind is p.VAR_KEYWORD for p in rest):
        for name in (*timed, *checked):
            if name not in keywords:
                known = ", ".join(keywords) or "none besides bench"
                raise TypeError(f"{fn.__name__}() has no parameter {name!r}: it takes {known}")
    if "bench" in timed or "bench" in checked:
        raise TypeError("'bench' is no parameter of a case: perfci passes it")
    for parameter in rest:
        required = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        if required and parameter.name not in timed:
            raise TypeError(f"{fn.__name__}() needs values for {parameter.name!r} on {device}: add it to params")


def _limits(limits: Any) -> list[dict[str, Any]]:
    if isinstance(limits, Mapping) or not isinstance(limits, Sequence):
        raise TypeError("limits is a list of mappings, such as [{'metric': 'time', 'regression': '5%'}]")
    for limit in limits:
        if not isinstance(limit, Mapping) or not all(isinstance(key, str) for key in limit):
            raise TypeError(f"limits: {limit!r} is no mapping, such as {{'metric': 'time', 'regression': '5%'}}")
        if "cases" in limit:
            raise ValueError("limits: leave out 'cases': the limit holds for this kernel's cases")
    return [dict(limit) for limit in limits]


def _distinct(cases: list[CaseSpec]) -> None:
    seen: dict[str, Params] = {}
    for case in cases:
        if case.id in seen:
            raise ValueError(f"{seen[case.id]} and {case.params} make the same id {case.id!r}: change one value")
        seen[case.id] = case.params
