"""The history of the machine during a run: samples as curves over time, in bounded memory."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from infrastructure.monitoring.drawing.charts import Chart
from infrastructure.monitoring.drawing.downsampling import BoundedPoints, Points
from infrastructure.monitoring.drawing.formatting import (
    format_bytes,
    format_number,
    is_number,
)
from infrastructure.monitoring.drawing.metrics_file import Record
from infrastructure.monitoring.records.run_reader import objects_in

MAX_POINTS = 600  # enough, because these curves are small
# A gap between samples of this length, and of this many times the previous interval, is a pause in
# training, such as between a kill and the resume.
PAUSE_SECONDS, PAUSE_INTERVALS = 60.0, 10
MAX_PAUSES = 1000
BYTE_UNITS = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
TIME_UNITS = ((7200, 3600, "hours"), (300, 60, "minutes"), (0, 1, "seconds"))


class Meter(TypedDict):
    """The current use of a resource.

    Attributes:
        share: the used share, from 0 to 1.
        level: `fine`, `high` (above 85%) or `full` (above 95%). For a processor, the level is
            always `fine`, because a high load is good.
    """

    name: str
    share: float
    text: str
    level: str


# Quantities that are drawn; the key contains the unit.
DRAWN = {
    "gpu_utilization_percent": "GPU load",
    "gpu_memory_used_bytes": "GPU memory",
    "gpu_temperature_celsius": "GPU temperature",
    "gpu_power_watts": "GPU power",
    "cpu_percent": "CPU load",
    "process_memory_bytes": "Memory of the run",
    "data_wait_percent": "Waiting for data",
    "model_flops_percent": "Share of peak FLOPS used (MFU)",
    "disk_read_bytes_per_second": "Disk reads",
    "disk_write_bytes_per_second": "Disk writes",
    "network_received_bytes_per_second": "Network, received",
    "network_sent_bytes_per_second": "Network, sent",
}


@dataclass
class _ForwardClock:
    """A converter of clock times to times that never decrease, even if the clock is set back.

    If the clock was set back, the last converted time is repeated, so that no chart runs backwards.

    Attributes:
        moment: the last converted time, or None before the first one.
    """

    moment: float | None = None
    _shift: float = 0.0

    def forward(self, moment: float) -> float:
        moment += self._shift
        if self.moment is not None and moment < self.moment:
            self._shift += self.moment - moment
            moment = self.moment
        self.moment = moment
        return moment


@dataclass
class MachineHistory:
    """The samples that the monitor took of the machine during a run.

    Attributes:
        last: the newest sample; empty if there is none.
        points: the (Unix time, value) pairs of each key. Keys of GPUs are `gpu_…`, with a number
            from the second GPU on.
        pauses: the newest pauses in training, as (begin, end) in Unix time.
    """

    last: Record = field(default_factory=dict)
    points: dict[str, BoundedPoints] = field(default_factory=dict)
    pauses: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MAX_PAUSES))
    _interval: float = math.inf
    _samples: _ForwardClock = field(default_factory=_ForwardClock)
    _performance: _ForwardClock = field(default_factory=_ForwardClock)

    def add(self, sample: Record) -> None:
        """Add a sample of the machine. Samples must be added in the order of time."""
        if is_number(sample.get("time")):
            before, moment = self._samples.moment, self._samples.forward(sample["time"])
            self._note_pause(before, moment)
            self.last = sample
            self._add(moment, _flat(sample))

    def add_performance(self, record: Record) -> None:
        """Add measurements of a training step, such as its share of the peak FLOPS."""
        values = {key: value for key, value in record.items() if is_number(value)}
        if (share := values.get("model_flops_utilization")) is not None:
            values["model_flops_percent"] = 100 * share
        if "time" in values:
            self._add(self._performance.forward(values["time"]), values)

    def _note_pause(self, before: float | None, now: float) -> None:
        if before is None or now <= before:
            return
        if now - before > max(PAUSE_SECONDS, PAUSE_INTERVALS * self._interval):
            self.pauses.append((before, now))
        else:
            self._interval = now - before

    @property
    def curves(self) -> dict[str, Points]:
        """The (time, value) pairs of each key. The times are Unix times minus the pauses in
        training.
        """
        return {
            key: [(self._without_pauses(moment), value) for moment, value in points.kept]
            for key, points in self.points.items()
        }

    def _without_pauses(self, moment: float) -> float:
        """Return a Unix time minus the duration of all pauses before it."""
        return moment - sum(
            min(moment, end) - begin for begin, end in self.pauses if begin < moment
        )

    def _add(self, moment: float, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            if key.partition("#")[0] in DRAWN:
                self.points.setdefault(key, BoundedPoints(MAX_POINTS)).add(moment, value)

    def meters(self) -> list[Meter]:
        """Return the current use of each resource that has a maximum."""
        meters = [_percent_meter("processor", self.last.get("cpu_percent"))]
        used, total = (self.last.get(f"memory_{word}_bytes") for word in ("used", "total"))
        meters.append(_memory_meter("memory", used, total))
        for gpu in objects_in(self.last.get("gpus")):
            name = _gpu_name(gpu)
            meters.append(_percent_meter(name, gpu.get("utilization_percent"), _heat(gpu)))
            used, total = (gpu.get(f"memory_{word}_bytes") for word in ("used", "total"))
            meters.append(_memory_meter(f"{name} memory", used, total))
        return [meter for meter in meters if meter is not None]


def machine_charts(points_of: Mapping[str, Points]) -> dict[str, Chart]:
    """Return a chart, by key, for each sampled quantity that is not always zero."""
    return {
        key: _chart(title, points_of[key], key)
        for key, title in _titles(points_of)
        if any(value for _, value in points_of[key])
    }


def _titles(known: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (key, title) of each known quantity, in the order of `DRAWN`; of a GPU quantity, once
    per GPU.
    """
    for kind, title in DRAWN.items():
        for key in known:
            if key.partition("#")[0] == kind:
                yield key, title + (f", card {key.partition('#')[2]}" if "#" in key else "")


