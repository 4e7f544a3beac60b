"""Reports of every state that people read, as a judge would write them."""

import json
import math
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from perfci.judge.explain.case import case_profile
from perfci.model.fingerprint import Environments, Fingerprint, Interpreter, Package, Variable
from perfci.model.profile import Fault, Profile
from perfci.model.report import CLASSES, CaseFacts, CaseProfile, Interval, Measured, Report, Row, Stats
from perfci.model.results import Case, CaseSide, Check, FileFailure, Reason, SideCode, Work
from perfci.model.timing import Timing
from perfci.profilers.metrics import of_counters, of_trace
from perfci.render.view import NEEDS_REVIEW
from tests.render.h200 import BASE, HEAD
from tests.render.traced import traced, waiting

HOSTILE = [
    "evil/pipe=a|b",
    "evil/tick=a`b``c`",
    "evil/<script>alert(1)</script>",
    "evil/@org/team #1 GH-7",
    "evil/new\nline=1",
    "evil/*bold*_it_[x](http://evil.example)",
    "evil/\u202egnp.exe\u200b\x1b[31m",
    "evil/<!-- hidden -->www.evil.example",
]


def row(
    case: str, cls: str = "unchanged", base: float | None = 48.5e-6, ratio: float | None = 1.0002, **fields: Any
) -> Row:
    effects = dict.fromkeys(("regression", "violation", "missing", "failed"), "fail")
    effects |= dict.fromkeys(("changed", "clock", "inconclusive", "invalid"), "undecided")
    data: dict[str, Any] = {
        "case": case,
        "kernel": case.split("/", maxsplit=1)[0],
        "device": "cuda",
        "metric": "time",
        "unit": "s",
        "kind": "regression",
        "class": cls,
        "effect": effects.get(cls, "pass"),
        "base": base,
        "head": None if ratio is None or base is None else base * ratio,
        "change": ratio,
        "worse": None if ratio is None else ratio > 1,
        "interval": None if ratio is None else {"low": ratio - 0.004, "high": ratio + 0.004, "level": 0.9902},
        "limit": 0.02,
        "limit_source": "limits[0]",
        "pairs": 16,
        "look": 2,
        "p": 1e-5,
        "file": f"kernels/{case.split('/', maxsplit=1)[0]}.py",
        "line": 12,
    }
    return Row.model_validate(data | fields)


def presence(case: str, cls: str, reason: str, **fields: Any) -> Row:
    blank = dict.fromkeys(("base", "head", "change", "worse", "interval", "limit", "look", "p"))
    return row(
        case, cls, **(blank | {"kind": "presence", "metric": "", "unit": "", "pairs": 0, "reason": reason} | fields)
    )


def stats(value: float, n: int = 16) -> Stats:
    spread = {"sd": value * 0.002, "low": value * 0.999, "high": value * 1.001}
    return Stats(n=n, mean=value * 1.0003, median=value, level=0.9787, **spread)


def measured(
    case: str, base: float | None, head: float | None, work: Work, device: str = "cuda", n: int = 16
) -> list[Measured]:
    times = {side: value for side, value in (("base", base), ("head", head)) if value is not None}
    found = []
    for metric, unit, amount in (
        ("time", "s", None),
        ("tflops", "TFLOP/s", work.flops / 1e12),
        ("bandwidth", "B/s", work.read + work.written),
        ("throughput", f"{work.item}/s", work.items),
    ):
        if amount != 0:
            sides = {side: stats(time if amount is None else amount / time, n) for side, time in times.items()}
            found.append(Measured(case=case, device=device, metric=metric, unit=unit, sides=sides))
    return found


SDPA = Work(flops=4 * 32 * 8 * 512 * 512 * 64, read=3 * 32 * 8 * 512 * 64 * 2, written=32 * 8 * 512 * 64 * 2)
RESAMPLE = Work(read=9.2e6, written=4.2e6, items=32, item="samples")
TIMING = Timing(mode="cold", cache="L2 flushed", threads=1, settings={"timer": "CUDA events"})


