"""Which files share a traced process, and how much time one has."""

from types import SimpleNamespace

import pytest

from perfci.measure.proof import same_code
from perfci.measure.proof.same_code import _Answer, _examined, _Tracing
from perfci.measure.proof.trace import TracedNames
from perfci.model.results import Case


def files(**counts: int) -> dict[str, list[Case]]:
    return {
        name: [Case(id=f"{name}/n={n}", kernel=name, device="cuda", sides={}) for n in range(count)]
        for name, count in counts.items()
    }


def test_files_are_dealt_by_their_cases_and_those_of_a_refused_group_are_tried_again():
    asked = []

    def examine(groups):
        asked.append([sorted(group) for group in groups])
        return [_Answer("it reads c") if "c" in group else _Answer() for group in groups]

    reasons = _examined(files(a=1, b=5, c=1, d=2), SimpleNamespace(several=2, examine=examine))
    assert asked == [[["b"], ["a", "c", "d"]], [["d"], ["a", "c"]], [["a"], ["c"]]]
    assert {key.partition("/")[0]: why for key, why in reasons.items()} == {
        "a": "",
        "b": "",
        "c": "it reads c",
        "d": "",
    }


@pytest.mark.parametrize(
    ("several", "exclusive", "counts", "seconds"),
    [
        (2, False, {"a": 1, "b": 1}, [90.0] * 4),  # nothing would be tried again
        (1, False, {"a": 1, "b": 1}, [45.0] * 4),
        (2, True, {"a": 1}, [45.0, 90.0]),  # the second has what the first leaves
        (2, True, {"a": 1, "b": 1}, [22.5, 30.0, 45.0, 90.0]),
    ],
)
def test_processes_share_the_time_that_is_left_where_they_run_in_turns(
    monkeypatch, several, exclusive, counts, seconds
):
    given = []

    class Process:
        """One that ends as it begins."""

        wait = None

        def __init__(self, tracing, side, asked, number) -> None:
            self.tracing, self.side, self.asked = tracing, side, list(asked)
            self.first, self.last, self.refused = [], [], {}

        def begin(self) -> None:
            given.append(self.tracing.seconds)

        def trace(self) -> TracedNames:
            return TracedNames()

        def close(self) -> None: ...

    monkeypatch.setattr(same_code, "_Process", Process)
    monkeypatch.setattr(same_code, "time", SimpleNamespace(monotonic=lambda: 10.0))
    tracing = _Tracing.__new__(_Tracing)
    tracing.place = SimpleNamespace(sides={name: SimpleNamespace(name=name, seal=None) for name in ("base", "head")})
    tracing.several, tracing.exclusive, tracing.end, tracing.started = several, exclusive, 100.0, 0
    tracing.note, tracing.known, tracing.seconds = lambda _: None, (), 0.0
    asked = files(**counts)
    groups = [{name: own} for name, own in asked.items()]
    assert [answer.why for answer in tracing.examine(groups)] == [""] * len(groups)
    assert given == seconds
