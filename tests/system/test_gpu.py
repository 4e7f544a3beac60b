"""NVML's answers, and those that it does not give: an unsupported query is None, never 0 and never an exception."""

import dataclasses
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from perfci.model.fingerprint import NvmlFacts
from perfci.system import gpu
from perfci.system.gpu import Gpu, GpuProcess, GpuState, describe


class NVMLError(Exception):
    """As of pynvml."""


class Board:
    """Stands in for pynvml: an H200 under load. Names in `mute` are not supported."""

    NVMLError = NVMLError

    def __init__(self, mute=(), uuids=("GPU-1234",), **answers):
        self.mute, self.uuids = set(mute), uuids
        self.answers = {
            "nvmlDeviceGetClockInfo": lambda kind: {1: 1410, 2: 3201}[kind],
            "nvmlDeviceGetMaxClockInfo": lambda kind: 1980,
            "nvmlDeviceGetTemperature": lambda sensor: 61,
            "nvmlDeviceGetPowerUsage": lambda: 698_700,
            "nvmlDeviceGetEnforcedPowerLimit": lambda: 700_000,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda: 0x4 | 0x20,
            "nvmlDeviceGetUtilizationRates": lambda: SimpleNamespace(gpu=97, memory=40),
            "nvmlDeviceGetMemoryInfo": lambda version=None: SimpleNamespace(total=150 * 2**30, used=2**20),
            "nvmlDeviceGetComputeMode": lambda: 3,
            "nvmlDeviceGetPersistenceMode": lambda: 1,
            "nvmlDeviceGetMigMode": lambda: [0, 1],
            "nvmlDeviceGetEccMode": lambda: [1, 1],
            "nvmlDeviceGetVbiosVersion": lambda: b"96.00.A8.00.01",
            "nvmlDeviceGetFieldValues": self.fields,
            "nvmlDeviceGetComputeRunningProcesses": lambda: [],
            "nvmlDeviceGetGraphicsRunningProcesses": lambda: [],
        } | answers

    @staticmethod
    def fields(wanted):
        known = {74: 2_000_000_000, 269: 500_000_000}

        def told(field):
            value = SimpleNamespace(uiVal=known.get(field, 0), ullVal=known.get(field, 0))
            return SimpleNamespace(fieldId=field, nvmlReturn=0 if field in known else 3, valueType=3, value=value)

        return list(map(told, wanted))

    def nvmlInit(self):
        if "nvmlInit" in self.mute:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid not in self.uuids:
            raise NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.uuids[index]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle):
        return "GPU-parent"

    def nvmlDeviceGetUUID(self, handle):
        return handle

    def nvmlSystemGetDriverVersion(self):
        if "nvmlSystemGetDriverVersion" in self.mute:
            raise NVMLError("Unknown Error")
        return "580.159.04"

    def __getattr__(self, name):
        if name not in self.answers:
            raise AttributeError(name)

        def call(handle, *arguments):
            if name in self.mute:
                raise NVMLError("Not Supported")
            return self.answers[name](*arguments)

        return call


def opened(**board):
    found, why = Gpu.open("GPU-1234", Board(**board))
    assert found is not None and why == ""
    return found


def test_everything_that_is_told():
    before = time.monotonic()
    state = opened().state()
    after = time.monotonic()
    assert dataclasses.replace(state, at=0.0) == GpuState(
        at=0.0, sm_clock=1410, temperature=61, power=pytest.approx(698.7),
        power_limit=pytest.approx(700), reasons=("sw_power_cap", "sw_thermal"),
        held={"sw_power_cap": pytest.approx(2.0), "sw_thermal": pytest.approx(0.5)}, utilisation=pytest.approx(0.97),
        processes=(), compute_mode="exclusive", persistence=True, mig=False, memory_total=150 * 2**30,
        memory_used=2**20,
    )  # fmt: skip
    assert before <= state.at <= after
    assert opened().facts() == NvmlFacts(
        driver="580.159.04", vbios="96.00.A8.00.01", power_limit=700.0, compute_mode="exclusive",
        mig=False, ecc=True, persistence=True, max_sm_clock=1980,
    )  # fmt: skip


def test_nothing_that_is_told():
    """A board that supports no query: every field is None."""
    mute = [*Board().answers, "nvmlSystemGetDriverVersion"]
    state = opened(mute=mute).state([os.getpid()])
    assert {name for name, value in dataclasses.asdict(state).items() if value is not None} == {"at"}
    assert opened(mute=mute).facts() == NvmlFacts()


@pytest.mark.parametrize("name", list(Board().answers))
def test_one_query_that_is_not_supported_costs_its_own_field_only(name):
    whole, less = opened().state(), opened(mute=[name]).state()
    names = [field.name for field in dataclasses.fields(whole)]
    lost = [field for field in names if getattr(whole, field) is not None and getattr(less, field) is None]
    gone = {"nvmlDeviceGetMemoryInfo": 2}
    none = {"nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetVbiosVersion", "nvmlDeviceGetEccMode"}
    partly = {"nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"}
    assert len(lost) == (0 if name in none | partly else gone.get(name, 1)), lost


def test_an_old_driver_tells_the_reasons_under_their_old_name():
    board = Board(mute=["nvmlDeviceGetCurrentClocksEventReasons"])
    board.answers["nvmlDeviceGetCurrentClocksThrottleReasons"] = lambda: 0x1
    found, _ = Gpu.open(0, board)
    assert found.state().reasons == ("idle",)


