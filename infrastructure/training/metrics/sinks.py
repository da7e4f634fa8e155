"""Sinks for metrics (console, JSONL, CSV, TensorBoard, trackers) and the registry of their names.

To add a sink, use `register_sink(name, class)`, an entry point in the group "temper.sinks", or its
address, `training.metrics_sinks: [module:Class]`.

A sink opens its file at the first record and raises its errors, which the logger handles. A record
covers the optimizer steps since the previous record:

| key | meaning | | --- | --- | | step, epoch | optimizer steps done; the epoch of the last step,
counted from 0 | | loss | mean loss per supervised token of these steps | | learning_rate, grad_norm
| values of the last of these steps; the norm is before clipping | | tokens | tokens trained on
since the start of the run | | seconds, tokens_per_second | duration and speed of these steps | |
memory_bytes | peak memory of the process or the device | | kind | "evaluation" in records of an
evaluation, otherwise absent | | eval_loss, eval_… | metrics of an evaluation |
"""

import csv
import io
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from infrastructure.config import registries
from infrastructure.core.console import show
from infrastructure.core.errors import InputError
from infrastructure.core.features import prefixes_of_features
from infrastructure.core.line_file import LineFile
from infrastructure.core.messages import phrase
from infrastructure.core.optional import refuse_missing, require
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

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

CSV_COLUMNS = ["step", "kind", "epoch", "loss", "eval_loss", "learning_rate", "grad_norm"]
CSV_COLUMNS += ["tokens", "tokens_per_second", "seconds", "memory_bytes"]
EVALUATED_EVERY_SHARE = 0.02  # of the run: short epochs would fill the screen
TENSORBOARD_FLUSH_SECONDS = 10
EVENT_FILES = "events.out.tfevents.*"
MERGED_EVENTS = "events.out.tfevents.0000000000.merged"  # sorts before all other files
EVALUATION = "evaluation"


class Sink(ABC):
    """The interface of a destination for metrics. All calls come from one thread, in step order."""

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


class TensorBoardSink(Sink):
    """A sink for TensorBoard event files in one folder. It writes only numbers.

    When a run resumes, its earlier events are merged into one file that TensorBoard reads before
    all others. TensorBoard orders files by the time in their names, which is wrong if a clock was
    set back.

    A thread writes the events at least every ten seconds. A kill may lose the latest events, which
    `metrics.jsonl` still contains.

    Raises:
        MissingPackageError: tensorboard is not installed. The message contains the pip command.
    """

    name = "tensorboard"

    def __init__(self, directory: Path) -> None:
        require("tensorboard", phrase("training.metrics_sink", name="tensorboard"))
        self.directory = directory
        self._writer: SummaryWriter | None = None

    def write(self, record: Record) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        numbers = tracked_numbers(record)
        if not numbers:
            return
        # One event for all numbers. `add_scalar` would write one event each, which takes three
        # times as long.
        values = [Summary.Value(tag=tag, simple_value=number) for tag, number in numbers.items()]
        file_writer: Any = self._open().file_writer
        file_writer.add_summary(Summary(value=values), int(record["step"]))

    def truncate_after(self, step: int) -> None:
        self.close()
        files = sorted(self.directory.glob(EVENT_FILES))
        if files:
            _keep_events(files, self.directory / MERGED_EVENTS, step)

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _open(self) -> "SummaryWriter":
        if self._writer is None:
            tensorboard = require(
                "torch.utils.tensorboard", phrase("training.metrics_sink", name="tensorboard")
            )
            _show_no_tracebacks_of_its_thread()
            self._writer = tensorboard.SummaryWriter(
                str(self.directory), flush_secs=TENSORBOARD_FLUSH_SECONDS
            )
        return self._writer


def _keep_events(files: Iterable[Path], merged: Path, last_step: int) -> None:
    """Merge the events up to `last_step` into one file without duplicates.

    The original files are removed.
    """
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    others = [file for file in files if file != merged]
    first = Event(file_version="brain.Event:2").SerializeToString()
    kept: dict[tuple[int, tuple[str, ...]], bytes] = {}
    for file in (merged, *others) if merged.exists() else others:
        for content in RawEventFileLoader(str(file)).Load():
            event = Event.FromString(content)
            if event.HasField("summary") and event.step <= last_step:
                kept[event.step, tuple(value.tag for value in event.summary.value)] = content
    part = merged.with_name("part")
    with part.open("wb") as stream:
        writer = RecordWriter(stream)
        for content in (first, *(kept[key] for key in sorted(kept))):
            writer.write(content)
        writer.flush()
    part.replace(merged)
    for file in others:
        file.unlink()


