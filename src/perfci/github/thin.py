"""Results as an artifact takes them."""

import zipfile
from io import BytesIO

from perfci.github import artifact
from perfci.judge.judge import judge
from perfci.model.results import Results

NOTE = (
    f"Left out of what was handed over, of which {artifact.MEMBER_BYTES >> 20} MiB are read: pictures of pairs, of "
    "timelines and of the GPU along the run; calls of the OS, findings of ncu's rules, machine code and what tuners "
    "chose; the parts of the noise; references that are the same in base and head"
)


def fit(content: bytes) -> tuple[bytes, str]:
    """Return a `results.json` as publishing jobs read it, and a note on what was left out, or empty.

    Raises Unfit where that does not suffice, or changes an answer.
    """
    if not _refused(content):
        return content, ""
    results = Results.model_validate_json(content)
    before, thinned, note = _answers(results), _dumped(results), ""
    if _refused(thinned):
        _leave_out(results)
        results.notes, note = [*results.notes, NOTE], NOTE
        thinned = _dumped(results)
    if _refused(thinned) and results.plan.claims is not None and results.plan.claims.described:
        results.plan.claims = None
        for case in results.cases:
            case.claimed = None
        results.notes.append("What the description claims was too much to hand over.")
        thinned = _dumped(results)
    if why := _refused(thinned):
        raise artifact.Unfit(why)
    if _answers(artifact.parse(thinned)) != before:
        raise artifact.Unfit("is too large, and what it could do without decides its verdict")
    return thinned, note


def _refused(content: bytes) -> str:
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
    rest = results.model_dump_json(exclude={"cases"}).encode()
    cases = b",".join(case.model_dump_json(exclude_defaults=True).encode() for case in results.cases)
    return rest[:-1] + b',"cases":[' + cases + b"]}"


def _leave_out(results: Results) -> None:
    """What a metric is of stays, and so do a change's causes: without them a wrong one would be named."""
    results.moments = []
    for case in results.cases:
        for pair in [*case.pairs, *(case.claimed.pairs if case.claimed is not None else ())]:
            pair.first, pair.samples, pair.seconds, pair.at, pair.blocks = None, {}, {}, None, 0
            pair.choices, pair.scatter = {}, None
        checks = [side.check for side in case.sides.values()]
        if all(check.sketch == checks[0].sketch for check in checks):
            for check in checks:
                check.sketch = []
        for profile in (side.profile for side in case.sides.values() if side.profile is not None):
            profile.code, profile.files = [], []
            if profile.trace is not None:
                profile.trace.slices, profile.trace.os_calls = [], []
            for kernel in profile.counters.kernels if profile.counters is not None else ():
                kernel.rules = []
