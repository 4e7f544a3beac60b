"""A run's measurements, from archives that code under test may have written: nothing in them is believed."""

import json
import math
import stat
import zipfile
import zlib
from collections import Counter
from io import BytesIO
from typing import Any, Literal

from pydantic import ValidationError

from perfci.measure.shards.document import PLAN
from perfci.model.claims import Claim, claimed_of, sharing
from perfci.model.comparison import differences
from perfci.model.criteria import asked_in
from perfci.model.plan import Looks, count_sharing
from perfci.model.results import UNMEASURED, Case, Results
from perfci.model.text import shorten
from perfci.model.timing import GRAPH_MODES
from perfci.render.escape import visible

MEMBER = "results.json"
UNSOUND = (
    zipfile.BadZipFile,  # cut, or no archive at all
    EOFError,  # cut
    zlib.error,  # damaged
    RuntimeError,  # encrypted; and as NotImplementedError, which is one, of a version or method that zipfile lacks
    ValueError,  # names that cannot be
    OSError,  # offsets that cannot be
)
MEMBER_BYTES = 16 << 20
MOST_RATIO = 200
"""Expansion of the member; JSON of worker values shrinks to a tenth."""
MOST_ENTRIES = 10_000
MOST_CASES = 10_000
MOST_PAIRS = 256
"""Of a case: an estimate takes time with their square."""
MOST_METRICS = 1000
"""Of a case: reported by commands, missing from profilers, pieces of machine code."""
MOST_QUESTIONS = 20_000
SMALLEST_LIMIT = 1e-4
"""On a change in time: a smaller limit could never be answered, and so would never fail."""
MOST_ITEMS = 20_000
"""Of a list or object."""
MOST_OBJECTS = 500_000
"""Of a document; a worker pair has about ten in half a thousand bytes."""
LONGEST_TEXT = 20_000
"""Characters of a string, or digits of a number."""
_CENTRAL = b"PK\x01\x02"
"""Begins an entry of a zip's directory (PKWARE APPNOTE 4.3.12)."""


Unmeasured = Literal["idle", "plan"]
"""There was nothing to measure; or a plan, which other jobs measure."""


class Unfit(Exception):
    """Why an archive cannot be used: a clause with nothing that the archive says."""


def read_member(archive: bytes) -> bytes | Unmeasured:
    """Return `results.json` at the top of a zip archive, which is not unpacked. Raises Unfit.

    UNMEASURED or PLAN in its place are not read. An entry that has no place in an artifact makes the archive unfit.
    """
    if archive.count(_CENTRAL) > MOST_ENTRIES:
        raise Unfit(f"has more than {MOST_ENTRIES} entries")
    try:
        with zipfile.ZipFile(BytesIO(archive)) as opened:
            entries = opened.infolist()
            for entry in entries:
                _check_entry(entry)
            if any(count > 1 for count in Counter(entry.filename for entry in entries).values()):
                raise Unfit("has two entries of one name")
            member = next((entry for entry in entries if entry.filename == MEMBER), None)
            names = {entry.filename for entry in entries}
            if member is None and UNMEASURED in names:
                return "idle"
            if member is None and PLAN in names:
                return "plan"
            if member is None:
                raise Unfit(f"has no {MEMBER}: the measuring job ended before it could write one")
            if member.file_size > MEMBER_BYTES:
                raise Unfit(f"has a {MEMBER} of more than {MEMBER_BYTES >> 20} MiB")
            if member.file_size > MOST_RATIO * max(1, member.compress_size):
                raise Unfit(f"has a {MEMBER} that expands more than {MOST_RATIO} times")
            with opened.open(member) as stream:
                content = stream.read(MEMBER_BYTES + 1)
    except UNSOUND as error:  # a stranger's archive: each is its fault, told by its name, and no pass
        raise Unfit(f"is no sound zip archive ({type(error).__name__})") from None
    if len(content) > MEMBER_BYTES:
        raise Unfit(f"has a {MEMBER} of more than {MEMBER_BYTES >> 20} MiB")
    return content


