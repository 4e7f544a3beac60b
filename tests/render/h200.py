"""A run of perfci on an NVIDIA H200, as it was recorded: a base that is well against a head with five planted faults.

`tests/data/h200/planted.json.xz` is the results document that `tests/e2e/gpu/test_gpu_profiles.py` wrote there, without host
and UUID. Its head was not committed: the commits, the repository and the pull request here are made up.
"""

import lzma
from collections.abc import Collection
from pathlib import Path

from perfci.model.publication import Artifact, Origin, Publication, Shard
from perfci.model.report import Report
from perfci.model.results import Results, SideCode

FILE = Path(__file__).parents[1] / "data" / "h200" / "planted.json.xz"
BASE, HEAD = "4d5993f" + "0" * 33, "2fed942" + "1" * 33
PICTURED = ("attention", "backward", "layernorm", "matmul", "ranged", "replayed", "scale")
"""Cases of the pictures: a change with two of the faults."""
RUN = "https://github.com/acme/attention/actions/runs/1042"
ORIGIN = Origin(
    repository="acme/attention", pull_request=7, event="pull_request", head_sha=HEAD, head_ref="faster",
    base_ref="main", run_id=1042, run_url=RUN,
)  # fmt: skip


def results(cases: Collection[str] = ()) -> Results:
    """Measured and profiled results, as if base and head had been commits.

    `cases`: of these alone, without limits on kernels' names. Durations remain those of the whole run.
    """
    found = Results.model_validate_json(lzma.decompress(FILE.read_bytes()))
    found.repository, found.gpu_hour, found.command = "attention", "3.50 USD", ["perfci", "compare", "--base", BASE]
    found.sides["base"] = SideCode(ref="main", commit=BASE, subject="Tune the tile")
    found.sides["head"] = SideCode(ref="faster", commit=HEAD, subject="Simplify attention, larger blocks")
    found.notes = [note for note in found.notes if "not committed" not in note]
    if cases:
        left_out = [case.id for case in found.cases if case.id not in cases]
        found.cases = [case for case in found.cases if case.id in cases]
        found.plan.criteria = [one for one in found.plan.criteria if one.case in cases and one.against != "names"]
        found.notes = [note for note in found.notes if not any(name in note for name in (*left_out, "10 cases"))]
    return found


def publication(report: Report) -> Publication:
    """Their publication in a pull request."""
    artifact = Artifact(name="perfci", url=f"{RUN}/artifacts/80", expires="2026-12-05T15:31:00Z")
    return Publication(origin=ORIGIN, shards=[Shard(report=report, artifacts=[artifact])])
