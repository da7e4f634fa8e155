"""`temper backup …`: list, verify, restore and manage the backups of runs."""

import argparse
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from infrastructure.backup.backends import Place, open_place
from infrastructure.backup.backends.folder import FolderPlace
from infrastructure.backup.finished_run import Completion, complete, not_safe
from infrastructure.backup.format.retention import Retention, retention_of, versions_to_keep
from infrastructure.backup.format.store import Store
from infrastructure.backup.inventory import (
    HERE,
    BackupEntry,
    VerifiedVersion,
    list_entries,
    runs_at,
    verify_all,
)
from infrastructure.backup.replication.folder_upload import problems_at
from infrastructure.backup.replication.status import age_words
from infrastructure.backup.run_backup import RunBackup, last_place, place_options
from infrastructure.commands.arguments import (
    A_RUN_HELP,
    add_folder_flags,
    add_json,
    add_run,
)
from infrastructure.commands.checkpoints import checkpoint_table, label_of, verified_lines
from infrastructure.commands.output import progress, show
from infrastructure.commands.parser import CommandParser, as_sentence
from infrastructure.commands.settings import configure
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import Layer
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.config.sources.environment import variable_of
from infrastructure.core.console import Report
from infrastructure.core.errors import InputError, StorageError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.json_text import json_of
from infrastructure.core.kept_traceback import COPIER_TRACEBACK_FILE
from infrastructure.core.messages import phrase
from infrastructure.core.redact import MASK, redact_urls
from infrastructure.monitoring.drawing.formatting import format_moment
from infrastructure.monitoring.drawing.tables import UNKNOWN, render_table
from infrastructure.monitoring.records.run_list import (
    FINAL,
    MAX_NAMED,
    RUN_FILE,
    NoSuchRunError,
    find_run_path,
    how_to_run_again,
    run_folders,
    split_version,
)
from infrastructure.monitoring.records.run_owner import read_trainer, was_stopped
from infrastructure.monitoring.records.run_reader import brought_back_from
from infrastructure.monitoring.records.run_view import from_here
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.run.directory import RunDirectory, RunStatus
from infrastructure.run.progress_bar import byte_bar
from infrastructure.run.record import read_run_record
from infrastructure.run.restore import (
    answer_of,
    check_version,
    folder_of,
    named_run,
    restore_run,
    step_at_place,
    why_empty,
)

