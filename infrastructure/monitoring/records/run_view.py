"""The view of a run: the data that the report, live page, notebook panel and terminal display.

`temper watch RUN --json` prints the view. It is built from a `LiveRun`. The code that displays the
view opens no files and computes nothing. All texts are already formatted, so a number looks the
same everywhere.
"""

import math
import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import NotRequired, TypedDict

from infrastructure.core.features import merged, run_files_of_features
from infrastructure.core.json_text import JsonObject, JsonValue
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.charts import PointsByKey
from infrastructure.monitoring.drawing.formatting import (
    clip,
    format_bytes,
    format_moment,
    format_number,
    format_rate,
    format_share,
    format_step_time,
)
from infrastructure.monitoring.drawing.metrics_file import Record
from infrastructure.monitoring.drawing.quantity_names import in_order, name_of, without_ties
from infrastructure.monitoring.drawing.tables import EXACT_MATCH, before_after_rows, held_out_loss
from infrastructure.monitoring.records.live_run import LiveRun
from infrastructure.monitoring.records.machine_history import Meter
from infrastructure.monitoring.records.run_list import how_to_run_again, is_of_a_script
from infrastructure.monitoring.records.run_reader import (
    CHECKS_FILE,
    FINISHED,
    RunFacts,
    config_of,
    continuations,
    data_words,
    model_words,
    numbers_of,
    objects_in,
)
from infrastructure.monitoring.records.status_text import (
    alert_words,
    error_words,
    is_askable,
    progress_words,
    question_command,
    safety_words,
    state_words,
    time_words,
)

MAX_COMMAND_CHARACTERS = 4000
HELD_OUT, METHOD, SFT = "data.eval_path", "training.method", "sft"

SEES = "processor_config.json"  # in the folder of a vision-language model
WHAT_LIES_WHERE = {
    "final": "monitoring.path_final",
    **merged("outputs"),
    "checkpoints": "monitoring.path_checkpoints",
    "metrics.jsonl": "monitoring.path_metrics",
    "metrics.csv": "monitoring.path_metrics_csv",
    "logs": "monitoring.path_logs",
    "report.html": "monitoring.path_report",
    "run.json": "monitoring.path_run",
    "summary.json": "monitoring.path_summary",
}


class Headline(TypedDict):
    """One of the most important numbers of a run.

    Attributes:
        before: the value before training.
        more: a detail, which is shown in small type.
    """

    name: str
    value: float
    text: str
    before: NotRequired[str]
    more: NotRequired[str]


class RecordedAlert(TypedDict):
    """An alert of the monitor. All times are Unix times."""

    time: float | None
    severity: str
    text: str
    is_over: bool


class Backup(TypedDict):
    """The state of a run's backup.

    Attributes:
        place: the backup destination, or None if the checkpoints are only on this machine.
        saved_at: the Unix time at which the confirmed checkpoint was saved.
        published: the URL at which the trained model was published.
        state, text: a sentence on the state of the backup, and this sentence with the current age
            of the confirmed checkpoint.
    """

    place: str | None
    confirmed_step: int | None
    saved_at: float | None
    published: str | None
    state: str
    text: str


class Machine(TypedDict):
    """The use of the machine during a run.

    Attributes:
        meters: the current load; empty if the run has ended.
        curves: the (time, value) pairs of each key. Pauses in training are cut out of the Unix
            times.
        pauses: the pauses in training, as (begin, end) in Unix time.
        is_watched: whether the monitor took samples of the machine.
    """

    meters: list[Meter]
    curves: PointsByKey
    pauses: list[tuple[float, float]]
    is_watched: bool


