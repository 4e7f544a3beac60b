"""Inputs from the environment, and names of artifacts."""

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


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("publish", "yes", "input publish: 'yes' is not allowed: write 'false', 'true' or 'here'"),
        ("suite", "My Suite", "input suite: 'My Suite' does not fit: use lower-case letters"),
        ("suite", "a--b", "input suite: "),
        ("device", "gpu", "input device: 'gpu' is not allowed: write 'cuda' or 'cpu'"),
        ("base", "--upload-pack=id", "input base: "),
        ("container", "--privileged", "input container: '--privileged' is no name of an image: write none, or"),
        ("raw", "yes", "input raw: 'yes' is not allowed: write 'false' or 'true'"),
        ("raw", "True", "input raw: 'True' is not allowed: write 'false' or 'true'"),
        ("shards", "four", "input shards: 'four': write a number from 1 to 256, or a part of a plan, such as 1/4"),
        ("shards", "0", "input shards: '0': write a number from 1 to 256"),
        ("shards", "257", "input shards: '257': write a number from 1 to 256"),
        ("shards", "2/", "input shards: '2/': write a number from 1 to 256"),
        ("models", "17", "input models: '17' does not fit: "),
        ("models", "2", "input models: is for a job that makes a plan: give shards, too, be it 1"),
        ("shards", "2/4", "input plan: is measured in parts: give it together with shards, such as 1/4"),
        ("plan", "plan.json", "input plan: is measured in parts: give it together with shards, such as 1/4"),
        ("strict", "true", "input strict: is not known: see the inputs in action.yml"),
        ("bugdet", "3m", "input bugdet: is not known"),
    ],
)
def test_a_wrong_input_is_one_line_that_names_it(name: str, value: str, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        read(**{name: value})
    assert str(raised.value).startswith(words)
    assert "\n" not in str(raised.value)


OF_A_SHARD = {"plan": "plan.json", "shards": "2/4", "publish": "true"}


def test_inputs_of_a_comparison_that_jobs_share() -> None:
    planning = read(shards="4", publish="true", device="cuda", base="main", cases="a*", python="py", cache="/c")
    assert (planning.planned, planning.models) == (4, 1)
    assert read(shards="1", models="2", publish="true").models == 2
    part = read(**OF_A_SHARD, raw="true")
    assert (part.shards, part.planned, read().planned) == ("2/4", None, None)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({**OF_A_SHARD, "shards": "4"}, "input plan: is measured in parts"),
        ({"shards": "4", "container": "perfci:cuda13"}, "input shards: no image of `container:` takes it"),
        ({"shards": "4"}, "input shards: no such job passes or fails a change alone: write publish: "),
        (
            {"shards": "4", "publish": "here"},
            "input shards: no such job passes or fails a change alone: write publish: ",
        ),
        ({"shards": "4", "raw": "true"}, "input raw: a job that makes a plan runs no profiler"),
        ({**OF_A_SHARD, "models": "2"}, "input models: is for a job that makes a plan: give shards"),
        ({**OF_A_SHARD, "container": "perfci:cuda13"}, "input shards: no image of `container:` takes it"),
        (
            {**OF_A_SHARD, "publish": "here"},
            "input shards: no such job passes or fails a change alone: write publish: ",
        ),
        (
            {**OF_A_SHARD, "publish": "false"},
            "input shards: no such job passes or fails a change alone: write publish: ",
        ),
        *(
            (
                {**OF_A_SHARD, name: value},
                f"input {name}: a shard does what was planned: give it to the job that plans",
            )
            for name, value in {"base": "main", "cases": "a*", "device": "cuda", "python": "python3"}.items()
        ),
    ],
)
def test_inputs_that_do_not_go_together_are_one_line(given: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as raised:
        read(**given)
    assert str(raised.value).startswith(words)
    assert "\n" not in str(raised.value)


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
    assert (
        artifact_name(Settings(shards="2/4", plan="plan.json"), {"GITHUB_JOB": "measure"})
        == "perfci--measure--0-2-4--1"
    )
    assert ArtifactName.parse("mine") is None
    assert ArtifactName.parse(f"{first}{RAW_SUFFIX}") is None


@given(
    matrix=st.text(max_size=300),
    job=st.text(max_size=80),
    suite=st.from_regex(r"[a-z0-9]+(-[a-z0-9]+)*", fullmatch=True),
)
def test_an_artifact_name_can_be_uploaded_and_read_back(matrix: str, job: str, suite: str) -> None:
    import json

    env = {"PERFCI_MATRIX": json.dumps({"x": matrix, "y": [1]}), "GITHUB_JOB": job, "PERFCI_JOB_INDEX": "17"}
    text = artifact_name(Settings(suite=suite[:60].strip("-")), env)
    assert not set(text) & set('":<>|*?\r\n\\/')  # actions/upload-artifact refuses these
    parts = ArtifactName.parse(text)
    assert parts is not None
    assert str(parts) == text
    assert parts.suite == suite[:60].strip("-")
