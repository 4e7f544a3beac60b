"""The words and numbers that every sentence shares."""

from perfci.model.text import did_you_mean, escaped, listed, one_line, shorten
from perfci.model.units import limit_percent, noise_percent, percent, show_share


def test_one_line() -> None:
    assert one_line(" a\n  b\tc ") == "a b c"
    assert one_line("a\udc80b") == "a?b"
    assert one_line(ValueError("x" * 50), 10) == "x" * 9 + "…"


def test_escaped() -> None:
    assert escaped("a\nb\x1b[31m\u202ec\udc80") == "a\\nb\\x1b[31m\\u202ec\\udc80"
    assert escaped("größer `x` \\") == "größer `x` \\"
    assert len(escaped("x" * 1000)) == 1000
    assert len(escaped("x" * 1000, 300)) == 300


def test_shorten() -> None:
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdef", 5) == "abcd…"
    assert shorten("abcdef", 5, middle=True) == "ab…ef"


def test_listed() -> None:
    assert listed([]) == ""
    assert listed(["a", "b", "c"]) == "a, b, c"
    assert listed((name for name in "abcde"), mark="`") == "`a`, `b`, `c` and 2 more"


def test_did_you_mean() -> None:
    assert did_you_mean("tiem", {"time": 1, "cycles": 2}) == "did you mean 'time'?"
    assert did_you_mean("xyz", ["time"], "known is time") == "known is time"
    assert did_you_mean("xyz", []) == ""


def test_percents() -> None:
    assert [percent(share) for share in (0.0, 0.0213, 0.152, 1.0)] == ["0 %", "2.1 %", "15.2 %", "100 %"]
    assert [limit_percent(share) for share in (0.02, 0.07, 0.123456, 10)] == ["2 %", "7 %", "12.3456 %", "1000 %"]
    assert [noise_percent(share) for share in (9e-6, 0.0234, 0.152, 1.0)] == ["0 %", "2.3 %", "15 %", "100 %"]
    assert [show_share(share) for share in (None, 0.05, 0.0512)] == ["–", "5.00 %", "5.12 %"]
