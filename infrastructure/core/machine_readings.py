"""Readings of the load and memory of this machine, taken at little cost.

In a container, percentages are relative to the processor time and memory that the container may
use. Rates are averages since the previous reading. Values that the system does not report are None.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from infrastructure.core.cgroup import cpu_quota_cores, cpu_used_seconds
from infrastructure.core.hardware import disk_free_bytes, memory

CHILDREN_SECONDS = 5.0  # how long a list of the children is reused; making one reads all of /proc


@dataclass(frozen=True)
class MachineReading:
    """The load and memory of the machine at one moment.

    Attributes:
        cpu_percent: the CPU load of all processes since the previous reading, in percent of the
            cores that this process may use.
        memory_used_bytes, memory_total_bytes: the memory of the container if its limit is below the
            machine's memory, and otherwise that of the machine.
        process_memory_bytes: the resident memory of this process and its descendants. Shared memory
            is counted for each process.
        disk_read_bytes_per_second, disk_write_bytes_per_second: the rates of all disks of the
            machine.
        network_received_bytes_per_second, network_sent_bytes_per_second: the rates of all network
            interfaces except loopback.
        disk_free_bytes: the free space on the disk to which the run is written.
    """

    cpu_percent: float
    memory_used_bytes: int
    memory_total_bytes: int
    process_memory_bytes: int
    disk_read_bytes_per_second: float | None
    disk_write_bytes_per_second: float | None
    network_received_bytes_per_second: float | None
    network_sent_bytes_per_second: float | None
    disk_free_bytes: int | None

    @property
    def memory_percent(self) -> float:
        return 100 * self.memory_used_bytes / max(1, self.memory_total_bytes)


class MachineReadings:
    """A source of readings of the machine. Rates are computed since the previous reading.

    It must not be used by two threads at once.

    Args:
        folder: a folder on the file system whose free space is reported.
        pid: the process whose tree is measured; by default, this process.
        clock: returns the time in seconds from any origin.
    """

    def __init__(
        self,
        folder: Path = Path(),
        pid: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self.clock = clock
        self._root = psutil.Process(pid)
        self._tree: list[psutil.Process] = []
        self._tree_until = float("-inf")
        self._processor = _Processor()
        self._counters = _counters()
        self._read_at = clock()

    def read(self) -> MachineReading:
        """Read all values now.

        Raises:
            psutil.NoSuchProcess: the process is gone.
        """
        now = self.clock()
        seconds = now - self._read_at
        before, self._counters, self._read_at = self._counters, _counters(), now
        rates = [_rate(old, new, seconds) for old, new in zip(before, self._counters, strict=True)]
        space = memory()
        return MachineReading(
            cpu_percent=self._processor.percent(seconds),
            memory_used_bytes=space.total_bytes - space.available_bytes,
            memory_total_bytes=space.total_bytes,
            process_memory_bytes=self._tree_bytes(now),
            disk_read_bytes_per_second=rates[0],
            disk_write_bytes_per_second=rates[1],
            network_received_bytes_per_second=rates[2],
            network_sent_bytes_per_second=rates[3],
            disk_free_bytes=disk_free_bytes(self.folder),
        )

    def _tree_bytes(self, now: float) -> int:
        if now >= self._tree_until:
            self._tree = self._root.children(recursive=True)
            self._tree_until = now + CHILDREN_SECONDS
        total = int(self._root.memory_info().rss)
        for process in self._tree:
            try:
                total += int(process.memory_info().rss)
            except psutil.Error:  # it has ended, or belongs to another user
                continue
        return total


class _Processor:
    """A measurement of the load of the cores that this process may use."""

    def __init__(self) -> None:
        self._quota_cores = cpu_quota_cores()
        self._used_seconds = cpu_used_seconds()
        psutil.cpu_percent(percpu=True)  # the first call only sets the start

    def percent(self, seconds: float) -> float:
        before, self._used_seconds = self._used_seconds, cpu_used_seconds()
        loads = psutil.cpu_percent(percpu=True)
        if self._quota_cores and before is not None and self._used_seconds is not None:
            if seconds <= 0:
                return 0.0
            used = (self._used_seconds - before) / (seconds * self._quota_cores)
            return min(100.0, max(0.0, 100 * used))
        affinity = (
            psutil.Process().cpu_affinity() if hasattr(psutil.Process, "cpu_affinity") else []
        )
        mine = [loads[core] for core in affinity or [] if core < len(loads)] or loads
        return sum(mine) / max(1, len(mine))


def _counters() -> list[int | None]:
    """Return the bytes read from and written to disks, and received from and sent to networks."""
    disk = psutil.disk_io_counters()
    net = psutil.net_io_counters(pernic=True)
    outside = [counted for name, counted in net.items() if name not in ("lo", "lo0")]
    return [
        None if disk is None else disk.read_bytes,
        None if disk is None else disk.write_bytes,
        sum(counted.bytes_recv for counted in outside) if outside else None,
        sum(counted.bytes_sent for counted in outside) if outside else None,
    ]


def _rate(before: int | None, now: int | None, seconds: float) -> float | None:
    if before is None or now is None:
        return None
    return max(0, now - before) / seconds if seconds > 0 else 0.0
