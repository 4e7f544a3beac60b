"""`perfci doctor` on the machine that the tests run on: real tools, whatever there is of them."""

import json
from pathlib import Path

import jsonschema

from perfci.model.doctor import Diagnosis
from perfci.schemas import schemas

from .conftest import PLAIN_PYTHON, Repo


def suite(repo: Repo) -> Repo:
    repo.adds()
    return repo


def test_it_tells_what_everybody_needs_and_leaves_nothing(repo: Repo) -> None:
    suite(repo)
    run = repo.perfci("doctor", "--json")
    found = json.loads(run.out)
    jsonschema.validate(found, schemas()["doctor"])
    diagnosis = Diagnosis.model_validate(found)
    names = {one.name for one in diagnosis.findings}
    assert names >= {"python", "torch"} and names & {"gpu", "gpu 0"}
    assert {one.name for one in diagnosis.findings if one.status == "ok"} <= {"python", "torch", "gpu 0", "image"}
    assert run.code == diagnosis.exit_code == (3 if any(one.status == "fail" for one in diagnosis.findings) else 0)
    assert PLAIN_PYTHON in next(one for one in diagnosis.findings if one.name == "python").found
    assert run.err == ""
    assert list(Path(repo.env["TMPDIR"]).iterdir()) == []
    assert repo.git("status", "--porcelain") == ""


def test_a_token_ends_in_3_and_is_not_shown(repo: Repo) -> None:
    suite(repo)
    repo.git("config", "http.https://github.com/.extraheader", "AUTHORIZATION: basic c2VjcmV0LXRva2Vu")
    run = repo.perfci("doctor")
    assert run.code == 3
    assert "http.https://github.com/.extraheader in .git/config" in run.out
    assert "c2Vjcm" not in run.out + run.err


def test_without_policy_and_with_a_wrong_one(repo: Repo) -> None:
    run = repo.perfci("doctor", "--python", PLAIN_PYTHON)
    assert "perfci init" in run.out
    repo.write("perfci.yaml", "version: 1\nsuite: [kernels/*.py]\nlimitz: []\n")
    run = repo.perfci("doctor", "--json", "--python", PLAIN_PYTHON)
    assert run.code == 3
    line = next(one for one in json.loads(run.out)["findings"] if one["name"] == "policy")
    assert line["status"] == "fail" and "limitz" in line["found"]


def test_an_interpreter_that_is_none_is_a_line(repo: Repo) -> None:
    suite(repo)
    run = repo.perfci("doctor", "--python", "no-such-python")
    assert run.code == 3 and "'no-such-python' is no interpreter" in run.out