def _flat(sample: Record) -> dict[str, float]:
    numbers = {key: value for key, value in sample.items() if is_number(value)}
    for position, gpu in enumerate(objects_in(sample.get("gpus"))):
        name = "" if position == 0 else f"#{position}"
        numbers |= {f"gpu_{key}{name}": v for key, v in gpu.items() if is_number(v)}
    return numbers


def _percent_meter(name: str, percent: object, more: str = "") -> Meter | None:
    if not is_number(percent):
        return None
    share = min(1.0, max(0.0, percent / 100))
    return {"name": name, "share": share, "text": f"{percent:.0f}%{more}", "level": "fine"}


def _memory_meter(name: str, used: object, total: object) -> Meter | None:
    if not is_number(used) or not is_number(total) or total <= 0:
        return None
    (number, unit), whole = format_bytes(used).split(), format_bytes(total)
    text = f"{number if whole.endswith(unit) else format_bytes(used)} of {whole}"
    share = min(1.0, max(0.0, used / total))
    level = "fine" if share <= 0.85 else "high" if share <= 0.95 else "full"
    return {"name": name, "share": share, "text": text, "level": level}


def _gpu_name(gpu: Mapping[str, object]) -> str:
    return f"GPU {gpu.get('index', '')}".strip()


def _heat(gpu: Mapping[str, object]) -> str:
    text = ""
    if is_number(heat := gpu.get("temperature_celsius")):
        text += f" · {heat:.0f} °C"
    if is_number(power := gpu.get("power_watts")):
        text += f" · {power:.0f} W"
    return text


def _chart(title: str, points: Points, key: str) -> Chart:
    """Return a chart over the time since the first sample, in suitable units."""
    first, last = points[0][0], points[-1][0]
    seconds, unit = next((s, u) for least, s, u in TIME_UNITS if last - first >= least)
    size, measure = _unit(key, points)
    moved = [((moment - first) / seconds, value / size) for moment, value in points]
    return Chart(
        f"{title}, {measure}",
        moved,
        format_value=lambda value: format_number(value, 3),
        from_zero=True,
        axis=unit,
        x_unit=seconds,
        y_unit=size,
        is_noisy="memory" not in key,
    )


def _unit(key: str, points: Points) -> tuple[float, str]:
    """Return the divisor to apply to the values for display, and the unit of the result."""
    if "_percent" in key:
        return 1.0, "%"
    if "_bytes" not in key:
        return 1.0, "°C" if "celsius" in key else "W"
    largest = max(value for _, value in points)
    size, unit = next((s, u) for s, u in BYTE_UNITS if largest >= s or s == 1.0)
    return size, f"{unit}/s" if "per_second" in key else unit
