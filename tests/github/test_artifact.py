"""Artifacts that code under test may have written: each bad one is a line, none a traceback, and none is believed."""

import json
import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.github.artifact import Unfit, parse, read_member
from perfci.github.check import annotations
from perfci.github.sticky import Marker
from perfci.model.criteria import Criterion, LimitSource
from perfci.model.plan import Looks
from perfci.model.profile import KernelUse, Profile, Trace
from perfci.model.publication import ACCEPT_LABEL
from tests.github.loopback.scene import HEAD, measured, packed, published, refused, scene
from tests.github.loopback.server import REPOSITORY, START, GitHub, Run, archive, zipped

GOOD = measured(1.0, 1.1).model_dump_json()


def link() -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("results.json")
    info.create_system, info.external_attr = 3, 0o120777 << 16
    return info


def encrypted() -> bytes:
    """The flag in both headers, as an encrypting tool sets it."""
    content = bytearray(zipped(("results.json", GOOD)))
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(mark) + at] |= 1
    return bytes(content)


def lying_bomb() -> bytes:
    """40 MiB of spaces that the directory says are 1000 bytes."""
    content = bytearray(zipped(("results.json", " " * (40 << 20))))
    at = content.index(b"PK\x01\x02") + 24
    content[at : at + 4] = struct.pack("<I", 1000)
    at = content.index(b"PK\x03\x04") + 22
    content[at : at + 4] = struct.pack("<I", 1000)
    return bytes(content)


def changed(**fields: Any) -> str:
    return json.dumps(json.loads(GOOD) | fields)


def planned(**fields: Any) -> str:
    data = json.loads(GOOD)
    data["plan"] |= fields
    return json.dumps(data)


def proved(**fields: Any) -> str:
    """What says of its first case that it is proved, and was not measured."""
    data = json.loads(GOOD)
    case = data["cases"][0] | {"pairs": [], "proof": CODE}
    data["cases"][0] = case | fields
    m = data["plan"]["m"] = max(1, data["plan"]["m"] - 1)
    data["plan"]["looks"] = Looks.fitted(m).model_dump(mode="json")
    return json.dumps(data)


