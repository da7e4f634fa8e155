"""The list of runs in a folder, with a row for each. Only the ends of long files are read."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from infrastructure.core.json_text import JsonObject, json_of
from infrastructure.monitoring.drawing.metrics_file import Record, read_metrics
from infrastructure.monitoring.records.live_run import changed_at, state_of
from infrastructure.monitoring.records.run_list import VERSION_SUFFIX, VERSIONS, runs_in
from infrastructure.monitoring.records.run_owner import TrainerProcess, read_trainer
from infrastructure.monitoring.records.run_reader import (
    HEAD_FILES,
    METRICS_FILE,
    config_of,
    model_words,
    numbers_of,
    objects_in,
    read_small_files,
    title_of,
    training_words,
)

TAIL_BYTES = 1 << 14
VERSIONS_FOLDER = f"checkpoints/{VERSIONS}"


@dataclass(frozen=True)
class RunRow:
    """A run in a list of runs. Unknown values are None.

    Attributes:
        title: the name that the user gave, or a title made from other facts about the run.
        training: the model, the method and the data; "" if they are not recorded.
        changed_after: the steps after which a setting or the data changed during the run.
    """

    name: str
    title: str
    state: str
    step: int | None
    loss: float | None
    held_out_loss: float | None
    training: str = ""
    changed_after: tuple[int, ...] = ()


class RunRows:
    """A reader of the list of runs in `folder`.

    A run is read again only if its files have changed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[Path, tuple[object, RunRow]] = {}

    def read(self) -> list[RunRow]:
        """Return the rows, newest run first."""
        runs = runs_in(self.folder)[::-1]
        known = {}
        for path in runs:
            trainer = read_trainer(path)
            files = ("summary.json", METRICS_FILE, VERSIONS_FOLDER)
            signature = (*(changed_at(path / name) for name in files), trainer)
            before = self._known.get(path)
            if before is None or before[0] != signature:
                before = (signature, _row(path, trainer))
            known[path] = before
        self._known = known
        return [row for _, row in known.values()]


def _row(path: Path, trainer: TrainerProcess | None) -> RunRow:
    facts = read_small_files(path, HEAD_FILES)
    records: list[Record] = []
    with suppress(OSError):  # no step is logged yet
        records = read_metrics(path / METRICS_FILE, TAIL_BYTES)
    step = _newest("step", [*records, {"step": facts.summary.get("steps")}])
    steps = [number for number in (step, _saved_step(path)) if number is not None]
    return RunRow(
        path.name,
        title_of(facts.run, path.name),
        state_of(facts, trainer),
        int(max(steps)) if steps else None,
        _newest("loss", records),
        _newest("eval_loss", [*records, numbers_of(facts.summary.get("after"))]),
        training_words(config_of(facts.run)) or _model_of_trainer(facts.run),
        tuple(
            after
            for entry in objects_in(facts.run.get("history"))
            if isinstance(after := entry.get("step"), int)
        ),
    )


def _model_of_trainer(run: JsonObject) -> str:
    """Return the model of a run by the user's own Trainer, which does not record its data."""
    model = run.get("model")
    name = model.get("name") if isinstance(model, dict) else None
    return model_words(name) if isinstance(name, str) else ""


def _saved_step(path: Path) -> int | None:
    """Return the step of the newest checkpoint, from which the run would resume.

    Checkpoints may be saved more often than metrics are logged.
    """
    newest = max((path / VERSIONS_FOLDER).glob(f"*{VERSION_SUFFIX}"), default=None)
    step = None if newest is None else json_of(newest).get("step")
    return step if isinstance(step, int) else None


def _newest(key: str, records: list[Record]) -> float | None:
    for record in reversed(records):
        value = record.get(key)
        if isinstance(value, int | float):
            return value
    return None
