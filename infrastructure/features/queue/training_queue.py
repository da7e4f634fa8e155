"""A queue of runs that train one after another, such as overnight.

    <output_dir>/.queue/queue.json   the jobs in order: what each trains, and its state
                       /<number>/    files of the job's process, as in `detached`
                       /lock         held while the jobs are changed
                       /runner       held by the process that runs the queue, and names it

Each job does what `temper train` does, in its own process, and records its run. If the queue is
killed, run it again: the job resumes its run. This module does not load torch.
"""

import contextlib
import shlex
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sources.load import load_config
from infrastructure.core.checksums import read_record, write_record
from infrastructure.core.errors import DamagedFileError, InputError, TemperError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.files import make_directory
from infrastructure.core.json_text import as_list, as_object
from infrastructure.core.lock import Lock, is_held
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact
from infrastructure.core.stop_signals import interrupt_on_signals
from infrastructure.data.defaults import make_ready
from infrastructure.deployment import detached
from infrastructure.deployment.detached import DetachedTraining, ReportLine
from infrastructure.deployment.given_paths import check_paths
from infrastructure.run.directory import RunDirectory, RunStatus
from infrastructure.run.finalize import read_summary
from infrastructure.run.output_dir import writable

FOLDER, JOBS_NAME, LOCK_NAME, RUNNER_NAME = ".queue", "queue.json", "lock", "runner"


class JobState(StrEnum):
    """The state of a job in a queue."""

    WAITING = "waiting"
    RUNNING = "running"  # or its queue was killed in the meantime
    INTERRUPTED = "interrupted"  # the next `run` resumes it
    FINISHED = "finished"
    STOPPED = "stopped"  # by its deadline or by the user
    FAILED = "failed"


TO_DO = (JobState.WAITING, JobState.RUNNING, JobState.INTERRUPTED)


