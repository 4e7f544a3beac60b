"""What a journal says of the command line is what `--resume` asks for."""

from pathlib import Path

import pytest

from perfci.measure.journal import Journal, begun_with, gone_on
from perfci.measure.request import MEASURE_ALL, WRITTEN, How, Request, What, Where
from perfci.model.claims import Claim
from perfci.model.results import Case, CaseSide, Proof
from perfci.sources.git import NamedCommit

SAID = Request.of(
    "compare", Path("/here"), Path("/there"), base="v1", head="v2", limit="version: 1", cases=["a/*"], devices=["cpu"], python="py",
    base_python="other", env={"head": {"A": "b"}}, only=["src/**"],
    claims=[Claim(cases="a*", fall=0.1)], attempt=2, described="a* 10%", quick=True, committed=True, pull_request=True, seed=3,
    purpose="reference", measure_all=True, exact_pairs=9, budget=2.5, strict=True, raw=True,
    command=["perfci", "compare"],
)  # fmt: skip


def test_every_option_that_a_journal_keeps_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MEASURE_ALL, raising=False)
    Journal(tmp_path, {}, "run", resume=False, begun=begun_with(SAID, NamedCommit("v1", "5" * 40, ""))).close()
    resumed = Request.of("compare", tmp_path, tmp_path, resume=True)
    plain = resumed.but(resume=False)
    assert gone_on(plain) is plain
    assert gone_on(resumed) == SAID.but(repository=tmp_path, out=tmp_path, resume=True, base="5" * 40)
    said, unsaid = (dict(one.what) | dict(one.how) for one in (SAID, plain))
    assert {name for name in WRITTEN if said[name] == unsaid[name]} == set(), "each is another here"
    # Its repository, output folder and device are this call's; of the rest these are, too, or no command line says them.
    again = {"mode", "resume", "wait", "counters"}
    elsewhere = {"commits", "suite", "question", "comparisons", "models"}
    alone = {"profile", "trace"}  # begin anew
    assert What.model_fields.keys() | How.model_fields.keys() == WRITTEN.keys() | again | elsewhere | alone


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


def test_a_request_is_changed_by_the_names_of_its_fields() -> None:
    names = [name for part in (What, Where, How) for name in part.model_fields]
    assert len(set(names)) == len(names)
    other = SAID.but(out=Path("/elsewhere"), wait=1.0, cases=[])
    assert (other.where.out, other.how.wait, other.what.cases) == (Path("/elsewhere"), 1.0, [])
    assert other.but(out=Path("/there"), wait=600.0, cases=["a/*"]) == SAID
    with pytest.raises(TypeError, match="a request has no shard"):
        SAID.but(shard=1)
