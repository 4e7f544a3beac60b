"""Publications of every state of a pull request's comment."""

from typing import Any

from perfci.model.publication import Acceptance, Artifact, Attempt, MainStanding, Publication, Shard
from perfci.model.report import Interval, Report
from tests.render import h200
from tests.render.build import MISSING, REGRESSED, REVIEW, UNDECIDED, presence, reports, row, unchanged
from tests.render.build import report as build

RUN = h200.RUN
ORIGIN = h200.ORIGIN.model_copy(update={"head_ref": "math-path"})
ADDED = [presence(f"rope/seq={n}", "added", "in head, not in base: nothing to compare with", metric="time", unit="s", head=n * 1e-8) for n in (512, 4096)]  # fmt: skip
ACCEPTED = Acceptance(by="alice", at="2026-01-05T12:04:31Z", reason="the math path is exact, flash is not")
EARLIER = [
    Attempt(run_id=1040, attempt=1, sentence="`sdpa/seq=512` is 3.1× slower — this change needs review", url=f"{RUN[:-2]}40"),
    Attempt(run_id=1042, attempt=1, sentence="The measurement failed: head did not build", url=f"{RUN}/attempts/1"),
]  # fmt: skip


def artifact(number: int, name: str) -> Artifact:
    return Artifact(name=name, url=f"{RUN}/artifacts/{number}", expires="2026-12-04T10:20:00Z")


def standing(case: str, ratio: float, width: float = 0.003, **fields: Any) -> MainStanding:
    known = {"metric": "time", "reference": "v1.2", "commit": "abc1234" + "0" * 33, "day": "2026-11-18"}
    return MainStanding.model_validate(
        {"case": case, "ratio": ratio, "low": ratio - width, "high": ratio + width} | known | fields
    )


def publication(*found: Report, names: tuple[str, ...] = ("",), **fields: Any) -> Publication:
    priced = [report.model_copy(update={"gpu_hour": "3.50 USD"}) for report in found]
    shards = [
        Shard(name=name, report=report, artifacts=[artifact(80 + number, f"perfci-{name}" if name else "perfci")])
        for number, (name, report) in enumerate(zip(names, priced, strict=True))
    ]
    return Publication.model_validate({"origin": ORIGIN, "shards": shards} | fields)


def publications() -> dict[str, Publication]:
    """State → Publication; the golden files are named after the states."""
    found = reports()
    one_side = build(
        [presence("add/n=64", "failed", "fails in head: it crashed: SIGSEGV (signal 11)"), *unchanged(3)],
        "`add/n=64`: fails in head: it crashed: SIGSEGV (signal 11)",
        "Fix the case: its row says what happened.",
    )
    mismatch = build(
        [row("matmul/n=4096", "changed", kind="presence", base=181e-6, ratio=1.2, change=None, interval=None, limit=None, worse=None,
             reason="timing mode timer is CUDA events in base, CUPTI in head"), *unchanged(2)],
        "Passed, but 1 of 3 cases has changed", "Make sure that the new question, or result, is intended; it is compared again once base has the same.",
        notes=["2 of 3 limits are of cases that are not calibrated on this machine: whether they can be held is not known (`perfci calibrate`)"],
    )  # fmt: skip
    first = build(
        ADDED, "No regression: 2 added", "", policy_from="head", measured=[],
        notes=["base 4d5993f000 has no perfci.yaml: judged by the limits of head"],
    )  # fmt: skip
    smaller = build(
        [REGRESSED.model_copy(update={"head": 60.1e-6, "change": 1.24, "interval": Interval(low=1.236, high=1.244, level=0.99)}), MISSING, *unchanged(3)],
        "`sdpa/seq=512` is 24 % slower (+1 more) — this change needs review", REVIEW,
    )  # fmt: skip
    smaller.fingerprint.devices["cuda"] = "NVIDIA B200"
    broken = found["error"]
    many = build(
        [*(row(f"sdpa/seq={64 * i}", "regression", ratio=1.5 - i * 1e-2, reason="slower by 5 % at least") for i in range(40)), UNDECIDED, *unchanged(459)],
        "`sdpa/seq=0` is 50 % slower (+39 more) — this change needs review", REVIEW,
    )  # fmt: skip
    hostile = publication(
        found["hostile"], found["regression"], names=("h100](http://evil.example)|`<b>@org", "a`b"),
        missing=["perfci-x: <img src=x onerror=alert(1)> @everyone #1 GH-1 4d5993f0000 www.evil.example"],
        attempts=[Attempt(run_id=1, attempt=1, sentence="`a`|b @everyone <i>", url="https://evil.example/)[x](")],
    )  # fmt: skip
    case, reference = "h100](http://evil.example)|`<b>@org #1", "v1|`<img src=x>` @everyone"
    hostile.standings = [standing(case, 1.5, 0.1, reference=reference, metric="a|b`c")]
    hostile.origin = ORIGIN.model_copy(update={"fork": True, "head_ref": "`$(id)`", "base_ref": "a|b"})
    hostile.shards[0].artifacts = [
        Artifact(name="perf](http://evil.example)", url="javascript:alert(1)", expires="tomorrow <b>"),
        Artifact(name="near", url="https://github.com@evil.example/x"),
        Artifact(name="long" + "|" * 9000, url=f"{RUN}/artifacts/3)[x](http://evil.example"),
    ]
    profile = publication(found["profile"])
    profile.shards[0].artifacts.append(artifact(81, "perfci-raw"))
    return {
        "pass": publication(found["pass"]),
        "regression": publication(found["regression"]),
        "profile": profile,
        "standing": publication(
            found["regression"],
            standings=[
                standing("sdpa/seq=512", 1.031),
                standing("sdpa/seq=512", 0.98, metric="bandwidth"),
                standing("matmul/n=4096", 1.00001, 0.0002),
            ],
        ),
        "improvement": publication(found["improvement"]),
        "mixed": publication(found["mixed"]),
        "inconclusive": publication(found["inconclusive"]),
        "no-baseline": publication(first),
        "fingerprint": publication(mismatch),
        "changed": publication(found["changed"]),
        "missing-case": publication(found["missing"]),
        "one-side-failed": publication(one_side),
        "wrong": publication(found["failed"]),
        "accepted": publication(found["regression"], acceptance=ACCEPTED),
        "truncated": publication(found["truncated"]),
        "error": publication(broken),
        "no-results": publication(names=(), missing=["artifact `perfci-h100` is gone: run the job again"]),
        "shards": publication(smaller, found["regression"], found["pass"], names=("b200", "h200", "a100")),
        "shards-pass": publication(found["improvement"], found["inconclusive"], names=("h200", "b200")),
        "shard-missing": publication(found["pass"], names=("h200",), missing=["`measure (b200)` was cancelled: run it again"]),
        "shard-missing-and-regression": publication(
            found["regression"], broken, names=("h200", "b200"), missing=["`measure (h100)` was cancelled: run it again"]
        ),
        "unmeasured": publication(names=(), unmeasured="every changed file matches `docs/**`"),
        "nothing": publication(names=(), nothing="`2fed942111` has no commit of its own, `main` holds them all"),
        "unconfirmed": publication(found["pass"], unconfirmed="`2fed942111` is not signed by GitHub: push"),
        "attempts": publication(found["pass"], attempts=EARLIER),
        "fork": publication(found["regression"], origin=ORIGIN.model_copy(update={"fork": True})),
        "push": publication(found["regression"], origin=ORIGIN.model_copy(update={"pull_request": None, "event": "push"})),
        "many": publication(many),
        "hostile": hostile,
    }  # fmt: skip
