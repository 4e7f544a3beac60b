"""The inputs of the actions, from the environment: `PERFCI_INPUT_CASES` holds the input `cases`."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from perfci.github.event import Ref
from perfci.model.base import DeviceKind, UsageError
from perfci.model.results import MOST_MODELS, MOST_SHARDS

PREFIX = "PERFCI_INPUT_"
LONGEST_LABEL = 60
RAW_SUFFIX = "-raw"
"""Ends the name of an artifact with the profilers' own reports, after the name of the job's other one."""


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:LONGEST_LABEL].strip("-")


def _words(value: Any) -> Any:
    return value.split() if isinstance(value, str) else value


def _shards(text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,4}(/[0-9]{1,4})?", text) or not 1 <= int(text.partition("/")[0]) <= MOST_SHARDS:
        raise ValueError(f"{text[:40]!r}: write a number from 1 to {MOST_SHARDS}, or a part of a plan, such as 1/4")
    return text


def _image(name: str) -> str:
    if not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9._/:@-]{0,299}", name):
        raise ValueError(f"{name[:80]!r} is no name of an image: write none, or one such as perfci:cuda13")
    return name


Suite = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)]
Words = Annotated[list[str], BeforeValidator(_words)]


When = Literal["on-change", "always", "on-regression", "never"]


class _Inputs(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    suite: Suite = "perfci"
    """Tells a repository's suites apart: artifacts, comments and checks."""
    base: Ref | Literal[""] = ""
    """Branch, tag or commit; empty: the event's; `none`: absolute limits only."""
    cases: Words = Field(default_factory=list)
    """Globs; empty takes all."""
    device: Annotated[list[DeviceKind], BeforeValidator(_words)] = Field(default_factory=list)
    """Empty: the policy's."""


class Publishing(_Inputs):
    """The inputs of the publishing action."""

    models: Annotated[int, Field(ge=0, le=MOST_MODELS)] = 0
    """0: the plans'."""
    comment: When = "on-change"
    jobs: str = "*"
    """Glob of the measuring jobs."""
    artifacts: str = ""
    """Glob; empty: those that the measuring action names."""
    store: str = ""
    """The history, which tells where main stood; empty for none."""


class Settings(_Inputs):
    """The inputs of the measuring action."""

    python: str = ""
    cache: str = ""
    """Folder of the builds that are kept between runs."""
    container: Annotated[str, AfterValidator(_image)] = "none"
    """An image to measure in; `none` measures in place."""
    publish: Literal["false", "true", "here"] = "false"
    """`true`: a job with the publishing action follows, and gives the verdict. `here`: this job writes the comment
    itself."""
    raw: Literal["false", "true"] = "false"
    """`true` hands on the profilers' own reports, in their own artifact."""
    shards: Annotated[str, AfterValidator(_shards)] = ""
    """`4`: this job makes a plan of so many parts; `2/4`: it measures that part of `plan`."""
    models: Annotated[int, Field(ge=1, le=MOST_MODELS)] = 1
    """GPU models that share α, each with a plan of its own, as this job's."""
    plan: str = ""
    """File of the plan of this job's part."""

    @property
    def planned(self) -> int | None:
        """Parts of the plan that this job makes; None where it measures."""
        return int(self.shards) if self.shards.isdigit() else None


Inputs = TypeVar("Inputs", bound=_Inputs)


def read_inputs(model: type[Inputs], env: Mapping[str, str]) -> Inputs:
    """Return an action's inputs. Raises UsageError that names one."""
    given = {name.removeprefix(PREFIX).lower(): value.strip() for name, value in env.items() if name.startswith(PREFIX)}
    try:
        # An input left empty takes its default.
        return model.model_validate({name: value for name, value in given.items() if value})
    except ValidationError as error:
        raise UsageError(_sentence(error)) from None