def facts(case: str, work: Work, device: str = "cuda", compared: int = 27, **fields: Any) -> CaseFacts:
    check = Check(shapes=27, compared=compared, worst=0.35 if compared else None, rtol=2e-2, atol=1e-3)
    told = {"checks": {"base": check, "head": check}, "timing": TIMING.model_copy(deep=True)} | fields
    return CaseFacts(case=case, device=device, work=work, **told)


FINGERPRINT = Fingerprint(
    perfci="0.1.0", host="Linux 6.8.0", cpu="AMD EPYC 9654", cores=16, memory=128 * 2**30, python="3.12.4",
    torch="2.11.0", cuda="13.0", driver="580.159", devices={"cuda": "NVIDIA H200", "cpu": "AMD EPYC 9654"},
    uuid="GPU-5f2e2b8c-0d3a-4b6f-9e51-1f0a6c8f7d21", imported={"multiprocessors": "132", "compute capability": "9.0"},
)  # fmt: skip
REVIEW = "See what moved between base and head; if it is intended, raise the limit in base first."


def report(rows: list[Row], sentence: str, advice: str = "", **fields: Any) -> Report:
    worst: dict[tuple[str, str], str] = {}
    for entry in rows:
        key = (entry.case, entry.device)
        worst[key] = min(entry.class_, worst.get(key, entry.class_), key=CLASSES.index)
    counts = Counter(worst.values())
    effects = {entry.effect for entry in rows}
    verdict = fields.pop("verdict", next((name for name in ("fail", "undecided") if name in effects), "pass"))
    values = [
        m
        for entry in rows
        if entry.base and entry.head and entry.metric == "time"
        for m in measured(entry.case, entry.base, entry.head, SDPA, entry.device)
    ]
    timed = {value.case for value in values}
    data: dict[str, Any] = {
        "run": "20260105-101500-4d5993f",
        "mode": "compare",
        "verdict": verdict,
        "exit_code": {"pass": 0, "fail": 1, "undecided": 0, "error": 3}[verdict],
        "sentence": sentence.removesuffix(NEEDS_REVIEW),
        "needs_review": sentence.endswith(NEEDS_REVIEW),
        "advice": advice,
        "counts": counts,
        "rows": rows,
        "measured": values,
        "facts": [facts(case, SDPA, device) for case, device in worst if case in timed],
        "notes": [],
        "started": "2026-01-05T10:15:00Z",
        "seconds": 185.2,
        "measuring_seconds": 160.4,
        "pairs": 16,
        "noise": 0.0021,
        "command": ["perfci", "compare", "--base", "main"],
        "repository": "attention",
        "policy_from": "base",
        "fingerprint": FINGERPRINT.model_copy(deep=True),
        "sides": {
            "base": SideCode(ref="main", commit=BASE, subject="Tune the tile", build_seconds=31.2),
            "head": SideCode(ref="HEAD", commit=HEAD, subject="Use the math path for seq ≤ 512", build_seconds=30.9),
        },
    }
    return Report.model_validate(data | fields)


def unchanged(count: int) -> list[Row]:
    return [row(f"matmul/n={64 * (i + 1)}", base=5.17e-6 * (i + 1), ratio=1 + (i % 5 - 2) * 1e-4) for i in range(count)]


