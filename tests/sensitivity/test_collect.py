"""Collecting: tuning on kernels whose answer is known, and the whole on the CPU, where times mean little."""

import importlib.util
import json
import math
import subprocess

import numpy as np
import pytest

from benchmarks.sensitivity import probe
from benchmarks.sensitivity.collect import Asked, Collector, add_verdicts, collect, git
from benchmarks.sensitivity.recording import SLOW, Recording

TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not TORCH, reason="torch is not installed")


@pytest.mark.parametrize("start", [3, 100, 50_000])
@pytest.mark.parametrize("hidden", [0, 40, 3000])
def test_tuning_realises_the_nominal_slow_downs(start, hidden):
    """From any amount to begin with, also where the first `hidden` units cost nothing."""

    def measure(amounts):
        return np.log1p(np.maximum(0, np.array(amounts) - hidden) * 2e-5 + 1e-12)

    amounts = probe.tuned(measure, start)
    for by in SLOW[1:]:
        realised = math.expm1(float(measure([amounts[f"{by:g}"]])[0]))
        assert by < realised < 1.15 * by


def test_work_that_does_not_slow_down_is_an_error():
    with pytest.raises(RuntimeError, match="cannot be tuned"):
        probe.tuned(lambda amounts: np.zeros(len(amounts)), 10)


def test_what_is_kept_of_many_samples_spans_them_all():
    kept = probe.thinned(list(range(100_000)))
    assert len(kept) == probe.KEPT
    assert (kept[0], kept[-1]) == (0, 99_999)
    assert len(probe.thinned([1.0, 2.0])) == 2


@needs_torch
@pytest.mark.torch
def test_base_and_head_differ_by_one_line(tmp_path):
    collector = Collector(Asked(out=tmp_path), tmp_path)
    collector.make_repo()
    (collector.repo / "amounts.json").write_text(json.dumps({"add64k": {"0.01": 3}}) + "\n")
    git(collector.repo, "commit", "-qam", "slower")
    command = ["git", "diff", "--numstat", "HEAD~1", "HEAD"]
    changed = subprocess.run(command, cwd=collector.repo, capture_output=True, text=True, check=True).stdout
    assert changed.split() == ["1", "1", "amounts.json"]


@needs_torch
@pytest.mark.torch
@pytest.mark.slow
def test_the_whole_on_the_cpu(tmp_path):
    """Every stage runs, the recording can be judged, and what is missing is said."""
    asked = Asked(
        tmp_path, 1.0, "cpu", ["copy512m"], pairs=2, turns=2, captures=2, placements=1, processes=2, longest=0.05
    )
    assert collect(asked) == 0
    recording = Recording.load(tmp_path / "recording.npz")
    assert recording.meta["problems"] == []
    assert recording.meta["amounts"] == {"copy512m": {"0.005": 1, "0.01": 2, "0.02": 4, "0.05": 10}}
    assert set(recording.meta["realised"]["copy512m"]["slow"]) == {"0.005", "0.01", "0.02", "0.05"}
    recorded = [recording.get("pairs", "copy512m", "cpu", by) for by in SLOW]
    assert any(pairs is not None for pairs in recorded)  # a busy machine's thirteen seconds may end within the first
    for pairs in recorded:
        if pairs is None:
            continue
        assert len(pairs) in (1, 2)
        assert pairs.shape[1:] == (8,) and (pairs[:, [0, 4]] > 0).all()
    for mode in ("rotating", "cold"):
        for variant in probe.VARIANTS:
            samples = recording.get("samples", "copy512m", mode, variant)
            assert len(samples) == 2
            assert np.isfinite(samples).any(axis=1).all()
    # The time of a decision is what perfci's own cost.
    seconds = recording.meta["seconds"]
    assert seconds["judgement"] == pytest.approx(16 * seconds["pair"])


@needs_torch
@pytest.mark.torch
def test_a_kernel_that_fails_costs_itself_and_the_collection_says_so(tmp_path, monkeypatch):
    """Nothing is measured, nothing passes: exit code 1."""
    monkeypatch.setattr(Collector, "make_repo", broken)
    assert collect(Asked(tmp_path, 0.2, "cpu", ["add64k"], turns=1, captures=1, placements=1)) == 1
    problems = Recording.load(tmp_path / "recording.npz").meta["problems"]
    assert any("kernels.py" in text for text in problems)


def broken(self):
    self.repo.mkdir()
    (self.repo / "kernels.py").write_text("import nothing_of_this_name\n")


def test_no_verdicts_without_samples_of_cuda_bench():
    assert add_verdicts(Recording()) == 0
