"""Quantities: written ones are read exactly or refused, shown ones are readable."""

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from perfci.model import units
from perfci.model.units import Duration, Percent, Price, Size, show, show_change, significant

quick = settings(max_examples=200, deadline=None)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Percent, "2%", 0.02),
        (Percent, "0.5 %", 0.005),
        (Percent, "0%", 0.0),
        (Duration, "200ns", 200e-9),
        (Duration, "1.5us", 1.5e-6),
        (Duration, "7µs", 7e-6),
        (Duration, "7μs", 7e-6),
        (Duration, "3m", 180.0),
        (Duration, "3min", 180.0),
        (Duration, "1h", 3600.0),
        (Duration, "0s", 0.0),
        (Size, "8GiB", 8 * 2**30),
        (Size, "1.5MB", 1_500_000),
    ],
)
def test_written_quantities(kind, text, value):
    assert TypeAdapter(kind).validate_python(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Percent, 2), (Percent, 0.02), (Percent, "2"), (Percent, "-1%"), (Percent, "1001%"), (Percent, "nan%"), (Percent, "two%"),
        (Percent, "2%%"), (Percent, None), (Percent, True), (Duration, 30), (Duration, "30"), (Duration, "-1s"), (Duration, "inf s"),
        (Duration, "1e999s"), (Duration, "1 fortnight"), (Duration, "s"), (Duration, ""), (Size, 8), (Size, "8G"), (Size, "0B"),
        (Size, "0.5B"), (Size, "-1GiB"), (Size, "8gib"), (Price, 3.5), (Price, "3.50"), (Price, "USD"), (Price, "-3 USD"),
        (Price, "3.5 usd"), (Price, "nan USD"), (Price, "1e9 USD"), (Price, "3.50 USD\n"), (Price, "٣ USD"),
    ],
)  # fmt: skip
def test_refused_quantities(kind, value):
    """A bare number has no unit, and a guess at one would be off by a thousand."""
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(value)


@quick
@given(st.integers(0, 100_000).map(lambda n: n / 10_000))
def test_percent_survives_being_written(share):
    adapter = TypeAdapter(Percent)
    text = adapter.dump_python(adapter.validate_python(f"{share * 100!r}%"))
    assert adapter.validate_python(text) == pytest.approx(share, rel=1e-9, abs=1e-12)


@quick
@given(st.floats(1e-9, 1e5))
def test_duration_survives_being_written(seconds):
    adapter = TypeAdapter(Duration)
    text = adapter.dump_python(adapter.validate_python(f"{seconds!r}s"))
    assert adapter.validate_python(text) == pytest.approx(seconds, rel=1e-5)


@quick
@given(st.integers(1, 2**50))
def test_size_survives_being_written(size):
    adapter = TypeAdapter(Size)
    assert adapter.validate_python(adapter.dump_python(adapter.validate_python(f"{size}B"))) == size


@quick
@given(st.text(max_size=20))
def test_any_text_is_a_quantity_or_a_value_error(text):
    for parse in (units.parse_percent, units.parse_duration, units.parse_size):
        try:
            value = parse(text)
        except ValueError as error:
            assert "\n" not in str(error)
        else:
            assert math.isfinite(value) and value >= 0


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (48.5e-6, "s", "48.5 µs"), (1.234, "s", "1.23 s"), (0.00123, "s", "1.23 ms"), (32e-9, "s", "32.0 ns"), (0, "s", "0 ns"),
        (3.35e12, "B/s", "3.35 TB/s"), (445e9, "B/s", "445 GB/s"), (2.6e9, "B", "2.60 GB"), (12.0, "B", "12.0 B"),
        (788.0, "TFLOP/s", "788 TFLOP/s"), (3863.0, "TFLOP/s", "3860 TFLOP/s"), (12_345.0, "tokens/s", "12.3 k tokens/s"),
        (5000.0, "/s", "5.00 k /s"), (80.0, "%", "80.0 %"), (96.0, "", "96"), (2_000_000.0, "", "2.00 M"), (None, "s", "–"),
        (math.nan, "s", "nan"), (math.inf, "B/s", "inf"), (-5e-6, "s", "-5.00 µs"),
    ],
)  # fmt: skip
def test_show(value, unit, text):
    assert show(value, unit) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.021, "+2.10 %"), (0.731, "-26.9 %"), (3.11, "+211 %"), (1.0, "+0.00 %"), (0.0, "-100 %"), (1.0001, "+0.01 %"),
        (None, "–"), (math.nan, "–"), (math.inf, "–"),
    ],
)  # fmt: skip
def test_show_change(ratio, text):
    assert show_change(ratio) == text


@quick
@given(st.floats(1e-12, 1e12), st.sampled_from(["s", "B/s", "B", "TFLOP/s", "/s", "tokens/s", "cycles", ""]))
def test_a_shown_value_is_the_value(value, unit):
    """Rounded to three digits, and in a unit whose prefix fits."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e[+-]\d+)?) ?(.*)", show(value, unit))
    assert match
    prefix = match[2].removesuffix(unit).strip() if unit != "s" else match[2]
    scale = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
    scale["GFLOP/s"] = 1e-3
    if unit in ("B/s", "B"):
        prefix = match[2].removesuffix("B/s").removesuffix("B").strip()
    assert float(match[1]) * scale[prefix] == pytest.approx(value, rel=6e-3)


@quick
@given(st.floats(1e-6, 1e6))
def test_significant_keeps_three_digits(value):
    assert float(significant(value)) == pytest.approx(value, rel=5.1e-3)