def read_settings(env: Mapping[str, str]) -> Settings:
    """Return the measuring action's inputs. Raises UsageError, also where they do not go together."""
    settings = read_inputs(Settings, env)
    _require_sharing(settings)
    return settings


_PLANNED = ("base", "cases", "device", "python")


def _require_sharing(settings: Settings) -> None:
    if settings.models > 1 and not settings.planned:
        raise UsageError("input models: is for a job that makes a plan: give shards, too, be it 1")
    if bool(settings.plan) != ("/" in settings.shards):
        raise UsageError("input plan: is measured in parts: give it together with shards, such as 1/4, and only so")
    if not settings.shards:
        return
    if settings.container != "none":
        raise UsageError("input shards: no image of `container:` takes it: let the job itself run in a container of it")
    if settings.planned and settings.raw == "true":
        raise UsageError("input raw: a job that makes a plan runs no profiler: give it to the jobs that measure")
    for name in _PLANNED if settings.plan else ():
        if getattr(settings, name):
            raise UsageError(f"input {name}: a shard does what was planned: give it to the job that plans alone")
    if settings.publish != "true":
        raise UsageError(
            'input shards: no such job passes or fails a change alone: write publish: "true", and let a job with the '
            "publishing action judge all shards as one"
        )


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]).replace("_", "-") if first["loc"] else "input"
    given, kind = str(first["input"])[:80], first["type"]
    if kind == "extra_forbidden":
        return f"input {name}: is not known: see the inputs in action.yml"
    if kind == "value_error":
        text = str(first["ctx"]["error"])
    elif kind == "literal_error":
        text = f"{given!r} is not allowed: write {first['ctx']['expected']}"
    elif kind == "string_pattern_mismatch":
        text = f"{given!r} does not fit: use lower-case letters and digits, with single hyphens between them"
    else:
        text = f"{given!r} does not fit: {first['msg']}"
    return f"input {name}: {text}"


class ArtifactName(NamedTuple):
    """The name of an artifact of measurements, unique in a run.

    `suite--job--shard--attempt`; only the job holds two hyphens in a row.
    """

    suite: str
    job: str
    shard: str
    """Place and values in the matrix, such as `0-h100`; without a matrix `0`, and the measured shard."""
    attempt: int

    def __str__(self) -> str:
        return "--".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> "ArtifactName | None":
        """Return the parts of a name; None for a name of another form."""
        parts = re.fullmatch(r"([a-z0-9-]+?)--([a-z0-9-]+?)--([a-z0-9-]+?)--([1-9][0-9]{0,6})", text)
        return None if parts is None else cls(parts[1], parts[2], parts[3], int(parts[4]))


def require_one_job(env: Mapping[str, str]) -> None:
    """Raise UsageError for a matrix: with `publish: here` each job would overwrite the one comment."""
    total = env.get("PERFCI_JOB_TOTAL") or "1"
    if total != "1":
        raise UsageError(
            f"publish: here: is for one job, and the matrix has {total[:20]}, of which the last would overwrite what "
            'the others said: measure with publish: "true", and let one job publish them all'
        )


def artifact_name(settings: Settings, env: Mapping[str, str]) -> str:
    """Return this job's artifact name.

    action.yml sets `PERFCI_MATRIX`, the job's matrix as JSON, and `PERFCI_JOB_INDEX`.
    """
    matrix = json.loads(env.get("PERFCI_MATRIX") or "null")
    values = " ".join(str(v) for v in (matrix or {}).values() if isinstance(v, str | int | float))
    # A job that another workflow calls does not see the matrix that calls it.
    part = _slug(values or (settings.shards if settings.plan else ""))
    shard = "-".join(filter(None, (env.get("PERFCI_JOB_INDEX") or "0", part)))
    job = _slug(env.get("GITHUB_JOB") or "job") or "job"
    return str(ArtifactName(settings.suite, job, shard, int(env.get("GITHUB_RUN_ATTEMPT") or 1)))
