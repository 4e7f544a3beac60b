"""Results as an artifact takes them: without what decides nothing where they are too large, which they say."""

import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO

from perfci.github import artifact
from perfci.judge.judge import judge
from perfci.model.profile import Profile
from perfci.model.results import Pair, Results


def fit(content: bytes) -> tuple[bytes, list[str]]:
    """Return a `results.json` as publishing jobs read it, and what was left out, a phrase each.

    Takes as few of STEPS as needed. Raises Unfit where all do not suffice, or change the verdict or a row's class.
    """
    if not _refused(content):
        return content, []
    results = Results.model_validate_json(content)
    before, left = _answers(results), list[str]()
    for words, drop in STEPS:
        drop(results)
        left += [words] if words else []
        made = results.model_copy(deep=False)
        made.notes = [*results.notes, f"{NOTE}{'; '.join(left)}"] if left else results.notes
        thinned = _dumped(made)
        if not (why := _refused(thinned)):
            if _answers(artifact.parse(thinned)) != before:
                raise artifact.Unfit("is too large, and what it could do without decides its verdict")
            return thinned, left
    raise artifact.Unfit(why)


NOTE = f"Left out of what was handed over, of which {artifact.MEMBER_BYTES >> 20} MiB are read: "


def _refused(content: bytes) -> str:
    """Return why no publishing job would read this out of an artifact, or empty."""
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr(artifact.MEMBER, content)
    try:
        member = artifact.read_member(archive.getvalue())
        assert isinstance(member, bytes)  # it has just been put there
        artifact.parse(member)
    except artifact.Unfit as why:
        return str(why)
    return ""


def _answers(results: Results) -> object:
    report = judge(results)
    rows = [(row.case, row.device, row.metric, row.kind, row.class_, row.effect) for row in report.rows]
    return report.verdict, report.exit_code, rows


def _dumped(results: Results) -> bytes:
    """Return the document without spaces, and its cases without defaults."""
    rest = results.model_dump_json(exclude={"cases"}).encode()
    cases = b",".join(case.model_dump_json(exclude_defaults=True).encode() for case in results.cases)
    return rest[:-1] + b',"cases":[' + cases + b"]}"


def _pairs(results: Results) -> Iterator[Pair]:
    return (pair for case in results.cases for pair in case.pairs)


def _profiles(results: Results) -> Iterator[Profile]:
    return (side.profile for case in results.cases for side in case.sides.values() if side.profile is not None)


def _pictured(results: Results) -> None:
    results.moments = []
    for pair in _pairs(results):
        pair.first, pair.samples, pair.seconds, pair.at, pair.blocks = None, {}, {}, None, 0
    for profile in _profiles(results):
        if profile.trace is not None:
            profile.trace.slices = []


def _explaining(results: Results) -> None:
    for pair in _pairs(results):
        pair.choices = {}
    for profile in _profiles(results):
        profile.code, profile.files = [], []
        if profile.trace is not None:
            profile.trace.os_calls = []
        for kernel in profile.counters.kernels if profile.counters is not None else ():
            kernel.rules = []


def _scatter(results: Results) -> None:
    for pair in _pairs(results):
        pair.scatter = None


def _alike(results: Results) -> None:
    for case in results.cases:
        sides = list(case.sides.values())
        checks, timings = [side.check for side in sides], [side.timing for side in sides if side.timing is not None]
        for owners, field, nothing in (
            (sides, "inputs", ""), (checks, "sketch", []), (checks, "unredrawn", ""), (timings, "settings", {}),
        ):  # fmt: skip
            values = [getattr(owner, field) for owner in owners]
            if all(value == values[0] for value in values):
                for owner in owners:
                    setattr(owner, field, nothing)


STEPS: list[tuple[str, Callable[[Results], None]]] = [
    ("", lambda results: None),  # spaces and defaults
    ("pictures of pairs, of timelines and of the GPU along the run", _pictured),
    ("calls of the OS, findings of ncu's rules, machine code and what tuners chose", _explaining),
    ("the parts of the noise", _scatter),
    ("inputs, references and settings that are the same in base and head", _alike),
]
"""What is left out, least needed first. What a metric is of stays, and so do a change's causes: without them a wrong
one would be named."""