def _check_entry(entry: zipfile.ZipInfo) -> None:
    # `filename` ends where a NUL stands, `orig_filename` does not.
    name = entry.orig_filename.replace("\\", "/")
    if name.startswith("/") or ":" in name or "\0" in name or ".." in name.split("/"):
        raise Unfit("has an entry whose path leads elsewhere")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
        raise Unfit("has an entry that is no file: a link or a device")
    if entry.flag_bits & 0x1:
        raise Unfit("has an encrypted entry")
    if entry.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise Unfit("has an entry that is compressed in another way than GitHub does")


def parse(content: bytes) -> Results:
    """Parse JSON, held to RFC 8259 and to bounds on what costs time or space. Raises Unfit."""
    try:
        data = json.loads(
            content.decode("utf-8"),
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_whole,
            object_pairs_hook=_Objects(),
        )
        _check_text(data)
        results = Results.model_validate(data)
    except RecursionError:
        raise Unfit(f"has a {MEMBER} that is nested too deeply") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        # Names of fields may be the archive's own: shortened, and on one line.
        where = shorten(visible(field), 80, middle=True)
        raise Unfit(f"has a {MEMBER} that is no results document of this version ({where}: {first['type']})") from None
    except ValueError as error:
        said = str(error) if isinstance(error, _Refused) else "not valid"
        raise Unfit(f"has a {MEMBER} that is no strict JSON ({said})") from None
    _check_bounds(results)
    return results


class _Refused(ValueError):
    pass


def _no_constant(_: str) -> float:
    raise _Refused("NaN or Infinity")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _Refused("a number beyond all others")
    return value


def _whole(text: str) -> int:
    if len(text) > 20:  # of a 64-bit integer with its sign
        raise _Refused("an integer of too many digits")
    return int(text)


