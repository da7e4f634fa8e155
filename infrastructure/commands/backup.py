"""`temper backup …`: what is at a place, whether it is whole, and bringing it back.

Each prints lines for a person, or with `as_json` one JSON object on standard output.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infrastructure.backup.backends import Place, open_place
from infrastructure.backup.finished_run import Completion, complete, not_safe
from infrastructure.backup.format.retention import Retention, retention_of, versions_to_keep
from infrastructure.backup.format.store import Store
from infrastructure.backup.inventory import BackupEntry, list_entries, runs_at
from infrastructure.backup.replication.folder_upload import problems_at
from infrastructure.backup.replication.status import age_words
from infrastructure.backup.run_backup import RunBackup, place_options
from infrastructure.commands.checkpoints import NOTHING, describe, verify_versions
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.errors import NOT_CONFIRMED, StorageError
from infrastructure.monitoring.drawing.formatting import format_bytes, format_number
from infrastructure.monitoring.drawing.tables import render_table
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.run.directory import RunDirectory, find_run
from infrastructure.run.restore import asked, named_run, restore_run

DONE, FAILED = 0, 1


@dataclass(frozen=True)
class Told:
    """What a command was given.

    Attributes:
        name: the run: None is the newest.
        config: `output_dir`, and section `backup` where something of it was given now.
        given: keys that were given now, in whatever way; the rest is as the run recorded it.
    """

    name: str | None
    config: DeploymentConfig
    given: frozenset[str] = frozenset()
    as_json: bool = False
    dry_run: bool = False

    def show(self, value: dict[str, Any], *lines: str) -> None:
        """Print `value` as JSON, or else the lines."""
        print(json.dumps(value, ensure_ascii=False) if self.as_json else "\n".join(lines))


def create(told: Told) -> int:
    """Copy the newest version of a run now, and of a finished one model and report too, and wait
    until all is confirmed; 1 where it is not, 3 where the run is finished. A place that is named
    now is the run's place from here on, whichever lay there before."""
    run, backup = _backup_of_run(told)
    if not backup.store.versions():
        raise ValueError(f"run {run.run_id} has no checkpoint yet: there is nothing to copy")
    if "backup.place" in told.given:
        backup.adopt_place()
    is_finished = run.is_finished()
    backup.forget_status()  # what was told before does not count
    try:
        if is_finished:
            end = complete(backup, run.path, backup.options.finish_seconds)
        else:
            backup.finish()
            end = Completion()
        status = backup.status()
    finally:
        backup.close()
    is_safe = status.confirmed_name == backup.store.newest_healthy() and end.is_complete
    facts = {"run": run.run_id, "confirmed": is_safe, **asdict(status)}
    lines = [status.possible_loss(time.time()).text]
    if is_finished:
        facts |= asdict(end)
        place = str(backup.options.place)
        safe = f"Run {run.run_id} is safe: its model lies in {end.published}"
        lines.append(safe if is_safe else not_safe(run.path, place, end))
    told.show(facts, *lines)
    return DONE if is_safe else NOT_CONFIRMED if is_finished else FAILED


def list_backups(told: Told) -> int:
    """Show the versions of a run here and at its place; without a run, the runs at the place."""
    if told.name is None and told.config.backup.place is not None:
        return _list_runs(told)
    run_id, backup = _named(told)
    entries = backup.list_backups()
    rows = [asdict(entry) for entry in entries]
    told.show({"run": run_id, "versions": rows}, f"Run {run_id}", _table(entries))
    return DONE


def _list_runs(told: Told) -> int:
    place = open_place(str(told.config.backup.place))
    runs = asked(place, lambda: runs_at(place))
    newest = {run: asked(place, lambda run=run: _newest(Store(Path(run), place))) for run in runs}  # type: ignore[misc]
    rows = [
        [run, NOTHING if row is None else f"step {row.step}", "" if row is None else row.created]
        for run, row in newest.items()
    ]
    facts = [{"run": run, "newest_step": row.step if row else None} for run, row in newest.items()]
    text = render_table(["run", "newest", "saved"], rows) if rows else f"No run at {place.url}"
    told.show({"place": place.url, "runs": facts}, text)
    return DONE


def _newest(store: Store) -> BackupEntry | None:
    entries = list_entries({"": store})
    return next((entry for entry in entries if entry.problem is None), None)


def verify(told: Told) -> int:
    """Read every version here and at the place and compare it with its names; 1 where one is
    damaged or the place does not answer."""
    run_id, backup = _named(told)
    chosen: dict[str, list[tuple[Store, str]]] = {"here": _versions(backup.store)}
    if backup.options.place is not None:
        place = open_place(backup.options.place)
        store = Store(Path(run_id), place)
        chosen[place.url] = asked(place, lambda: _versions(store))
    rows = []
    for where, versions in chosen.items():
        found = verify_versions(versions)
        rows += [{"where": where, **row} for row in found]
    if backup.options.place is not None:
        rows += asked(place, lambda: list(_published_rows(place, run_id)))
    if not rows:
        raise ValueError(f"run {run_id} has no version here or at its place: nothing to verify")
    damaged = [row for row in rows if row["problem"]]
    lines = [f"{_name(row)} {row['where']}: {row['problem'] or 'whole'}" for row in rows]
    told.show(
        {"run": run_id, "versions": rows, "damaged": len(damaged)},
        *lines,
        f"{len(rows) - len(damaged)} of {len(rows)} are whole",
    )
    return FAILED if damaged else DONE


