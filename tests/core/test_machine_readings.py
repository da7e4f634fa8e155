"""Machine readings against what real processes, files and this machine do."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from infrastructure.core import machine_readings as module
from infrastructure.core.hardware import Memory, memory
from infrastructure.core.machine_readings import MachineReading, MachineReadings

HOLD = "import sys; held = bytearray({size}); print('ready', flush=True); sys.stdin.read()"
MIB = 1 << 20


def test_memory_is_what_this_process_may_use(tmp_path: Path) -> None:
    reading = MachineReadings(tmp_path).read()
    assert reading.memory_total_bytes == memory().total_bytes
    assert 0 < reading.memory_used_bytes < reading.memory_total_bytes
    assert 0 < reading.memory_percent < 100
    assert reading.disk_free_bytes is not None


def test_the_memory_of_child_processes_counts(tmp_path: Path) -> None:
    alone = MachineReadings(tmp_path).read().process_memory_bytes
    program = HOLD.format(size=100 * MIB)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        readings = MachineReadings(tmp_path)
        together = readings.read().process_memory_bytes
        child.communicate()
    assert together > alone + 90 * MIB
    assert readings.read().process_memory_bytes < together  # the child has ended meanwhile


def test_a_busy_processor_shows(tmp_path: Path) -> None:
    readings = MachineReadings(tmp_path)
    patience, percent = time.monotonic() + 60, 0.0
    while percent <= 5 and time.monotonic() < patience:
        end = time.process_time() + 0.5
        while time.process_time() < end:
            sum(range(1000))
        percent = readings.read().cpu_percent
    assert 5 < percent <= 100


class Machine:
    """Counters of a machine, and a process with one child."""

    now, disk, net, pid = 0.0, None, {}, None  # type: ignore[var-annotated]

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_listed = 0
        monkeypatch.setattr(module, "memory", lambda: Memory(800, 600, limited=True))
        monkeypatch.setattr(module, "disk_free_bytes", lambda folder: len(folder.name))
        monkeypatch.setattr(module.psutil, "disk_io_counters", lambda: self.disk)
        monkeypatch.setattr(module.psutil, "net_io_counters", lambda pernic: self.net)
        monkeypatch.setattr(module._Processor, "percent", lambda _, seconds: seconds)
        monkeypatch.setattr(module.psutil, "Process", self.process)

    def process(self, pid: int | None) -> SimpleNamespace:
        self.pid = pid
        return SimpleNamespace(memory_info=lambda: self.resident(70), children=self.children)

    def children(self, recursive: bool) -> list[SimpleNamespace]:
        self.num_listed += 1
        ended = SimpleNamespace(memory_info=self.fail)
        return [ended, SimpleNamespace(memory_info=lambda: self.resident(7))][: 1 + recursive]

    def resident(self, num_bytes: int) -> SimpleNamespace:
        return SimpleNamespace(rss=num_bytes)

    def fail(self) -> None:
        raise psutil.NoSuchProcess(1)


def counted(**values: int) -> SimpleNamespace:
    return SimpleNamespace(**values)


def test_rates_are_those_since_the_read_before(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.net = {"lo": counted(bytes_recv=9, bytes_sent=9)}
    readings = MachineReadings(Path("runs"), pid=17, clock=lambda: machine.now)
    sizes = (200, 800, 77)
    machine.now = 2.0
    assert readings.read() == MachineReading(2.0, *sizes, None, None, None, None, 4)
    found = []
    for now, counts in ((4.0, (10, 20, 30, 40)), (6.0, (30, 60, 36, 48)), (6.0, (9, 9, 9, 9))):
        machine.now = now
        machine.disk = counted(read_bytes=counts[0], write_bytes=counts[1])
        for name in ("lo0", "eth0", "eth1"):
            machine.net[name] = counted(bytes_recv=counts[2], bytes_sent=counts[3])
        found.append(readings.read())
    rates = ((None,) * 4, (10.0, 20.0, 6.0, 8.0), (0.0,) * 4)
    assert found == [
        MachineReading(passed, *sizes, *rate, 4)
        for passed, rate in zip((2.0, 2.0, 0.0), rates, strict=True)
    ]
    machine.now, machine.disk = 7.0, counted(read_bytes=0, write_bytes=10)
    assert readings.read().disk_read_bytes_per_second == 0.0, "a counter that was reset"
    assert (machine.num_listed, machine.pid) == (2, 17)  # at 2 and at 7 seconds
    assert MachineReading(0, 1, 0, 0, *(None,) * 5).memory_percent == 100.0


@pytest.mark.parametrize(
    ("quota", "used", "seconds", "percent"),
    [
        (2.0, (1.0, 4.0), 3.0, 50.0),
        (2.0, (1.0, 9.0), 3.0, 100.0),
        (2.0, (4.0, 1.0), 3.0, 0.0),
        (2.0, (1.0, 4.0), 0.0, 0.0),
        (2.0, (None, 4.0), 3.0, 20.0),
        (2.0, (1.0, None), 3.0, 20.0),
        (None, (1.0, 4.0), 3.0, 20.0),  # of the cores 0 and 2; there is no core 3
    ],
)
def test_the_load_is_of_the_cores_that_this_process_may_use(
    quota: float | None,
    used: tuple[float | None, float | None],
    seconds: float,
    percent: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    each = iter(used)
    monkeypatch.setattr(module, "cpu_quota_cores", lambda: quota)
    monkeypatch.setattr(module, "cpu_used_seconds", lambda: next(each))
    monkeypatch.setattr(
        module.psutil, "cpu_percent", lambda percpu: [10.0, 90.0, 30.0][: 3 * percpu]
    )
    monkeypatch.setattr(module.psutil.Process, "cpu_affinity", lambda _: [0, 2, 3], raising=False)
    assert module._Processor().percent(seconds) == pytest.approx(percent)
