"""`--gpus`: which GPUs are meant, which are refused, and the cores that each gets."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perfci.model.base import MachineError, UsageError
from perfci.system import gpus
from perfci.system.gpus import host_gpus, parse_cores, share_cores

from .test_gpu import Board, NVMLError

H200, H100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"


class Rack(Board):
    """Stands in for pynvml: a host with several GPUs, of which `answers` tells what differs, by number."""

    def __init__(self, models: list[str], **answers: list[Any]) -> None:
        super().__init__(uuids=tuple(f"GPU-{number}{number}{number}{number}" for number in range(len(models))))
        self.own = {"nvmlDeviceGetName": models, **answers}
        self.broken: int | None = None

    def nvmlDeviceGetCount(self) -> int:
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index == self.broken:
            raise NVMLError("GPU is lost")
        return super().nvmlDeviceGetHandleByIndex(index)

    def __getattr__(self, name: str) -> Any:
        if name in self.own:
            return lambda handle, *arguments: self.own[name][self.uuids.index(handle)]
        return super().__getattr__(name)


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "cores_here", lambda: frozenset(range(16)))


def chosen(text: str, rack: Rack, root: Path = Path("/nowhere"), **env: str) -> list[int]:
    return [gpu.number for gpu in host_gpus(text, env, rack, root)]


FOUR, MIXED = Rack([H200] * 4), Rack([H200, H100, H200])
VIRTUAL = Rack([H200] * 2, nvmlDeviceGetVirtualizationMode=[2, 0])


def test_all_are_those_that_this_process_sees() -> None:
    rack = Rack([H200] * 4)
    assert chosen("all", rack) == [0, 1, 2, 3]
    assert chosen("2,0", rack) == [0, 2]
    assert chosen("3", rack) == [3]
    assert chosen("all", rack, CUDA_VISIBLE_DEVICES="2,1") == [1, 2]
    assert chosen("all", rack, CUDA_VISIBLE_DEVICES="GPU-33, GPU-0000") == [0, 3]
    assert chosen("all", rack, CUDA_VISIBLE_DEVICES="1,9,2") == [1], "as the driver: nothing behind what is not there"
    assert chosen("0,2", MIXED) == [0, 2]
    assert chosen("all", MIXED, CUDA_VISIBLE_DEVICES="0,2", CUDA_DEVICE_ORDER="PCI_BUS_ID") == [0, 2]
    assert [gpu.uuid for gpu in host_gpus("all", {}, rack)] == list(rack.uuids)
    assert host_gpus("2", {}, rack)[0].name == "GPU 2"


@pytest.mark.parametrize(
    ("text", "env", "said", "rack"),
    [
        ("", {}, "write all, or numbers", FOUR),
        ("0,", {}, "write all, or numbers", FOUR),
        ("GPU-1111", {}, "write all, or numbers", FOUR),
        ("٣", {}, "write all, or numbers", FOUR),
        ("1,1", {}, "a GPU is named twice", FOUR),
        ("0,4", {}, "there is no GPU 4", FOUR),
        ("0,2", {"CUDA_VISIBLE_DEVICES": "0,1"}, "CUDA_VISIBLE_DEVICES hides GPU 2", FOUR),
        ("all", {"CUDA_VISIBLE_DEVICES": "MIG-0a"}, "names a part of a GPU", FOUR),
        ("all", {}, "GPU 1 is divided by MIG", Rack([H200] * 2, nvmlDeviceGetMigMode=[[0, 0], [1, 1]])),
        ("all", {}, "GPU 0 is a part of one that virtual machines share", VIRTUAL),
        ("all", {}, "are different models: compare on each model by itself", MIXED),
        ("all", {"CUDA_VISIBLE_DEVICES": "0,2"}, "CUDA numbers different models by their speed", MIXED),
    ],
)
def test_what_names_no_whole_gpus_of_one_model_is_refused(
    text: str, env: dict[str, str], said: str, rack: Rack
) -> None:
    with pytest.raises(UsageError, match=said):
        chosen(text, rack, **env)


@pytest.mark.parametrize("hidden", ["", "-1", "NoDevFiles", "GPU-9"])
def test_where_all_are_hidden_there_is_no_run(hidden: str) -> None:
    with pytest.raises(MachineError, match="CUDA_VISIBLE_DEVICES hides all GPUs"):
        chosen("all", Rack([H200] * 2), CUDA_VISIBLE_DEVICES=hidden)


def test_a_gpu_that_does_not_answer_is_not_left_out() -> None:
    rack = Rack([H200] * 3)
    rack.broken = 1
    with pytest.raises(MachineError, match="GPU 1 is unknown: NVML says GPU is lost"):
        chosen("all", rack)
    silent = Board(mute=["nvmlInit"])
    with pytest.raises(MachineError, match=r"there is no GPU here .*Driver Not Loaded.*: measure where there is one"):
        host_gpus("all", {}, silent)


def test_each_has_cores_of_its_own_or_there_is_no_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpus, "cores_here", lambda: frozenset(range(3)))
    with pytest.raises(UsageError, match="2 GPUs and 3 cores: each GPU needs 2 of its own: name fewer GPUs"):
        chosen("all", Rack([H200] * 2))
    assert chosen("0", Rack([H200] * 2)) == [0]
    monkeypatch.setattr(gpus, "cores_here", lambda: frozenset(range(16)))
    monkeypatch.setattr(gpus, "cpu_quota", lambda root: 3.0)
    with pytest.raises(UsageError, match="2 GPUs and 16 cores, of which a quota leaves 3"):
        chosen("all", Rack([H200] * 2))


def test_cores_are_those_of_the_node(tmp_path: Path) -> None:
    """Two GPUs on each of two nodes; core n and n + 8 are one physical core."""
    addresses = [f"0000000{at // 2}:{at}A:00.0" for at in range(4)]
    for at, address in enumerate(addresses):
        folder = tmp_path / "sys/bus/pci/devices" / address[4:].lower()
        folder.mkdir(parents=True)
        (folder / "local_cpulist").write_text("0-3,8-11\n" if at < 2 else "4-7,12-15\n")
    for core in range(16):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{core % 8},{core % 8 + 8}\n")
    told = [SimpleNamespace(busId=one.encode() if at % 2 else one) for at, one in enumerate(addresses)]
    found = host_gpus("all", {}, Rack([H200] * 4, nvmlDeviceGetPciInfo=told), tmp_path)
    assert [gpu.cores for gpu in found] == [(0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 12, 13), (6, 7, 14, 15)]
    told[0] = SimpleNamespace(busId="../../etc")  # nobody knows its node: all share all
    found = host_gpus("all", {}, Rack([H200] * 4, nvmlDeviceGetPciInfo=told), tmp_path)
    assert [len(gpu.cores) for gpu in found] == [4] * 4


CORES = st.frozensets(st.integers(0, 30), max_size=20)


@given(beside=st.lists(CORES, min_size=1, max_size=6), usable=CORES.filter(bool), threads=st.sampled_from([1, 2, 4]))
@example(beside=[frozenset({0, 1, 2, 18}), frozenset({0, 19})], usable=frozenset({1, 18, 19}), threads=2)
def test_no_core_is_shared_and_twins_stay_together(
    beside: list[frozenset[int]], usable: frozenset[int], threads: int
) -> None:
    shares = share_cores(beside, usable, lambda core: range(core - core % threads, core - core % threads + threads))
    assert len(shares) == len(beside)
    flat = [core for own in shares for core in own]
    assert len(flat) == len(set(flat))
    assert set(flat) <= usable
    owners = {core: at for at, own in enumerate(shares) for core in own}
    for core, at in owners.items():
        assert {owners[twin] for twin in owners if twin // threads == core // threads} == {at}
    if all(own and own == beside[0] for own in beside) and usable <= beside[0]:
        physical = [len({core // threads for core in own}) for own in shares]
        assert max(physical) - min(physical) <= 1, "evenly"


@given(CORES)
def test_a_list_of_cores_is_read_as_linux_writes_it(cores: frozenset[int]) -> None:
    ordered, parts = sorted(cores), list[str]()
    for core in ordered:
        if parts and core - 1 in cores:
            parts[-1] = f"{parts[-1].split('-')[0]}-{core}"
        else:
            parts.append(str(core))
    assert parse_cores(",".join(parts) + "\n") == cores


@given(st.text("0123456789-, x", max_size=8))
def test_what_is_no_list_is_an_error(text: str) -> None:
    if re.fullmatch(r"\s*([0-9]{1,5}(-[0-9]{1,5})?)?(,([0-9]{1,5}(-[0-9]{1,5})?)?)*\s*", text):
        parse_cores(text)
    else:
        with pytest.raises(ValueError, match="is no range of cores"):
            parse_cores(text)