def _show_no_tracebacks_of_its_thread() -> None:
    """Hide the traceback of TensorBoard's writer thread after an OSError, such as a full disk.

    The error is reported anyway, because the next `add_scalar` raises it again.
    """
    from tensorboard.summary.writer import event_file_writer

    before = threading.excepthook
    if getattr(before, "is_of_tensorboard", False):
        return

    def show(arguments: threading.ExceptHookArgs) -> None:
        module = type(arguments.thread).__module__
        if module != event_file_writer.__name__ or not isinstance(arguments.exc_value, OSError):
            before(arguments)

    show.is_of_tensorboard = True  # type: ignore[attr-defined]
    threading.excepthook = show


def tensorboard_tag(key: str, record: Record) -> str:
    """Return the TensorBoard tag of a key in a record.

    Tags begin with train/ for metrics of the training (train/loss), with evaluation/ for metrics of
    an evaluation, and with machine/ for measurements of the machine.
    """
    if record.get("kind") == EVALUATION:
        return f"evaluation/{key.removeprefix('eval_')}"
    return f"{record.get('kind', 'train')}/{key}"


# Trackers get the numbers and the run's name. They do not get the configuration, which may contain
# paths, nor the console output. Keys, accounts and their own system metrics are up to these
# packages. A resumed run continues its tracked run. A tracker cannot drop the steps that are
# repeated.
PROJECT = "temper"


def tracked_numbers(record: Record) -> dict[str, float]:
    """Return the numeric values of a record under their TensorBoard tags, such as train/loss."""
    return {
        tensorboard_tag(key, record): value
        for key, value in record.items()
        if key not in ("step", "epoch") and isinstance(value, int | float)
    }


class TrackioSink(Sink):
    """A sink for Trackio, to be viewed with `trackio show`.

    The project is "temper" unless the variable TRACKIO_PROJECT is set.

    Raises:
        MissingPackageError: trackio is not installed. The text contains the pip command.
    """

    name = "trackio"

    def __init__(self, run_directory: Path) -> None:
        self._run_name = run_directory.name
        self._trackio: Any = require("trackio", phrase("training.metrics_sink", name="trackio"))
        self._is_open = False
        self._first_new = self._highest = 0

    def write(self, record: Record) -> None:
        if not self._is_open:
            project = os.environ.get("TRACKIO_PROJECT", PROJECT)
            run = self._trackio.init(
                project=project, name=self._run_name, resume="allow", embed=False
            )
            self._first_new = getattr(run, "_next_step", 0)  # after the steps that it already has
            self._is_open = True
        step = int(record["step"])
        if step < self._first_new:  # already logged; Trackio cannot drop steps
            return
        self._highest = max(self._highest, step)
        self._trackio.log(tracked_numbers(record), step=step)

    def truncate_after(self, step: int) -> None:
        if self._is_open:
            self._first_new = self._highest + 1

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._trackio.finish()


class WandbSink(Sink):
    """A sink for Weights & Biases. Its environment variables (WANDB_PROJECT, …) take effect.

    Raises:
        MissingPackageError: wandb is not installed. The message contains the pip command.
    """

    name = "wandb"
    SETTINGS: ClassVar = {"console": "off", "silent": True}  # no console output is sent

    def __init__(self, run_directory: Path) -> None:
        self._directory = run_directory
        self._wandb: Any = require("wandb", phrase("training.metrics_sink", name="wandb"))
        self._run: Any = None

    def write(self, record: Record) -> None:
        if self._run is None:
            self._run = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=self._directory.name,
                id=self._directory.name,
                resume="allow",
                dir=str(self._directory),
                settings=self.SETTINGS,
            )
            # wandb's own step counter only increases, but a run may return to an earlier step.
            self._run.define_metric("*", step_metric="step")
        self._run.log({"step": int(record["step"]), **tracked_numbers(record)})

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish()


SINKS: Registry[Callable[[Path], Sink]] = registries.SINKS
SINKS.provide(
    {
        "console": lambda _run_directory: ConsoleSink(),
        "jsonl": lambda run_directory: JsonlSink(run_directory / "metrics.jsonl"),
        "csv": lambda run_directory: CsvSink(run_directory / "metrics.csv"),
        "tensorboard": lambda run_directory: TensorBoardSink(run_directory / "tensorboard"),
        "trackio": TrackioSink,
        "wandb": WandbSink,
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


OF_A_PACKAGE = ("tensorboard", "trackio", "wandb")  # the package has the same name as the sink


def check_sinks(names: Iterable[str]) -> None:
    """Raise if a configured sink cannot be used, before the run starts.

    Raises:
        ValueError: there is no sink with such a name.
        MissingPackageError: a sink needs a package that is not installed.
    """
    for name in names:
        SINKS.get(name)
        if name in OF_A_PACKAGE:
            refuse_missing(name, phrase("training.metrics_sink", name=name))


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
