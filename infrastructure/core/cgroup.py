"""The limits that a container or a service manager puts on this process (Linux control groups).

Both versions (cgroup v1 and v2) are read as the kernel's documentation describes them. A limit on
any parent group applies, too. On other systems, or if nothing can be read, there is no limit. The
argument `root` is for tests: a folder that stands for `/`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class MemoryLimit:
    """A memory limit, and the memory that is still available below it, in bytes."""

    total_bytes: int
    available_bytes: int


def cpu_quota_cores(root: Path = Path("/")) -> float | None:
    """Return how many cores this process may use, such as 1.5; None if there is no limit."""
    quotas = [*_cpu_quotas_v2(root), *_cpu_quotas_v1(root)]
    return min(quotas, default=None)


def memory_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """Return the memory limit with the least available memory, or None if there is no limit.

    File pages that the kernel can drop (`inactive_file`) count as available, as in `free`.
    """
    limits = [*_memory_limits_v2(root), *_memory_limits_v1(root)]
    return min(limits, key=lambda limit: limit.available_bytes, default=None)


def cpu_used_seconds(root: Path = Path("/")) -> float | None:
    """Return the CPU seconds used by this process's control group, or None if unknown.

    If parent groups have CPU quotas too, return the seconds of the group with the smallest quota.
    """
    used = [*_cpu_used_v2(root), *_cpu_used_v1(root)]
    return min(used, key=lambda pair: pair[0], default=(0.0, None))[1]


def _cpu_used_v2(root: Path) -> Iterator[tuple[float, float]]:
    """Yield (quota in cores, CPU seconds used) of this process's group and of its parent groups."""
    for folder in _folders(root, controller=""):
        fields = dict(
            line.split(maxsplit=1)
            for line in _read(folder / "cpu.stat").splitlines()
            if " " in line
        )
        if "usage_usec" in fields:
            quota = _quota_v2(folder)
            yield math.inf if quota is None else quota, int(fields["usage_usec"]) / 1e6


def _cpu_used_v1(root: Path) -> Iterator[tuple[float, float]]:
    for folder in _folders(root, controller="cpuacct"):
        nanoseconds = _number(folder / "cpuacct.usage")
        if nanoseconds is not None:
            quota = _quota_v1(folder)
            yield math.inf if quota is None else quota, nanoseconds / 1e9


def _cpu_quotas_v2(root: Path) -> Iterator[float]:
    for folder in _folders(root, controller=""):
        quota = _quota_v2(folder)
        if quota is not None:
            yield quota


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _cpu_quotas_v1(root: Path) -> Iterator[float]:
    for folder in _folders(root, controller="cpu"):
        quota = _quota_v1(folder)
        if quota is not None:
            yield quota


def _quota_v1(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period else None


def _memory_limits_v2(root: Path) -> Iterator[MemoryLimit]:
    for folder in _folders(root, controller=""):
        yield from _memory_limit(folder, "memory.max", "memory.current", "inactive_file")


def _memory_limits_v1(root: Path) -> Iterator[MemoryLimit]:
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    for folder in _folders(root, controller="memory"):
        yield from _memory_limit(folder, *names)


def _memory_limit(folder: Path, limit: str, usage: str, droppable: str) -> Iterator[MemoryLimit]:
    total, used = _number(folder / limit), _number(folder / usage)
    if total is None or used is None:
        return
    statistics = dict(
        line.split(maxsplit=1) for line in _read(folder / "memory.stat").splitlines() if " " in line
    )
    in_use = max(used - int(statistics.get(droppable, 0)), 0)
    yield MemoryLimit(total, max(total - in_use, 0))


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folder of this process's control group, and those of its parent groups.

    `controller` is "" for cgroup v2.
    """
    mounts = [root / "sys/fs/cgroup" / controller]
    if not controller:
        mounts.append(root / "sys/fs/cgroup/unified")  # the hybrid layout of older systemd
    group = _group(root, controller)
    for mount in mounts:
        for part in (group, *group.parents):
            yield mount / part


def _group(root: Path, controller: str) -> Path:
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return Path(path.lstrip("/"))
    return Path()


def _number(file: Path) -> int | None:
    """Return the non-negative number in `file`; None if the file is missing or contains "max" or
    -1.
    """
    text = _read(file)
    return int(text) if text.isdigit() else None


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