class RunView(TypedDict):
    """Everything to display about a run, as of now. Unknown values are None or empty.

    Attributes:
        subject: the model, the method and the data, in one line.
        state, state_text: one of `live_run.STATES`, and a sentence that describes it.
        is_over: whether the run has ended, for any reason.
        written_at: the Unix time of the newest values.
        progress, times: texts on the progress, and on the time so far and the time left.
        share_done: the completed share, from 0 to 1.
        error: the error that ended the run.
        problems: sentences on files that could not be read, and on values that are not finite.
        before_after: rows of name, before, after and change of the held-out metrics.
        curves, evaluated: the (step, value) pairs of each key, and the keys that come from
            evaluations.
        errors, num_errors: the newest errors from which the run recovered and the one that ended
            it, and the number of all errors.
        config: the value and its source, by key.
        paths: rows of name, path, and meaning.
        data, earlier_data: the current training data, and earlier data with the last step on which
            each was used.
        history: the changes during the run, the oldest first, including changes that affect only
            rounding.
        stages, num_sessions: the stages of the last session, and the number of resumes plus one.
        of_features: file in the run directory → its content, for the sections of features.
        next_steps: what to do, and the command for it, or "" if there is no command.
    """

    run_id: str
    title: str
    directory: str
    subject: str
    state: str
    state_text: str
    is_over: bool
    written_at: float | None
    step: int | None
    total_steps: int | None
    share_done: float | None
    progress: str
    times: str
    seconds_trained: float
    seconds_left: float | None
    headlines: list[Headline]
    error: str | None
    problems: list[str]
    before_after: list[tuple[str, str, str, str]]
    example: JsonObject
    curves: PointsByKey
    evaluated: list[str]
    alerts: list[RecordedAlert]
    errors: list[Record]
    num_errors: int
    backup: Backup
    machine: Machine
    data: dict[str, object]
    earlier_data: list[tuple[object, dict[str, object]]]
    history: list[JsonObject]
    of_features: dict[str, JsonObject]
    checks: list[JsonObject]
    forecast: list[JsonObject]
    decided: JsonObject
    stages: list[JsonObject]
    num_sessions: int
    command: str
    config: dict[str, tuple[object, str]]
    hardware: dict[str, object]
    versions: dict[str, object]
    paths: list[tuple[str, str, str]]
    next_steps: list[tuple[str, str]]


def read_view(directory: Path) -> RunView:
    """Return a view of the current state of a run.

    Raises:
        ValueError: if there is no such directory.
    """
    with closing(LiveRun(directory)) as run:
        return view_of(run)


def view_of(run: LiveRun) -> RunView:
    """Return the view of a run as of its last refresh."""
    facts = run.facts
    record, summary = facts.run, facts.summary
    config = config_of(record)
    loss = summary.get("loss_function") or config.get("training.loss", (None, ""))[0]
    before, after = (numbers_of(summary.get(name)) for name in ("before", "after"))
    history = objects_in(record.get("history"))
    replaced = [entry for entry in history if mapping_of(entry.get("data"))]
    began_with = {**mapping_of(record.get("data")), **facts.object_in("data_report.json")}
    datasets = [began_with, *(mapping_of(entry.get("data")) for entry in replaced)]
    hardware = mapping_of(record.get("hardware"))
    if hardware and (precision := record.get("precision")):
        hardware["precision"] = precision
    return {
        "run_id": facts.run_id,
        "title": facts.title,
        "directory": str(run.directory),
        "subject": _subject(facts),
        "state": run.state,
        "state_text": state_words(run),
        "is_over": run.has_ended,
        "written_at": run.written_at,
        "step": run.step,
        "total_steps": run.total_steps,
        "share_done": run.share_done,
        "progress": progress_words(run),
        "times": time_words(run),
        "seconds_trained": run.seconds_trained,
        "seconds_left": run.seconds_left,
        "headlines": _headlines(run, before, after, held_out_loss(loss)),
        "error": _text_or_none(summary.get("error")),
        "problems": run.problems,
        "before_after": before_after_rows(before, after, loss) if after else [],
        "example": {k: v for k, v in json_object(summary.get("example")).items() if v is not None},
        "curves": run.curves,
        "evaluated": sorted(run.evaluated),
        "alerts": [_alert(alert) for alert in run.alerts],
        "errors": [{**error, "text": error_words(error)} for error in run.errors],
        "num_errors": run.num_errors,
        "backup": _backup(facts, is_trained=not run.has_ended),
        "machine": {
            "meters": [] if run.has_ended else run.machine.meters(),
            "curves": run.machine.curves,
            "pauses": [*run.machine.pauses],
            "is_watched": bool(run.machine.last),
        },
        "data": datasets[-1],
        "earlier_data": [
            (entry.get("step"), earlier)
            for entry, earlier in zip(replaced, datasets[:-1], strict=True)
        ],
        "history": history,
        "of_features": {name: facts.object_in(name) for name in run_files_of_features()},
        "checks": objects_in(facts.files.get(CHECKS_FILE)),
        "forecast": objects_in(summary.get("forecast")),
        "decided": json_object(record.get("decided")),
        "stages": objects_in(summary.get("stages")),
        "num_sessions": 1 + len(continuations(facts)),
        "command": _command(record.get("command")),
        "config": config,
        "hardware": hardware,
        "versions": mapping_of(record.get("versions")),
        "paths": _paths(facts),
        "next_steps": _next_steps(facts, config),
    }


