"""The copies of a run as its training sees them: told before, shown meanwhile, awaited at the end.

Whatever is wrong with a place is told and never stops a training. Without a place there is one line
at the end that says so.
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

# What a wait would not change: another machine has gone on, this place never says what is safe, or
# nobody copies.
NO_MORE = (FENCED, "doubtful", DOWN)
QUIET_SECONDS = 2.0  # of waiting of which nobody need know
LOOK_SECONDS = 1.0  # between two looks at how the copy stands
REPORT_SECONDS = 30.0
CONFIRM_FACTOR = 1.5  # links are not always as fast as they were


class RunReplication:
    """The backup of one run.

    Args:
        report: shows a line to a person.

    Raises:
        ValueError: `backup.place` names no place.
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
        """Whether anything is copied."""
        return self.backup.options.place is not None

    def check_place(self) -> None:
        """Whatever is wrong with the place is told before anything takes time.

        Raises:
            StorageError: it cannot be used; says what to do.
        """
        missing = self.backup.check_place()
        if missing is not None:
            self.report(phrase("run.training_without_backups", problem=missing))

    def check_free_space(self, bytes_per_version: int, total_steps: int) -> None:
        """Say, before the first step, what a version takes and how many fit here and there.

        Raises:
            StorageError: what is to be kept does not fit.
        """
        keep = versions_kept(self.config.training, total_steps)
        more = details(self.report)  # the forecast has the sum of it
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
        """The age of the last confirmed version, for a line that is drawn at every step."""
        if not self.has_place:
            return None
        return short_words(self._look(), time.time())

    def confirmed_step(self) -> int | None:
        """Return the newest step that is safe at the backup destination; None: nothing is."""
        return self._look().confirmed_step

    def seconds_to_confirm(self) -> float:
        """How long a version may take until it is safe at the place, after what the last one took;
        never longer than the end of a run waits for it."""
        if not self.has_place:
            return 0.0
        status = self._look()
        if status.confirmed_at is None or status.saved_at is None:
            return self.config.backup.emergency_seconds
        confirm_seconds = max(0.0, status.confirmed_at - status.saved_at)
        return min(CONFIRM_FACTOR * confirm_seconds, self.config.backup.finish_seconds)

    def _look(self) -> BackupStatus:
        """The status, read at most every LOOK_SECONDS."""
        if self._seen is None or time.monotonic() - self._seen[0] >= LOOK_SECONDS:
            self._seen = (time.monotonic(), self.backup.status())
        return self._seen[1]

    def age_seconds(self) -> float | None:
        """The age of the last confirmed version; None before there is one."""
        return self.backup.status().possible_loss(time.time()).seconds

    def probes(self) -> dict[str, Probe]:
        """What the monitor reads of the copies."""
        if not self.has_place:
            return {}
        return {
            "backup_age_seconds": self.age_seconds,
            "copier_failures": lambda: self.backup.num_copier_failures,
        }

    def line(self) -> str:
        """How the copies stand, as a sentence."""
        if not self.has_place:
            return phrase("monitoring.checkpoints_not_backed_up")
        return self.backup.status().possible_loss(time.time()).text

    def wait(self, seconds: float) -> None:
        """Wait until the newest version is confirmed, at most `seconds`; Ctrl-C ends the wait."""
        if self.has_place:
            with self._skipped_by_ctrl_c():
                self._wait(seconds, self.backup.begin_last_look())

    def _wait(self, seconds: float, look: str = "") -> BackupStatus:
        """How the copy stands when the newest version is confirmed and the look of this token is
        done, or time is over."""
        newest = self.backup.store.newest_healthy()
        self.backup.try_again()
        status = self.backup.status()
        if newest is None or seconds <= 0:
            return status
        deadline = reported_at = time.monotonic()
        deadline += seconds
        if status.confirmed_name == newest:  # a last look takes a moment
            status = self.backup.finish(min(QUIET_SECONDS, seconds), look)
        if _is_over(status, newest, look):
            return status
        self.report(phrase("run.waiting_for_backup", duration=age_words(seconds)))
        reported = ""
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
        """Have the place confirm all of a finished run; `completion` says what came of it. Ctrl-C
        and SIGTERM end the wait and not the copier, which goes on by itself for as long.

        Args:
            record: writes summary and report, once it is known where the model lies.
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
        """What was confirmed before does not count: the place may have changed since."""
        if self.has_place:
            self.backup.forget_status()

    def problem(self) -> str | None:
        """The sentence for a finished run that is not safe at its place; None: it is, or there is
        none."""
        if not self.has_place or self.completion.is_complete:
            return None
        return not_safe(self.run.path, str(self.backup.options.place), self.completion)

    def report_incomplete(self) -> None:
        """Report loudly what is not safe."""
        if (problem := self.problem()) is not None:
            self.report(problem)

    def close(self) -> None:
        """The training has ended; what is on its way is copied still."""
        self.backup.close()

    def facts(self) -> CopyFacts:
        """For summary.json and the report."""
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
    """Whether there is nothing to wait for any more."""
    is_settled = status.is_settled(newest) and status.has_looked(look)
    return is_settled or status.state in NO_MORE


def versions_kept(training: TrainingConfig, total_steps: int) -> int:
    """How many versions rotation leaves on this machine at most."""
    return min(
        training.keep_checkpoints + training.num_best_kept + _every(training, total_steps),
        total_steps,
    )


def newest_kept(training: TrainingConfig, total_steps: int) -> int:
    """How many it leaves where the loss has fallen to the end, and the best are the newest."""
    newest = max(training.keep_checkpoints, training.num_best_kept)
    return min(newest + _every(training, total_steps), total_steps)


def _every(training: TrainingConfig, total_steps: int) -> int:
    return total_steps // training.keep_every if training.keep_every else 0
