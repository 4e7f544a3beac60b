"""The base of every document of perfci, and its errors."""

from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field

T = TypeVar("T")

Side = Literal["base", "head"]
SIDES: tuple[Side, Side] = ("base", "head")
DeviceKind = Literal["cuda", "cpu"]
Items = Annotated[list[T], FailFast()]
"""Refused at the first wrong item: a stranger's document may have a million."""
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]

Loc = tuple[int | str, ...]
"""Leads to a value: `("limits", 0, "min")`."""


class Document(BaseModel):
    """An unknown field is an error. `schemas` makes descriptions of the fields' docstrings."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid",
        validate_default=True,
        allow_inf_nan=True,
        ser_json_inf_nan="strings",
    )


class Mistake(ValueError):
    """A wrong value; `loc` leads to it from the checked one."""

    def __init__(self, text: str, *loc: int | str) -> None:
        super().__init__(text)
        self.loc: Loc = loc


class PerfciError(Exception):
    """One line for people: what, where and what to do.

    Exit codes: 1 the gate failed, 2 usage or configuration, 3 the measurement or the machine failed.
    """

    exit_code: int = 3


class UsageError(PerfciError):
    """A mistake in the command line or in `perfci.yaml`."""

    exit_code = 2


class PolicyError(UsageError):
    """A mistake in what base declares, which head has fixed."""


class MachineError(PerfciError):
    """The measurement or the machine failed."""


def matches(pattern: str, text: str) -> bool:
    """Match a glob whose `*` crosses `/`."""
    from fnmatch import fnmatchcase

    return fnmatchcase(text, pattern)