LEFT = "left flash attention: 1 kernel → 14, 60 MB → 2.6 GB of DRAM traffic"
REGRESSED = row("sdpa/seq=512", "regression", ratio=3.11, reason=LEFT)
FASTER = "a slow-down is excluded, faster by 26.5 % at least"
IMPROVED = row("trajectory_resample/batch=32", "improvement", base=41.9e-6, ratio=0.731, reason=FASTER)
UNDECIDED = row(
    "add/n=65536", "inconclusive", base=4.45e-6, ratio=1.012, pairs=64,
    interval=Interval(low=0.993, high=1.031, level=0.99),
    reason="undecided after 64 pairs: between 0.7 % faster and 3.1 % slower; a limit of 5 % could be decided",
)  # fmt: skip
MISSING = presence("softmax/rows=1024", "missing", "in base, not in head: kernels/softmax.py no longer declares it")
CHANGED = row(
    "matmul/n=4096", "changed", kind="presence", base=181e-6, ratio=1.02, change=None, interval=None, limit=None, worse=None,
    reason="parameter n is 4096 in base, 2048 in head",
)  # fmt: skip
WRONG = "wrong result: 12 of 4096 elements differ, first at [3, 17]: 0.25, not 0.75"
FAILED = presence("layernorm/dim=1024", "failed", WRONG)
VIOLATION = row(
    "softmax/rows=8192", "violation", kind="min", metric="bandwidth", unit="B/s", base=3.4e12, ratio=0.741, limit=2.8e12,
    interval=Interval(low=2.51e12, high=2.53e12, level=0.99), reason="under its limit since this change",
)  # fmt: skip


def unimported(file: str, text: str) -> FileFailure:
    return FileFailure(side="head", file=file, reason=Reason(kind="import", text=text))


def _many(count: int) -> Report:
    reason = "slower by at least 2 % " + "and more so " * 12
    rows = [row(f"sdpa/seq={i}", "regression", ratio=1.5 - i * 1e-3, reason=reason) for i in range(count)]
    sentence = f"`sdpa/seq=0` is 50 % slower (+{count - 1} more) — this change needs review"
    return report(rows, sentence, "See the rows below.")


def recorded(case: str, side: str) -> Profile:
    """The profiles that nsys and ncu took on an H200."""
    data = json.loads((Path(__file__).parent.parent / "data" / "profiles" / f"{side}.json").read_text())
    profile = Profile.model_validate(data[case])
    profile.metrics |= of_trace(profile.trace, (9, 0)) if profile.trace else {}
    profile.metrics |= of_counters(profile.counters) if profile.counters else {}
    return profile


def seen(ident: str, fixture: str, rows: list[Row]) -> CaseProfile:
    sides = {side: CaseSide(work=SDPA, profile=recorded(fixture, side)) for side in ("base", "head")}
    if fixture == "upload-mib64":  # it only copies, which ncu has a word for
        told = {"kind": "empty", "text": "ncu saw no kernel that it was to profile", "remedy": "see ncu's log"}
        faulty = list(sides.values())
    else:
        told = {"kind": "incomplete", "text": "2 of 14 kernels have no l1_hit_rate", "remedy": "profile it alone"}
        faulty = [sides["head"]]
    for side in faulty:
        side.profile.faults.append(Fault(tool="ncu", part="counters", **told))
    case = Case(id=ident, kernel=ident.split("/", maxsplit=1)[0], device="cuda", sides=sides)
    return case_profile(case, rows, None)


ENVIRONMENTS = Environments(
    asked=True,
    interpreters={
        "base": Interpreter(path="/srv/old/bin/python", python="3.12.4", torch="2.8.0+cu128", cuda="12.8"),
        "head": Interpreter(path="/srv/new/bin/python", python="3.12.4", torch="2.9.0+cu130", cuda="13.0"),
    },
    packages=[
        Package(name="nvidia-cuda-runtime", base=None, head="13.0.48"),
        Package(name="torch", base="2.8.0+cu128", head="2.9.0+cu130"),
        Package(name="triton", base="3.4.0", head="3.5.0"),
    ],
    variables=[
        Variable(name="API_TOKEN", hidden=True),
        Variable(name="TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", base=None, head="1"),
    ],
    settings=[Variable(name="tf32", base="False", head="True")],
)


