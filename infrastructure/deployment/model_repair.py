"""The repair of a finished run's model and report, before anything reads them."""

import contextlib
import hashlib
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from infrastructure.backup.backends import Place, open_place
from infrastructure.backup.repair.run_files_repair import (
    MODEL_SUMS,
    REPORT_FILE,
    read_seal,
    seal_of,
)
from infrastructure.backup.repair.run_repair import Outcome, Repair
from infrastructure.backup.run_backup import place_options
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.core.checksums import SUMS, damaged_files, parse_sums, sums_text
from infrastructure.core.errors import CheckpointError, DamagedFileError, TemperError
from infrastructure.core.files import atomic_write, whole_directory
from infrastructure.core.lock import Lock
from infrastructure.core.messages import phrase
from infrastructure.deployment.export import export_checkpoint, final_step, version_of_model
from infrastructure.monitoring.report.report import write_report
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.run.directory import RunDirectory
from infrastructure.run.lock import LOCK_FILE
from infrastructure.run.repair import (
    hash_or_none,
    repair_records_of,
    repair_run,
    write_seal,
)

REMADE = ".final-made-anew"

log = logging.getLogger(__name__)


def repair_finished(
    run: RunDirectory, options: BackupConfig, report: Callable[[str], None]
) -> None:
    """Repair a run whose training has ended, including its trained model and its report.

    This does nothing while a living process uses the run.

    Raises:
        StorageError: if this machine's disk cannot be written to.
    """
    lock = Lock(run.path / LOCK_FILE)
    try:
        if not lock.take(wait=False, where_there_are_none=True):
            return
        repair_run(run, options, report)
        if run.is_finished():
            for repair in _repair_model(run, options):
                report(f"note: {repair.text}")
            _write_missing_report(run, report)
    finally:
        lock.release()


def repair_model(path: Path) -> None:
    """Repair the trained model at `path`, a run or its `final/`. Other paths are ignored.

    Damage is reported through logging.

    Raises:
        StorageError: if this machine's disk cannot be written to.
    """
    folder = path.expanduser().resolve()
    folder = folder.parent if folder.name == "final" else folder
    run = RunDirectory(folder)
    if not run.final.is_dir() or not (run.checkpoints / "versions").is_dir():
        return
    repair_records_of(run)
    try:
        options = place_options(run.read_configuration())
    except ValueError:  # a Trainer's run, which has its own script, or damaged beyond repair
        options = BackupConfig()
    lock = Lock(run.path / LOCK_FILE)
    try:
        if lock.take(wait=False, where_there_are_none=True):
            for repair in _repair_model(run, options):
                log.warning("%s", repair.text)
    finally:
        lock.release()


def _repair_model(run: RunDirectory, options: BackupConfig) -> Iterator[Repair]:
    """Restore the files of `final/` that differ from its SHA256SUMS, and yield each repair.

    The files come from the backup destination, or if it lacks them from an export of the last
    checkpoint.
    """
    place = None if options.place is None else open_place(options.place)
    sealed = read_seal(run.path).get(MODEL_SUMS)
    sums = run.final / SUMS
    is_damaged = sealed is not None and hash_or_none(sums) != sealed
    if is_damaged and _restore_sums(run, place, str(sealed)):
        yield Repair(
            MODEL_SUMS,
            Outcome.REPAIRED,
            phrase("deployment.checksums_rewritten", file=MODEL_SUMS),
        )
        is_damaged = False
    elif not is_damaged and not sums.exists():
        return  # of an older version of Temper
    names: list[str] = []
    if not is_damaged:
        try:
            expected = parse_sums(sums.read_bytes().decode(errors="replace"))
            names = damaged_files(run.final, expected)
            is_damaged = not expected
        except DamagedFileError:
            is_damaged = True
    if is_damaged:
        yield _make_anew(run, MODEL_SUMS, [])
        return
    remaining = [name for name in names if not _fetched(run, place, name, expected[name])]
    where = "" if place is None else place.url
    for name in [name for name in names if name not in remaining]:
        text = phrase("deployment.model_file_restored", name=name, source=where)
        yield Repair(f"final/{name}", Outcome.REPAIRED, text)
    if remaining:
        yield _make_anew(run, f"final/{remaining[0]}", remaining)