@dataclass(frozen=True)
class Job:
    """One run in a queue.

    Attributes:
        folder: the folder in which the job was added, to which relative paths and the configuration
            file refer.
        flags: the flags, as `flags_given` returns them.
        run: the directory of the run, once it exists.
        reason: why the job did not finish, or a note on how it ended.
        began, ended: the Unix times at which its last process began and ended.
    """

    number: int
    folder: str
    data: str | None
    flags: Mapping[str, Any]
    accept: tuple[str, ...] = ()
    config_file: str | None = None
    state: JobState = JobState.WAITING
    run: str | None = None
    reason: str | None = None
    began: float | None = None
    ended: float | None = None

    @property
    def line(self) -> str:
        """The `temper train` command that trains the same run without a queue."""
        words = ["temper", "train", *([self.data] if self.data is not None else [])]
        for flag, value in self.flags.items():
            words += [flag] if isinstance(value, bool) else [flag, str(value)]
        words += ["--config", self.config_file] if self.config_file else []
        words += ["--accept", ",".join(self.accept)] if self.accept else []
        return shlex.join(words)

    def configuration(self) -> DeploymentConfig:
        """Load the job's configuration, with paths relative to the current folder.

        Raises:
            ValueError: if the configuration cannot work.
        """
        given = {} if self.data is None else {"data.path": self.data}
        config = load_config(self.config_file, flags={**self.flags, **given})
        make_ready(config)
        check_paths(config)
        return config

    def to_dict(self) -> dict[str, object]:
        """Return the job as values for JSON."""
        return {**asdict(self), "accept": [*self.accept], "flags": dict(self.flags)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Job":
        return cls(
            **{**values, "accept": tuple(values["accept"]), "state": JobState(values["state"])}
        )


def new_job(
    data: str | None,
    flags: Mapping[str, Any],
    accept: Collection[str] = (),
    config_file: str | None = None,
) -> Job:
    """Create a job for the current folder, without adding it to a queue.

    Raises:
        ValueError: if the command contains a secret, which would be stored on disk.
    """
    job = Job(0, str(Path.cwd()), data, dict(flags), tuple(accept), config_file)
    if redact(job.line) != job.line:
        raise InputError("queue.line_has_secret")
    return job


class TrainingQueue:
    """The queue in an output folder. Several processes may read it and add jobs."""

    def __init__(self, output_dir: Path) -> None:
        self.output_dir = output_dir
        self.folder = output_dir.absolute() / FOLDER

    def jobs(self) -> list[Job]:
        """Return all jobs in order.

        Raises:
            ValueError: if the queue's file is damaged, or was edited by hand.
        """
        try:
            rows = as_list(read_record(self.folder / JOBS_NAME)["jobs"])
            return [Job.from_dict(as_object(row)) for row in rows]
        except FileNotFoundError:
            return []
        except (DamagedFileError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                "queue.unreadable", path=self.folder / JOBS_NAME, error=error
            ) from error

    def runner(self) -> str | None:
        """Return a description of the process that runs the queue, or None if there is none."""
        if not is_held(self.folder / RUNNER_NAME):
            return None
        return (self.folder / RUNNER_NAME).read_text() or "another process"

    def add(
        self,
        data: str | None,
        flags: Mapping[str, Any],
        accept: Collection[str] = (),
        config_file: str | None = None,
    ) -> Job:
        """Append a job to the queue.

        Call this in the folder that relative paths refer to, after validating the configuration.

        Raises:
            ValueError: if the command contains a secret, which would be stored on disk, or the
                output folder is not writable.
        """
        job = new_job(data, flags, accept, config_file)
        writable(self.output_dir)
        with self._changing() as jobs:
            job = replace(job, number=1 + max((one.number for one in jobs), default=0))
            jobs.append(job)
        return job

    def remove(self, numbers: Collection[int]) -> list[Job]:
        """Remove jobs from the queue, but keep their runs.

        Raises:
            ValueError: if a job does not exist or is being trained; then no job is removed.
        """
        known = {job.number: job for job in self.jobs()}
        for number in numbers:
            if number not in known:
                there = ", ".join(map(str, known)) or "none"
                raise InputError("queue.no_such_job", number=number, numbers=there)
            if (trainer := self._place(known[number]).trainer) and trainer.is_alive:
                raise InputError("queue.job_in_training", number=number, trainer=trainer)
        with self._changing() as jobs:
            jobs[:] = [job for job in jobs if job.number not in numbers]
        for number in numbers:
            shutil.rmtree(self._place(known[number]).folder, ignore_errors=True)
        return [known[number] for number in numbers]

    def run(self, report: ReportLine = print) -> list[Job]:
        """Train all waiting and interrupted jobs once, in order, including jobs added meanwhile.

        Returns:
            The jobs that were trained, with their new state.

        Raises:
            ValueError: if another process runs the queue.
            KeyboardInterrupt: if a signal requested a stop; the current job was saved, and resumes
                when the queue runs again.
        """
        trained: list[int] = []
        if not self.folder.is_dir():  # nothing was ever added
            return []
        with (
            detached.only_runner(
                self.folder / RUNNER_NAME,
                "queue.already_running",
                output_dir=self.output_dir,
            ),
            interrupt_on_signals(),
        ):
            while (job := self._next(trained)) is not None:
                trained.append(job.number)
                self._train(job, report)
        return [job for job in self.jobs() if job.number in trained]

    def _next(self, trained: Collection[int]) -> Job | None:
        waiting = (job for job in self.jobs() if job.state in TO_DO and job.number not in trained)
        return next(waiting, None)

    def _train(self, job: Job, report: ReportLine) -> None:
        place = self._place(job)
        report(f"Job {job.number}: {job.line}")
        try:
            end = self._end_of_an_earlier_process(job, place, report)
            if end is None:
                end = self._end_of_a_new_process(job, place, report)
        except KeyboardInterrupt as error:
            self._change(job.number, state=JobState.INTERRUPTED, reason=str(error) or None)
            if place.is_alive:
                report(phrase("queue.job_saving", number=job.number))
                detached.end(place)
            self._change(job.number, run=_text(place.run_path), ended=time.time())
            raise
        state, reason = end
        self._change(
            job.number, state=state, reason=reason, run=_text(place.run_path), ended=time.time()
        )
        report(f"Job {job.number}: {state}{f', {reason}' if reason else ''}")

    def _end_of_an_earlier_process(
        self, job: Job, place: DetachedTraining, report: ReportLine
    ) -> tuple[JobState, str | None] | None:
        """Wait for a process of the job that outlived an earlier queue, and return how it ended.

        Return None if there was no such process, or if its run is not finished.
        """
        if job.state is not JobState.RUNNING and not place.is_alive:
            return None
        if place.is_alive:
            report(phrase("queue.job_still_training", number=job.number, trainer=place.trainer))
            self._wait(job, place)
        return _end_by_summary(place, job.began or 0.0)

    def _end_of_a_new_process(
        self, job: Job, place: DetachedTraining, report: ReportLine
    ) -> tuple[JobState, str | None]:
        """Train the job in a new process, and return how it ended.

        The process resumes the job's run if there is one.
        """
        if place.run_path is not None:
            report(phrase("queue.job_resuming", number=job.number, run=place.run_path))
        try:
            with contextlib.chdir(job.folder):
                config = job.configuration()
                make_directory(place.folder)
                began = {"state": JobState.RUNNING, "reason": None, "began": time.time()}
                self._change(job.number, **began, ended=None)
                detached.start(config, job.accept, place.folder, place.run_path)
        except (ValueError, TemperError, OSError) as error:
            return JobState.FAILED, redact(str(error))
        self._wait(job, place)
        return _end_by_exit_code(place)

    def _wait(self, job: Job, place: DetachedTraining) -> None:
        """Wait until the job's process has ended, and record its run as soon as it exists."""
        run = job.run

        def record_run() -> None:
            nonlocal run
            if run is None and place.run_path is not None:
                run = str(place.run_path)
                self._change(job.number, run=run)

        detached.wait(place, record_run)

    def _place(self, job: Job) -> DetachedTraining:
        return DetachedTraining(self.folder / str(job.number))

    def _change(self, number: int, **values: Any) -> None:
        with self._changing() as jobs:
            jobs[:] = [replace(job, **values) if job.number == number else job for job in jobs]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[list[Job]]:
        """Yield the jobs under a lock, and save the list at the end."""
        make_directory(self.folder)
        lock = Lock(self.folder / LOCK_NAME)
        lock.take()
        try:
            jobs = self.jobs()
            yield jobs
            write_record(self.folder / JOBS_NAME, {"jobs": [job.to_dict() for job in jobs]})
        finally:
            lock.release()


def _end_by_exit_code(place: DetachedTraining) -> tuple[JobState, str | None]:
    """Return the final state of a job's child process, and the reason, from its exit code."""
    code = place.exit_code()
    if code < 0:
        return JobState.INTERRUPTED, detached.fate(place)
    if code == ExitCode.DONE:
        return JobState.FINISHED, None
    if code == ExitCode.NOT_CONFIRMED:
        return JobState.FINISHED, phrase("queue.job_backup_not_confirmed")
    if code in (ExitCode.HUNG_UP, ExitCode.INTERRUPTED, ExitCode.TERMINATED):
        return JobState.STOPPED, _reason_of(place) or phrase("queue.job_stopped_early")
    return JobState.FAILED, detached.last_line(place)


def _end_by_summary(place: DetachedTraining, since: float) -> tuple[JobState, str | None] | None:
    """Return how a run ended, from its summary, or None if it is not finished.

    This is for runs of other processes. A summary older than `since` is ignored.
    """
    if place.run_path is None:
        return None
    run = RunDirectory(place.run_path)
    with contextlib.suppress(FileNotFoundError):
        if run.summary_file.stat().st_mtime < since:
            return None
    summary = read_summary(run)
    status, reason = summary.get("status"), summary.get("reason")
    if status == RunStatus.FINISHED:
        return JobState.FINISHED, None
    if status == RunStatus.FAILED:
        return JobState.FAILED, str(summary.get("error"))
    if status == RunStatus.STOPPED and not summary.get("signal"):
        return JobState.STOPPED, reason
    return None


def _reason_of(place: DetachedTraining) -> str | None:
    if place.run_path is None:
        return None
    return read_summary(RunDirectory(place.run_path)).get("reason")


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
