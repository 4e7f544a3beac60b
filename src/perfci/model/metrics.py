"""The metric catalogue: stable names, each with unit, direction and tier."""

from typing import Literal

from pydantic import Field

from perfci.model.base import Document

Direction = Literal["lower", "higher"]
Tier = Literal["timing", "trace", "counters", "static", "reported"]


class Metric(Document):
    """A named quantity."""

    name: str
    unit: str
    """The unit values are stored in."""
    better: Direction
    """Which way is better."""
    tier: Tier = "timing"
    """Where it comes from."""
    about: str = ""


class CustomMetric(Document):
    """A metric that a command reports itself, declared in the policy so that a mistyped name is an error."""

    unit: str = Field("", max_length=24)
    """Its unit, as it is to be shown."""
    better: Direction = "lower"
    """Which way is better."""


CATALOGUE: dict[str, Metric] = {
    m.name: m
    for m in (
        Metric(name="time", unit="s", better="lower", about="time of one execution under the case's contract"),
        Metric(name="cycles", unit="cycles", better="lower", about="time × the SM clock measured beside it"),
        Metric(
            name="tflops",
            unit="TFLOP/s",
            better="higher",
            about="declared floating-point operations over time",
        ),
        Metric(name="bandwidth", unit="B/s", better="higher", about="declared bytes read and written over time"),
        Metric(name="throughput", unit="/s", better="higher", about="declared items (tokens, samples) over time"),
    )
}


def resolve(name: str, custom: dict[str, CustomMetric]) -> Metric:
    """The metric `name` from the catalogue or the policy's own. Raises KeyError where neither knows it."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    own = custom[name]
    return Metric(name=name, unit=own.unit, better=own.better, tier="reported")