def test_a_uuid_as_torch_writes_it_and_a_mig_instance():
    assert Gpu.open("1234", Board())[0].uuid == "GPU-1234"
    assert Gpu.open("abc", Board(uuids=("MIG-abc",)))[0].uuid == "GPU-parent"


def test_what_cannot_be_opened_says_why_in_one_line():
    for board, which in ((Board(mute=["nvmlInit"]), 0), (Board(), "GPU-other")):
        found, why = Gpu.open(which, board)
        assert found is None and "NVML says" in why and "\n" not in why


def test_without_the_library_there_is_a_reason():
    # None: an import of it would fail, of perfci's module, too.
    code = "import sys; sys.modules['pynvml'] = None\nfrom perfci.system.gpu import Gpu\nprint(Gpu.open(0))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out == "(None, 'the state of the GPU is unknown: nvidia-ml-py is not installed')\n"


def test_every_name_that_is_asked_for_is_pynvmls():
    """A misspelled name would be None for ever."""
    pynvml = pytest.importorskip("pynvml")
    assert [name for name in Board().answers if not hasattr(pynvml, name)] == []
    assert pynvml.nvmlMemory_v2 == gpu.MEMORY_V2
    assert (pynvml.nvmlClocksEventReasonSwPowerCap, pynvml.nvmlClocksEventReasonHwThermalSlowdown) == (0x4, 0x40)


def test_own_processes_and_what_is_below_them_are_no_others(monkeypatch):
    """A real child of a real child of ours, beside a foreign process and one that has no name here."""
    monkeypatch.setattr(gpu, "_initial_pid_namespace", lambda: True)
    script = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE); print(p.pid, flush=True); input(); p.communicate(b'\\n')"
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        grandchild = int(child.stdout.readline())
        running = [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in ((child.pid, 10), (grandchild, 20), (os.getppid(), None), (2**22 + 5, 3 * 10**9))]  # fmt: skip
        found, _ = Gpu.open(0, Board(nvmlDeviceGetComputeRunningProcesses=lambda: running))
        others = found.state([child.pid]).processes
    finally:
        child.communicate("\n")
    assert [(one.pid, one.memory) for one in others] == sorted([(os.getppid(), None), (2**22 + 5, 3 * 10**9)])
    names = {one.pid: one.name for one in others}
    assert names[os.getppid()] and names[2**22 + 5] is None


# ---------------------------------------------------------------- what people read


def rounds(count, affected=0, seconds=10.0, reason="sw_power_cap", share=0.6, **fields):
    """Before and after each round; in the first `affected` of them the reason held the clocks down."""
    states, held = [], 0.0
    for index in range(count):
        states.append(GpuState(at=20.0 * index, held={reason: held}, **fields))
        held += share * seconds if index < affected else 0.0
        states.append(GpuState(at=20.0 * index + seconds, held={reason: held}, **fields))
    return states


PYTHON, HIDDEN = GpuProcess(1234, "python", 3_100_000_000), GpuProcess(77, None, 2 * 10**9)
COUNTLESS = [GpuState(at=float(i), reasons=("sw_power_cap",) if i in (1, 3) else ("idle",)) for i in range(6)]


@pytest.mark.parametrize(
    ("states", "told"),
    [
        ([], None),
        (rounds(12, power=699.0, power_limit=700.0, temperature=61, processes=(), memory_used=0), None),
        ([GpuState(at=float(i)) for i in range(8)], None),
        (rounds(10, 10, share=0.001), None),  # a moment at the limit
        (rounds(12, 8, power=698.6, power_limit=700.0), "the GPU was at its power limit (700 W) during 8 of 12 rounds, up to 60 % of the time: times follow the clock, see the time at equal clock"),
        # Where time is not counted, the ends of a round serve.
        (COUNTLESS, "the GPU was at its power limit during 2 of 3 rounds: times follow the clock, see the time at equal clock"),
        (rounds(4, 1, reason="hw_thermal", share=0.3, temperature=86), "the GPU was slowed down for its temperature, up to 86 °C, during 1 of 4 rounds, up to 30 % of the time: cool it"),
        (rounds(4, 4, reason="hw_power_brake"), "the machine braked the GPU during 4 of 4 rounds, up to 60 % of the time: check its power supply"),
        ([GpuState(at=0.0), GpuState(at=1.0, processes=(PYTHON,))], "another process used the GPU: 1234 python (3.1 GB)"),
        # In a container NVML tells the host's numbers: perfci's own workers cannot be told from others, so a process
        # that cannot be seen is another's only if it was there before.
        ([GpuState(at=0.0, processes=()), GpuState(at=1.0, processes=(HIDDEN,))], None),
        ([GpuState(at=0.0, processes=(HIDDEN,)), GpuState(at=1.0)], "another process used the GPU: 77 (not visible from here) (2.0 GB)"),
        ([GpuState(at=0.0, memory_used=40 * 10**9), GpuState(at=1.0)], "40.0 GB of the GPU's memory were in use before perfci began, by a process that is not visible"),
    ],
)  # fmt: skip
def test_what_is_told_of_a_run(states, told):
    assert describe(states) == [told] * (told is not None)


@pytest.mark.gpu
def test_on_a_gpu_the_state_is_told():
    found, why = Gpu.open(0)
    if found is None:
        pytest.skip(f"needs NVML: {why}")
    state = found.state([os.getpid()])
    assert state.sm_clock and state.temperature and state.power and state.power_limit and state.memory_total
    assert state.reasons is not None and state.compute_mode is not None
    assert found.facts().driver
