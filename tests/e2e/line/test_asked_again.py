"""What a journal says of the command line is what `--resume` asks for."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from perfci.measure.journal import KEPT, Journal, asked_of, gone_on
from perfci.measure.options import MEASURE_ALL, Options
from perfci.model.results import Case, CaseSide, Proof
from perfci.sources.git import Commit

SAID = Options(
    mode="compare", where=Path("/here"), out=Path("/there"), base="v1", cases=["a/*"], devices=["cpu"], python="py",
    base_python="other", env={"head": {"A": "b"}}, quick=True, committed=True, pull_request=True, seed=3,
    purpose="reference", measure_all=True, lock_clocks="base", exact_pairs=9, budget=2.5, strict=True, raw=True,
    command=["perfci", "compare"],
)  # fmt: skip


def test_every_option_that_a_journal_keeps_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MEASURE_ALL, raising=False)
    Journal(tmp_path, {}, "run", resume=False, asked=asked_of(SAID, Commit("v1", "5" * 40, ""))).close()
    resumed = Options(mode="compare", where=tmp_path, out=tmp_path, resume=True)
    plain = replace(resumed, resume=False)
    assert gone_on(plain) is plain
    assert gone_on(resumed) == replace(SAID, where=tmp_path, out=tmp_path, resume=True, base="5" * 40)
    assert {name for name in KEPT if getattr(SAID, name) == getattr(plain, name)} == set(), "each is another here"
    others = {"mode", "where", "out", "resume", "wait", "own_python"}  # said again, or the machine's
    elsewhere = {"commits", "suite", "question", "comparisons", "shard", "plan_file", "models", "gpu", "neighbours"}
    builds = {"prepare", "prepared", "cache", "keep", "counters"}  # of where the same code is built
    alone = {"profile", "trace", "trial"}  # begin anew
    assert {field.name for field in fields(Options)} - KEPT.keys() == others | elsewhere | builds | alone


def test_a_journal_tells_proofs_by_work_and_forgets_what_was_voided(tmp_path: Path) -> None:
    proved = Case(id="a", kernel="a", device="cuda", sides={}, proof=Proof(by="work", reason="the same"))
    journal = Journal(tmp_path, {}, "run", resume=False)
    journal.add_check("a@cuda", "base", CaseSide(status="failed"), {"seconds": 1.0})
    journal.close()
    began = Journal(tmp_path, {}, "run", resume=True)
    assert (began.worked, [*began.checked], len(began.probes)) == (None, [("a@cuda", "base")], 1)
    began.void_checks()
    began.add_worked([proved])
    began.close()
    went_on = Journal(tmp_path, {}, "run", resume=True)
    assert (went_on.worked, went_on.checked, went_on.probes) == ({"a@cuda": proved.proof}, {}, [])
    went_on.close()