class _Objects:
    def __init__(self) -> None:
        self.left = MOST_OBJECTS

    def __call__(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise _Refused("a key written twice")
        self.left -= 1
        if self.left < 0:
            raise _Refused(f"more than {MOST_OBJECTS} objects")
        return made


def _check_text(data: Any) -> None:
    waiting = [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            raise _Refused(f"a text of more than {LONGEST_TEXT} characters")
        if isinstance(value, dict | list) and len(value) > MOST_ITEMS:
            raise _Refused(f"a list or an object of more than {MOST_ITEMS} items")
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            waiting += value


_OTHER_RATES = "was planned with looks or error rates that are not perfci's"


def is_shard(results: Results) -> bool:
    """Tell whether these are one part of a plan."""
    return results.part is not None and not results.part.whole


def _too_many(results: Results) -> bool:
    models = 1 if results.part is None else results.part.models
    proved = {case.key for case in results.cases if case.code_proved}
    return results.plan.m > count_sharing(results.plan.criteria, proved, models, comparisons=1)


def check_whole(results: Results) -> None:
    """Raise Unfit for merged shards of no plan of perfci's: each told a part."""
    if len(results.cases) > MOST_CASES:
        raise Unfit(f"have more than {MOST_CASES} cases")
    if _too_many(results):
        raise Unfit("were planned with error rates that are not perfci's")


def _check_bounds(results: Results) -> None:
    plan = results.plan
    if len(results.cases) > MOST_CASES:
        raise Unfit(f"has more than {MOST_CASES} cases")
    if any(len(case.pairs) > MOST_PAIRS for case in results.cases):
        raise Unfit(f"has a case with more than {MOST_PAIRS} worker pairs")
    if len({case.key for case in results.cases}) != len(results.cases):
        raise Unfit("has two cases of one name")
    if len(plan.criteria) > MOST_QUESTIONS:
        raise Unfit(f"has more than {MOST_QUESTIONS} limits")
    # By such a plan a change may pass that perfci's own plan would find slower than the limit.
    if plan.looks != Looks.fitted(plan.m) or (not is_shard(results) and _too_many(results)):
        raise Unfit(_OTHER_RATES)
    if not plan.judged or plan.exact_pairs is not None or (plan.purpose, plan.comparisons) != ("change", 1):
        raise Unfit("was planned for something else than a verdict")
    skipped = [case for case in results.cases if case.stopped == "skipped"]
    if any(case.pairs or any(side.status == "ok" for side in case.sides.values()) for case in skipped):
        raise Unfit("calls a case skipped that was measured, or works")
    if any(case.origin == "imported" for case in results.cases):
        raise Unfit("has cases that another tool measured")
    _check_proofs(results)
    _check_claims(results)
    kernels = set(plan.declared.kernels) if plan.declared is not None else None
    if kernels is not None and any((case.origin == "kernel") != (case.id in kernels) for case in results.cases):
        raise Unfit("takes a kernel for a command, or a command for a kernel")
    for case in results.cases:
        named = {name for pair in case.pairs for values in pair.values.values() for name in values}
        seen = [side.profile for side in case.sides.values() if side.profile is not None]
        if len(named) > MOST_METRICS or any(len(profile.faults) + len(profile.code) > MOST_METRICS for profile in seen):
            raise Unfit(f"has a case with more than {MOST_METRICS} metrics, faults or pieces of machine code")
    if not all(asked_in(limit.kind, plan.purpose) for limit in plan.criteria):
        raise Unfit("has a limit that no pull request is asked")
    declared = {(side.file, side.line) for case in results.cases for side in case.sides.values() if side.file}
    places = {f"{file}:{line}" for file, line in declared}
    for limit in plan.criteria:
        if not math.isfinite(limit.bound) or (limit.timed and limit.relative and limit.bound < SMALLEST_LIMIT):
            raise Unfit("has a limit that nothing can answer")
        if limit.source.origin == "kernel" and limit.source.where not in places:
            raise Unfit("has a limit that stands neither in a policy nor beside a kernel")


def _check_claims(results: Results) -> None:
    claims = results.plan.claims
    if any(case.claimed is not None and len(case.claimed.pairs) > MOST_PAIRS for case in results.cases):
        raise Unfit(f"has a case with more than {MOST_PAIRS} worker pairs")
    if claims is None:
        return
    known = {case.key: case for case in results.cases}
    try:
        claim = Claim.parse(claims.described)
    except ValueError:
        raise Unfit("claims what no description can have claimed") from None
    if claims.criteria != claimed_of([claim], ((case.id, case.device) for case in results.cases)):
        raise Unfit("claims something else than the description")
    decided = sum(not known[one.case_key].code_proved for one in claims.criteria)
    shares = range(sharing(decided, None), sharing(len(claims.criteria), None) + 1)
    if claims.m not in shares or claims.looks != Looks.fitted(claims.m):
        raise Unfit(_OTHER_RATES)


def _check_proofs(results: Results) -> None:
    digests = {side.tree for side in results.sides.values()}
    for case in results.cases:
        if case.proof is None or not case.proof.by:
            continue
        # Head is checked where a limit asks for its number, and may fail then.
        needed = [side for name, side in case.sides.items() if name == "base" or not case.proof.number]
        working = len(case.sides) > 1 and all(side.status == "ok" for side in needed)
        timed = {name for pair in case.pairs for name in pair.values}
        if results.mode != "compare" or case.origin != "kernel" or not working:
            raise Unfit("calls a case proved that cannot be")
        if not all(map(case.measured, timed)):
            raise Unfit("calls a case proved, and measured it")
        if case.proof.by == "work" and not _has_work(case):
            raise Unfit("calls a case proved by its work, of which none can have been compared")
        if case.proof.by == "files" and (len(digests) > 1 or digests == {""}):
            raise Unfit("calls a case proved by equal files, and its files differ")


def _has_work(case: Case) -> bool:
    captured = all(side.timing is not None and side.timing.mode in GRAPH_MODES for side in case.sides.values())
    return case.device == "cuda" and captured and not differences(case.sides["base"], case.sides["head"])
