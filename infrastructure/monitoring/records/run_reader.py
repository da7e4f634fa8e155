"""What the files of a run directory say, read tolerantly: a report is wanted of broken runs too.

Each file that is missing or unreadable becomes an empty one and, if it is damaged, a sentence in
`problems`. Changes nothing on the disk.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from infrastructure.core.json_text import JsonObject, parse_json
from infrastructure.monitoring.drawing.formatting import clip
from infrastructure.monitoring.drawing.metrics_file import (
    FINITE_AGAIN,
    ParsedMetrics,
    Record,
    parse_metrics,
)

METRICS_FILE = "metrics.jsonl"
ERRORS_FILE = "logs/errors/errors.jsonl"
SMALL_FILES = ("run.json", "summary.json", "data_report.json", "checkpoints/backup.json")

MAX_NAME_CHARACTERS = 60
MADE_FROM_THE_TIME = re.compile(r"20\d{6}-\d{6}-.*-[0-9a-f]{4}")
OWN_MODEL, SAMPLE_TASKS = "new small model", "sample tasks"
SAMPLES = re.compile(r"samples?$|.*[/\\]infrastructure[/\\]training[/\\]data[/\\]samples[/\\]")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

FINISHED = "finished"
STATUSES = (FINISHED, "stopped", "failed", "running")


@dataclass
class RunFacts:
    """The contents of run.json, summary.json, data_report.json, metrics.jsonl and errors.jsonl, and
    how the copies of the checkpoints stand.

    Attributes:
        errors: a record for each error that the training got over, and for the one that ended it.
        last_record_at: local time of the last write to metrics.jsonl, or None.
        problems: what could not be read, one sentence each.
    """

    directory: Path
    run: JsonObject = field(default_factory=dict)
    summary: JsonObject = field(default_factory=dict)
    data_report: JsonObject = field(default_factory=dict)
    backup: JsonObject = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    errors: list[Record] = field(default_factory=list)
    last_record_at: str | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def run_id(self) -> str:
        return str(self.run.get("run_id") or self.directory.resolve().name)

    @property
    def title(self) -> str:
        """What people call it: its name; else what is trained on what, and when it began."""
        return title_of(self.run, self.run_id)

    @property
    def status(self) -> str:
        """One of finished, stopped, failed and running; a run without a summary is running."""
        status = str(self.summary.get("status", "running"))
        return status if status in STATUSES else "running"

    @property
    def before(self) -> dict[str, object]:
        return _numbers(self.summary.get("before"))

    @property
    def after(self) -> dict[str, object]:
        return _numbers(self.summary.get("after"))

    @property
    def copies(self) -> dict[str, object]:
        """How the copies of the checkpoints stand: at the end, or as it was last written down."""
        ended = self.summary.get("backup")
        return {**self.backup, **(ended if isinstance(ended, Mapping) else {})}

    @property
    def last_step(self) -> int | None:
        steps = self.summary.get("steps", self.last("step"))
        return int(steps) if isinstance(steps, int | float) else None

    @property
    def tokens_per_second(self) -> float | None:
        """Of all logged steps together."""
        pairs = [
            (record["seconds"], record["tokens_per_second"])
            for record in self.records
            if _is_positive(record.get("seconds")) and _is_positive(record.get("tokens_per_second"))
        ]
        seconds = sum(pair[0] for pair in pairs)
        return sum(s * rate for s, rate in pairs) / seconds if seconds else None

    @property
    def config(self) -> dict[str, tuple[object, str]]:
        """Key → (value, where it came from)."""
        return config_of(self.run)

    def config_value(self, key: str) -> object:
        return self.config.get(key, (None, ""))[0]

    def last(self, key: str) -> Any:
        """The newest value under `key` in the records, or None."""
        return next((r[key] for r in reversed(self.records) if key in r), None)


def config_of(run: Mapping[str, object]) -> dict[str, tuple[object, str]]:
    """The configuration in run.json: key → (value, where it came from)."""
    config = run.get("config")
    pairs = config.items() if isinstance(config, Mapping) else []
    return {
        str(key): (entry.get("value"), str(entry.get("source", "")))
        if isinstance(entry, Mapping)
        else (entry, "")
        for key, entry in pairs
    }


def title_of(run: Mapping[str, object], run_id: str) -> str:
    """What a run is called on a page, from its run.json.

    The id stays where nobody has named the run and it does not come from a clock, such as that of
    a Trainer's run.
    """
    config = config_of(run)
    name, model, data, created = (
        *(config.get(key, (None, ""))[0] for key in ("run_name", "model.name", "data.path")),
        run.get("created"),
    )
    if isinstance(name, str) and name:
        return clip(name, MAX_NAME_CHARACTERS)
    if not MADE_FROM_THE_TIME.fullmatch(run_id) or not isinstance(model, str):
        return run_id
    parts = [OWN_MODEL if model == "embedded" else _short(model)]
    if isinstance(data, str):
        parts.append(f"on {SAMPLE_TASKS if SAMPLES.match(data) else _short(data)}")
    return " ".join(parts) + (f", {format_moment(created)}" if isinstance(created, str) else "")


def _short(path: str) -> str:
    """The last part of a path or of a hub's name."""
    return clip(re.split(r"[/\\]", path.rstrip("/\\"))[-1] or path, MAX_NAME_CHARACTERS)


