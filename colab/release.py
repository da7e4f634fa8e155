"""The release of a Colab runtime once a run is safe, so that the runtime costs nothing more.

Everything on the runtime's disk is lost with the runtime. So it is released only after the backup
destination has confirmed the newest checkpoint and the trained model again. Otherwise it is kept,
and one sentence says why.
"""

import importlib
from pathlib import Path

from colab.drive import flush_drive
from colab.runtime import Platform, platform
from infrastructure.backup.backends import open_place
from infrastructure.backup.backends.drive import DrivePlace
from infrastructure.backup.finished_run import complete
from infrastructure.backup.format.retention import retention_of
from infrastructure.backup.replication.status import age_words
from infrastructure.backup.run_backup import RunBackup, last_place, place_options
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.checksums import damaged_files
from infrastructure.core.errors import StorageError
from infrastructure.core.lock import Lock
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact
from infrastructure.run.directory import RunDirectory, find_run
from infrastructure.run.lock import LOCK_FILE

RUNTIME_STAYS = "The runtime stays"


def release_runtime(
    run: str | Path | None = None, output_dir: str | Path = "runs", seconds: float = 900.0
) -> bool:
    """End this Colab session once the last checkpoint and the trained model are known to be safe.

    Args:
        run: the run's name or directory; by default, the newest in `output_dir`.
        seconds: the longest wait for the backup of the checkpoint, and then for that of the model.

    Returns:
        True if the runtime was released. If not, the reason is printed.

    Raises:
        ValueError: if there is no such run.
    """
    run_directory, _ = find_run(None if run is None else str(run), Path(output_dir))
    if platform() is not Platform.COLAB:
        return _stays(phrase("notebook.no_runtime_outside_colab"))
    try:
        print(make_sure(run_directory, seconds))
        return _unassign(run_directory)
    except (StorageError, ValueError, OSError) as error:
        return _stays(str(error))


def make_sure(run: RunDirectory, seconds: float) -> str:
    """Check at the backup destination that the newest checkpoint and any trained model are safe.

    Returns:
        A sentence on what is safe, and where.

    Raises:
        StorageError: if the checkpoint or the model is not known to be safe; the message says
            what is missing.
        ValueError: if the run's record cannot be read, or names no backup destination.
    """
    if not Lock(run.path / LOCK_FILE).take(wait=False, where_there_are_none=True):
        raise StorageError("notebook.run_is_training", run=run.run_id)
    recorded = run.read_settings()
    options = _options_of(run).copy_with(finish_seconds=seconds)
    if options.place is None:
        raise StorageError("notebook.run_without_backup", run=run.run_id)
    backup = RunBackup(
        run.checkpoints, options, run_id=run.run_id, retention=retention_of(recorded.training)
    )
    backup.forget_status()  # earlier confirmations do not count
    with backup:
        step = _confirmed_step(run, backup, seconds)
        if not run.is_finished():
            return phrase(
                "notebook.unfinished_run_confirmed", step=step, run=run.run_id, place=options.place
            )
        if damaged := damaged_files(run.final):
            raise StorageError("notebook.trained_model_damaged", run=run.run_id, files=damaged)
        end = complete(backup, run.path, seconds)
        if end.problem is not None:
            raise StorageError("notebook.model_not_confirmed", run=run.run_id, reason=end.problem)
    return phrase(
        "notebook.finished_run_confirmed",
        run=run.run_id,
        step=step,
        place=options.place,
        published=end.published,
    )


def _confirmed_step(run: RunDirectory, backup: RunBackup, seconds: float) -> int | None:
    newest = backup.store.newest_healthy()
    if newest is None:
        raise StorageError("notebook.run_without_checkpoint", run=run.run_id)
    status = backup.finish(seconds)
    if status.confirmed_name != newest:
        why = status.error or phrase(
            "notebook.backup_not_confirmed_within", duration=age_words(seconds)
        )
        raise StorageError("notebook.checkpoint_not_confirmed", run=run.run_id, reason=why)
    return status.confirmed_step


def _unassign(run: RunDirectory) -> bool:
    """Ask Colab to release the machine. Return whether it did."""
    if is_drive(_options_of(run)):
        print(flush_drive())
    try:
        importlib.import_module("google.colab.runtime").unassign()
    except Exception as error:  # errors.RuntimeManagementError, and whatever its network raises
        return _stays(
            phrase(
                "notebook.runtime_not_released", error=redact(str(error)) or type(error).__name__
            )
        )
    print(phrase("notebook.runtime_released"))
    return True


def _options_of(run: RunDirectory) -> BackupConfig:
    """Return the run's backup settings, with the last destination if none is configured."""
    options = place_options(run.read_settings())
    return options.copy_with(place=options.place or last_place(run.checkpoints))


def is_drive(options: BackupConfig) -> bool:
    """Return whether the backup destination is a mounted Drive."""
    return options.place is not None and isinstance(open_place(options.place), DrivePlace)


def _stays(why: str) -> bool:
    print(f"{RUNTIME_STAYS}: {redact(why)}")
    return False
