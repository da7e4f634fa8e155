"""Container limits are read in both versions of control groups; without any there is none."""

from pathlib import Path

import pytest

from infrastructure.core.cgroup import (
    MemoryLimit,
    cpu_quota_cores,
    cpu_used_seconds,
    memory_limit,
)

GIB = 1 << 30


def write_all(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_no_control_groups_no_limits(tmp_path: Path) -> None:
    assert cpu_quota_cores(tmp_path) is None
    assert memory_limit(tmp_path) is None


def test_version_2(tmp_path: Path) -> None:
    root = write_all(
        tmp_path,
        {
            "proc/self/cgroup": "0::/box\n",
            "sys/fs/cgroup/box/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/box/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/box/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/box/memory.stat": f"anon 1\ninactive_file {GIB}\n",
        },
    )
    assert cpu_quota_cores(root) == 1.5
    assert memory_limit(root) == MemoryLimit(4 * GIB, 2 * GIB)


def test_version_1(tmp_path: Path) -> None:
    root = write_all(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/box\n3:cpu,cpuacct:/box\n",
            "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory/box/memory.usage_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/box/memory.stat": f"total_inactive_file {GIB // 2}\n",
        },
    )
    assert cpu_quota_cores(root) == 2.0
    assert memory_limit(root) == MemoryLimit(2 * GIB, GIB + GIB // 2)


def test_unlimited_is_no_limit(tmp_path: Path) -> None:
    root = write_all(
        tmp_path,
        {
            "proc/self/cgroup": "3:cpu:/\n0::/\n",
            "sys/fs/cgroup/cpu.max": "max 100000\n",
            "sys/fs/cgroup/memory.max": "max\n",
            "sys/fs/cgroup/memory.current": "5\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cpu_quota_cores(root) is None
    assert memory_limit(root) is None


@pytest.mark.parametrize("group", ["/outer/inner", "/not/mounted/here"])
def test_a_limit_on_an_ancestor_counts(tmp_path: Path, group: str) -> None:
    """A container often sees its own group at the mount's root, under the host's name for it."""
    outer = "sys/fs/cgroup/outer" if group == "/outer/inner" else "sys/fs/cgroup"
    files = {"proc/self/cgroup": f"0::{group}\n", f"{outer}/cpu.max": "50000 100000"}
    assert cpu_quota_cores(write_all(tmp_path, files)) == 0.5


def test_used_time_is_the_group_s_that_has_the_quota(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/job/step",
        "sys/fs/cgroup/job/cpu.max": "150000 100000",
        "sys/fs/cgroup/job/cpu.stat": "usage_usec 2500000\nuser_usec 1",
        "sys/fs/cgroup/job/step/cpu.stat": "usage_usec 500000",
    }
    assert cpu_used_seconds(write_all(tmp_path, files)) == 2.5


def test_used_time_in_version_1(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "3:cpu,cpuacct:/job",
        "sys/fs/cgroup/cpuacct/job/cpuacct.usage": "3000000000",
    }
    assert cpu_used_seconds(write_all(tmp_path, files)) == 3.0
    whole = "sys/fs/cgroup/cpuacct"
    files[f"{whole}/cpuacct.usage"] = "9000000000"
    files[f"{whole}/cpu.cfs_quota_us"] = files[f"{whole}/cpu.cfs_period_us"] = "100000"
    assert cpu_used_seconds(write_all(tmp_path, files)) == 9.0  # of the group that has a quota


def test_used_time_that_nobody_counts_is_unknown(tmp_path: Path) -> None:
    assert cpu_used_seconds(tmp_path) is None


def test_of_several_limits_the_tightest_counts(tmp_path: Path) -> None:
    """Of memory that is the one with the least left, not the smallest."""
    outer, inner = "sys/fs/cgroup/job", "sys/fs/cgroup/job/step"
    files = {"proc/self/cgroup": "1:name=systemd:/other\n0::/job/step\n"}
    for folder, cores, total, used in ((outer, 2, 8, 7), (inner, 3, 4, 1)):
        files[f"{folder}/cpu.max"] = f"{cores}00000 100000"
        files[f"{folder}/cpu.stat"] = f"usage_usec {cores}000000"
        files[f"{folder}/memory.max"] = str(total * GIB)
        files[f"{folder}/memory.current"] = str(used * GIB)
    root = write_all(tmp_path, files)
    assert cpu_quota_cores(root) == 2.0
    assert cpu_used_seconds(root) == 2.0
    assert memory_limit(root) == MemoryLimit(8 * GIB, GIB)


def test_the_hybrid_layout_and_more_used_than_there_is(tmp_path: Path) -> None:
    box = "sys/fs/cgroup/unified/box"
    files = {
        "proc/self/cgroup": "0::/box",
        f"{box}/memory.max": str(GIB),
        f"{box}/memory.current": str(2 * GIB),
    }
    assert memory_limit(write_all(tmp_path, files)) == MemoryLimit(GIB, 0)
    files[f"{box}/memory.stat"] = f"inactive_file {3 * GIB}"
    assert memory_limit(write_all(tmp_path, files)) == MemoryLimit(GIB, GIB)
