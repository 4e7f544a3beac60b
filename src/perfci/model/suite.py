"""Entries of a policy's suite: files that declare kernels, and benchmarks as they are."""

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from perfci.model.base import DeviceKind, Document, Mistake


def as_list(value: Any) -> Any:
    """Take a text for a list of it."""
    return [value] if isinstance(value, str) else value


def as_values(value: Any) -> Any:
    """Take what is no list for a list of it."""
    return value if isinstance(value, list) or value is None else [value]


def _inside(path: str) -> str:
    if path.startswith(("/", "~")) or ".." in path.split("/"):
        raise ValueError(f"{path!r} must be a path inside the repository")
    return path


InsidePath = Annotated[
    str,
    Field(min_length=1),
    AfterValidator(_inside),
    WithJsonSchema({"type": "string", "minLength": 1, "pattern": r"^(?![/~])(?!(.*/)?\.\.(/|$))"}),
]
Word = str | int | float | bool
"""A value that tells a script's calls apart."""


class ScriptReference(Document):
    """The call of the same script that says what a case's result must be."""

    call: dict[str, Word] = Field(min_length=1)
    """Name → value: it differs from the case's in these alone, as in `{provider: torch}`."""
    rtol: float = Field(0.0, ge=0, allow_inf_nan=False)
    """As of `bench.reference`."""
    atol: float = Field(0.0, ge=0, allow_inf_nan=False)
    """As of `bench.reference`."""


Files = Annotated[list[InsidePath], BeforeValidator(as_list)]


class Script(Document):
    """Benchmarks as they are: what they pass to a timer is a case. It has `script` or `pytest`."""

    script: Files = Field(default_factory=list)
    """Globs of Python files that are run as programs."""
    pytest: Files = Field(default_factory=list)
    """Globs of files whose tests pytest runs, in one process."""
    args: Annotated[list[str | int | float], BeforeValidator(as_list)] = Field(default_factory=list)
    """Their arguments."""
    each: InsidePath | None = None
    """A file of the tree: each of its lines holds further arguments of one run, as a shell has them; what follows a `#`
    is left out."""
    device: DeviceKind | None = None
    """The device that they use; by default the GPU, or the CPU where torch has none."""
    select: dict[str, Annotated[list[Word], BeforeValidator(as_values)]] = Field(default_factory=dict)
    """Name → values of the calls that are cases; by default all."""
    reference: ScriptReference | None = None
    """What says that a result is right; without it, results are only held to be finite."""
    timers: dict[str, str] = Field(default_factory=dict)
    """The project's own timers, besides those of triton, torch, flashinfer and pytest-benchmark:
    `package.module.function` → the parameter that it calls."""

    @model_validator(mode="after")
    def _one_kind(self) -> "Script":
        if bool(self.script) == bool(self.pytest):
            raise Mistake("write `script:` or `pytest:`, and one of them", "pytest" if self.pytest else "script")
        if self.pytest and any(name.startswith("__main__.") for name in self.timers):
            raise Mistake("tests have no __main__: name the timer's module", "timers")
        if self.each and not self.script:
            raise Mistake("belongs to `script:`: pytest takes no list of arguments", "each")
        return self

    def messages(self) -> list[dict[str, Any]]:
        """Return what a worker takes, for each glob."""
        asked = self.reference or ScriptReference.model_construct(call={})
        shared: dict[str, Any] = {name: getattr(self, name) for name in ("device", "select", "timers")}
        shared.update(args=[str(value) for value in self.args], each=self.each or "", tests=bool(self.pytest))
        shared.update(reference=asked.call, rtol=asked.rtol, atol=asked.atol)
        return [{"file": glob, **shared} for glob in (*self.script, *self.pytest)]


ENTRIES = ("<glob>", "<script>")
"""Kinds of a suite's entries, which are part of no place in a policy."""
SuiteEntry = Annotated[
    Annotated[InsidePath, Tag(ENTRIES[0])] | Annotated[Script, Tag(ENTRIES[1])],
    Discriminator(lambda entry: ENTRIES[isinstance(entry, dict | Script)]),
]
