"""A check that a finished run is complete at a backup destination, and its download.

A finished run counts as safe when the destination holds these files:

<place>/<run>/versions/ …            the newest checkpoint, confirmed
             /final[-<8 digits>]/    the trained model and its SHA256SUMS
             /report/                the files written last: summary, report, metrics
"""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from infrastructure.backup.backends.base import Place
from infrastructure.backup.repair.run_files_repair import SEAL, seal_of
from infrastructure.backup.replication.folder_upload import compare, fetch_folder, read_sums
from infrastructure.backup.replication.object_reader import Progress
from infrastructure.backup.replication.status import DOWN, BackupStatus
from infrastructure.backup.run_backup import RunBackup
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.checksums import parse_record, write_record
from infrastructure.core.errors import DamagedFileError, StorageError
from infrastructure.core.features import run_files_of_features
from infrastructure.core.json_text import JsonObject, as_integer, as_object
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact, redact_urls

LAST_LOOK_SECONDS = 10.0  # minimum for the final check
FINAL, REPORT, SUMMARY = "final", "report", "summary.json"
LAST_FILES = (
    SUMMARY,
    "report.html",
    "metrics.jsonl",
    "forecast.json",
    "trained_rows.json",  # checkpoints lack it if it is larger than their files may be
)


@dataclass(frozen=True)
class Completion:
    """The confirmation of a finished run by its destination.

    Attributes:
        published: the URL of the trained model, or None if the destination has not confirmed the
            model.
        problem: a message on what is missing and why, or None if everything is confirmed.
    """

    published: str | None = None
    problem: str | None = None

    @property
    def is_complete(self) -> bool:
        return self.problem is None


def complete(
    backup: RunBackup,
    run_path: Path,
    seconds: float,
    *,
    wait: Callable[[float], BackupStatus] | None = None,
    record: Callable[[str], None] = do_nothing,
) -> Completion:
    """Wait at most `seconds` until the destination has confirmed the finished run in `run_path`.

    Files that the destination has already confirmed are not copied again, only checked.

    Args:
        wait: a function that waits at most the given number of seconds until the newest checkpoint
            is confirmed. That checkpoint is checked once more at the end.
        record: a function that is called with the URL of the model before the summary and the
            report are copied.

    Raises:
        KeyboardInterrupt: if the user interrupts the wait. The copier continues by itself.
    """
    deadline = time.monotonic() + seconds
    published = None
    try:
        (wait or partial(backup.finish, look=""))(seconds)
        published = backup.publish(run_path / FINAL, _left(deadline))
        record(published)
        last = (*LAST_FILES, *run_files_of_features())
        files = [name for name in last if (run_path / name).is_file()]
        backup.publish(run_path, _left(deadline), name=REPORT, files=files, replaces=True)
    except (StorageError, OSError, ValueError) as error:
        down = backup.status()
        cause = down.problem if down.state == DOWN else None  # the cause of everything else
        return Completion(published, cause or redact(str(error)))
    look = backup.begin_last_look()  # copying the model may have taken a long time
    status = backup.finish(max(LAST_LOOK_SECONDS, _left(deadline)), look)
    if status.confirmed_name != backup.store.newest_healthy():
        problem = status.problem or phrase("backup.last_checkpoint_not_confirmed")
        return Completion(published, problem)
    if not status.has_looked(look) or published not in status.published_folders.values():
        return Completion(published, status.problem or phrase("backup.final_check_not_done"))
    return Completion(published)


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def not_safe(run_path: Path, place: str, end: Completion) -> str:
    """Return a message that a run is finished on this machine but its backup is not confirmed."""
    problem = end.problem
    if end.published is not None:
        return phrase(
            "backup.finished_run_partly_confirmed",
            run=run_path.name,
            url=redact_urls(end.published),
            problem=problem,
        )
    return phrase(
        "backup.finished_run_not_confirmed",
        run=run_path.name,
        model=run_path / FINAL,
        url=redact_urls(place),
        problem=problem or phrase("backup.confirmation_not_awaited"),
    )


@dataclass(frozen=True)
class FinishedThere:
    """A finished run at a backup destination, all of whose files match their checksums.

    Attributes:
        model: the folder of its model, relative to the destination.
        summary: the contents of its summary.json.
    """

    place: Place
    model: Path
    model_sums: dict[str, str]
    report: Path
    report_sums: dict[str, str]
    summary: JsonObject

    @property
    def url(self) -> str:
        """The URL of the model."""
        return f"{self.place.url}/{self.model}"

    def fetch(self, run_path: Path, on_progress: Progress) -> None:
        """Fetch the model, the summary and the report into the run's directory.

        Raises:
            DamagedFileError: if a file does not match its checksum.
            OSError: if the destination does not respond, or the local disk fails.
        """
        if not (run_path / FINAL).is_dir():
            fetch_folder(self.place, self.model, self.model_sums, run_path / FINAL, on_progress)
        part = run_path / f".{REPORT}"
        fetch_folder(self.place, self.report, self.report_sums, part, on_progress)
        for name in (*LAST_FILES, *run_files_of_features()):
            if name != SUMMARY and (part / name).is_file():
                (run_path / name).parent.mkdir(parents=True, exist_ok=True)
                (part / name).replace(run_path / name)
        shutil.rmtree(part)
        write_record(run_path / SUMMARY, {**self.summary, SEAL: seal_of(run_path)})


def finished_at(place: Place, run_id: str, step: int) -> FinishedThere | None:
    """Return the finished run `run_id` at the destination; None if it is not finished there.

    Args:
        step: the step of the run's newest checkpoint at the destination.

    Raises:
        OSError: if the destination does not respond.
    """
    report = Path(run_id) / REPORT
    try:
        report_sums = read_sums(place, report)
        if report_sums is None or any(compare(place, report, report_sums)):
            return None
        summary = parse_record(b"".join(place.read(report / SUMMARY)))
        is_finished = summary.get("status") == "finished"
        if not is_finished or as_integer(summary["steps"]) < step:  # it was trained further
            return None
        model = (
            Path(run_id)
            / str(as_object(summary["backup"])["published"]).rstrip("/").rpartition("/")[2]
        )
        model_sums = read_sums(place, model)
    except (DamagedFileError, FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    if not model_sums:
        return None
    return FinishedThere(place, model, model_sums, report, report_sums, summary)