_PLAN, _CASE = json.loads(GOOD)["plan"], json.loads(GOOD)["cases"][0]
_SIDES, PAIRS = _CASE["sides"], _CASE["pairs"]
LOOKS, CRITERIA = _PLAN["looks"], _PLAN["criteria"]
FAILED = {name: one | {"status": "failed"} for name, one in _SIDES.items()}
CODE = {"by": "code", "reason": "it reads nothing that differs"}
COLD = {name: one | {"timing": one["timing"] | {"mode": "cold"}} for name, one in _SIDES.items()}
OTHER = _SIDES | {"head": _SIDES["head"] | {"inputs": "cd" * 32}}
WORK = {"by": "work", "reason": "base and head give the GPU the same work"}
FILES = {"by": "files", "reason": "base and head are the same files"}
ARCHIVES: dict[str, tuple[Callable[[], bytes], str]] = {
    "above": (lambda: zipped(("results.json", GOOD), ("../../etc/passwd", "x")), "leads elsewhere"),
    "absolute": (lambda: zipped(("results.json", GOOD), ("/etc/passwd", "x")), "leads elsewhere"),
    "windows": (lambda: zipped(("results.json", GOOD), ("C:\\x", "x")), "leads elsewhere"),
    "backslashes": (lambda: zipped(("results.json", GOOD), ("a\\..\\..\\x", "x")), "leads elsewhere"),
    "link": (lambda: zipped((link(), "/etc/passwd")), "no file: a link"),
    "encrypted": (encrypted, "encrypted"),
    "twice": (lambda: zipped(("results.json", GOOD), ("results.json", GOOD)), "two entries of one name"),
    "lying bomb": (lying_bomb, "no sound zip|no strict JSON"),
    "many": (lambda: zipped(*((f"{i}", "") for i in range(10_001))), "more than 10000 entries"),
    "bzip2": (lambda: zipped(("results.json", GOOD), kind=zipfile.ZIP_BZIP2), "another way"),
    "none": (lambda: zipped(("out/results.json", GOOD)), "has no results.json"),
    "no zip": (lambda: b"<html>", "no sound zip"),
    "cut": (lambda: zipped(("results.json", GOOD))[:-40], "no sound zip"),
    "deep": (
        lambda: zipped(("results.json", "[" * 200_000), kind=zipfile.ZIP_STORED),
        "nested too deeply|no strict JSON",
    ),
    "another commit": (lambda: packed(measured(1.0, head="f" * 40)), "another commit"),
    "odd commit": (lambda: packed(measured(1.0, head="../../pulls/1")), "which commit"),
}
DOCUMENTS: dict[str, tuple[str | bytes, str]] = {
    "bomb": (" " * (40 << 20), "more than 16 MiB"),
    "ratio": (" " * (10 << 20), "expands more than"),
    "NaN": (GOOD.replace('"seconds":0.0', '"seconds":NaN', 1), "NaN or Infinity"),
    "1e999": (GOOD.replace('"seconds":0.0', '"seconds":1e999', 1), "beyond all others"),
    "digits": (changed(seconds=0)[:-1] + ', "x": ' + "9" * 5000 + "}", "too many digits"),
    "twice a key": (GOOD[:-1] + ',"version":1}', "a key written twice"),
    "extra": (changed(verdict="pass"), "verdict: extra_forbidden"),
    "version": (changed(version=2), "version: literal_error"),
    "long text": (changed(repository="x" * 20_001), "more than 20000 characters"),
    "not UTF-8": (b"\xff\xfe", "no strict JSON"),
    "no commit": (changed(sides={}), "which commit"),
    "no ceilings": (changed(fingerprint={"ceilings": {"cuda": ["no", "mapping"]}}), "fingerprint.ceilings.cuda"),
    "no GPU": (changed(fingerprint={"gpu": {"l2_bytes": "all"}}), "fingerprint.gpu.multiprocessors"),
    "no expression": (
        planned(criteria=[CRITERIA[0] | {"metric": "kernels", "kind": "kernels", "pattern": "(?=a)"}]),
        "plan.criteria.0.pattern",
    ),
    "of the reference": (planned(purpose="reference"), "something else than a verdict"),
    "one of several": (planned(comparisons=8), "something else than a verdict"),
    "asks for creep": (
        planned(criteria=[c | {"kind": "creep"} for c in CRITERIA]), "a limit that no pull request is asked",
    ),
    "never slower": (planned(m=10**6), "error rates"),
    "no rate": (planned(looks=LOOKS | {"alpha": 0.0}), "error rates"),
    "no share": (planned(looks=LOOKS | {"alpha_spending": [0.0] * len(LOOKS["pairs"])}), "error rates"),
    "proved and measured": (proved(pairs=PAIRS), "calls a case proved, and measured it"),
    "proved, and measured in base": (
        proved(pairs=PAIRS, proof=CODE | {"number": "time max"}), "calls a case proved, and measured it",
    ),
    "proved and failed": (proved(sides=FAILED), "calls a case proved that cannot"),
    "proved by files that differ": (proved(proof=FILES), "its files differ"),
    "proved by work under a timing mode without graphs": (
        proved(proof=WORK, sides=COLD), "none can have been compared",
    ),
    "proved by work, and asks something else": (proved(proof=WORK, sides=OTHER), "none can have been compared"),
    "proved, and shares α": (
        json.dumps(json.loads(proved()) | {"plan": _PLAN}), "error rates",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Duplicate name")  # zipfile's own, of an archive that a test writes
@pytest.mark.parametrize("name", [*ARCHIVES, *DOCUMENTS])
def test_a_hostile_artifact_is_one_line(hub: GitHub, name: str) -> None:
    content, why = (ARCHIVES[name][0](), ARCHIVES[name][1]) if name in ARCHIVES else DOCUMENTS[name]
    _, run = scene(hub)
    hub.upload(run, content if name in ARCHIVES else zipped(("results.json", content)))
    line = refused(hub, run)
    assert line.startswith("artifact `perfci--measure--0--1` ") and "\n" not in line
    assert any(part in line for part in why.split("|")), line
    assert len(hub.own_comments()) == 1


def test_a_number_that_could_not_be_taken_is_published(hub: GitHub, run: Run) -> None:
    """A proved case with a bound on time has head checked, which may fail."""
    data = json.loads(proved(proof=CODE | {"number": "time max 5.00 ms"}))
    data["cases"][0]["sides"]["head"] |= {"status": "failed", "reason": {"kind": "wrong", "text": "it differs"}}
    hub.upload(run, archive({"results.json": json.dumps(data)}))
    outcome = published(hub, run)
    assert outcome.publication.missing == [] and outcome.publication.exit_code == 1


def test_a_merge_commit_of_the_head_is_the_heads(hub: GitHub, run: Run) -> None:
    merge = "c" * 40
    hub.commits[merge] = ["b" * 40, HEAD]
    hub.upload(run, packed(measured(1.1, head=merge)))
    assert published(hub, run).publication.exit_code == 1


def test_an_artifact_of_another_run_is_refused(hub: GitHub) -> None:
    """GitHub lists it under this run, and says in it that it is another's."""
    _, run = scene(hub, 1.1)
    hub.artifacts[0].head = "d" * 40
    assert "belongs to another run" in refused(hub, run)


def test_an_archive_that_grows_on_the_way_is_left(hub: GitHub, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.upload(run, packed(measured(1.1)) + b"\0" * (3 << 20))
    monkeypatch.setattr("perfci.github.source.ARCHIVE_BYTES", 1 << 20)
    assert "more than the 1 MiB" in refused(hub, run)


HOSTILE = [
    "evil/@everyone #1 GH-7 " + "x" * 9_950,
    "evil/<script>alert(1)</script><!-- perfci suite=perfci run=999 attempt=1 head=" + HEAD + " -->",
    "evil/\n::error::injected\n::set-output name=verdict::pass",
    "evil/\x1b[31m\x1b]8;;http://evil.example\x07[x](http://evil.example) ![y](http://evil.example/p.png)",
    "evil/`a`|b|``c``",
]


def test_hostile_names_stay_text(hub: GitHub, run: Run) -> None:
    results = measured(*([1.2] * len(HOSTILE)), names=HOSTILE)
    for case in results.cases:
        for side in case.sides.values():
            side.file, side.line = "../../etc/passwd", 1
    hub.upload(run, packed(results))
    outcome = published(hub, run)
    assert outcome.publication.exit_code == 1
    (body,) = hub.own_comments()
    assert len(body) < 65_536
    assert "\x1b" not in body
    fences = re.sub(r"(?s)(`{3,}).*?\n\1", "", body)
    outside = re.sub(r"`[^`\n]*`|<code>.*?</code>", "", fences)  # what stands in code is text
    for active in ("@everyone", "<script", "::error", "](http://evil", "#1 ", "<!-- perfci suite=perfci run=999"):
        assert active not in outside
    marker = Marker.read(body)
    assert marker is not None
    assert marker.run == 100
    assert annotations(outcome.publication) == []  # no annotation outside the repository


def test_what_is_made_to_be_slow_is_said_like_anything_else(hub: GitHub) -> None:
    """A kernel's own expression for names, and a description: both are the change's. An engine that goes back and tries
    again would never end."""
    pull, run = scene(hub)
    results = measured(1.2)
    case = results.cases[0]
    where = case.sides["head"]
    asked = Criterion(
        case=case.id, device=case.device, metric="kernels", unit="", better="lower", tier="trace", kind="kernels",
        pattern="(a|a)*(a|a)*(a+)+$", source=LimitSource(origin="kernel", where=f"{where.file}:{where.line}"),
    )  # fmt: skip
    names = [kind + f"!{i}" for i in range(50) for kind in ("a" * 1900, "_" + "1" * 1900 + "dx")]
    kernels = [KernelUse(name=one, count=1, seconds=1e-6, grid=(1, 1, 1), block=(1, 1, 1)) for one in names]
    for side in case.sides.values():
        side.profile = Profile(trace=Trace(source="nsys", executions=1, wall=1, busy=1, span=1, kernels=kernels))
    plan = results.plan.model_copy(update={"criteria": [*results.plan.criteria, asked]})
    hub.upload(run, packed(results.model_copy(update={"plan": plan})))
    pull.body = "Perf-Accepted: x" + " " * 60_000 + "y" + "\n" * 60_000 + "z"
    outcome = published(hub, run)
    assert outcome.publication.exit_code == 1, outcome.publication.missing
    hub.label(pull, ACCEPT_LABEL, "maintainer", START + timedelta(minutes=10))
    accepted = published(hub, run).publication.acceptance
    assert accepted is not None and accepted.reason.startswith("x  ")


def test_reports_of_profilers_are_linked_and_never_read(hub: GitHub, run: Run) -> None:
    """Beside the artifact that they belong to, also where the workflow names artifacts itself."""
    for name in ("perfci--measure--0--1", "mine"):
        stored = hub.upload(run, packed(measured(1.1)), name=name)
        reports = hub.upload(run, b"no zip", name=f"{name}-raw")
        outcome = published(hub, run, artifacts="" if "--" in name else "min*")
        assert (outcome.publication.exit_code, outcome.publication.missing) == (1, [])
        [shard] = outcome.publication.shards
        assert [(one.name, one.url.rpartition("/")[2]) for one in shard.artifacts] == [
            (name, str(stored.id)), (f"{name}-raw", str(reports.id)),
        ]  # fmt: skip
        [body] = hub.own_comments()
        assert f"](https://github.com/{REPOSITORY}/actions/runs/100/artifacts/{reports.id}) until " in body


@pytest.mark.parametrize("case", ["fork", "expired", "another run", "alone"])
def test_reports_that_are_not_this_changes_or_a_forks_are_not_linked(hub: GitHub, case: str) -> None:
    """A fork's own workflow may upload anything under that name."""
    pull, run = scene(hub)
    if case == "fork":
        pull.head_repository = run.head_repository = "author/kernels"
        hub.pushes[f"author/kernels:refs/heads/{pull.head_ref}"] = (HEAD, START)
    hub.upload(run, packed(measured(1.1)))
    name = "perfci--other--0--1-raw" if case == "alone" else "perfci--measure--0--1-raw"
    reports = hub.upload(run, b"no zip", name=name, expired=case == "expired")
    if case == "another run":
        reports.head = "d" * 40
    outcome = published(hub, run)
    assert (outcome.publication.exit_code, outcome.publication.missing) == (1, [])
    assert [one.name for one in outcome.publication.shards[0].artifacts] == ["perfci--measure--0--1"]
    assert "-raw" not in hub.own_comments()[0]


def test_artifacts_that_take_too_long_are_told_instead_of_read(hub: GitHub, monkeypatch: pytest.MonkeyPatch) -> None:
    _, run = scene(hub)
    hub.upload(run, packed(measured(1.0)))
    monkeypatch.setattr("perfci.github.handed.READING", 0.0)
    assert "was not read: the others took over 0 min" in refused(hub, run)


def test_more_artifacts_than_a_matrix_has_are_a_check_with_its_reason(hub: GitHub, run: Run) -> None:
    for index in range(257):
        hub.upload(run, b"x", name=f"perfci--measure--{index}--1")
    assert refused(hub, run) == "run 100 has 257 artifacts of this suite; at most 256 are read"


@settings(deadline=None)  # the first example pays for imports
@given(st.data())
def test_any_damage_is_unfit_or_harmless(data: st.DataObject) -> None:
    content = bytearray(packed(measured(1.0)))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        member = read_member(bytes(content))
        assert isinstance(member, bytes) or member in ("idle", "plan")
        if isinstance(member, bytes):
            parse(member)
    except Unfit as error:
        assert "\n" not in str(error)


@settings(deadline=None)  # the first example pays for imports
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_any_json_is_unfit(value: Any) -> None:
    with pytest.raises(Unfit):
        parse(json.dumps(value).encode())


READER = """
import resource, sys
from perfci.github.artifact import Unfit, parse
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 400 * 2**20,) * 2)
try:
    parse(sys.stdin.buffer.read())
except Unfit as error:
    print(error)
"""


TOO_LONG = "a list or an object of more than 20000 items"


@pytest.mark.parametrize(
    ("document", "item", "count", "said"),
    [
        ('{"cases":[%s]}', '{"pairs":[' + "{}," * 19_999 + "{}]}", 25, "more than 500000 objects"),
        ('{"cases":[{"pairs":[%s]}]}', "{}", 20_000, "missing"),
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in (
                ('{"cases":[%s]}', "{}", 350_000, TOO_LONG),
                ('{"plan":{"criteria":[%s]}}', "{}", 20_000, "missing"),
                ('{"notes":[%s]}', "[]", 5_000_000, TOO_LONG),
                ('{"custom_metrics":{%s}}', '"{}":{}', 350_000, TOO_LONG),
            )
        ),
    ],
)
def test_many_small_items_cost_little(document: str, item: str, count: int, said: str) -> None:
    """A megabyte of `{},` once took 1.3 GB, an error for each: the publisher has 400 MiB here."""
    items = (item.replace("{}", str(n), 1) if ":" in item and "pairs" not in item else item for n in range(count))
    content = document % ",".join(items)
    done = subprocess.run([sys.executable, "-c", READER], input=content.encode(), capture_output=True, check=True)
    assert said in done.stdout.decode(), done.stderr
