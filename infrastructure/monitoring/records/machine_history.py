"""The samples of the machine that a run wrote, as curves over time in bounded memory."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from infrastructure.monitoring.drawing.charts import Chart
from infrastructure.monitoring.drawing.downsampling import (
    NUM_BUCKETS,
    BoundedPoints,
    Points,
    make_curve,
)
from infrastructure.monitoring.drawing.formatting import format_bytes, format_number
from infrastructure.monitoring.drawing.metrics_file import Record

MAX_POINTS = 600  # these curves are drawn small
BYTE_UNITS = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
TIME_UNITS = ((7200, 3600, "hours"), (300, 60, "minutes"), (0, 1, "seconds"))


@dataclass(frozen=True)
class Meter:
    """How full something is now.

    Attributes:
        share: from 0 to 1.
        should_be_full: a busy processor is good news, full memory is not.
    """

    name: str
    share: float
    text: str
    should_be_full: bool

    @property
    def level(self) -> str:
        """`fine`, `high` (above 85 %) or `full` (above 95 %); what should be full is fine."""
        if self.should_be_full or self.share <= 0.85:
            return "fine"
        return "high" if self.share <= 0.95 else "full"


@dataclass(frozen=True)
class MachineQuantity:
    """One curve of the machine; its unit stands in its key."""

    key: str
    title: str
    is_percent: bool = False


QUANTITIES = (
    MachineQuantity("gpu_utilization_percent", "GPU load", is_percent=True),
    MachineQuantity("gpu_memory_used_bytes", "GPU memory"),
    MachineQuantity("gpu_temperature_celsius", "GPU temperature"),
    MachineQuantity("gpu_power_watts", "GPU power"),
    MachineQuantity("cpu_percent", "Processor load", is_percent=True),
    MachineQuantity("process_memory_bytes", "Memory of the training"),
    MachineQuantity("data_wait_percent", "Waiting for data", is_percent=True),
    MachineQuantity("model_flops_percent", "Model FLOPs utilization", is_percent=True),
    MachineQuantity("disk_read_bytes_per_second", "Disk, read"),
    MachineQuantity("disk_write_bytes_per_second", "Disk, written"),
    MachineQuantity("network_received_bytes_per_second", "Network, received"),
    MachineQuantity("network_sent_bytes_per_second", "Network, sent"),
)


@dataclass
class MachineHistory:
    """What the monitor's samples say.

    Attributes:
        last: the newest sample; empty where nothing was sampled.
        points: key → (unix time in seconds, value); of GPUs `gpu_…`, with a number from the second.
    """

    last: Record = field(default_factory=dict)
    points: dict[str, BoundedPoints] = field(default_factory=dict)

    def add(self, samples: Iterable[Record]) -> None:
        """Take samples of the machine, in the order of time."""
        for sample in samples:
            if _is_number(sample.get("time")):
                self.last = sample
                self._add(sample["time"], _flat(sample))

    def add_performance(self, records: Iterable[Record]) -> None:
        """Take what was measured of the steps: how well they use the machine."""
        for record in records:
            use = {"data_wait_percent": record.get("data_wait_percent")}
            if _is_number(share := record.get("model_flops_utilization")):
                use["model_flops_percent"] = 100 * share
            if _is_number(record.get("time")):
                self._add(record["time"], {k: v for k, v in use.items() if _is_number(v)})

    def _add(self, moment: float, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self.points.setdefault(key, BoundedPoints(MAX_POINTS)).add(moment, value)

    def meters(self) -> list[Meter]:
        """What has a most, and how near it is."""
        meters = [_percent_meter("processor", self.last.get("cpu_percent"))]
        used, total = (self.last.get(f"memory_{word}_bytes") for word in ("used", "total"))
        meters.append(_memory_meter("memory", used, total))
        for gpu in gpus_of(self.last):
            name = _gpu_name(gpu)
            meters.append(_percent_meter(name, gpu.get("utilization_percent"), _heat(gpu)))
            used, total = (gpu.get(f"memory_{word}_bytes") for word in ("used", "total"))
            meters.append(_memory_meter(f"{name} memory", used, total))
        return [meter for meter in meters if meter is not None]

    def charts(self, num_buckets: int = NUM_BUCKETS) -> list[tuple[str, Chart, Points]]:
        """Key, chart and points of each quantity that was sampled and is not always zero."""
        charts = []
        for key, title, is_percent in self._wanted():
            points = self.points[key].kept
            if any(value for _, value in points):
                charts.append((key, *_chart(title, points, key, is_percent, num_buckets)))
        return charts

    def _wanted(self) -> Iterable[tuple[str, str, bool]]:
        for quantity in QUANTITIES:
            for key in self.points:
                if key == quantity.key:
                    yield key, quantity.title, quantity.is_percent
                elif key.removeprefix(quantity.key + "#").isdecimal():
                    number = key.rpartition("#")[2]
                    yield key, f"{quantity.title}, card {number}", quantity.is_percent


def gpus_of(sample: Record) -> list[dict[str, object]]:
    """The readings of each GPU in a sample."""
    gpus = sample.get("gpus")
    return [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []


def _flat(sample: Record) -> dict[str, float]:
    numbers = {key: value for key, value in sample.items() if _is_number(value)}
    for position, gpu in enumerate(gpus_of(sample)):
        name = "" if position == 0 else f"#{position}"
        numbers |= {f"gpu_{key}{name}": v for key, v in gpu.items() if _is_number(v)}
    return numbers


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _percent_meter(name: str, percent: object, more: str = "") -> Meter | None:
    if not _is_number(percent):
        return None
    return Meter(name, min(1.0, max(0.0, percent / 100)), f"{percent:.0f} %{more}", True)


def _memory_meter(name: str, used: object, total: object) -> Meter | None:
    if not _is_number(used) or not _is_number(total) or total <= 0:
        return None
    (number, unit), whole = format_bytes(used).split(), format_bytes(total)
    text = f"{number if whole.endswith(unit) else format_bytes(used)} of {whole}"
    return Meter(name, min(1.0, max(0.0, used / total)), text, False)


def _gpu_name(gpu: Mapping[str, object]) -> str:
    return f"GPU {gpu.get('index', '')}".strip()


def _heat(gpu: Mapping[str, object]) -> str:
    text = ""
    if _is_number(heat := gpu.get("temperature_celsius")):
        text += f" · {heat:.0f} °C"
    if _is_number(power := gpu.get("power_watts")):
        text += f" · {power:.0f} W"
    return text


def _chart(
    title: str, points: Points, key: str, is_percent: bool, num_buckets: int
) -> tuple[Chart, Points]:
    """Over the time since the first sample, in the unit that gives round numbers."""
    first, last = points[0][0], points[-1][0]
    seconds, unit = next((s, u) for least, s, u in TIME_UNITS if last - first >= least)
    size, measure = _unit(key, points, is_percent)
    moved = [((moment - first) / seconds, value / size) for moment, value in points]
    is_noisy = "memory" not in key
    chart = Chart(
        f"{title}, {measure}",
        make_curve(moved, num_buckets, is_noisy),
        format_value=lambda value: format_number(value, 3),
        from_zero=True,
        axis=unit,
        is_noisy=is_noisy,
    )
    return chart, moved


def _unit(key: str, points: Points, is_percent: bool) -> tuple[float, str]:
    """What the values are divided by, and what they are counted in then."""
    if is_percent:
        return 1.0, "%"
    if "_bytes" not in key:
        return 1.0, "°C" if "celsius" in key else "W"
    largest = max(value for _, value in points)
    size, unit = next((s, u) for s, u in BYTE_UNITS if largest >= s or s == 1.0)
    return size, f"{unit}/s" if "per_second" in key else unit
