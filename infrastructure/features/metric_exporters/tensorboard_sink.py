"""TensorBoard event files of a run's metrics, and of the monitor's samples of the machine."""

import importlib
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.messages import phrase
from infrastructure.core.optional import is_installed, refuse_missing
from infrastructure.monitoring.drawing.metrics_file import Record
from infrastructure.monitoring.training_monitor import Watcher
from infrastructure.training.metrics.sinks import EVALUATION, Sink

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"
FLUSH_SECONDS = 10
EVENT_FILES = "events.out.tfevents.*"
MERGED_EVENTS = "events.out.tfevents.0000000000.merged"  # sorts before all other files


class TensorBoardSink(Sink):
    """A sink for TensorBoard event files in one folder of a run. It writes only numbers.

    When a run resumes, its earlier events are merged into one file that TensorBoard reads before
    all others. TensorBoard orders files by the time in their names, which is wrong if a clock was
    set back.

    A thread writes the events at least every ten seconds. A kill may lose the latest events, which
    `metrics.jsonl` still contains.

    Raises:
        MissingPackageError: tensorboard is not installed. The message contains the pip command.
    """

    name = "tensorboard"

    def __init__(self, run_directory: Path, folder: str = FOLDER) -> None:
        self.check_usable()
        self.directory = run_directory / folder
        self._writer: SummaryWriter | None = None

    @staticmethod
    def check_usable() -> None:
        """Raise MissingPackageError if tensorboard is not installed."""
        refuse_missing("tensorboard", phrase("metric_exporters.sink", name="tensorboard"))

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
            tensorboard = importlib.import_module("torch.utils.tensorboard")
            _show_no_tracebacks_of_its_thread()
            self._writer = tensorboard.SummaryWriter(str(self.directory), flush_secs=FLUSH_SECONDS)
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


def tracked_numbers(record: Record) -> dict[str, float]:
    """Return the numeric values of a record under their TensorBoard tags, such as train/loss."""
    return {
        tensorboard_tag(key, record): value
        for key, value in record.items()
        if key not in ("step", "epoch") and isinstance(value, int | float)
    }


class MachineEvents(Watcher):
    """A watcher that writes samples of the machine into the separate TensorBoard run `machine`."""

    def __init__(self, run_directory: Path) -> None:
        self._sink = TensorBoardSink(run_directory, f"{FOLDER}/machine")

    def sampled(self, sample: Record) -> None:
        gpus = {f"gpu{gpu['index']}_{key}": v for gpu in sample["gpus"] for key, v in gpu.items()}
        numbers: Record = {**sample, **gpus, "kind": "machine"}
        numbers.pop("time")
        self._sink.write(numbers)

    def stop(self) -> None:
        self._sink.close()


def machine_events(config: DeploymentConfig, run_directory: Path) -> MachineEvents | None:
    """Return the watcher for TensorBoard, if the run writes its metrics for TensorBoard."""
    if "tensorboard" not in config.training.metrics_sinks or not is_installed("tensorboard"):
        return None
    return MachineEvents(run_directory)