@cache
def reports() -> dict[str, Report]:
    """State → Report; the golden files are named after the states. Shared by all tests, which change none."""
    cpu = [row("resample/batch=8", device="cpu", base=0.84e-3), row("resample/batch=8", base=0.031e-3)]
    both = [m for r, d in ((cpu[0], "cpu"), (cpu[1], "cuda")) for m in measured(r.case, r.base, r.head, RESAMPLE, d)]
    alone = [
        row("sdpa/seq=512", "violation", kind="max", metric="time", ratio=1.0, limit=40e-6, change=None, worse=None,
            interval=Interval(low=48.4e-6, high=48.6e-6, level=0.99), base=None, head=48.5e-6, reason="over its limit"),
        row("resample/batch=32", kind="min", metric="throughput", unit="samples/s", base=None, head=1.03e6, change=None,
            interval=None, limit=5000.0),
    ]  # fmt: skip
    alone_values = measured("sdpa/seq=512", None, 48.5e-6, SDPA) + measured("resample/batch=32", None, 31e-6, RESAMPLE)
    failed = report(
        [FAILED, *unchanged(3)],
        "`layernorm/dim=1024` fails in head: wrong result",
        "Run `perfci run layernorm/dim=1024` on head to see it.",
    )
    wrong = Reason(kind="wrong", text="12 of 4096 differ", log="logs/head-layernorm.log")
    failed.facts.append(facts(FAILED.case, Work(), reasons={"head": wrong}))
    hostile = report(
        [row(name, "regression", ratio=1.5, reason=f"because of {name}", kernel="evil") for name in HOSTILE],
        f"`{HOSTILE[1]}` is 50 % slower @org/team #1 (+7 more) <b>now</b>",
        "Look at http://evil.example | www.evil.example & GH-7",
        notes=["- [x] **done** $x^2$ ~~gone~~", "# heading\n\n```\nfence", *HOSTILE],
        files=[unimported("kernels/bad|name.py", "SyntaxError: '<' not supported between `a` and @b")],
        command=["perfci", "compare", "--base", "`rm -rf`\n```", "a|b"],
    )
    hostile.environments = Environments(
        interpreters={side: Interpreter(path=f"/`{side}`|<b>/python", python="3.12") for side in ("base", "head")},
        packages=[Package(name=name, base="1", head=f"2 {name}"[:100]) for name in HOSTILE],
        variables=[Variable(name="SHOWN", base=name) for name in HOSTILE],
        settings=[Variable(name=name[:60], base=name[:60], head="True") for name in HOSTILE],
    )
    hostile.sides["head"].commit = None
    hostile.sides["head"].ref = "feature/`|<b>@org"
    noisy = report(
        [REGRESSED, IMPROVED, UNDECIDED, *unchanged(8)],
        "sdpa/seq=512 is 3.1× slower — this change needs review",
        "See why below; if it is intended, raise the limit or say so in the review.",
    )
    parts = {"pair": 0.0017, "worker": 0.0016, "placement": 0.0005, "block": 0.0021, "placements": 3, "blocks": 16}
    told = {"noise": parts | {"text": "89 % of the variance from workers: only more pairs help"}}
    noisy.facts.append(facts("sdpa/seq=512", SDPA, **told))
    slower = row("sdpa/seq=512", "regression", ratio=3.11, reason="3.1× slower; the limit is 2 %")
    slow_upload = row("upload/mib=64", "regression", base=1.21e-3, ratio=4.6, reason="4.6× slower; the limit is 2 %")
    profiles = [seen("sdpa/seq=512", "sdpa-seq512", [slower]), seen("upload/mib=64", "upload-mib64", [slow_upload])]
    return {
        "profile": report(
            [slow_upload, slower, *unchanged(2)], "`upload/mib=64` is 4.6× slower (+1 more) — this change needs review",
            REVIEW, profiles=profiles,
        ),
        "traced": report(
            [slower, *unchanged(1)], "`sdpa/seq=512` is 3.1× slower — this change needs review", REVIEW, profiles=[traced()],
        ),
        "traced-alone": report(
            [], "Profiled: 1 case, not judged", "", mode="run", verdict="undecided", unjudged=True,
            sides={"head": SideCode(ref="HEAD", commit=HEAD, subject="Wait")}, profiles=[waiting()],
        ),
        "pass": report([*unchanged(12)], "No regression: 12 cases unchanged", "Nothing to do."),
        "regression": noisy,
        "improvement": report([IMPROVED, *unchanged(3)], "No regression: 3 cases unchanged, 1 improvement", "Nothing to do."),
        "mixed": report(
            [FAILED, VIOLATION, REGRESSED, MISSING, CHANGED, UNDECIDED, IMPROVED, *unchanged(2)],
            "`sdpa/seq=512` is 3.1× slower (+3 more) — this change needs review", "Read the failing rows first.",
            strict=True, notes=["Not measured on cpu: `upload/mib=64` needs cuda."],
        ),
        "inconclusive": report(
            [UNDECIDED, row("copy/mib=512", "clock", base=258e-6, ratio=1.031, reason="3.1 % slower as measured, not at equal clock: head ran at 1.441 GHz, base at 1.486 GHz"),
             row("norm/dim=64", "invalid", base=9e-6, ratio=math.nan, interval=None, reason="2 of 16 values of head are no finite positive number"), *unchanged(9)],
            "Undecided: 3 of 12 cases have no answer: `norm/dim=64`: 2 of 16 values of head are no finite positive number",
            "Give it a larger budget, or these cases a larger limit.",
        ),
        "changed": report([CHANGED, *unchanged(2)], "Undecided: 1 of 3 cases has no answer: `matmul/n=4096`: parameter n is 4096 in base, 2048 in head", "Check that the change is intended."),
        "missing": report(
            [MISSING, *unchanged(2)], "`softmax/rows=1024` is missing in head",
            "If it was removed on purpose, leave missing out of its fail_on.",
            files=[unimported("kernels/softmax.py", "ImportError: cannot import name 'softmax' from 'mylib' (kernels/softmax.py:3)")],
        ),
        "failed": failed,
        "error": report(
            [], "Nothing was measured: head did not build (exit status 1 of `pip install .`)",
            "See logs/build-head.log; this says nothing about performance.",
            verdict="error", counts={}, pairs=0, noise=None, measuring_seconds=0.0, seconds=41.0,
        ),
        "run": report(
            alone, "`sdpa/seq=512` takes 48.5 µs, over its limit of 40 µs", "Make it faster, or change the limit.",
            mode="run", sides={"head": SideCode(ref="HEAD", commit=HEAD, subject="Use the math path", dirty=True)},
            measured=alone_values, command=["perfci", "run"], policy_from="head",
            facts=[facts("sdpa/seq=512", SDPA), facts("resample/batch=32", RESAMPLE, compared=0)],
            notes=["compared with nothing: only absolute limits were judged (`perfci compare --base REF` compares)"],
        ),
        "devices": report(
            cpu, "No regression: 2 cases unchanged", "Nothing to do.",
            measured=both, facts=[facts("resample/batch=8", RESAMPLE, d) for d in ("cpu", "cuda")],
        ),
        "exploratory": report(
            [UNDECIDED, *unchanged(2)], "Undecided: 1 of 3 cases has no answer: `add/n=65536` is inconclusive", "Measure again for a verdict that counts.",
            exploratory=True, policy_from="head",
            notes=["Judged by other limits than the run was planned with: its error rates do not hold."],
        ),
        "environments": report(
            [REGRESSED, *unchanged(4)], "sdpa/seq=512 is 3.1× slower", "See why below.",
            environments=ENVIRONMENTS, command=["perfci", "compare", "--base-python", "old/bin/python"],
        ),
        "truncated": _many(200),
        "hostile": hostile,
    }  # fmt: skip
