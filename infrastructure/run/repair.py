"""Repair of the checkpoints and small files of a run, before the run resumes.

Only files on this machine are checked. The destination is read only to replace damaged files.
"""

import contextlib
import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from infrastructure.backup.backends import open_place
from infrastructure.backup.format.store import Store
from infrastructure.backup.repair.run_files_repair import SEAL, RunFileRepair, read_seal
from infrastructure.backup.repair.run_repair import Outcome
from infrastructure.backup.run_backup import RunBackup
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.checksums import read_record, write_record
from infrastructure.core.errors import CheckpointError, DamagedFileError, StorageError
from infrastructure.core.files import file_sha256
from infrastructure.core.lock import Lock
from infrastructure.core.messages import phrase
from infrastructure.monitoring.records.run_list import RUN_FILE, run_folders
from infrastructure.run.directory import RunDirectory
from infrastructure.run.lock import LOCK_FILE

log = logging.getLogger(__name__)


def repair_records(output_dir: Path, options: BackupConfig, report: Callable[[str], None]) -> None:
    """Restore each damaged or missing run.json in `output_dir`, so that its run can be found.

    Runs that are being trained are skipped.
    """
    for path in run_folders(output_dir):
        if RunDirectory(path).has_record() or not is_free(path):
            continue
        try:
            repair = RunFileRepair(path, _stores(path, options)).restore(RUN_FILE)
        except (OSError, CheckpointError) as error:
            report(phrase("run.run_file_unreadable", run=path.name, run_file=RUN_FILE, error=error))
            continue
        if repair is not None:
            report(f"note: run {path.name}: {repair.text}")


def is_free(path: Path) -> bool:
    """Return whether no running process trains the run in `path`."""
    lock = Lock(path / LOCK_FILE)
    try:
        return lock.take(wait=False, where_there_are_none=True)
    finally:
        lock.release()


def _stores(path: Path, options: BackupConfig) -> list[Store]:
    local = Store(path / "checkpoints")
    if options.place is None:
        return [local]
    return [local, Store(Path(path.name), open_place(options.place))]


def repair_run(run: RunDirectory, options: BackupConfig, report: Callable[[str], None]) -> None:
    """Repair the checkpoints and small files of a run. The caller must hold the run's lock.

    Raises:
        StorageError: if the local disk fails.
    """
    repairs = RunBackup(run.checkpoints, options, run_id=run.run_id).repair(run.path)
    for repair in repairs:
        report(f"note: {repair.text}")
    if any(r.outcome is Outcome.LOST and r.what.startswith("tokenizer/") for r in repairs):
        shutil.rmtree(run.tokenizer, ignore_errors=True)  # created again from the model or the data
    lost = {r.what for r in repairs if r.outcome is not Outcome.REPAIRED}
    seal = read_seal(run.path)
    if lost & seal.keys():  # report it only once
        write_seal(run, {**seal, **{name: hash_or_none(run.path / name) for name in lost}})


def repair_records_of(run: RunDirectory) -> None:
    """Restore run.json and the tokenizer of a run from its own checkpoints, and log each repair."""
    if not is_free(run.path):
        return
    with contextlib.suppress(OSError, CheckpointError):
        repairs = RunFileRepair(run.path, [Store(run.checkpoints)])
        for name in [RUN_FILE, *repairs.names("tokenizer/")]:
            if (repair := repairs.restore(name)) is not None:
                log.warning("%s", repair.text)


def write_seal(run: RunDirectory, seal: Mapping[str, str | None]) -> None:
    """Write the hashes of a finished run's files to its summary.json.

    A hash of None means that the file no longer exists. Such files are left out.

    Raises:
        StorageError: if the disk fails.
    """
    kept = {name: digest for name, digest in seal.items() if digest is not None}
    try:
        write_record(run.summary_file, {**read_record(run.summary_file), SEAL: kept})
    except DamagedFileError:  # it is written again when the run ends
        return
    except OSError as error:
        raise StorageError(
            "run.summary_not_writable", summary_file=run.summary_file, error=error
        ) from error


def hash_or_none(path: Path) -> str | None:
    """Return the hex SHA-256 of a file, or None if it is missing or unreadable."""
    try:
        return file_sha256(path)
    except OSError:
        return None
