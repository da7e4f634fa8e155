"""The report's section on the machine while it trained: use, alerts, and the profiled steps."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from infrastructure.core.json_text import (
    JsonObject,
    as_integer,
    as_list,
    as_number,
    as_object,
    parse_json,
)
from infrastructure.core.line_file import rotated_files
from infrastructure.monitoring.drawing.charts import Chart, figure
from infrastructure.monitoring.drawing.downsampling import Points, make_curve
from infrastructure.monitoring.drawing.formatting import (
    clip,
    format_bytes,
    format_duration,
    format_number,
    format_share,
)
from infrastructure.monitoring.drawing.html import Markup, element, table
from infrastructure.monitoring.drawing.metrics_file import Record, parse_metrics
from infrastructure.monitoring.report.report_sections import NOTHING, section
from infrastructure.monitoring.training_monitor import ALERTS_FILE, PERFORMANCE_FILE, SYSTEM_FILE
from infrastructure.monitoring.watching.running_stats import percentile_95

PROFILE_FILE = Path("logs") / "performance" / "profile.json"
MAX_ALERTS = 100
MAX_OPERATIONS = 15
# In this order; what else a sample holds is left to the files.
SHOWN = {
    "cpu_percent": "processor",
    "memory_percent": "memory of the machine",
    "process_memory_bytes": "memory of the training",
    "disk_read_bytes_per_second": "read from the disk",
    "disk_write_bytes_per_second": "written to the disk",
    "network_received_bytes_per_second": "received from the network",
    "network_sent_bytes_per_second": "sent to the network",
    "disk_free_bytes": "free on the disk",
    "checkpoint_age_seconds": "age of the newest checkpoint",
    "backup_age_seconds": "age of the newest copy",
    "cache_bytes": "cache of the data",
    "seconds_per_step": "time of a step",
    "samples_per_second": "examples per second",
    "tokens_per_second": "tokens per second",
    "model_flops_utilization": "use of the peak FLOPs",
    "data_wait_percent": "of a step, waiting for data",
    "inference_latency_seconds": "time of an inference",
    "quantum_solver_seconds": "a quantum step's solver",
}
GPU_SHOWN = {
    "utilization_percent": "load",
    "memory_used_bytes": "memory",
    "temperature_celsius": "temperature",
    "power_watts": "power",
}
DRAWN = {
    "cpu_percent": "Processor, percent",
    "process_memory_bytes": "Memory of the training, GiB",
    "data_wait_percent": "Waiting for data, percent of a step",
}
GPU_DRAWN = {"utilization_percent": "use, percent", "memory_used_bytes": "memory, GiB"}


def machine_use(directory: Path) -> Markup:
    """The section; nothing where the run was not watched."""
    samples, performance = (
        read_lines(directory / file) for file in (SYSTEM_FILE, PERFORMANCE_FILE)
    )
    alerts = [a for a in read_lines(directory / ALERTS_FILE) if a.get("state") == "raised"]
    return section(
        "The machine while it trained",
        _alerts(alerts, is_watched=bool(samples)),
        _figures(samples, performance),
        _numbers(samples, performance),
        _profile(directory / PROFILE_FILE),
    )


def read_lines(path: Path) -> list[Record]:
    """The readable lines of a log and of its older files, oldest first; none if it is not there."""
    records: list[Record] = []
    for file in rotated_files(path):
        try:
            records += parse_metrics(file).records
        except OSError:  # rotated away just now, or not readable: it is only shown
            continue
    return records


def _alerts(alerts: Sequence[Record], is_watched: bool) -> Markup:
    if not alerts:
        return element("p", "No alert was raised.", css_class="soft") if is_watched else NOTHING
    rows = [
        [_moment(a.get("time")), a.get("step", ""), a.get("severity", ""), _text(a.get("message"))]
        for a in alerts[-MAX_ALERTS:]
    ]
    return table(("alert at", "step", "severity", "what"), rows, "stack")


def _text(value: object) -> str:
    return clip(str(value or ""), 400)


def _moment(seconds: object) -> str:
    if not isinstance(seconds, int | float):
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _numbers(samples: Sequence[Record], performance: Sequence[Record]) -> Markup:
    rows = []
    for key, words in SHOWN.items():
        values = _values([*samples, *performance], key)
        if values:
            rows.append([words, *_row(key, values)])
    for name, readings in _by_gpu(samples).items():
        rows += [
            [f"{name}: {words}", *_row(key, values)]
            for key, words in GPU_SHOWN.items()
            if (values := _values(readings, key))
        ]
    if not rows:
        return NOTHING
    return table(("", "mean", "95 of 100 below", "most", "last"), rows, "numbers")


def _row(key: str, values: list[float]) -> list[str]:
    figures = (sum(values) / len(values), percentile_95(values), max(values), values[-1])
    return [_with_unit(key, value) for value in figures]


def _with_unit(key: str, value: float) -> str:
    if key.endswith("_bytes_per_second"):
        return f"{format_bytes(value)}/s"
    if key.endswith("_bytes"):
        return format_bytes(value)
    if key == "model_flops_utilization":
        return format_share(value)
    if key.endswith("_seconds") and value >= 1:
        return format_duration(value)
    if key == "seconds_per_step":
        return f"{1000 * value:.0f} ms" if value < 1 else format_duration(value)
    units = {"_percent": " %", "_celsius": " °C", "_watts": " W", "_seconds": " s"}
    unit = next((unit for ending, unit in units.items() if key.endswith(ending)), "")
    return f"{format_number(value, 3)}{unit}"


def _values(records: Sequence[Mapping[str, object]], key: str) -> list[float]:
    values = (record.get(key) for record in records)
    return [float(v) for v in values if isinstance(v, int | float) and v - v == 0]


def _by_gpu(samples: Sequence[Record]) -> dict[str, list[Record]]:
    """Readings of each GPU, each with the step of its sample."""
    by_gpu: dict[str, list[Record]] = {}
    for sample in samples:
        gpus = sample.get("gpus")
        for gpu in gpus if isinstance(gpus, list) else []:
            if isinstance(gpu, Mapping):
                name = f"GPU {gpu.get('index')} ({gpu.get('name')})"
                by_gpu.setdefault(name, []).append({**gpu, "step": sample.get("step")})
    return by_gpu


def _figures(samples: Sequence[Record], performance: Sequence[Record]) -> Markup:
    figures = [_figure(title, key, [*samples, *performance]) for key, title in DRAWN.items()]
    for name, readings in _by_gpu(samples).items():
        figures += [_figure(f"{name}: {t}", key, readings) for key, t in GPU_DRAWN.items()]
    figures = [figure for figure in figures if figure]
    return element("div", *figures, css_class="columns") if figures else NOTHING


def _figure(title: str, key: str, records: Sequence[Record]) -> Markup:
    size = 2**30 if key.endswith("_bytes") else 1
    points: Points = [
        (record["step"], record[key] / size)
        for record in records
        if all(isinstance(record.get(name), int | float) for name in ("step", key))
    ]
    if len(points) < 2:
        return NOTHING
    return figure(key, Chart(title, make_curve(points), from_zero=True), points)


def _profile(path: Path) -> Markup:
    try:
        profile = as_object(parse_json(path.read_bytes()))
        rows = as_list(profile["rows"])[:MAX_OPERATIONS]
        cells = [_operation(as_object(row)) for row in rows]
        first, last, trace = profile["first_step"], profile["last_step"], profile["trace"]
    except (OSError, ValueError, TypeError, KeyError):
        return NOTHING
    heading = element("h3", f"Where the time of steps {first} to {last} went")
    where = element("p", f"All of it: {trace}, for ui.perfetto.dev", css_class="soft")
    columns = ("operation", "calls", "processor", "GPU")
    return element("div", heading, table(columns, cells, "numbers"), where)


def _operation(row: JsonObject) -> tuple[str, ...]:
    return (
        clip(str(row["name"]), 80),
        f"{as_integer(row['calls']):,}",
        f"{1000 * as_number(row['processor_seconds']):,.1f} ms",
        f"{1000 * as_number(row['gpu_seconds']):,.1f} ms",
    )