def mapping_of(value: object) -> dict[str, object]:
    """Return a copy of a mapping, or an empty one for anything else."""
    return dict(value) if isinstance(value, Mapping) else {}


def list_of(value: object) -> list[object]:
    """Return `value` if it is a list, or else an empty list."""
    return value if isinstance(value, list) else []


def json_object(value: JsonValue) -> JsonObject:
    """Return `value` if it is a JSON object, or else an empty one."""
    return value if isinstance(value, dict) else {}


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)


def _subject(facts: RunFacts) -> str:
    """Return the model, the method and the data in one line."""
    model = mapping_of(facts.run.get("model"))
    parts = [f"Model: {model_words(str(model['name']))}"] if "name" in model else []
    if isinstance(total := model.get("num_parameters"), int):
        text = f"{total / 1e6:,.2f} M parameters"
        trained = model.get("num_trainable")
        if isinstance(trained, int) and trained != total:
            text += f", of which {trained / 1e6:,.2f} M are trained"
        parts.append(text)
    if path := config_of(facts.run).get("data.path", (None, ""))[0]:
        parts.append(f"data: {data_words(str(path))}")
    if created := facts.run.get("created"):
        parts.append(f"started {clip(format_moment(str(created)), 60)}")
    if facts.title != facts.run_id:
        parts.append(f"run {facts.run_id}")
    return " · ".join(parts)


def _headlines(
    run: LiveRun, before: Mapping[str, object], after: Mapping[str, object], loss_name: str
) -> list[Headline]:
    """Return the most important numbers of a run. The result comes first, if there is one."""
    was, now = (mapping_of(of.get("exact_match")).get("all") for of in (before, after))
    held_out = run.points.get("eval_loss")
    finite = [value for _, value in held_out.kept if math.isfinite(value)] if held_out else []
    best = f"best {format_number(min(finite))}" if finite else ""
    if "eval_reward" in after:
        losses = []  # the loss is meaningless when training on rewards
    elif "eval_loss" in after:
        of_step, was_loss = run.facts.summary.get("final_step"), before.get("eval_loss")
        more = "" if of_step is None else phrase("run.model_of_best_step", step=of_step)
        losses = [_headline(loss_name, after["eval_loss"], before=was_loss, more=more)]
    else:
        newest = _headline(loss_name, held_out.kept[-1][1] if held_out else None, more=best)
        losses = [_headline("loss", run.last("loss")), newest]
    cost = mapping_of(run.facts.summary.get("cost"))
    lines = [
        *losses,
        *_best_known(before, after),
        _headline(EXACT_MATCH, now, format_share, was),
        _headline("tokens per second", run.tokens_per_second, format_rate),
        _headline("time per step", run.seconds_per_step, format_step_time),
        _headline("tokens", run.last("tokens")),
        _headline("peak memory", run.peak_memory_bytes, format_bytes),
        _headline("cost", cost.get("amount"), lambda _: str(cost.get("text"))),
    ]
    return [line for line in lines if line is not None]


def _best_known(before: Mapping[str, object], after: Mapping[str, object]) -> list[Headline | None]:
    """Return a list with the most important metric of a TRL method; empty if there is none."""
    before, after = without_ties(before), without_ties(after)
    names = {key: name_of(key) for key in in_order([*after])}
    for key, name in names.items():
        if name.better and not name.is_detail:
            show = format_share if name.is_share else format_number
            return [_headline(name.title, after[key], show, before.get(key))]
    return []


