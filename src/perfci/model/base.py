"""The base of every document of perfci, and its errors."""

from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field

T = TypeVar("T")

Side = Literal["base", "head"]
SIDES: tuple[Side, Side] = ("base", "head")
DeviceKind = Literal["cuda", "cpu"]
Items = Annotated[list[T], FailFast()]
"""Of documents: refused at its first wrong item, since of a stranger's million each would be an error to tell."""
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Document(BaseModel):
    """Strict by default: an unknown field is an error. `schemas` makes descriptions of the fields' docstrings."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid",
        validate_default=True,
        allow_inf_nan=True,
        ser_json_inf_nan="strings",
    )


class PerfciError(Exception):
    """An error for people: one line that says what, where and what to do, with the exit code it ends in.

    Exit codes: 1 the gate failed, 2 usage or configuration, 3 the measurement or the machine failed.
    """

    exit_code: int = 3


class UsageError(PerfciError):
    """A mistake in the command line or in `perfci.yaml`: exit code 2."""

    exit_code = 2


class PolicyError(UsageError):
    """A mistake in base's policy or in a limit that base declares, which head has fixed."""


class MachineError(PerfciError):
    """The measurement or the machine failed: exit code 3."""

    exit_code = 3


def matches(pattern: str, text: str) -> bool:
    """Tell whether the glob `pattern` matches `text`. `*` crosses `/`: `matmul/*` takes every case of `matmul`."""
    from fnmatch import fnmatchcase

    return fnmatchcase(text, pattern)
