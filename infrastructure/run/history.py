"""The history of a run: the settings and data that changed during training, and at which steps.

If a run resumed with another learning rate, other rows or another library, neither its first nor
its last settings describe the whole run. So each checkpoint contains the history until then.
run.json contains the same history for display, and is written before the first step after a change.
Only changes that led to the current state are included: if the run goes back to an earlier
checkpoint, later changes are dropped. Loads no torch.
"""

import re
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NotRequired, TypedDict, cast

from infrastructure.backup.format.store import Store
from infrastructure.config.field_help import plain
from infrastructure.core.checksums import read_record, write_record
from infrastructure.core.errors import CheckpointError, DamagedFileError
from infrastructure.core.json_text import JsonObject, JsonValue
from infrastructure.core.messages import phrase
from infrastructure.core.redact import is_secret_key, redact
from infrastructure.monitoring.records.run_reader import objects_in
from infrastructure.run.checkpoint_paths import by_step
from infrastructure.run.compatibility import Difference, Verdict
from infrastructure.run.directory import RunDirectory

HISTORY = "history"  # the key in run.json, in summary.json, and in the values of a version
DATA = "data"  # the name of a difference in the data
HASH = re.compile(r"[0-9a-f]{32,}")
HASH_CHARACTERS = 12
HIDDEN = "***"


Change = TypedDict(
    "Change",
    {"name": str, "was": JsonValue, "is": JsonValue, "effect": str, "text": NotRequired[str]},
)


class HistoryEntry(TypedDict):
    """The changes made when a run was resumed.

    Attributes:
        step: the step of the checkpoint from which the run resumed.
        command: the command line, without secrets.
        data: the description of the data, as in `RunRecord`, if the data changed.
    """

    when: str
    step: int
    command: str
    changes: list[Change]
    data: NotRequired[dict[str, object]]


History = Sequence[HistoryEntry]


def history_in(values: Mapping[str, object]) -> list[HistoryEntry]:
    """Return the history in a record: the values of a checkpoint, run.json or summary.json."""
    entries = [one for one in objects_in(values.get(HISTORY)) if isinstance(one.get("step"), int)]
    return cast(list[HistoryEntry], entries)


def history_of(run: RunDirectory, step: int | None = None) -> list[HistoryEntry]:
    """Return the history of a run up to its newest checkpoint, or its newest checkpoint at `step`.

    For a run without such a checkpoint, return the history in run.json.

    Raises:
        OSError: if the run cannot be read.
    """
    store = Store(run.checkpoints)
    names = store.versions()
    if step is not None:
        at_step = by_step(store).get(step)
        names = [] if at_step is None else [at_step.stem]
    for name in names:
        try:
            values = store.read(name).values
        except CheckpointError:
            continue
        if HISTORY in values:
            return _until(history_in(values), step)
    try:
        return _until(history_in(read_record(run.run_file)), step)
    except (OSError, DamagedFileError):
        return []


def _until(history: list[HistoryEntry], step: int | None) -> list[HistoryEntry]:
    """Return the entries that affected training up to `step`, or all entries if `step` is None."""
    return [entry for entry in history if step is None or entry["step"] < step]


def extend_history(
    run: RunDirectory,
    values: Mapping[str, object],
    agreed: Sequence[Difference],
    step: int,
    describe_data: Callable[[], dict[str, object]],
) -> list[HistoryEntry]:
    """Return the history of a run that resumes now, with the changes since its checkpoint.

    The history is also written to run.json.

    Args:
        agreed: the differences with which the run resumes; harmless ones are omitted.
        describe_data: returns the description of the new data, for run.json.

    `values` are the values of the checkpoint from which the run resumes.
    """
    history = history_in(values)
    changes = [_change(d) for d in agreed if d.verdict is not Verdict.HARMLESS]
    if changes:
        entry: HistoryEntry = {
            "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "step": step,
            "command": redact(shlex.join(sys.argv)),
            "changes": changes,
        }
        if brought_other_data([entry]):
            entry["data"] = describe_data()
        history.append(entry)
    if run.has_record():
        record = read_record(run.run_file)
        if history_in(record) != history:
            write_record(run.run_file, {**record, HISTORY: history})
    return history


def brought_other_data(history: History) -> bool:
    """Return whether the data changed during the run."""
    return any(change["name"] == DATA for entry in history for change in entry["changes"])


