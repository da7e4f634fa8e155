"""Sinks for metrics (console, JSONL, CSV) and the registry of the names of all sinks.

To add a sink, use `register_sink(name, class)`, an entry point in the group "temper.sinks", or its
address, `training.metrics_sinks: [module:Class]`.

A sink opens its file at the first record and raises its errors, which the logger handles. A record
covers the optimizer steps since the previous record:

| key | meaning |
| --- | --- |
| step, epoch | optimizer steps done; the epoch of the last step, counted from 0 |
| loss | mean loss per supervised token of these steps |
| learning_rate, grad_norm | values of the last of these steps; the norm is before clipping |
| tokens | tokens trained on since the start of the run |
| seconds, tokens_per_second | duration and speed of these steps |
| memory_bytes | peak memory of the process or the device |
| kind | "evaluation" in records of an evaluation, otherwise absent |
| eval_loss, eval_… | metrics of an evaluation |
"""

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from infrastructure.config import registries
from infrastructure.core.console import show
from infrastructure.core.errors import InputError
from infrastructure.core.features import prefixes_of_features
from infrastructure.core.line_file import LineFile
from infrastructure.core.messages import phrase
from infrastructure.core.registry import Registry
from infrastructure.monitoring.drawing.formatting import (
    format_bytes,
    format_number,
    not_finite_name,
    printable,
)
from infrastructure.monitoring.drawing.metrics_file import (
    Record,
    decode_record,
    encode_record,
    spell_numbers,
)
from infrastructure.monitoring.drawing.quantity_names import name_and_value
from infrastructure.monitoring.drawing.tables import HELD_OUT_LOSS, held_out_loss
from infrastructure.training.metrics.progress import GAP, place_of_step

CSV_COLUMNS = ["step", "kind", "epoch", "loss", "eval_loss", "learning_rate", "grad_norm"]
CSV_COLUMNS += ["tokens", "tokens_per_second", "seconds", "memory_bytes"]
EVALUATED_EVERY_SHARE = 0.02  # of the run: short epochs would fill the screen
EVALUATION = "evaluation"


class Sink(ABC):
    """The interface of a destination for metrics. All calls come from one thread, in step order.

    A sink is constructed with the run's directory. Its class may have a static method
    `check_usable`, which raises an error before the run if the sink cannot be used.
    """

    @property
    def name(self) -> str:
        """The name used in warnings, by default the name of the class."""
        return type(self).__name__

    @abstractmethod
    def write(self, record: Record) -> None:
        """Write one record. If this raises, the sink still gets the next record."""

    def truncate_after(self, step: int) -> None:  # noqa: B027 - most screens cannot unsay
        """Drop the records after `step`, because the run resumes from there."""

    def close(self) -> None:  # noqa: B027 - nothing is open in some sinks
        """Close the sink. A later record opens it again."""


class ConsoleSink(Sink):
    """A sink that prints records that the progress display does not show.

    It prints records that contain NaN or infinity, and evaluations. Evaluations are printed at most
    every two percent of the run, and at its end. The first that is omitted causes a line about
    that.
    """

    name = "console"

    def __init__(
        self,
        echo: Callable[[str], None] | None = None,
    ) -> None:
        self.loss: str | None = None  # name of the loss function, if known
        self.echo = echo or show
        self._total_steps, self._next_evaluated = 0, 0.0
        self._is_omission_shown = False

    def expect(self, total_steps: int) -> None:
        """Record that a run of `total_steps` (0 if unknown) starts or resumes."""
        self._total_steps, self._next_evaluated = total_steps, 0.0

    def write(self, record: Record) -> None:
        if _has_no_number(record) or self._is_due(record):
            self.echo(console_line(record, self.loss, self._total_steps))

    def _is_due(self, record: Record) -> bool:
        if record.get("kind") != EVALUATION:
            return False
        step = record.get("step")
        if not isinstance(step, int | float):
            return True
        if step < self._next_evaluated and step < self._total_steps:
            if not self._is_omission_shown:
                self._is_omission_shown = True
                self.echo(phrase("training.evaluations_omitted"))
            return False
        self._next_evaluated = step + self._total_steps * EVALUATED_EVERY_SHARE
        return True


def _has_no_number(record: Record) -> bool:
    """Return whether the record contains NaN or infinity."""
    return any(not_finite_name(value) for value in record.values() if isinstance(value, float))


CONSOLE_PARTS: dict[str, tuple[str, Callable[[float], str]]] = {
    "loss": ("loss {}", format_number),
    "eval_loss": (f"{HELD_OUT_LOSS} {{}}", format_number),
    "learning_rate": ("lr {}", lambda value: format_number(value, 3)),
    "grad_norm": ("grad norm {}", lambda value: format_number(value, 3)),
    "tokens_per_second": ("{} tok/s", lambda value: format_number(value, 3)),
    "memory_bytes": ("{}", format_bytes),
}
CONSOLE_SILENT = {"step", "epoch", "kind", "tokens", "seconds"}


