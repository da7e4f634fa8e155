"""One line for each run of a folder, read from the ends of its files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infrastructure.core.json_text import JsonObject, parse_json
from infrastructure.monitoring.drawing.metrics_file import FINITE_AGAIN, Record, decode_record
from infrastructure.monitoring.records.run_list import runs_in
from infrastructure.monitoring.records.run_owner import read_trainer
from infrastructure.monitoring.records.run_reader import METRICS_FILE, STATUSES, title_of

TAIL_BYTES = 1 << 14


@dataclass(frozen=True)
class RunRow:
    """A run among others; what is not known is None.

    Attributes:
        title: what people call it; the name if nothing better is known.
    """

    name: str
    title: str
    status: str
    step: int | None
    loss: float | None
    held_out_loss: float | None


class RunRows:
    """The rows of the runs in `folder`; a run whose files did not change is not read again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[Path, tuple[object, RunRow]] = {}

    def read(self) -> list[RunRow]:
        """The newest run first."""
        runs = runs_in(self.folder)[::-1]
        known = {}
        for path in runs:
            state = (_changed(path / "summary.json"), _changed(path / METRICS_FILE), _is_left(path))
            before = self._known.get(path)
            known[path] = before if before and before[0] == state else (state, _row(path, state[2]))
        self._known = known
        return [row for _, row in known.values()]


def _changed(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _is_left(path: Path) -> bool:
    trainer = read_trainer(path)
    return trainer is not None and trainer.is_alive is False


def _row(path: Path, is_left: bool) -> RunRow:
    summary = _object(path / "summary.json")
    records = last_records(path / METRICS_FILE)
    status = str(summary.get("status", "running"))
    status = status if status in STATUSES else "running"
    if status == "running" and is_left:
        status = "interrupted"
    after = summary.get("after")
    after = after if isinstance(after, Mapping) else {}
    step = _newest("step", records)
    return RunRow(
        path.name,
        title_of(_object(path / "run.json"), path.name),
        status,
        int(step) if step is not None else None,
        _newest("loss", records),
        _newest("eval_loss", [*records, dict(after)]),
    )


def _newest(key: str, records: list[Record]) -> float | None:
    for record in reversed(records):
        value = record.get(key)
        value = FINITE_AGAIN.get(value, value) if isinstance(value, str) else value
        if isinstance(value, int | float):
            return value
    return None


def _object(path: Path) -> JsonObject:
    try:
        value = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}  # the page of that very run tells what is wrong with it
    return value if isinstance(value, dict) else {}


def last_records(path: Path, tail_bytes: int = TAIL_BYTES) -> list[Record]:
    """The readable records in the last `tail_bytes` of a JSON lines file."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, 2) - tail_bytes)
            file.seek(start)
            lines = file.read(tail_bytes).split(b"\n")
    except OSError:
        return []
    records = []
    for line in lines[1 if start else 0 : -1]:
        try:
            records.append(decode_record(line))
        except ValueError:
            continue
    return records
