"""Inputs from the environment, and names of artifacts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.github.settings import RAW_SUFFIX, ArtifactName, Settings, artifact_name, read_settings
from perfci.model.base import UsageError


def read(**inputs: str) -> Settings:
    return read_settings({f"PERFCI_INPUT_{name.upper()}": value for name, value in inputs.items()} | {"HOME": "/"})


def test_inputs_left_empty_take_their_defaults() -> None:
    assert read(suite="", base="", cases=" ", publish="", raw="", models="") == Settings()


def test_inputs() -> None:
    given = read(
        suite="gpu-2", base="release/1.2", cases="sdpa/*\n  matmul/n=1024", device="cuda cpu", publish="true", raw="true",
        python="/opt/py/bin/python",
    )  # fmt: skip
    assert (given.cases, given.device) == (["sdpa/*", "matmul/n=1024"], ["cuda", "cpu"])
    assert (given.publish, given.raw, given.base) == ("true", "true", "release/1.2")


OF_A_SHARD = {"plan": "plan.json", "shards": "2/4", "publish": "true"}
ALONE = "shards: no such job passes or fails a change alone: write publish: "
IN_PARTS = "plan: is measured in parts: give it together with shards, such as 1/4"
NO_IMAGE = "shards: no image of `container:` takes it"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"publish": "yes"}, "publish: 'yes' is not allowed: write 'false', 'true' or 'here'"),
        ({"suite": "My Suite"}, "suite: 'My Suite' does not fit: use lower-case letters"),
        ({"suite": "a--b"}, "suite: "),
        ({"device": "gpu"}, "device: 'gpu' is not allowed: write 'cuda' or 'cpu'"),
        ({"base": "--upload-pack=id"}, "base: "),
        ({"container": "--privileged"}, "container: '--privileged' is no name of an image: write none, or"),
        ({"raw": "True"}, "raw: 'True' is not allowed: write 'false' or 'true'"),
        ({"shards": "four"}, "shards: 'four': write a number from 1 to 256, or a part of a plan, such as 1/4"),
        *(({"shards": text}, f"shards: {text!r}: write a number from 1 to 256") for text in ("0", "257", "2/")),
        ({"models": "17"}, "models: '17' does not fit: "),
        ({"models": "2"}, "models: is for a job that makes a plan: give shards, too, be it 1"),
        ({"strict": "true"}, "strict: is not known: see the inputs in action.yml"),
        ({"shards": "2/4"}, IN_PARTS),
        ({"plan": "plan.json"}, IN_PARTS),
        (OF_A_SHARD | {"shards": "4"}, IN_PARTS),
        ({"shards": "4", "container": "perfci:cuda13"}, NO_IMAGE),
        (OF_A_SHARD | {"container": "perfci:cuda13"}, NO_IMAGE),
        ({"shards": "4"}, ALONE),
        ({"shards": "4", "publish": "here"}, ALONE),
        (OF_A_SHARD | {"publish": "here"}, ALONE),
        (OF_A_SHARD | {"publish": "false"}, ALONE),
        ({"shards": "4", "raw": "true"}, "raw: a job that makes a plan runs no profiler"),
        (OF_A_SHARD | {"models": "2"}, "models: is for a job that makes a plan: give shards"),
        *(
            (OF_A_SHARD | {name: value}, f"{name}: a shard does what was planned: give it to the job that plans")
            for name, value in {"base": "main", "cases": "a*", "device": "cuda", "python": "python3"}.items()
        ),
    ],
)
def test_wrong_inputs_are_one_line_that_names_them(given: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as raised:
        read(**given)
    assert str(raised.value).startswith(f"input {words}")
    assert "\n" not in str(raised.value)


def test_inputs_of_a_comparison_that_jobs_share() -> None:
    planning = read(shards="4", publish="true", device="cuda", base="main", cases="a*", python="py", cache="/c")
    assert (planning.planned, planning.models) == (4, 1)
    assert read(shards="1", models="2", publish="true").models == 2
    part = read(**OF_A_SHARD, raw="true")
    assert (part.shards, part.planned, read().planned) == ("2/4", None, None)


def test_artifact_names_tell_job_shard_and_attempt_apart() -> None:
    def name(**env: str) -> str:
        return artifact_name(Settings(), {"GITHUB_JOB": "measure"} | env)

    first = name(PERFCI_MATRIX='{"gpu": "H100 SXM", "python": 3.12}', PERFCI_JOB_INDEX="0", GITHUB_RUN_ATTEMPT="1")
    assert first == "perfci--measure--0-h100-sxm-3-12--1"
    others = [
        name(PERFCI_MATRIX='{"gpu": "H100_SXM", "python": 3.12}', PERFCI_JOB_INDEX="1"),
        name(PERFCI_MATRIX="null"),
        name(GITHUB_RUN_ATTEMPT="2"),
        name(GITHUB_JOB="measure-2"),
    ]
    assert len({first, *others}) == 5
    assert ArtifactName.parse(first) == ArtifactName("perfci", "measure", "0-h100-sxm-3-12", 1)
    of_a_shard = artifact_name(Settings(shards="2/4", plan="plan.json"), {"GITHUB_JOB": "measure"})
    assert of_a_shard == "perfci--measure--0-2-4--1"
    assert ArtifactName.parse("mine") is None
    assert ArtifactName.parse(f"{first}{RAW_SUFFIX}") is None


@given(
    matrix=st.text(max_size=300),
    job=st.text(max_size=80),
    suite=st.from_regex(r"[a-z0-9]+(-[a-z0-9]+)*", fullmatch=True),
)
def test_an_artifact_name_can_be_uploaded_and_read_back(matrix: str, job: str, suite: str) -> None:
    env = {"PERFCI_MATRIX": json.dumps({"x": matrix, "y": [1]}), "GITHUB_JOB": job, "PERFCI_JOB_INDEX": "17"}
    text = artifact_name(Settings(suite=suite[:60].strip("-")), env)
    assert not set(text) & set('":<>|*?\r\n\\/')  # actions/upload-artifact refuses these
    parts = ArtifactName.parse(text)
    assert parts is not None
    assert str(parts) == text
    assert parts.suite == suite[:60].strip("-")