def format_moment(moment: str) -> str:
    """`2026-11-23T18:25:55+0000` → `23 Nov 2026, 18:25`; what is no such time stays."""
    try:
        at = datetime.fromisoformat(moment)
    except ValueError:
        return clip(moment, MAX_NAME_CHARACTERS)
    return f"{at.day} {MONTHS[at.month - 1]} {at.year}, {at:%H:%M}"


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value < float("inf")


def _numbers(value: object) -> dict[str, object]:
    """`{"eval_loss": …, "exact_match": {…}}` with only what is a number in it."""
    if not isinstance(value, Mapping):
        return {}
    numbers: dict[str, object] = {}
    for key, inner in value.items():
        inner = FINITE_AGAIN.get(inner, inner) if isinstance(inner, str) else inner
        if isinstance(inner, Mapping):
            numbers[str(key)] = _numbers(inner)
        elif isinstance(inner, int | float):
            numbers[str(key)] = inner
    return numbers


def read_run_facts(directory: Path) -> RunFacts:
    """Everything that can be read of a run.

    Raises:
        ValueError: there is no such directory.
    """
    facts = read_small_files(directory)
    metrics = _read_metrics(facts, directory / METRICS_FILE)
    facts.records = metrics.records
    return facts


def read_small_files(directory: Path) -> RunFacts:
    """What can be read of a run but for its metrics, which may be long.

    Raises:
        ValueError: there is no such directory.
    """
    if not directory.is_dir():
        raise ValueError(f"{directory} is no run directory; give the path of one, such as runs/RUN")
    facts = RunFacts(directory)
    facts.run, facts.summary, facts.data_report, facts.backup = (
        _read_object(facts, name) for name in SMALL_FILES
    )
    facts.errors = _read_errors(facts, directory / ERRORS_FILE)
    return facts


def _read_object(facts: RunFacts, name: str) -> JsonObject:
    try:
        value = parse_json((facts.directory / name).read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        facts.problems.append(f"{name} could not be read: {error}.")
        return {}
    if not isinstance(value, dict):
        facts.problems.append(f"{name} is no JSON object; it is left out.")
        return {}
    return value


def _read_metrics(facts: RunFacts, path: Path) -> ParsedMetrics:
    try:
        parsed = parse_metrics(path)
        written = time.localtime(path.stat().st_mtime)
    except FileNotFoundError:
        return ParsedMetrics()
    except OSError as error:
        facts.problems.append(f"{path.name} could not be read: {error}.")
        return ParsedMetrics()
    if parsed.records:
        facts.last_record_at = time.strftime("%Y-%m-%d %H:%M:%S", written)
    _note_unreadable(facts, path, parsed)
    return parsed


def _read_errors(facts: RunFacts, path: Path) -> list[Record]:
    try:
        parsed = parse_metrics(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        facts.problems.append(f"{path.name} could not be read: {error}.")
        return []
    _note_unreadable(facts, path, parsed)
    return parsed.records


def _note_unreadable(facts: RunFacts, path: Path, parsed: ParsedMetrics) -> None:
    if parsed.unreadable_lines:
        some = ", ".join(map(str, parsed.unreadable_lines[:5]))
        facts.problems.append(
            f"{len(parsed.unreadable_lines)} lines of {path.name} are damaged and left out"
            f" (the first: {some})."
        )