def _published_rows(place: Place, run_id: str) -> Iterator[dict[str, Any]]:
    """The folders that a finished run has at its place, each compared with its SHA256SUMS."""
    for name, problem in problems_at(place, Path(run_id)):
        yield {"where": place.url, "name": f"{name}/", "problem": problem}


def restore(told: Told) -> int:
    """Bring a run from the place into `output_dir`, verified."""
    name, _, step = (told.name or "").partition("@")
    if step and not step.isdecimal():
        raise ValueError(f"{told.name!r}: a step is a number, as in RUN@120")
    options = _place_given(told)
    run, checkpoint = restore_run(
        name or None, options, Path(told.config.output_dir), int(step) if step else None
    )
    number = step_of(checkpoint)
    command = f"temper train-resume {run.path}"
    facts = {"run": run.run_id, "path": str(run.path), "step": number, "go_on": command}
    told.show(facts, f"Run {run.run_id} is here, verified, at step {number}; go on with: {command}")
    return DONE


def prune(told: Told) -> int:
    """Remove what rotation no longer keeps, here and at the place; or with `dry_run` say what."""
    run_id, backup = _named(told)
    if told.dry_run:
        gone = list(_superseded(run_id, backup))
        lines = [f"would remove {_name(row)} {row['where']}" for row in gone]
        told.show({"run": run_id, "would_remove": gone}, *(lines or ["nothing would be removed"]))
        return DONE
    done = backup.prune()
    told.show({"run": run_id, "done": done}, *done)
    return DONE


def _superseded(run_id: str, backup: RunBackup) -> Iterator[dict[str, Any]]:
    """Versions that rotation no longer keeps, here and at the place."""
    stores = [("here", backup.store, backup.retention)]
    if backup.options.place is not None:
        place = open_place(backup.options.place)
        there = Retention(backup.options.keep, keep_best=1)
        stores.append((f"at {place.url}", Store(Path(run_id), place), there))
    for where, store, retention in stores:
        try:
            kept = versions_to_keep(store, retention)
            names = [name for name in store.versions() if name not in kept]
        except OSError as error:
            raise StorageError(f"{where} there is no answer: {error}") from error
        yield from ({"where": where, **describe(store, name)} for name in names)


def status(told: Told) -> int:
    """Show how the copy of a run stands, and what would be lost now."""
    run, backup = _backup_of_run(told, must_have_place=False)
    if backup.options.place is None:
        text = f"run {run.run_id} is on this machine only: give --place to copy it"
        told.show({"run": run.run_id, "place": None, "text": text}, text)
        return DONE
    found = backup.status()
    loss = found.possible_loss(time.time())
    facts = {"run": run.run_id, **asdict(found), "possible_loss_seconds": loss.seconds}
    lines = [loss.text]
    if loss.seconds == 0.0:
        lines.append("The training has ended: if this machine died now, nothing would be lost")
    elif loss.seconds is not None:
        lines.append(f"If this machine died now, {age_words(loss.seconds)} of work would be lost")
    told.show({**facts, "text": loss.text}, *lines)
    return DONE


ACTIONS: dict[str, Callable[[Told], int]] = {
    "create": create,
    "list": list_backups,
    "verify": verify,
    "restore": restore,
    "prune": prune,
    "status": status,
}


def _backup_of_run(told: Told, must_have_place: bool = True) -> tuple[RunDirectory, RunBackup]:
    """A run of this machine, and its backup as recorded but for what was given now."""
    run, _ = find_run(told.name, Path(told.config.output_dir))
    recorded = run.read_settings()
    options = place_options(recorded)
    changes = {
        key.rpartition(".")[2]: told.config.value(key)
        for key in told.given
        if key.startswith("backup.")
    }
    options = options.copy_with(**changes)
    if options.place is None and must_have_place:
        raise ValueError(f"run {run.run_id} has no place for backups: give --place")
    retention = retention_of(recorded.training)
    return run, RunBackup(run.checkpoints, options, run_id=run.run_id, retention=retention)


def _named(told: Told) -> tuple[str, RunBackup]:
    """A run of this machine; or one that is only at the place, if that was given."""
    try:
        run, backup = _backup_of_run(told, must_have_place=False)
    except ValueError:
        if told.config.backup.place is None:
            raise
        run_id = named_run(open_place(told.config.backup.place), told.name)
        store = Path(told.config.output_dir) / run_id / "checkpoints"
        return run_id, RunBackup(store, told.config.backup, run_id=run_id)
    return run.run_id, backup


def _place_given(told: Told) -> BackupConfig:
    if told.config.backup.place is None:
        raise ValueError("where is the backup? give --place, as in --place /mnt/disk/temper")
    return told.config.backup


def _versions(store: Store) -> list[tuple[Store, str]]:
    return [(store, name) for name in store.versions()]


def _name(row: dict[str, Any]) -> str:
    return f"step {row['step']}" if "step" in row else str(row["name"])[:14]


def _table(entries: list[BackupEntry]) -> str:
    rows = [
        [
            f"step {entry.step}" if entry.problem is None else f"{entry.name[:12]} damaged",
            entry.created or "",
            NOTHING if entry.score is None else format_number(entry.score),
            NOTHING if entry.size_bytes is None else format_bytes(entry.size_bytes),
            ", ".join(entry.places),
        ]
        for entry in entries
    ]
    return render_table(["version", "saved", "held-out loss", "size", "lies"], rows)