def _restore_sums(run: RunDirectory, place: Place | None, sealed: str) -> bool:
    """Restore SHA256SUMS of `final/` if possible. Return whether it has the hash `sealed`
    afterwards.
    """
    text = sums_text(run.final).encode()
    if hashlib.sha256(text).hexdigest() == sealed:
        with atomic_write(run.final / SUMS) as file:
            file.write(text)
        return True
    return _fetched(run, place, SUMS, sealed)


def _fetched(run: RunDirectory, place: Place | None, name: str, digest: str) -> bool:
    """Restore a file of `final/` from the backup destination. Return whether this succeeded."""
    if place is None:
        return False
    parent = Path(run.run_id)
    with contextlib.suppress(OSError):
        for folder in place.names(parent):
            if folder == "final" or folder.startswith("final-"):
                with contextlib.suppress(OSError, DamagedFileError):
                    _copy(place, parent / folder / name, run.final / name, digest)
                    return True
    return False


def _copy(place: Place, source: Path, target: Path, digest: str) -> None:
    hasher = hashlib.sha256()
    with atomic_write(target) as file:
        for chunk in place.read(source):
            hasher.update(chunk)
            file.write(chunk)
        if hasher.hexdigest() != digest:
            raise DamagedFileError("deployment.copy_damaged", file=source, url=place.url)


def _make_anew(run: RunDirectory, what: str, names: list[str]) -> Repair:
    """Rebuild the files `names` of the trained model, or all its files, from the last
    checkpoint.
    """
    damage = f"{', '.join(f'final/{name}' for name in names) or what} was damaged"
    folder = run.path / REMADE
    try:
        steps, checkpoint = final_step(run), version_of_model(run)
        if step_of(checkpoint) != steps:
            raise CheckpointError("deployment.checkpoint_no_longer_exists", step=steps)
        shutil.rmtree(folder, ignore_errors=True)
        export_checkpoint(run, checkpoint, folder)
        expected = parse_sums((run.final / SUMS).read_text()) if names else {}
        is_same = names and all(hash_or_none(folder / n) == expected[n] for n in names)
        with whole_directory(run.final) as part:
            shutil.copytree(run.final if is_same else folder, part, dirs_exist_ok=True)
            for name in names if is_same else []:
                shutil.copyfile(folder / name, part / name)
    except (TemperError, ValueError, OSError) as error:
        text = phrase("deployment.model_not_rebuilt", damage=damage, reason=error)
        return Repair(what, Outcome.LOST, text)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if seal := read_seal(run.path):
        write_seal(run, {**seal, MODEL_SUMS: hash_or_none(run.final / SUMS)})
    return Repair(
        what,
        Outcome.REPAIRED,
        phrase("deployment.model_rebuilt", damage=damage, step=steps),
    )


def _write_missing_report(run: RunDirectory, report: Callable[[str], None]) -> None:
    """Write the report again if it is missing or damaged, and record the new report's hash."""
    seal: dict[str, str | None] = {**read_seal(run.path)}
    if seal and seal.get(REPORT_FILE) == hash_or_none(run.path / REPORT_FILE):
        return
    try:
        write_report(run.path)
    except Exception as error:  # the report is only for viewing
        log.warning(phrase("deployment.file_not_written", file=REPORT_FILE, error=repr(error)))
        return
    report(phrase("deployment.report_rewritten", file=REPORT_FILE))
    new: dict[str, str | None] = {**seal_of(run.path)}
    write_seal(run, {**seal, REPORT_FILE: new[REPORT_FILE]} if seal else new)