CREATE, RESTORE, PRUNE, PLACE = "create", "restore", "prune", "backup.place"
# By action: the settings that it uses in addition to the destination.
USED = {
    CREATE: ("keep", "compression", "megabytes_per_second", "finish_seconds"),
    PRUNE: ("keep",),
}


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of the command."""
    actions = parser.add_actions()
    for action, (text, _) in ACTIONS.items():
        add = partial(_add_action_arguments, action)
        actions.add_parser(action, help=text, description=as_sentence(text), add_arguments=add)


def _add_action_arguments(action: str, parser: argparse.ArgumentParser) -> None:
    add_run(parser, "commands.help_run_or_checkpoint" if action == RESTORE else A_RUN_HELP)
    parser.add_argument("--place", metavar="PLACE", help=phrase("commands.help_backup_place"))
    if action == PRUNE:
        parser.add_argument(
            "--dry-run", action="store_true", help=phrase("commands.help_prune_dry_run")
        )
    add_json(parser)
    used = [PLACE, *(f"backup.{name}" for name in USED.get(action, ()))]
    add_folder_flags(parser, *used, inherited=used)


def run(options: argparse.Namespace) -> int:
    """Run the chosen action. Settings that are given now override those of the run.

    Raises:
        ValueError: if RUN names a checkpoint, but the action works on a whole run.
    """
    if options.action != RESTORE and options.run is not None:
        name, version = split_version(options.run)
        if version is not None and not (Path(options.run) / RUN_FILE).is_file():
            raise ValueError(
                phrase("monitoring.checkpoint_instead_of_run", name=options.run, run=name)
            )
    _, act = ACTIONS[options.action]
    return act(options, configure(options, {PLACE: options.place}))


def create(options: argparse.Namespace, config: DeploymentConfig) -> ExitCode:
    """Back up the newest checkpoint of a run now, and wait until the backup is confirmed.

    For a finished run, the model and the report are backed up, too. If the backup cannot be
    confirmed, the exit code is FAILED, or NOT_CONFIRMED for a finished run. A destination given now
    becomes the destination of the run, even if another destination was recorded for the same
    address.
    """
    run, backup = _backup_of_run(options.run, config)
    if not backup.store.versions():
        raise InputError("commands.nothing_to_back_up", run_id=run.run_id)
    if PLACE in _given(config):
        backup.adopt_place()
    is_finished = run.is_finished()
    backup.forget_status()  # an old status must not count
    try:
        with Report(partial(progress, options.json)).waiting(partial(_waits_for, backup)):
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
    if seen := status.seen(time.time()):
        lines.append(f"Seen there: {seen}")
    if is_finished:
        facts |= asdict(end)
        place = str(backup.options.place)
        safe = phrase("commands.run_is_safe", run_id=run.run_id, url=end.published)
        lines.append(safe if is_safe else not_safe(run.path, place, end))
    show(options.json, facts, *lines)
    if is_safe:
        return ExitCode.DONE
    return ExitCode.NOT_CONFIRMED if is_finished else ExitCode.FAILED


def _waits_for(backup: RunBackup) -> str:
    problem = backup.status().problem
    return phrase("commands.waiting_for_destination", reason=f": {problem}" if problem else "")


def list_backups(options: argparse.Namespace, config: DeploymentConfig) -> ExitCode:
    """Show the checkpoints of a run on this machine and at its backup destination.

    If only a destination is given, show the runs at this destination instead.
    """
    if options.run is None and config.backup.place is not None:
        return _list_runs(options, config.backup.place)
    run_id, backup = _named(options.run, config)
    entries = backup.list_backups()
    rows = [asdict(entry) for entry in entries]
    missing = None
    if backup.options.place is not None:
        place = open_place(backup.options.place)
        if not any(place.url in entry.places for entry in entries):
            missing = _nothing_of(run_id, place)
    caution = [] if missing is None else [f"Caution: {missing}"]
    facts = {"run": run_id, "versions": rows, "missing": missing}
    show(
        options.json,
        facts,
        f"Run {run_id}",
        checkpoint_table(entries, "score", is_placed=True),
        *caution,
    )
    return ExitCode.DONE


def _list_runs(
    options: argparse.Namespace, url: str, name: str | None = None, heading: str = ""
) -> ExitCode:
    """Show the runs at a destination, or only the run `name`."""
    place = open_place(url)
    runs = [named_run(place, name)] if name else answer_of(place, lambda: runs_at(place))
    newest = {run: answer_of(place, partial(_newest, Store(Path(run), place))) for run in runs}
    rows = [
        [
            run,
            UNKNOWN if row is None else f"step {row.step}",
            "" if row is None else format_moment(row.created or ""),
        ]
        for run, row in newest.items()
    ]
    facts = [{"run": run, "newest_step": row.step if row else None} for run, row in newest.items()]
    why = "" if rows else why_empty(place)
    lines = [render_table(["run", "newest", "saved"], rows)]
    if not rows:
        lines = [phrase("commands.no_run_at_destination", url=place.url, reason=why)]
    elif heading:
        lines.insert(0, heading)
    show(options.json, {"place": place.url, "runs": facts}, *lines)
    return ExitCode.WRONG_INPUT if why else ExitCode.DONE


def _newest(store: Store) -> BackupEntry | None:
    entries = list_entries({"": store})
    return next((entry for entry in entries if entry.problem is None), None)


def verify(options: argparse.Namespace, config: DeploymentConfig) -> ExitCode:
    """Compare all files of a run, on this machine and at the destination, with their hashes.

    The exit code is FAILED if a file is damaged, or if the destination has no backup of the run.

    Raises:
        InputError: if there is nothing to verify.
        StorageError: if the destination does not respond.
    """
    run_id, backup = _named(options.run, config)
    missing = None
    with byte_bar("verifying") as show_progress:
        results = verify_all(HERE, backup.store, show_progress=show_progress)
        if backup.options.place is not None:
            place = open_place(backup.options.place)
            there = partial(verify_all, place.url, Store(Path(run_id), place))
            copies = answer_of(place, partial(there, show_progress=show_progress))
            copies += answer_of(place, partial(_published, place, run_id))
            results += copies
            missing = None if copies else _nothing_of(run_id, place)
    if not results:
        why = "" if missing is None else f" ({missing})"
        raise InputError("commands.nothing_to_verify", run_id=run_id, reason=why)
    rows = [asdict(one) for one in results]
    damaged = sum(one.problem is not None for one in results)
    show(
        options.json,
        {"run": run_id, "versions": rows, "damaged": damaged, "missing": missing},
        f"Run {run_id}",
        *verified_lines(results),
        *([] if missing is None else [f"Caution: {missing}"]),
    )
    return ExitCode.FAILED if damaged or missing is not None else ExitCode.DONE


def _nothing_of(run_id: str, place: Place) -> str:
    """Return a message that the destination has no backup of this run, with the runs that
    it has.
    """
    if (missing := _missing_folder(place)) is not None:
        return missing
    runs = answer_of(place, lambda: runs_at(place))
    there = f"; it holds {', '.join(runs[-MAX_NAMED:])}" if runs else ""
    return phrase("commands.no_backup_of_run", run_id=run_id, url=place.url, others=there)


def _published(place: Place, run_id: str) -> list[VerifiedVersion]:
    """Verify each folder with the backed-up model or report of a finished run."""
    folders = problems_at(place, Path(run_id))
    return [VerifiedVersion(place.url, f"{name}/", None, problem) for name, problem in folders]


def restore(options: argparse.Namespace, config: DeploymentConfig) -> ExitCode:
    """Restore a run from the backup destination into `output_dir`, and verify it."""
    name, version = split_version(options.run or "")
    check_version(name, version)
    run_name, backup = _to_restore(name or None, config)
    place = open_place(str(backup.place))
    run_id = named_run(place, run_name)
    step = None if version is None else step_at_place(place, run_id, version)
    run, checkpoint = restore_run(run_id, backup, _folder_for(name, config), step)
    number = step_of(checkpoint)
    path = run.path.resolve()
    is_newest = checkpoint.stem == Store(run.checkpoints).versions()[0]
    named = str(path) if is_newest else f"{path}@{number}"
    command = f"temper resume {shlex.quote(named)}"
    is_finished = run.is_finished()
    facts = {"run": run.run_id, "path": str(path), "step": number}
    facts["go_on"] = None if is_finished else command
    line = phrase("commands.run_restored", run_id=run.run_id, step=number)
    end = phrase("commands.restored_run_is_finished", path=path / FINAL)
    resuming = phrase("commands.restored_run_command", command=command)
    show(options.json, facts, line + (end if is_finished else resuming))
    return ExitCode.DONE


def prune(options: argparse.Namespace, config: DeploymentConfig) -> ExitCode:
    """Remove checkpoints that the retention rules no longer keep, on this machine and at the
    destination.

    With `--dry-run`, only list these checkpoints.
    """
    run_id, backup = _named(options.run, config)
    if options.dry_run:
        gone = list(_superseded(run_id, backup))
        lines = [f"would remove {label_of(entry)} {where}" for where, entry in gone]
        rows = [{"where": where, **asdict(entry)} for where, entry in gone]
        facts = {"run": run_id, "would_remove": rows}
        show(options.json, facts, *(lines or [phrase("commands.nothing_would_be_removed")]))
        return ExitCode.DONE
    if not backup.store.versions():
        raise InputError("commands.nothing_to_prune", run_id=run_id)
    done = backup.prune()
    show(options.json, {"run": run_id, "done": done}, *done)
    return ExitCode.DONE


def _superseded(run_id: str, backup: RunBackup) -> Iterator[tuple[str, BackupEntry]]:
    """Yield the checkpoints that the retention rules no longer keep, on this machine and at the
    destination.
    """
    stores = [(HERE, backup.store, backup.retention)]
    if backup.options.place is not None:
        place = open_place(backup.options.place)
        there = Retention(backup.options.keep, keep_best=1)
        stores.append((f"at {place.url}", Store(Path(run_id), place), there))
    for where, store, retention in stores:
        try:
            kept = versions_to_keep(store, retention)
            entries = list_entries({where: store})
        except OSError as error:
            raise StorageError(
                "commands.store_does_not_respond", where=where, error=error
            ) from error
        yield from ((where, entry) for entry in entries if entry.name not in kept)


def status(options: argparse.Namespace, config: DeploymentConfig) -> ExitCode:
    """Show the state of a run's backup, and how much work would be lost now.

    If the run is not on this machine, show its checkpoints at the destination.
    """
    try:
        run, backup = _backup_of_run(options.run, config, must_have_place=False, opens=False)
    except ValueError:
        if config.backup.place is None:
            raise
        heading = phrase(
            "commands.runs_at_destination",
            output_dir=config.output_dir,
            url=redact_urls(config.backup.place),
        )
        return _list_runs(options, config.backup.place, options.run, heading)
    if backup.options.place is None:
        is_elsewhere = "output_dir" in _given(config)
        name = str(run.path) if is_elsewhere else options.run or run.run_id
        command = phrase("commands.command_backup_create", run=shlex.quote(name))
        text = phrase("commands.run_has_no_backup", run_id=run.run_id, command=command)
        show(options.json, {"run": run.run_id, "place": None, "text": text}, text)
        return ExitCode.DONE
    state = backup.status()
    loss = state.possible_loss(time.time())
    facts: dict[str, object] = {"run": run.run_id, **asdict(state)}
    facts["possible_loss_seconds"] = loss.seconds
    newest = backup.store.newest_healthy()
    training = training_words(run, None if newest is None else backup.store.read(newest).step)
    seen = state.seen(time.time())
    lines = [f"Run {run.run_id}", loss.text]
    lines += [f"Seen there: {seen}"] if seen else []
    lines += [training] if training else []
    facts["training"] = training
    is_given, place = PLACE in _given(config), open_place(backup.options.place)
    missing = _missing_folder(place)
    nothing = None
    if missing is None and is_given and state.confirmed_step is None:
        nothing = _nothing_in_folder(run.run_id, place)
    if missing is not None:
        lines.append(f"Caution: {missing}")
    elif nothing is not None:
        lines.append(
            phrase("commands.caution_no_backup_of_run", problem=nothing, url=shlex.quote(place.url))
        )
    elif loss.seconds == 0.0 or (training is not None and state.confirmed_name == newest):
        caution = place.caution(run.path) if isinstance(place, FolderPlace) else None
        safe = phrase("commands.nothing_would_be_lost")
        safe += phrase("commands.as_destination_last_seen") if seen else ""
        lines.append(f"Caution: {caution}" if caution else safe)
    elif training is not None:
        since = (
            "all steps" if state.confirmed_step is None else f"steps after {state.confirmed_step}"
        )
        lines.append(phrase("commands.steps_would_be_lost", steps=since))
    elif loss.seconds is not None:
        lines.append(phrase("commands.work_would_be_lost", age=age_words(loss.seconds)))
    show(options.json, {**facts, "text": loss.text, "missing": missing or nothing}, *lines)
    return ExitCode.WRONG_INPUT if missing is not None and is_given else ExitCode.DONE


def _nothing_in_folder(run_id: str, place: Place) -> str | None:
    """Return a message if the destination folder has other runs but not this one; otherwise
    None.
    """
    if not isinstance(place, FolderPlace):
        return None
    runs = answer_of(place, lambda: runs_at(place))
    return _nothing_of(run_id, place) if runs and run_id not in runs else None


def _missing_folder(place: Place) -> str | None:
    """Return a message if the destination is a missing folder; otherwise None."""
    if not isinstance(place, FolderPlace) or place.root.is_dir():
        return None
    return phrase("commands.destination_folder_missing", url=place.url)


def training_words(run: RunDirectory, newest_step: int | None) -> str | None:
    """Return how a run ended, and the command that resumes it.

    Return None if a process still trains the run, or if that is unknown.
    """
    trainer = read_trainer(run.path)
    is_back = trainer is None and brought_back_from(json_of(run.path / "run.json")) is not None
    if not is_back and (trainer is None or trainer.is_alive is not False):
        return None
    if run.is_finished():
        return phrase("commands.run_finished")
    command = phrase("commands.command_or_train_resume", run=shlex.quote(from_here(run.path)))
    go_on = how_to_run_again(read_run_record(run)) if run.is_of_a_trainer() else command
    at = "" if newest_step is None else phrase("commands.from_step", step=newest_step)
    if is_back or trainer is None:
        return phrase("commands.restored_run_not_resumed", command=go_on, start=at)
    by_person = was_stopped(run.path, trainer)
    how = {
        RunStatus.STOPPED: "commands.run_was_stopped",
        RunStatus.FAILED: "commands.run_ended_with_error",
    }
    usual = "commands.run_was_stopped" if by_person else "commands.run_was_killed"
    ended = phrase(how.get(run.status(), usual))
    return phrase("commands.run_ended_early", ended=ended, command=go_on, start=at)


Action = Callable[[argparse.Namespace, DeploymentConfig], ExitCode]
ACTIONS: dict[str, tuple[str, Action]] = {
    CREATE: ("back up the newest checkpoint now", create),
    "list": (
        "list a run's checkpoints, here and at its backup destination; with --place but no"
        " RUN, list the runs there",
        list_backups,
    ),
    "verify": ("verify every byte of a run, here and at its backup destination", verify),
    RESTORE: ("restore a run from its backup destination into the runs folder", restore),
    PRUNE: (
        "delete all checkpoints but those that the retention settings keep, here and in the backup",
        prune,
    ),
    "status": (
        "show what is backed up, and what you would lose if this machine disappeared now",
        status,
    ),
}


def _given(config: DeploymentConfig) -> set[str]:
    """Return the keys of the settings given for this command: in a flag, file or variable."""
    return {key for key, source in config.sources().items() if source.layer is not Layer.DEFAULT}


def _backup_of_run(
    name: str | None, config: DeploymentConfig, must_have_place: bool = True, opens: bool = True
) -> tuple[RunDirectory, RunBackup]:
    """Return a local run and its backup. Settings given now override those of the run.

    The destination is the given one, or else the one to which the run was last backed up.

    Args:
        opens: whether the caller accesses the destination, for which a password may be needed.
    """
    run = RunDirectory(find_run_path(name, Path(config.output_dir)))
    recorded = run.read_settings()
    changes = {
        key.rpartition(".")[2]: config.value(key)
        for key in _given(config)
        if key.startswith("backup.")
    }
    options = place_options(recorded).copy_with(**changes)
    recorded_place = options.place and redact_urls(open_place(options.place).url)
    last = None if PLACE in _given(config) else last_place(run.checkpoints)
    if last not in (None, recorded_place):
        if MASK in last and opens:
            raise InputError(
                "commands.destination_password_not_stored", run_id=run.run_id, url=last
            )
        options = options.copy_with(place=last)
    if options.place is None and must_have_place:
        raise InputError("commands.run_has_no_destination", run_id=run.run_id)
    retention = retention_of(recorded.training)
    return run, RunBackup(
        run.checkpoints,
        options,
        run_id=run.run_id,
        traceback_path=run.path / COPIER_TRACEBACK_FILE,
        retention=retention,
    )


def _named(name: str | None, config: DeploymentConfig) -> tuple[str, RunBackup]:
    """Return the ID and the backup of a run on this machine; if it is not here, at the given
    destination.
    """
    try:
        run, backup = _backup_of_run(name, config, must_have_place=False)
    except ValueError:
        if config.backup.place is None:
            raise
        run_id = named_run(open_place(config.backup.place), name)
        store = Path(config.output_dir) / run_id / "checkpoints"
        return run_id, RunBackup(store, config.backup, run_id=run_id)
    return run.run_id, backup


def _to_restore(name: str | None, config: DeploymentConfig) -> tuple[str | None, BackupConfig]:
    """Return the name of the run to restore, and the settings of its backup.

    If no destination is given and part of the run is still on this machine, the run's last
    destination is used.
    """
    if config.backup.place is not None:
        return name, config.backup
    if name is not None:
        try:
            run, backup = _backup_of_run(name, config)
        except NoSuchRunError:
            pass  # nothing of it is on this machine
        except ValueError as error:
            error.add_note(phrase("commands.place_restores_run"))
            raise
        else:
            return run.run_id, backup.options
    whose = "" if name is None else f" of {name}"
    known = " or ".join(_places_of_runs(Path(config.output_dir)))
    others = (
        phrase(
            "commands.destinations_of_other_runs", output_dir=config.output_dir, destinations=known
        )
        if known
        else ""
    )
    raise InputError(
        "commands.backup_location_unknown", of_run=whose, variable=variable_of(PLACE), others=others
    )


def _places_of_runs(output_dir: Path) -> list[str]:
    """Return the backup destinations of the runs in a folder, starting with the newest run."""
    runs = map(RunDirectory, reversed(run_folders(output_dir)))
    places = (last_place(run.checkpoints) for run in runs)
    return [*dict.fromkeys(place for place in places if place is not None)][:MAX_NAMED]


def _folder_for(name: str, config: DeploymentConfig) -> Path:
    """Return the folder into which to restore a run: the parent folder if `name` is a path, else
    `output_dir`.
    """
    path = folder_of(name)
    is_path = len(path.parts) > 1 and "output_dir" not in _given(config)
    return path.parent if is_path else Path(config.output_dir)
