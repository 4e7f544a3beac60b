"""What a run takes of the machine, the leases of its devices, and tells of it: what these do at most, the GPU's state."""

import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.agreement import Quiet
from perfci.measure import run
from perfci.measure.machine import Watch, measure_ceilings
from perfci.measure.request import Request
from perfci.measure.run import Measurement
from perfci.model.base import MachineError
from perfci.system.child import Arena
from perfci.system.gpu import GpuState
from perfci.system.lease import Lease
from tests.e2e.conftest import Repo

from .opened import opened


def test_whoever_measures_on_the_same_devices_takes_their_leases_in_one_order(tmp_path, monkeypatch):
    """Else each of two has one, and waits for the other's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    orders = [["cpu", "cuda"], ["cuda", "cpu"]]
    for uuid in ("GPU-1", "a-gpu", "gpu-0", None):
        first, second = (Lease(key, 0, print) for key in sorted(["cpu", uuid or "gpu-0"]))
        with first:
            for devices in orders:
                place: Any = SimpleNamespace(benches=dict.fromkeys(devices), facts=SimpleNamespace(uuid=uuid))
                monkeypatch.setattr(run, "open_place", lambda *_, place=place: place)
                measurement = Measurement(Request.of("compare", tmp_path, tmp_path / "out", wait=0), Quiet())
                with ExitStack() as stack, pytest.raises(MachineError, match=first.device_key):
                    measurement._open(stack)
                assert not second.path.exists()
        first.path.unlink()


def test_ceilings_are_measured_with_nothing_of_base_and_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = Repo(tmp_path / "repo", dict(os.environ))
    repo.write("perfci.yaml", "version: 1\ncommands: [{name: app, run: 'true'}]\n")
    repo.commit()
    request = Request.of(
        "compare", repo.root, tmp_path / "out", base="HEAD", devices=["cpu"], python=sys._base_executable
    )
    with opened(request) as place:
        seen, start = list[Arena](), place.parent.worker
        monkeypatch.setattr(place.parent, "worker", lambda arena, log: seen.append(arena) or start(arena, log))
        measure_ceilings(place)
        (arena,) = seen
        assert place.facts.ceilings["cpu"].device == "cpu"
        for side in place.sides.values():
            assert str(side.folder) not in "\n".join([*arena.env.values(), *arena.path, str(arena.tree)])
            # As long as theirs, and like them in all else: how large an environment is can be measured.
            assert {name: len(value) for name, value in arena.env.items()} == {
                name: len(value) for name, value in side.env.items()
            }


def test_each_reading_is_kept_in_si_units_with_its_time():
    watch = Watch(SimpleNamespace(benches={}))
    watch.read()
    assert watch.moments == []  # no GPU, nothing to tell
    states = [GpuState(at=0.0, temperature=41, sm_clock=1980, power=420.5), GpuState(at=1.0)]
    watch.gpu = SimpleNamespace(state=lambda ours: states[len(watch.moments)])
    before = time.time()
    watch.read()
    watch.read()
    first, second = watch.moments
    assert (first.temperature, first.sm_clock, first.power) == (41, 1.98e9, 420.5)
    assert (second.temperature, second.sm_clock, second.power) == (None, None, None)
    assert before <= first.at <= second.at <= time.time()
