"""Functions to list the runs at a backup destination, find a matching one, and restore it."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from infrastructure.backup.backends import Place, open_place
from infrastructure.backup.backends.folder import FolderPlace
from infrastructure.backup.finished_run import finished_at
from infrastructure.backup.format.manifest import Manifest, SaveKind, VersionName
from infrastructure.backup.format.store import Store
from infrastructure.backup.inventory import runs_at
from infrastructure.backup.repair.run_files_repair import RunFileRepair
from infrastructure.backup.run_backup import RunBackup
from infrastructure.backup.state.run_files import restore_run_files
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.errors import CheckpointError, DamagedFileError, InputError, StorageError
from infrastructure.core.files import make_directory
from infrastructure.core.lookup import unknown_name
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact
from infrastructure.monitoring.records.run_list import FINAL, MAX_NAMED, RUN_FILE
from infrastructure.run.checkpoint_paths import best_of, by_step
from infrastructure.run.directory import BEST, RunDirectory, RunStatus, is_named_in_id
from infrastructure.run.find import is_same, settings_in, wanted_beside
from infrastructure.run.history import history_in, not_accepted
from infrastructure.run.output_dir import writable
from infrastructure.run.progress_bar import byte_bar
from infrastructure.run.record import record_brought_back

T = TypeVar("T")

log = logging.getLogger(__name__)


def run_at_place(config: DeploymentConfig, accepted: Collection[str]) -> str | None:
    """Return the newest run at the backup destination with the settings of `config`; None if there
    is none.

    Raises:
        ValueError: if the destination is invalid.
        StorageError: if the destination does not respond, so that its contents are unknown.
    """
    place = open_place(str(config.backup.place))
    for run_id in reversed(answer_of(place, lambda: runs_at(place))):
        values = answer_of(place, partial(newest_values, place, run_id))
        settings = settings_in(values)
        is_changed = bool(not_accepted(history_in(values), accepted))
        if is_changed or not settings:
            continue
        if is_same(settings, wanted_beside(None, config), accepted):
            return run_id
    return None


def runs_at_place(options: BackupConfig) -> list[str]:
    """Return the runs that have a checkpoint at the backup destination.

    Raises:
        StorageError: if the destination does not respond.
    """
    place = open_place(str(options.place))
    return answer_of(place, lambda: runs_at(place))


def newest_values(place: Place, run_id: str) -> Mapping[str, object]:
    """Return the values in the newest readable manifest of a run; empty if there is none."""
    for manifest in readable(Store(Path(run_id), place)):
        return manifest.values
    return {}


def readable(store: Store) -> Iterator[Manifest]:
    """Yield the readable manifests of a store, the newest first."""
    for name in store.versions():
        try:
            yield store.read(name)
        except CheckpointError as error:
            log.warning(
                phrase(
                    "run.unreadable_version_skipped", root=store.root, name=name[:12], error=error
                )
            )


def restore_run(
    run_id: str | None,
    options: BackupConfig,
    output_dir: Path,
    step: int | None = None,
    report: Callable[[str], None] = do_nothing,
) -> tuple[RunDirectory, Path]:
    """Restore a run from its destination into `output_dir`, and verify it.

    If `run_id` is None, the newest run is restored. Fetch the newest intact checkpoint, the best
    checkpoint, and the run's files. Newer files on this machine are kept. If the run is finished at
    the destination, also fetch its model, summary and report.

    Returns:
        The run, and the restored checkpoint.

    Raises:
        ValueError: if the destination is invalid or has no such run, or `output_dir` is not
            writable.
        CheckpointError: if the destination has no intact checkpoint.
        StorageError: if the destination does not respond, or the local disk fails.
    """
    place = open_place(str(options.place))
    run_id = named_run(place, run_id)
    run = RunDirectory(writable(output_dir).absolute() / run_id)
    before = Store(run.checkpoints).versions()
    backup = RunBackup(run.checkpoints, options, run_id=run_id)
    make_directory(run.path)
    try:
        with byte_bar("restoring") as move_bar:
            checkpoint = backup.restore_run(step, on_progress=move_bar)
    except CheckpointError as error:
        if step is not None:
            steps = answer_of(place, lambda: by_step(Store(Path(run_id), place)))
            error.add_note(f"it has: {', '.join(map(str, sorted(steps))) or 'none'}")
        raise
    store = Store(run.checkpoints)
    is_brought = not run.run_file.is_file() or not before or checkpoint.stem > before[0]
    if is_brought:
        for problem in restore_run_files(store, store.read(checkpoint.stem), run.path):
            log.warning("%s", problem)
        there = Store(Path(run_id), place)
        # A new machine only has the newest version, which may lack run.json: search all versions.
        stores = [store, there] if before else [there, store]
        if not run.has_record() and (repair := RunFileRepair(run.path, stores).restore(RUN_FILE)):
            log.warning("%s", repair.text)  # from an older version
    if step is None:
        _restore_best(backup, Store(Path(run_id), place), store)
    if step is None and not run.is_finished():
        _restore_end(place, run, store.read(checkpoint.stem).step, report)
    if is_brought and not run.is_finished():
        record_brought_back(run, place.url, _was_killed(run, place))
    return run, checkpoint


def _was_killed(run: RunDirectory, place: Place) -> bool:
    """Return whether the run was killed instead of stopped normally.

    The answer is in summary.json if that file exists on this machine. Otherwise, it follows from
    the kind of the newest checkpoint at the destination, and from whether the run is finished
    there.
    """
    if run.summary_file.is_file():
        return run.status() is RunStatus.RUNNING
    try:
        newest = next(readable(Store(Path(run.run_id), place)), None)
        if newest is None or newest.kind in (SaveKind.STOPPED, SaveKind.EMERGENCY):
            return False
        return finished_at(place, run.run_id, newest.step) is None
    except (OSError, DamagedFileError):
        return True


def _restore_best(backup: RunBackup, remote: Store, store: Store) -> None:
    """Restore the checkpoint with the lowest score, if it exists only at the destination.

    Then `@best` refers to the same checkpoint as before the machine was lost.
    """
    try:
        here, there = best_of(store), best_of(remote)
        if there is None or (here is not None and here.stem == there.stem):
            return
        with byte_bar(phrase("run.restoring_best_checkpoint")) as move_bar:
            backup.restore_run(remote.read(there.stem).step, on_progress=move_bar)
    except (CheckpointError, StorageError, OSError) as error:
        log.warning(phrase("run.best_checkpoint_not_restored", error=redact(str(error))))


def _restore_end(place: Place, run: RunDirectory, step: int, report: Callable[[str], None]) -> None:
    """Restore the model, summary and report of a run that is finished at its destination.

    If a file is damaged, the run can resume from its last checkpoint and write the file again.
    """
    try:
        finished = finished_at(place, run.run_id, step)
        if finished is None:
            return
        report(phrase("run.finished_at_destination", url=finished.url))
        with byte_bar(phrase("run.restoring_model")) as move_bar:
            finished.fetch(run.path, move_bar)
    except (OSError, DamagedFileError) as error:
        log.warning(
            phrase("run.finished_run_not_restored", run=run.run_id, error=redact(str(error)))
        )


def named_run(place: Place, name: str | None) -> str:
    """Return the id of a run at a destination, given the name that the user typed.

    Args:
        name: the run's id or given name, or the path of the run or of its model on this machine.
            None means the newest run.

    Raises:
        ValueError: if there is no run of that name, or no run at all.
        StorageError: if the destination does not respond.
    """
    known = answer_of(place, lambda: runs_at(place))
    run_id = folder_of(name).name if name else None
    if not known:
        named = "" if run_id is None else phrase("run.none_of_that_name", run=run_id)
        raise InputError(
            "run.no_run_at_destination", url=place.url, named=named, reason=why_empty(place)
        )
    if run_id is None:
        return known[-1]
    if run_id in known:
        return run_id
    called = [known_id for known_id in known if is_named_in_id(known_id, run_id)]
    if not called:
        raise InputError(
            "run.unknown_run_at_destination",
            url=place.url,
            problem=unknown_name("run", run_id, known, MAX_NAMED),
        )
    return called[-1]


def folder_of(name: str) -> Path:
    """Return the folder of a run from the path of the run or of its trained model."""
    path = Path(name)
    return path.parent if path.name == FINAL and len(path.parts) > 1 else path


def step_at_place(place: Place, run_id: str, version: str) -> int:
    """Return the step of a checkpoint at a destination; see `split_version` and `check_version`.

    Raises:
        ValueError: if the best checkpoint is requested and none was measured.
        CheckpointError: if the manifest of the checkpoint is missing or damaged.
        StorageError: if the destination does not respond.
    """
    store = Store(Path(run_id), place)
    if version == BEST:
        best = answer_of(place, lambda: best_of(store))
        if best is None:
            raise InputError("run.no_measured_checkpoint_there", run=run_id)
        version = best.stem
    if VersionName.parse(version) is not None:
        return answer_of(place, lambda: store.read(version).step)
    return int(version)


def check_version(run: str, version: str | None) -> None:
    """Check the name of a checkpoint before a destination is queried.

    Raises:
        ValueError: if the name is invalid. The message describes valid ones.
    """
    if version in (None, BEST) or version.isdecimal() or VersionName.parse(version) is not None:
        return
    raise InputError("run.malformed_checkpoint_name", run=run, version=version, best=BEST)


def why_empty(place: Place) -> str:
    """Return ": " and the reason if the folder or repository of a destination does not exist.

    Return "" if the folder or repository exists.
    """
    try:
        place.names(Path())
    except OSError as error:
        if isinstance(place, FolderPlace) and isinstance(error, FileNotFoundError):
            return phrase("run.destination_folder_missing")
        return f": {redact(error.strerror or str(error))}"
    return ""


def answer_of(place: Place, question: Callable[[], T]) -> T:
    """Return the result of `question`, a function that queries the destination.

    Raises:
        StorageError: if the destination does not respond. The message says what the user can do.
    """
    try:
        return question()
    except OSError as error:
        raise StorageError(
            "run.destination_not_responding",
            url=place.url,
            reason=redact(error.strerror or str(error)),
            advice=place.advice(error),
        ) from error
