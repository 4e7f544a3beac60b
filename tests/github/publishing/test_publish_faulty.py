"""Base's policy is the faulty one: the check waits for action, and a label accepts the change that fixes it."""

import pytest

from perfci.model.publication import ACCEPT_LABEL
from perfci.model.results import Reason
from tests.github.loopback.scene import BASE, HEAD, POLICY, measured, packed, published, scene
from tests.github.loopback.server import GitHub, Run
from tests.github.test_publish import labelled, only

TYPO = POLICY.replace("'*'", "'mathmul/*'")
FAULTS = {
    "glob": (TYPO, "main:perfci.yaml:4: limits[0].cases: 'mathmul/*' matches no case: did you mean 'matmul/*'?"),
    "unit": (POLICY + "  - {metric: sm_throughput, min: 0.85}\n", "main:perfci.yaml:5: limits[1].min: 0.85 has no unit: write 85%"),
}  # fmt: skip


def concluded(hub: GitHub) -> str:
    return str(hub.checks[-1]["conclusion"])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_base_needs_action(hub: GitHub, fault: str) -> None:
    """Measured within the limits of the day or not: by these nothing is answered."""
    policy, text = FAULTS[fault]
    _, run = scene(hub)
    hub.files[BASE, "perfci.yaml"] = hub.files[HEAD, "perfci.yaml"] = policy.encode()
    hub.upload(run, packed(measured(1.0)))
    labelled(hub)
    outcome = published(hub, run)
    assert (outcome.exit_code, outcome.publication.exit_code) == (2, 3)
    assert concluded(hub) == "action_required"
    assert outcome.publication.missing[0].startswith(text)
    assert any(note.startswith("head does not fix base's policy: aaaaaaaaaa:perfci.yaml") for note in outcome.notes)
    assert "✅" not in only(hub)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_label_accepts_the_change_that_fixes_it(hub: GitHub, fault: str) -> None:
    policy, text = FAULTS[fault]
    _, run = scene(hub)
    hub.files[BASE, "perfci.yaml"], hub.files[HEAD, "perfci.yaml"] = policy.encode(), POLICY.encode()
    hub.upload(run, packed(measured(1.0)))
    outcome = published(hub, run)
    assert (outcome.exit_code, concluded(hub)) == (2, "action_required")
    assert f"this change fixes base's policy: the label {ACCEPT_LABEL} accepts it" in outcome.notes
    labelled(hub)
    assert (published(hub, run).exit_code, concluded(hub)) == (0, "success")
    assert f"Accepted: Nothing was measured: base's policy is fixed here: {text}" in only(hub).replace("\\", "")
    assert "Accepted by `maintainer`" in only(hub) and "✅" not in only(hub)


@pytest.mark.parametrize("faulty", [True, False])
def test_the_measuring_side_met_the_fault_first(hub: GitHub, run: Run, faulty: bool) -> None:
    """It measured nothing, its job failed, and its results say why. Where base's policy is sound, that is a lie."""
    hub.files[HEAD, "perfci.yaml"] = POLICY.encode()
    if faulty:
        hub.files[BASE, "perfci.yaml"] = TYPO.encode()
    reason = Reason(kind="policy", text="b:perfci.yaml: limits[0].cases: 'mathmul/*' matches no case")
    hub.upload(run, packed(measured(1.0, cases=[], error=reason)))
    run.jobs["measure"] = "failure"
    outcome = published(hub, run)
    assert concluded(hub) == "action_required" and outcome.exit_code
    assert "matches no case" in only(hub)
    labelled(hub)
    ended = (0, "success") if faulty else (3, "action_required")
    assert (published(hub, run).exit_code, concluded(hub)) == ended


def test_a_head_that_is_no_better_is_not_accepted(hub: GitHub, run: Run) -> None:
    hub.files[BASE, "perfci.yaml"], hub.files[HEAD, "perfci.yaml"] = TYPO.encode(), b"version: 2"
    hub.upload(run, packed(measured(1.0)))
    labelled(hub)
    assert published(hub, run).exit_code == 2
    del hub.files[HEAD, "perfci.yaml"]
    outcome = published(hub, run)
    assert outcome.exit_code == 2
    assert "head does not fix base's policy: aaaaaaaaaa:perfci.yaml does not exist" in outcome.notes