def _change(difference: Difference) -> Change:
    secret = is_secret_key(difference.name)
    change: Change = {
        "name": difference.name,
        "was": HIDDEN if secret else _recordable(difference.was),
        "is": HIDDEN if secret else _recordable(difference.current),
        "effect": difference.verdict.value,
    }
    if difference.text:
        change["text"] = redact(difference.text)
    return change


def _recordable(value: object) -> JsonValue:
    """Return a value as JSON without secrets, and with shortened hashes.

    Hashes are shortened because the complete hash of a short row would allow guessing the row.
    """
    if isinstance(value, Mapping):
        hidden = {str(key) for key in value if is_secret_key(str(key))}
        return {
            str(k): HIDDEN if str(k) in hidden else _recordable(one) for k, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_recordable(one) for one in value]
    if isinstance(value, int | float | bool | None):
        return value
    text = str(value)
    return text[:HASH_CHARACTERS] if HASH.fullmatch(text) else redact(text)


def deciding(history: History) -> Iterator[tuple[int, Change]]:
    """Yield the changes that affected the result, each with the step after which it took effect.

    Changes that affect only rounding are omitted.
    """
    for entry in history:
        for change in entry["changes"]:
            if change.get("effect") != Verdict.ROUNDS_OTHERWISE.value:
                yield entry["step"], change


def not_accepted(history: History, accepted: Collection[str]) -> list[tuple[int, Change]]:
    """Return the changes whose names are not in `accepted`, each with its step."""
    return [(step, change) for step, change in deciding(history) if change["name"] not in accepted]


def change_words(step: int, change: Change) -> str:
    """Return a message such as `learning_rate was 0.001 until step 3, and is 0.0001 since`."""
    if text := change.get("text"):
        return phrase("run.change_after_step", change=text, step=step)
    if _is_shown(change["was"]) and _is_shown(change["is"]):
        was, now = plain(change["was"]), plain(change["is"])
        return phrase("run.changed_at_step", name=change["name"], was=was, step=step, now=now)
    return phrase("run.changed_after_step", name=change["name"], step=step)


def history_lines(history: History) -> list[str]:
    """Return messages on all changes, one for each."""
    return [
        change_words(entry["step"], change)
        + (phrase("run.rounds_sums") if change.get("effect") == Verdict.ROUNDS_OTHERWISE else "")
        for entry in history
        for change in entry["changes"]
    ]


def public_history(history: History) -> list[JsonObject]:
    """Return the history for a model card or an export, without commands, data, hashes or paths."""
    lines: list[JsonObject] = []
    for entry in history:
        for change in entry["changes"]:
            line: JsonObject = {
                "after_step": entry["step"],
                "name": change["name"],
                "effect": change["effect"],
            }
            if all(
                _is_shown(each) and not _is_path(each) for each in (change["was"], change["is"])
            ):
                line |= {"was": change["was"], "is": change["is"]}
            lines.append(line)
    return lines


def _is_path(value: JsonValue) -> bool:
    """Return whether a value is the path of a file on the user's machine."""
    return isinstance(value, str) and value.startswith(("/", "~", "."))


def _is_shown(value: JsonValue) -> bool:
    """Return whether a value means something to the user, unlike a hash."""
    is_hash = isinstance(value, str) and re.fullmatch(r"[0-9a-f]{12,}", value) is not None
    return isinstance(value, str | int | float | None) and not is_hash


def stretches(history: History, name: str, last_step: int) -> list[tuple[int, int, JsonValue]]:
    """Return (first step, last step, value) for each value that a setting had during the run.

    If the setting did not change, the list is empty.
    """
    changes = [(step, change) for step, change in deciding(history) if change["name"] == name]
    if not changes:
        return []
    starts = [0, *(step for step, _ in changes)]
    ends = [*(step for step, _ in changes), last_step]
    values = [changes[0][1]["was"], *(change["is"] for _, change in changes)]
    parts = zip(starts, ends, values, strict=True)
    return [(start + 1, stop, value) for start, stop, value in parts if start < stop]


def stretch_words(parts: Iterable[tuple[int, int, JsonValue]]) -> str:
    """Return a text such as `0.001 (steps 1 to 3), 0.0001 (steps 4 to 8)`."""
    return ", ".join(
        f"{plain(value)} ({f'step {first}' if first == last else f'steps {first} to {last}'})"
        for first, last, value in parts
    )
