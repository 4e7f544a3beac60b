"""Facts of the machine: true on this one, and read right in containers and on other processors."""

import os
from pathlib import Path

import psutil
import pytest

from perfci.system.facts import (
    cpu_model,
    free_memory,
    host_facts,
    memory_groups,
    usable_memory,
)

GIB = 2**30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


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
        (
            "processor\t: 0\nmodel name\t: AMD  EPYC 9654 96-Core Processor\n",
            "AMD EPYC 9654 96-Core Processor",
        ),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", "Arm Neoverse-V2"),
        ("CPU implementer\t: 0x99\nCPU part\t: 0x001\n", "Arm core, implementer 0x99, part 0x001"),
        (
            "model name\t: ARMv8 Processor rev 0 (v8l)\nCPU implementer\t: 0x41\n",
            "ARMv8 Processor rev 0 (v8l)",
        ),
        ("cpu\t\t: POWER9, altivec supported\n", "POWER9, altivec supported"),
    ],
)
def test_the_processor_has_a_name_on_every_architecture(tmp_path: Path, text: str, name: str):
    assert cpu_model(write(tmp_path, {"proc/cpuinfo": text})) == name


def test_without_proc_there_are_still_facts(tmp_path: Path):
    facts = host_facts("1", root=tmp_path)
    assert facts.cpu
    assert facts.memory == psutil.virtual_memory().total


def mount(kind: str, root: str, point: str, options: str) -> str:
    return f"30 24 0:26 {root} {point} ro,nosuid shared:9 - {kind} {kind} {options}\n"


def test_a_container_with_cgroup_v2_has_the_memory_of_its_limit(tmp_path: Path):
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": mount("cgroup2", "/", "/sys/fs/cgroup", "rw"),
            "sys/fs/cgroup/memory.max": f"{GIB}\n",
            "sys/fs/cgroup/memory.current": f"{GIB // 2}\n",
            "sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {GIB // 4}\n",
        },
    )
    assert usable_memory(root) == GIB
    assert free_memory(root) == min(GIB * 3 // 4, free_memory())


def test_of_nested_groups_the_tightest_counts_and_max_is_no_limit(tmp_path: Path):
    group = "sys/fs/cgroup/user.slice/job"
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "1:name=systemd:/x\n0::/user.slice/job\n",
            "proc/self/mountinfo": "garbage\n" + mount("cgroup2", "/", "/sys/fs/cgroup", "rw,nsdelegate"),
            f"{group}/memory.max": "max\n",
            f"{group}/memory.current": "5\n",
            f"{group}/../memory.max": f"{2 * GIB}\n",
            f"{group}/../memory.current": f"{3 * GIB}\n",
        },
    )
    assert [(g.limit, g.free) for g in memory_groups(root)] == [(2 * GIB, 0)]
    assert usable_memory(root) == 2 * GIB
    assert free_memory(root) == 0


def test_a_docker_container_with_cgroup_v1_finds_its_limit_at_the_mount_itself(tmp_path: Path):
    point = "sys/fs/cgroup/memory"
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "9:pids:/docker/ab\n4:hugetlb,memory:/docker/ab\n0::/docker/ab\n",
            "proc/self/mountinfo": mount("cgroup", "/docker/ab", "/sys/fs/cgroup/memory", "rw,hugetlb,memory")
            + mount("cgroup", "/docker/ab", "/sys/fs/cgroup/pids", "rw,pids"),
            f"{point}/memory.limit_in_bytes": f"{GIB}\n",
            f"{point}/memory.usage_in_bytes": f"{GIB // 2}\n",
            f"{point}/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 8}\n",
        },
    )
    assert [(g.limit, g.used) for g in memory_groups(root)] == [(GIB, GIB * 3 // 8)]


def test_a_group_seen_from_inside_a_namespace_does_not_lead_out_of_the_mount(tmp_path: Path):
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../../elsewhere\n",
            "proc/self/mountinfo": mount("cgroup2", "/", "/sys/fs/my\\040cgroup", "rw"),
            "sys/fs/my cgroup/memory.max": f"{GIB}\n",
            "sys/fs/my cgroup/memory.current": "0\n",
            "sys/memory.max": "1\n",
            "sys/memory.current": "0\n",
        },
    )
    assert [g.limit for g in memory_groups(root)] == [GIB]