def _headline(
    name: str,
    value: object,
    show: Callable[[float], str] = format_number,
    before: object = None,
    more: str = "",
) -> Headline | None:
    if not isinstance(value, int | float):
        return None
    line = Headline(name=name[:1].upper() + name[1:], value=value, text=show(value))
    if isinstance(before, int | float):
        line["before"] = show(before)
    if more:
        line["more"] = more
    return line


def _alert(record: Record) -> RecordedAlert:
    moment = record.get("time")
    return {
        "time": moment if isinstance(moment, int | float) else None,
        "severity": str(record.get("severity", "")),
        "text": alert_words(record),
        "is_over": "ended_at" in record,
    }


def _backup(facts: RunFacts, *, is_trained: bool) -> Backup:
    known = facts.copies
    step, saved_at = known.get("confirmed_step"), known.get("saved_at")
    state = safety_words(facts, now=None)
    return {
        "place": _text_or_none(known.get("place") or None),
        "confirmed_step": step if isinstance(step, int) else None,
        "saved_at": saved_at if isinstance(saved_at, int | float) else None,
        "published": _text_or_none(known.get("published")),
        "state": state,
        "text": safety_words(facts, time.time()) if is_trained else state,
    }


def _command(command: object) -> str:
    text = shlex.join(map(str, command)) if isinstance(command, list) else str(command or "")
    return clip(text, MAX_COMMAND_CHARACTERS)


def _paths(facts: RunFacts) -> list[tuple[str, str, str]]:
    """Return rows of name, path and meaning for the outputs of a run."""
    named = {str(k): str(v) for k, v in mapping_of(facts.summary.get("paths")).items()}
    there = {name: facts.directory / name for name in WHAT_LIES_WHERE}
    names = {Path(path).name for path in named.values()}
    shown = named | {n: str(path) for n, path in there.items() if n not in names and path.exists()}
    codes = {name: WHAT_LIES_WHERE.get(Path(path).name, "") for name, path in shown.items()}
    what = {name: phrase(code) if code else "" for name, code in codes.items()}
    return [(name, from_here(path), what[name]) for name, path in shown.items()]


def _next_steps(facts: RunFacts, config: Mapping[str, tuple[object, str]]) -> list[tuple[str, str]]:
    directory = Path(from_here(facts.directory))
    steps, final = [], directory / "final"
    if facts.status != FINISHED:
        if is_of_a_script(facts.run):
            how = how_to_run_again(facts.run)
            steps.append((phrase("monitoring.next_run_own_script", how=how), ""))
        else:
            command = f"temper resume {_quoted(directory)}"
            steps.append((phrase("monitoring.next_resume"), command))
    advice = objects_in(facts.summary.get("advice"))
    steps += [_advised(str(each.get("text")), str(each.get("command"))) for each in advice]
    if is_askable(final):  # a model that cannot be asked cannot be evaluated either
        if not (final / SEES).is_file():
            steps.append((phrase("monitoring.next_ask"), _question_to(str(final), facts.summary)))
        held_out, method = (config.get(key, (None, ""))[0] for key in (HELD_OUT, METHOD))
        is_measurable = held_out and method in (None, SFT)  # other methods have other rows
        data, what = (
            (_quoted(held_out), phrase("monitoring.next_evaluate"))
            if is_measurable
            else ("DATA", phrase("monitoring.next_evaluate_new_rows"))
        )
        steps.append((what, f"temper eval {_quoted(final)} {data}"))
    return steps


def _question_to(model: str, summary: Mapping[str, object]) -> str:
    has_context = bool(summary.get("has_context"))
    return question_command(model, summary.get("system_prompt"), has_context=has_context)


def _advised(text: str, command: str) -> tuple[str, str]:
    """Return advice as a text and a command, which is "" if there is nothing to type.

    A command that cannot be typed, such as "a lower --learning-rate", becomes part of the text.
    """
    is_command = command.startswith("temper ")
    return (f"{text}:", command) if is_command else (f"{text} {command}", "")


def from_here(path: str | Path) -> str:
    """Return a path relative to the current folder. A path outside of that folder is unchanged."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def _quoted(path: object) -> str:
    return shlex.quote(str(path))
