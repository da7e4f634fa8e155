"""Machine readings against what real processes, files and this machine do."""

import subprocess
import sys
import time
from pathlib import Path

from infrastructure.core.hardware import memory
from infrastructure.core.machine_readings import MachineReadings

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


def test_rates_are_those_since_the_read_before(tmp_path: Path) -> None:
    moments = iter([0.0, 2.0, 2.0])
    readings = MachineReadings(tmp_path, clock=lambda: next(moments))
    readings._counters = [1000, None, 400, 0]
    reading = readings.read()
    assert reading.disk_write_bytes_per_second is None
    for rate in (reading.disk_read_bytes_per_second, reading.network_received_bytes_per_second):
        assert rate is None or rate >= 0
    assert readings.read().disk_read_bytes_per_second in (0.0, None)  # no time has passed
