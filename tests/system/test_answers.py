"""Workers' answers are taken as they fit, or not at all; they tell whether a machine is the same."""

import copy
import lzma
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from perfci.model.fingerprint import Ceilings, Fingerprint, GpuFacts
from perfci.model.results import Results
from perfci.render.facts import device_facts
from perfci.system.child import Arena, Died
from perfci.system.process import Parent
from perfci.system.starter import Worker, wait_first
from tests.render.h200 import FILE

RECORDED = Results.model_validate_json(lzma.decompress(FILE.read_bytes())).fingerprint
ANSWER = RECORDED.ceilings["cuda"].model_dump()


class Told(Worker):
    """A worker that gives one answer, whatever it is asked."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer, self.alive = answer, True

    def ask(self, op: str, timeout: float, **fields: Any) -> dict[str, Any]:
        return self.answer

    def kill(self) -> None:
        self.alive = False


def without(*path: str) -> dict[str, Any]:
    answer = copy.deepcopy(ANSWER)
    inside = answer
    for name in path[:-1]:
        inside = inside[name]
    del inside[path[-1]]
    return answer


def test_an_answer_that_fits_is_typed() -> None:
    worker = Told(ANSWER)
    assert worker.tell(Ceilings, "ceilings", 1.0) == RECORDED.ceilings["cuda"]
    assert worker.alive


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({}, "device: Field required"),
        (without("matmul", "bf16", "value"), "matmul.bf16.value: Field required"),
        (ANSWER | {"read": 4e12}, "read: Input should be a valid dictionary"),
        (ANSWER | {"copied": {"value": "fast"}}, "copied.value: Input should be a valid number"),
        (ANSWER | {"verdict": "pass"}, "verdict: Extra inputs are not permitted"),
    ],
)
def test_an_answer_that_does_not_fit_is_one_line_and_the_end_of_the_worker(answer: dict[str, Any], said: str) -> None:
    worker = Told(answer)
    with pytest.raises(Died) as died:
        worker.tell(Ceilings, "ceilings", 1.0)
    assert died.value.reason.kind == "protocol"
    assert died.value.reason.text.startswith(f"answered 'ceilings' with what does not fit: {said}")
    assert "\n" not in died.value.reason.text and not worker.alive


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"no JSON\n", "wrote garbage on perfci's channel"),
        (b'{"half', "no answer within 0.1 s"),
        (b'{"error": {"kind": "exception", "text": "a sticky error"}, "poisoned": true}\n', "a sticky error"),
        (b'{"error": {"kind": "forged", "text": "x"}}\n', "answered 'failure' with what does not fit: error.kind"),
    ],
)
def test_a_worker_whose_answers_are_worth_nothing_from_now_on_is_ended(
    tmp_path: Path, answer: bytes, said: str
) -> None:
    (tmp_path / "suite.py").write_text(
        "import gc, os, time\n"
        "(server,) = (each for each in gc.get_objects() if type(each).__name__ == 'Server')\n"
        f"os.write(server.channel.fileno(), {answer!r})\n"
        "time.sleep(600)\n"
    )
    env = {"PATH": os.environ["PATH"], "PERFCI_SITE": str(tmp_path)}
    parent = Parent(sys.executable, tmp_path, env)
    try:
        worker = parent.worker(Arena(tmp_path, tmp_path, [], env, sys.executable, 1), tmp_path / "log")
        worker.begin("load", seed=0, suite=["suite.py"], forbidden=[])
        wait_first([worker.wait(60)]).require()
        with pytest.raises(Died, match=said):
            worker.answer(0.1)
        assert not worker.alive and not psutil.pid_exists(worker.pid)
    finally:
        parent.close()


def test_a_worker_is_killed_once() -> None:
    """The end of a dead process comes no second time: whoever waits for it waits for ten seconds."""
    worker, killed = Worker.__new__(Worker), list[int]()
    worker.ident, worker.alive, worker.parent = 7, True, SimpleNamespace(kill=killed.append)  # type: ignore[assignment]
    worker.kill()
    worker.kill()
    assert killed == [7] and not worker.alive


def test_a_machine_is_the_same_whatever_was_measured_of_it() -> None:
    assert RECORDED.gpu is not None and RECORDED.gpu.nvml is not None
    again = RECORDED.model_copy(deep=True)
    again.memory, again.ceilings = 7, {}
    assert again.gpu is not None
    again.gpu.nvml, again.gpu.empty_pair_seconds = None, 2e-6
    assert again.lasting() == RECORDED.lasting()
    again.gpu.l2_bytes //= 2
    assert again.lasting() != RECORDED.lasting()
    assert RECORDED.model_copy(update={"driver": "590.1"}).lasting() != RECORDED.lasting()
    assert RECORDED.model_copy(update={"gpu": None}).lasting() != RECORDED.lasting()


def test_the_device_in_words() -> None:
    assert device_facts(RECORDED) == [
        ("capability", "9.0"),
        (
            "ceilings (cuda)",
            "read 4.32 TB/s, copy 4.26 TB/s, to device 55.4 GB/s, to host 55.4 GB/s, bf16 805 TFLOP/s, fp16 775 TFLOP/s, "
            "fp32 51.3 TFLOP/s, fp8 1530 TFLOP/s, int8 942 TFLOP/s, tf32 419 TFLOP/s",
        ),
        ("empty event pair", "1.25 µs"),
        ("L2", "62.9 MB"),
        ("device memory", "150 GB"),
        ("multiprocessors", "132"),
        (
            "GPU set-up",
            "compute mode default, ecc on, max sm clock 1980 MHz, mig off, persistence on, power limit 700 W, "
            "vbios 96.00.A5.00.1A",
        ),
    ]
    assert device_facts(Fingerprint(imported={"imported from": "nvbench"})) == [("imported from", "nvbench")]


def test_a_capability_is_two_numbers() -> None:
    fields = {"multiprocessors": 1, "l2_bytes": 1, "memory_bytes": 1, "empty_pair_seconds": 1e-6}
    assert GpuFacts(capability="12.1", **fields).chip == (12, 1)
    with pytest.raises(ValueError, match="capability"):
        GpuFacts(capability="sm_90", **fields)