def console_line(record: Record, loss: str | None = None, total_steps: int = 0) -> str:
    """Return a record as `[ 12%] step 120/999 epoch 2 loss 2.345 …`, with epochs counted from 1.

    Unknown keys come last, under their own names.

    Args:
        loss: see `held_out_loss`.
    """
    step = record.get("step")
    at = place_of_step(step, total_steps) if isinstance(step, int | float) else f"step {step}"
    parts = [at]
    epoch = record.get("epoch")
    parts += [f"epoch {epoch + 1:g}"] if isinstance(epoch, int | float) else []
    for key, (text, format_value) in CONSOLE_PARTS.items():
        if isinstance(value := record.get(key), int | float):
            shown = text.format(format_value(value))
            parts.append(shown.replace(HELD_OUT_LOSS, held_out_loss(loss)))
    known = CONSOLE_PARTS.keys() | CONSOLE_SILENT
    own = prefixes_of_features()  # features have console lines and report sections of their own
    others = [key for key in record if key not in known and not key.startswith(own)]
    parts += [_part(key, record[key]) for key in others]
    return GAP.join(parts)


def _part(key: str, value: object) -> str:
    if not isinstance(value, int | float):
        return f"{printable(key)} {printable(value)}"
    return " ".join(name_and_value(key, value))


class JsonlSink(Sink):
    """A sink for `metrics.jsonl`, whose format is described in
    `monitoring.drawing.metrics_file`."""

    name = "jsonl"

    def __init__(self, path: Path) -> None:
        self._lines = LineFile(path)

    def write(self, record: Record) -> None:
        self._lines.append(encode_record(record))

    def truncate_after(self, step: int) -> None:
        lines = self._lines.read_lines()
        kept = [line for line in lines if _step_of(line) <= step]
        if len(kept) < len(lines):
            self._lines.replace(kept)

    def close(self) -> None:
        self._lines.close()


def _step_of(line: bytes) -> float:
    try:
        return _as_step(decode_record(line).get("step"))
    except ValueError:
        return float("-inf")


def _as_step(value: Any) -> float:
    """Convert a step to a number.

    An unreadable step becomes minus infinity, so that its line is kept for the user to see.
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("-inf")


class CsvSink(Sink):
    """A sink for `metrics.csv`, with one column per key.

    A new key adds a column at the end, which is empty in earlier rows. Absent values are empty, and
    NaN is written as `NaN`.
    """

    name = "csv"

    def __init__(self, path: Path) -> None:
        self._lines = LineFile(path)
        self._columns: list[str] = []

    def write(self, record: Record) -> None:
        if not self._columns:
            self._columns = self._read_columns()
        new = [key for key in record if key not in self._columns]
        if new:
            self._rewrite([*self._columns, *new], self._rows())
        spelled = spell_numbers(record)
        self._lines.append(_csv_line([spelled.get(column) for column in self._columns]))

    def truncate_after(self, step: int) -> None:
        self._columns = self._read_columns()
        rows = list(self._rows())
        kept = [row for row in rows if _as_step(row.get("step")) <= step]
        if len(kept) < len(rows):
            self._rewrite(self._columns, kept)

    def close(self) -> None:
        self._lines.close()

    def _read_columns(self) -> list[str]:
        lines = self._lines.read_lines()
        if not lines:
            self._lines.append(_csv_line(CSV_COLUMNS))
            return list(CSV_COLUMNS)
        return next(csv.reader([lines[0].decode()]))

    def _rows(self) -> Iterable[dict[str, str]]:
        return csv.DictReader(line.decode() for line in self._lines.read_lines())

    def _rewrite(self, columns: list[str], rows: Iterable[dict[str, str]]) -> None:
        lines = [_csv_line([row.get(column) for column in columns]) for row in rows]
        self._lines.replace([_csv_line(columns), *lines])
        self._columns = columns


def _csv_line(values: Iterable[object]) -> bytes:
    text = io.StringIO()
    cells = [" ".join(v.splitlines()) if isinstance(v, str) else v for v in values]
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode(errors="backslashreplace")


SINKS: Registry[Callable[[Path], Sink]] = registries.SINKS
SINKS.provide(
    {
        "console": lambda _run_directory: ConsoleSink(),
        "jsonl": lambda run_directory: JsonlSink(run_directory / "metrics.jsonl"),
        "csv": lambda run_directory: CsvSink(run_directory / "metrics.csv"),
    },
    Sink,
)


def register_sink(name: str, sink: Callable[[Path], Sink]) -> None:
    """Register a name for `training.metrics_sinks` that writes to `sink(run_directory)`.

    The registered sink takes precedence over a built-in one of that name.

    Raises:
        ValueError: the name belongs to another registered sink, or `sink` lacks a method.
    """
    SINKS.register(name, sink)


def make_sinks(names: Iterable[str], run_directory: Path, loss: str | None = None) -> list[Sink]:
    """Create the sinks with these names, which write into `run_directory`.

    Args:
        loss: see `held_out_loss`.

    Raises:
        ValueError: a name is unknown (the message suggests the nearest one) or given twice, or its
            sink cannot be used.
        MissingPackageError: a sink needs a package that is not installed.
    """
    names = list(names)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError("training.duplicate_metrics_sinks", names=", ".join(twice))
    sinks: list[Sink] = [SINKS.make(name, run_directory) for name in names]
    for sink in sinks:
        if isinstance(sink, ConsoleSink):
            sink.loss = loss
    return sinks


def sinks_of_run(names: Iterable[str], run_directory: Path, loss: str | None = None) -> list[Sink]:
    """Return the sinks of a run, which always include metrics.jsonl.

    The report, the live views and the advice read metrics.jsonl. For arguments and errors see
    `make_sinks`.
    """
    names = list(names)
    return make_sinks(names if "jsonl" in names else ["jsonl", *names], run_directory, loss)
