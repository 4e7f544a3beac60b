"""Facts of the machine: true on this one, and read right in containers and on other processors."""

import os
from pathlib import Path

import psutil
import pytest

from perfci.system.facts import cpu_model, free_memory, host_facts, memory_groups, usable_memory
from tests.sources.repo import write

GIB = 2**30


def test_this_machine():
    facts = host_facts("1.2.3")
    assert facts.perfci == "1.2.3"
    assert os.uname().release in facts.host
    assert facts.cpu
    assert facts.devices == {"cpu": facts.cpu}
    assert facts.cores == len(os.sched_getaffinity(0))
    assert 0 < facts.memory <= psutil.virtual_memory().total
    assert 0 < free_memory() <= facts.memory


def test_cores_are_those_that_this_process_may_use():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert host_facts("").cores == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel name\t: AMD  EPYC 9654\n", "AMD EPYC 9654"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", "Arm Neoverse-V2"),
        ("CPU implementer\t: 0x99\nCPU part\t: 0x001\n", "Arm core, implementer 0x99, part 0x001"),
        ("model name\t: ARMv8 Processor rev 0\nCPU implementer\t: 0x41\n", "ARMv8 Processor rev 0"),
        ("cpu\t\t: POWER9, altivec supported\n", "POWER9, altivec supported"),
    ],
)
def test_the_processor_has_a_name_on_every_architecture(tmp_path: Path, text: str, name: str):
    write(tmp_path, {"proc/cpuinfo": text})
    assert cpu_model(tmp_path) == name


def test_without_proc_there_are_still_facts(tmp_path: Path):
    facts = host_facts("1", root=tmp_path)
    assert facts.cpu
    assert facts.memory == psutil.virtual_memory().total


MOUNT = "30 24 0:26 {} {} ro,nosuid shared:9 - {} {} {}\n"
V2 = MOUNT.format("/", "/sys/fs/cgroup", "cgroup2", "cgroup2", "rw,nsdelegate")
SLICE, MEMORY = "sys/fs/cgroup/user.slice", "sys/fs/cgroup/memory"


def group(folder: str, most: object, used: int) -> dict[str, str]:
    """Files of a group of version 2."""
    return {f"{folder}/memory.max": f"{most}\n", f"{folder}/memory.current": f"{used}\n"}


@pytest.mark.parametrize(
    ("files", "groups"),
    [
        pytest.param(
            {
                "proc/self/cgroup": "0::/\n",
                "proc/self/mountinfo": V2,
                **group("sys/fs/cgroup", GIB, GIB // 2),
                "sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {GIB // 4}\n",
            },
            [(GIB, GIB * 3 // 4)],
            id="what is cached is free",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "1:name=systemd:/x\n0::/user.slice/job\n",
                "proc/self/mountinfo": f"garbage\n{V2}",
                **group(f"{SLICE}/job", "max", 5),
                **group(SLICE, 2 * GIB, 3 * GIB),
            },
            [(2 * GIB, 0)],
            id="the tightest counts, and max is no limit",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "9:pids:/docker/ab\n4:hugetlb,memory:/docker/ab\n0::/docker/ab\n",
                "proc/self/mountinfo": MOUNT.format("/docker/ab", "/sys/fs/cgroup/memory", "cgroup", "x", "rw,memory")
                + MOUNT.format("/docker/ab", "/sys/fs/cgroup/pids", "cgroup", "x", "rw,pids"),
                f"{MEMORY}/memory.limit_in_bytes": f"{GIB}\n",
                f"{MEMORY}/memory.usage_in_bytes": f"{GIB // 2}\n",
                f"{MEMORY}/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 8}\n",
            },
            [(GIB, GIB * 5 // 8)],
            id="Docker with version 1: at the mount itself",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/../../elsewhere\n",
                "proc/self/mountinfo": MOUNT.format("/", "/sys/fs/my\\040cgroup", "cgroup2", "cgroup2", "rw"),
                **group("sys/fs/my cgroup", GIB, 0),
                **group("sys", 1, 0),
            },
            [(GIB, GIB)],
            id="inside of a namespace nothing leads out of the mount",
        ),
    ],
)
def test_memory_is_that_of_the_groups_that_limit_it(tmp_path: Path, files: dict[str, str], groups: list):
    write(tmp_path, files)
    assert [(group.limit, group.free) for group in memory_groups(tmp_path)] == groups
    [(limit, free)] = groups
    assert usable_memory(tmp_path) == limit
    assert free_memory(tmp_path) == min(free, free_memory())
