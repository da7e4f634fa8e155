"""The limits that a container or a service manager puts on this process (Linux control groups).

Both versions (cgroup v1 and v2) are read as the kernel's documentation describes them. A limit on
any parent group applies, too. On other systems, or if nothing can be read, there is no limit. The
argument `root` is for tests: a folder that stands for `/`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

V2 = ""  # in place of a controller of cgroup v1
# By controller: the files with the limit and the use, and the field of the pages to drop.
MEMORY_FILES = {
    V2: ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


@dataclass(frozen=True)
class MemoryLimit:
    """A memory limit, and the memory that is still available below it, in bytes."""

    total_bytes: int
    available_bytes: int


def cpu_quota_cores(root: Path = Path("/")) -> float | None:
    """Return how many cores this process may use, such as 1.5; None if there is no limit."""
    quotas = [_quota_v2(folder) for folder in _folders(root, V2)]
    quotas += [_quota_v1(folder) for folder in _folders(root, "cpu")]
    smallest = min(quotas)
    return None if smallest == math.inf else smallest


def memory_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """Return the memory limit with the least available memory, or None if there is no limit.

    File pages that the kernel can drop (`inactive_file`) count as available, as in `free`.
    """
    limits = [
        limit
        for controller, names in MEMORY_FILES.items()
        for folder in _folders(root, controller)
        if (limit := _memory_limit(folder, *names)) is not None
    ]
    return min(limits, key=lambda limit: limit.available_bytes, default=None)


def cpu_used_seconds(root: Path = Path("/")) -> float | None:
    """Return the CPU seconds used by this process's control group, or None if unknown.

    If parent groups have CPU quotas too, return the seconds of the group with the smallest quota.
    """
    used = [
        (_quota_v2(folder), int(microseconds) / 1e6)
        for folder in _folders(root, V2)
        if (microseconds := _fields(folder / "cpu.stat").get("usage_usec")) is not None
    ]
    used += [
        (_quota_v1(folder), nanoseconds / 1e9)
        for folder in _folders(root, "cpuacct")
        if (nanoseconds := _number(folder / "cpuacct.usage")) is not None
    ]
    return min(used, key=lambda pair: pair[0], default=(math.inf, None))[1]


def _quota_v2(folder: Path) -> float:
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else math.inf


def _quota_v1(folder: Path) -> float:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period else math.inf


def _memory_limit(folder: Path, limit: str, usage: str, droppable: str) -> MemoryLimit | None:
    total, used = _number(folder / limit), _number(folder / usage)
    if total is None or used is None:
        return None
    in_use = max(used - int(_fields(folder / "memory.stat").get(droppable, 0)), 0)
    return MemoryLimit(total, max(total - in_use, 0))


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folder of this process's control group, and those of its parent groups."""
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


def _fields(file: Path) -> dict[str, str]:
    """Return name → value, for a file with one pair in each line."""
    return dict(line.split(maxsplit=1) for line in _read(file).splitlines() if " " in line)


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
