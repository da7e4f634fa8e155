"""The backup of a run: the check before training, the display during it, the wait at the end.

Problems with the destination are reported and never stop a run that has started. If there is no
destination, a line at the end of the run says so.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import cast

from infrastructure.backup.backends import open_place
from infrastructure.backup.finished_run import Completion, complete, not_safe
from infrastructure.backup.format.retention import retention_of
from infrastructure.backup.format.store import Store
from infrastructure.backup.free_space import require_free_space
from infrastructure.backup.replication.status import (
    DOWN,
    FENCED,
    BackupStatus,
    age_words,
    short_words,
)
from infrastructure.backup.run_backup import CONTACT_SECONDS, RunBackup, place_options
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.console import details
from infrastructure.core.kept_traceback import COPIER_TRACEBACK_FILE
from infrastructure.core.messages import phrase
from infrastructure.core.waiting import within
from infrastructure.monitoring.training_monitor import Probe
from infrastructure.run.directory import RunDirectory
from infrastructure.run.progress_bar import byte_bar
from infrastructure.run.record_types import CopyFacts

# States that waiting would not change: another machine has resumed the run, the destination does
# not confirm anything, or the copier cannot run.
NO_MORE = (FENCED, "doubtful", DOWN)
QUIET_SECONDS = 2.0  # waiting time that is not reported
LOOK_SECONDS = 1.0  # between two checks of the status
REPORT_SECONDS = 30.0
CONFIRM_FACTOR = 1.5  # connections may become slower


class RunReplication:
    """The backup of one run.

    Args:
        report: a function that shows a line to the user.

    Raises:
        ValueError: if `backup.place` is not a valid destination.
    """

    def __init__(
        self, run: RunDirectory, config: DeploymentConfig, report: Callable[[str], None]
    ) -> None:
        self.run, self.config, self.report = run, config, report
        self.backup = RunBackup(
            run.checkpoints,
            place_options(config),
            run_id=run.run_id,
            traceback_path=run.path / COPIER_TRACEBACK_FILE,
            retention=retention_of(config.training),
        )
        self.completion = Completion()
        self._seen: tuple[float, BackupStatus] | None = None

    @property
    def has_place(self) -> bool:
        """True if there is a backup destination."""
        return self.backup.options.place is not None

    def check_place(self) -> None:
        """Check the destination, so that problems are reported before any long operation.

        Raises:
            StorageError: if the destination cannot be used. The message says what to do.
        """
        missing = self.backup.check_place()
        if missing is not None:
            self.report(phrase("run.training_without_backups", problem=missing))

    def check_free_space(self, bytes_per_version: int, total_steps: int) -> None:
        """Check the space for the checkpoints, on this machine and at the backup destination.

        The free space is printed only if output is verbose.

        Raises:
            StorageError: if there is not enough space.
        """
        keep = versions_kept(self.config.training, total_steps)
        more = details(self.report)  # the forecast has a summary of it
        more(require_free_space("Disk", self.backup.store, keep, bytes_per_version))
        if self.backup.options.place is None:
            return
        place, keep = open_place(self.backup.options.place), self.backup.options.keep

        def look() -> tuple[str, str | None]:
            store = Store(Path(self.run.run_id), place)
            free_space = require_free_space(place.url, store, keep, bytes_per_version)
            return free_space, place.caution(self.run.path)

        try:
            free_space, caution = within(CONTACT_SECONDS, look)
            more(free_space)
        except OSError as error:
            caution = f"{place.url}: {error}; {place.advice(error)}"
        if caution is not None:
            self.report(f"note: {caution}")

    def short(self) -> str | None:
        """Return the age of the last confirmed checkpoint as a short text for the progress line."""
        if not self.has_place:
            return None
        return short_words(self._look(), time.time())

    def confirmed_step(self) -> int | None:
        """Return the newest step that is confirmed at the backup destination, or None."""
        return self._look().confirmed_step

    def seconds_to_confirm(self) -> float:
        """Estimate the seconds until a checkpoint is confirmed, from how long the last one took.

        The estimate is at most `backup.finish_seconds`, the maximum time for which a run waits at
        its end.
        """
        if not self.has_place:
            return 0.0
        status = self._look()
        if status.confirmed_at is None or status.saved_at is None:
            return self.config.backup.emergency_seconds
        confirm_seconds = max(0.0, status.confirmed_at - status.saved_at)
        return min(CONFIRM_FACTOR * confirm_seconds, self.config.backup.finish_seconds)

    def _look(self) -> BackupStatus:
        """Return the backup status. It is read from the file at most once every LOOK_SECONDS."""
        if self._seen is None or time.monotonic() - self._seen[0] >= LOOK_SECONDS:
            self._seen = (time.monotonic(), self.backup.status())
        return self._seen[1]

    def age_seconds(self) -> float | None:
        """Return the age of the last confirmed checkpoint in seconds; None if there is none."""
        return self.backup.status().possible_loss(time.time()).seconds

    def probes(self) -> dict[str, Probe]:
        """Return functions, by name, from which the monitor gets its values about the backup."""
        if not self.has_place:
            return {}
        return {
            "backup_age_seconds": self.age_seconds,
            "copier_failures": lambda: self.backup.num_copier_failures,
        }

    def line(self) -> str:
        """Return the status of the backup as a message."""
        if not self.has_place:
            return phrase("monitoring.checkpoints_not_backed_up")
        return self.backup.status().possible_loss(time.time()).text

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` until the newest checkpoint is confirmed. Ctrl-C ends the wait."""
        if self.has_place:
            with self._skipped_by_ctrl_c():
                self._wait(seconds, self.backup.begin_last_look())

    def _wait(self, seconds: float, look: str = "") -> BackupStatus:
        """Wait until the newest checkpoint is confirmed and the check with the token `look` is
        done.

        Returns:
            The status when both are done or the time is up.
        """
        newest = self.backup.store.newest_healthy()
        self.backup.try_again()
        if newest is None or seconds <= 0:
            return self.backup.status()
        deadline = reported_at = time.monotonic()
        deadline += seconds
        status = self.backup.status()
        if not _is_over(status, newest, look):
            status = self.backup.finish(min(QUIET_SECONDS, seconds), look)
        if _is_over(status, newest, look):
            return status
        self.report(phrase("run.waiting_for_backup", duration=age_words(seconds)))
        reported = status.error or ""
        if reported:
            self.report(self.line())
        with byte_bar("backup") as move_bar:
            while not _is_over(status, newest, look):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                status = self.backup.finish(min(LOOK_SECONDS, left), look)
                move_bar(status.done_bytes, status.total_bytes)
                is_news = status.error is not None and status.error != reported
                if is_news or time.monotonic() - reported_at >= REPORT_SECONDS:
                    reported, reported_at = status.error or reported, time.monotonic()
                    self.report(self.line())
        return status

    def complete(self, seconds: float, record: Callable[[], object]) -> None:
        """Wait at most `seconds` until the destination has confirmed a finished run.

        The result is stored in `completion`. Ctrl-C and SIGTERM end the wait, but the copier
        continues by itself.

        Args:
            record: a function that writes the summary and the report once the URL of the model is
                known.
        """
        if not self.has_place:
            return

        def recorded(published: str) -> None:
            self.completion = Completion(published, None)
            record()

        with self._skipped_by_ctrl_c():
            self.completion = complete(
                self.backup, self.run.path, seconds, wait=self._wait, record=recorded
            )
            return
        self.completion = Completion(self.completion.published, phrase("run.wait_for_backup_ended"))

    def compare_anew(self) -> None:
        """Discard earlier confirmations, because the destination may have changed since then."""
        if self.has_place:
            self.backup.forget_status()

    def problem(self) -> str | None:
        """Return a message if a finished run is not confirmed at its backup destination.

        Return None if the run is confirmed, or if there is no destination.
        """
        if not self.has_place or self.completion.is_complete:
            return None
        return not_safe(self.run.path, str(self.backup.options.place), self.completion)

    def report_incomplete(self) -> None:
        """Show the user a message if the finished run is not confirmed at its destination."""
        if (problem := self.problem()) is not None:
            self.report(problem)

    def close(self) -> None:
        """Tell the copier that the training has ended. Pending copies are finished."""
        self.backup.close()

    def facts(self) -> CopyFacts:
        """Return the status of the backup for summary.json and the report."""
        if not self.has_place:
            return {"text": phrase("monitoring.checkpoints_not_backed_up")}
        status = self.backup.status()
        loss = status.possible_loss(time.time())
        known = {name: value for name, value in asdict(status).items() if value is not None}
        facts = {
            **known,
            "possible_loss_seconds": loss.seconds,
            "text": loss.text,
            **{name: value for name, value in asdict(self.completion).items() if value},
        }
        return cast(CopyFacts, facts)

    @contextmanager
    def _skipped_by_ctrl_c(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            self.report(phrase("run.backup_continues_unattended", backup_status=self.line()))


def _is_over(status: BackupStatus, newest: str, look: str) -> bool:
    """Return whether the backup is confirmed and checked, or cannot make further progress."""
    is_settled = status.is_settled(newest) and status.has_looked(look)
    return is_settled or status.state in NO_MORE


def versions_kept(training: TrainingConfig, total_steps: int) -> int:
    """Return the maximum number of checkpoints that are kept on this machine."""
    return min(training.keep_checkpoints + training.num_best_kept, total_steps)


def newest_kept(training: TrainingConfig, total_steps: int) -> int:
    """Return how many checkpoints are kept if the newest checkpoints are also the best ones."""
    return min(max(training.keep_checkpoints, training.num_best_kept), total_steps)
