"""The agent that starts `temper train` on several processes and restarts them.

Each process runs the same command in its own Python, as torchrun would start it, and reads rank,
size and store from its environment. torch's elastic agent starts and watches the processes, and
ends the rest when one has ended. It would restart them regardless of the reason, so it gets only
one attempt each time, and this module decides what happens next: if rank 0 has reported how the run
ended (`core/agent.py`), the command ends; otherwise a process was lost, and all are started again.
Signals go only to rank 0, which takes the time that it needs to save. The other ranks end with it.
"""

import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

import psutil
import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from infrastructure.backup.format.store import Store
from infrastructure.core.agent import LOOK_SECONDS, SPENT_VARIABLE, AgentFolder, agent_variable
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.console import ShowLine, show, show_beside
from infrastructure.core.exit_codes import OF_SIGNALS, ExitCode
from infrastructure.core.helper_process import (
    KEPT_BYTES,
    PACKAGE,
    fate_of,
    last_line,
    module_arguments,
    module_variables,
)
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact
from infrastructure.core.shared_cores import THREADS_VARIABLE
from infrastructure.core.stop_signals import StopSignal, signals_handled, stop_signals

# Give up after more than this many losses in a row without a new version in between.
MOST_LOST_IN_VAIN = 3
LOOPBACK = "127.0.0.1"
# How rank 0 ends if torch's agent stops it because another rank has ended.
STOPPED = (ExitCode.INTERRUPTED, ExitCode.TERMINATED)
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class _Ending:
    """The result of an attempt: rank 0's exit code, and a message if a process was lost."""

    code: int
    loss: str | None = None


class Agent:
    """An agent that runs a command on several processes of this machine.

    Args:
        words: the command-line arguments of each process.
        size: number of processes.
        show_line: shows a line to the user.
        stdin: standard input of each process. None: inherited from this process.
        module: the Python module that each process runs.
        show_end: shows one of rank 0's closing lines.
        before_line: called with the run's directory, once it exists, before a line is shown.
    """

    def __init__(
        self,
        words: Sequence[str],
        size: int,
        show_line: ShowLine = show_beside,
        stdin: bytes | None = None,
        module: str = PACKAGE,
        show_end: ShowLine = show,
        before_line: Callable[[Path], None] = do_nothing,
    ) -> None:
        self.words, self.size, self.module = list(words), size, module
        self.show_line, self.show_end, self.before_line = show_line, show_end, before_line
        self.stdin = stdin
        self._stop_number: int | None = None  # of the received signal
        self._reasons: Mapping[int, str] = {}  # by pid: see `RankWatch`
        self._started = time.monotonic()

    def run(self) -> int:
        """Train to the end, and return rank 0's exit code, or PROCESS_LOST after repeated losses.

        Raises:
            StopSignal: a signal came while there was no rank 0 to forward it to.
        """
        path = Path(tempfile.mkdtemp(prefix="temper-agent-"))
        try:
            with self._signals_forwarded():
                return self._run(AgentFolder(path), path / "logs")
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def _run(self, folder: AgentFolder, logs: Path) -> int:
        newest, num_in_vain = _newest_version(folder), 0
        attempt = 0
        while True:
            attempt_logs = logs / str(attempt)
            folder.forget_end()
            failures = self._attempt(folder, attempt_logs, attempt)
            _keep_words(folder, attempt_logs, self.size)
            ending = self._judged(folder, failures, attempt_logs)
            if ending.loss is None:
                self._show_end(folder)
                return ending.code
            if self._stop_number is not None:
                self._show(folder, ending.loss)
                self._show_end(folder)
                return OF_SIGNALS + self._stop_number
            before, newest = newest, _newest_version(folder)
            num_in_vain = 1 if newest != before else num_in_vain + 1
            if num_in_vain > MOST_LOST_IN_VAIN:
                self._show(
                    folder,
                    phrase(
                        "training.too_many_losses",
                        loss=ending.loss,
                        count=num_in_vain,
                    ),
                )
                return ExitCode.PROCESS_LOST
            attempt += 1
            name = "the training" if folder.run is None else f"run {folder.run.name}"
            self._show(
                folder,
                phrase(
                    "training.restarting_after_loss", loss=ending.loss, name=name, attempt=attempt
                ),
            )

    def _attempt(
        self, folder: AgentFolder, logs: Path, attempt: int
    ) -> Mapping[int, ProcessFailure]:
        """Run all ranks once until they end, and return the ranks that failed."""
        variables = {**module_variables(), **agent_variable(folder)}
        variables[THREADS_VARIABLE] = os.environ.get(THREADS_VARIABLE) or str(
            max(1, torch.get_num_threads() // self.size)
        )
        if attempt:
            variables[SPENT_VARIABLE] = str(time.monotonic() - self._started)
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=self.size,
            run_id=f"temper-{os.getpid()}-{attempt}",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr=LOOPBACK,
            max_restarts=0,
            signals_to_handle="SIGQUIT",  # the others are forwarded here
            logs_specs=DefaultLogsSpecs(
                log_dir=str(logs), redirects=dict.fromkeys(range(1, self.size), Std.ALL)
            ),
        )
        arguments = [*module_arguments(self.module), *self.words]
        with ExitStack() as inside:
            inside.enter_context(_environment(variables))
            inside.enter_context(_torch_is_silent())
            if self.stdin is not None:
                inside.enter_context(_standard_input(self.stdin))
            watch = inside.enter_context(ranks_watched(self.size))
            self._reasons = watch.reasons
            try:
                elastic_launch(config, sys.executable)(*arguments)
            except ChildFailedError as error:
                return error.failures
        return {}

    def _judged(
        self, folder: AgentFolder, failures: Mapping[int, ProcessFailure], logs: Path
    ) -> _Ending:
        """Return the result that rank 0 reported, or a loss if another rank died before rank 0
        ended.
        """
        code, own = folder.exit_code, failures.get(0)
        if code is None and own is not None and own.exitcode > 0:
            code = own.exitcode
        died, failed = _died_before(failures, own), _failed_before(failures, own)
        causes: dict[int, ProcessFailure | None] = {ExitCode.FAILED: died}
        causes |= dict.fromkeys(STOPPED, died or failed)
        if code is None and own is not None and -own.exitcode in STOPS:
            code = OF_SIGNALS - own.exitcode  # before it could handle one
        is_verdict = code is not None and code != ExitCode.PROCESS_LOST
        if code is not None and is_verdict and causes.get(code) is None:
            return _Ending(code)
        return _Ending(ExitCode.PROCESS_LOST, self._loss(folder, failures, logs, died or failed))

    def _loss(
        self,
        folder: AgentFolder,
        failures: Mapping[int, ProcessFailure],
        logs: Path,
        cause: ProcessFailure | None,
    ) -> str:
        """Return a message that names the lost rank and the reason.

        Args:
            cause: the rank that ended by itself. None: search for a rank with which other ranks
                lost contact.
        """
        if cause is not None:
            return self._fate(cause, logs)
        others = [failure for rank, failure in sorted(failures.items()) if rank]
        loser = next((one for one in others if one.exitcode == ExitCode.PROCESS_LOST), None)
        if folder.loss or loser:
            words = "" if loser is None else last_line(_words(logs, loser.local_rank))
            words = re.sub(r"^temper: (rank \d+: )?", "", words)
            return folder.loss or words or phrase("training.ranks_lost_contact")
        own = failures.get(0)
        return phrase("training.rank_0_no_exit_code") if own is None else self._fate(own, logs)

    def _fate(self, failure: ProcessFailure, logs: Path) -> str:
        rank = failure.local_rank
        words = last_line(_words(logs, rank))
        name = phrase("training.rank_of_size_with_pid", rank=rank, size=self.size, pid=failure.pid)
        fate = self._reasons.get(failure.pid) or fate_of(failure.exitcode, words)
        return phrase("training.rank_gone", name=name, fate=fate)

    def _show_end(self, folder: AgentFolder) -> None:
        lines = folder.last_lines
        if lines and folder.run is not None:
            self.before_line(folder.run)
        for line in lines:
            self.show_end(line)

    def _show(self, folder: AgentFolder, line: str) -> None:
        if folder.run is not None:
            self.before_line(folder.run)
        if sys.stderr.isatty():
            print(file=sys.stderr)  # rank 0's progress bar may be there
        self.show_line(redact(line))

    def _signals_forwarded(self) -> AbstractContextManager[None]:
        """Return a context that forwards stop signals to rank 0.

        The ranks have their own sessions, so a terminal's Ctrl-C reaches only this process.
        """

        def forward(number: int, _frame: FrameType | None) -> None:
            is_usr1 = number == signal.SIGUSR1
            self._stop_number = signal.SIGTERM if is_usr1 else number
            first = living_ranks().get(0)
            if first is None:
                raise StopSignal(self._stop_number)
            with suppress(psutil.NoSuchProcess):
                first.send_signal(self._stop_number)

        return signals_handled((*stop_signals(), signal.SIGUSR1), forward)


# How a rank ends because another did: it was asked to, or lost the group.
_ENDED_BY_OTHERS = (
    *(ExitCode.PROCESS_LOST, ExitCode.TERMINATED),
    *(-signal.SIGTERM, -signal.SIGKILL),
)


def _died_before(
    failures: Mapping[int, ProcessFailure], own: ProcessFailure | None
) -> ProcessFailure | None:
    """Return the first rank that a signal ended before rank 0 ended; None if there is none.

    SIGTERM does not count, because torch's agent sends it to the remaining ranks.
    """
    before = _others_before(failures, own)
    died = (one for one in before if one.exitcode < 0 and one.exitcode != -signal.SIGTERM)
    return next(died, None)


def _failed_before(
    failures: Mapping[int, ProcessFailure], own: ProcessFailure | None
) -> ProcessFailure | None:
    """Return the first rank that ended by its own error before rank 0 ended, or None."""
    failed = (f for f in _others_before(failures, own) if f.exitcode not in _ENDED_BY_OTHERS)
    return next(failed, None)


def _others_before(
    failures: Mapping[int, ProcessFailure], own: ProcessFailure | None
) -> list[ProcessFailure]:
    others = (failure for rank, failure in failures.items() if rank)
    before = (one for one in others if own is None or one.timestamp <= own.timestamp)
    return sorted(before, key=lambda failure: failure.timestamp)


def _newest_version(folder: AgentFolder) -> str:
    """Return the name of the newest checkpoint of the run, or "" if there is none."""
    if folder.run is None:
        return ""
    return next(iter(Store(folder.run / "checkpoints").versions()), "")


def _words(logs: Path, rank: int) -> bytes:
    """Return the end of a rank's standard error in one attempt; empty for rank 0."""
    for path in logs.glob(f"*/attempt_*/{rank}/stderr.log"):
        with suppress(OSError), path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - KEPT_BYTES))
            return file.read()
    return b""


def _keep_words(folder: AgentFolder, logs: Path, size: int) -> None:
    """Append the standard error of all ranks except rank 0 to the run's logs, without secrets."""
    if folder.run is None:
        return
    for rank in range(1, size):
        words = _words(logs, rank).decode(errors="replace").strip()
        path = folder.run / "logs" / f"rank-{rank}.txt"
        with suppress(OSError):
            if words and path.parent.is_dir():
                with path.open("a") as file:
                    file.write(f"{redact(words)}\n")


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes started inside the context."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ |= variables
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _torch_is_silent() -> Iterator[None]:
    """Silence the logs of torch's agent, since this module reports everything once."""
    disabled = logging.root.manager.disable
    if not logging.getLogger("temper").isEnabledFor(logging.DEBUG):
        logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)


@contextmanager
def _standard_input(content: bytes) -> Iterator[None]:
    """Give `content` as standard input to processes started inside the context, without a file."""
    before = os.dup(0)
    try:
        with _unnamed_file() as file:
            file.write(content)
            file.seek(0)
            os.dup2(file.fileno(), 0)
            yield
    finally:
        os.dup2(before, 0)
        os.close(before)


def _unnamed_file() -> IO[bytes]:
    """Return a file without a name; in memory if the system supports that."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("temper-input"), "w+b")
    return tempfile.TemporaryFile()


# Detection of ranks that are stopped (SIGSTOP), or that remain after rank 0 has ended.
#
# torch's agent would wait for such ranks forever. While the ranks train, they check on each other
# (`group.py`). Before and after that, a rank may wait for one that a signal, a debugger or a job
# scheduler has stopped. A stopped process does not notice a request to end.

# Later than the other ranks notice during training: they report more, and save.
MOST_STOPPED_SECONDS = 45.0
# Rank 0 ends last: the others have done their part.
MOST_SECONDS_AFTER_FIRST = 60.0
LONG_PAUSE_SECONDS = 5.0  # between two checks


def living_ranks() -> dict[int, psutil.Process]:
    """Return the rank processes that this process started and that still run, by rank."""
    ranks: dict[int, psutil.Process] = {}
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            number = child.environ().get("RANK")
            if number is not None and _is_alive(child):
                ranks[int(number)] = child
    return ranks


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@dataclass
class RankWatch:
    """A check that kills ranks for which the other ranks or torch's agent would wait forever.

    Args:
        size: number of ranks.

    Attributes:
        reasons: pid → why the rank was killed, which its exit code does not show.
    """

    size: int
    reasons: dict[int, str] = field(default_factory=dict)
    _ranks: dict[int, psutil.Process] = field(default_factory=dict)
    _seconds_stopped: dict[int, float] = field(default_factory=dict)  # by pid
    _seconds_after_first: float = 0.0

    def look(self, seconds: float) -> None:
        """Check all ranks.

        Args:
            seconds: time since the last check.
        """
        if seconds > LONG_PAUSE_SECONDS:  # this process was itself stopped, perhaps with the others
            return
        if len(self._ranks) < self.size:  # searching for them is slow on a large machine
            self._ranks |= living_ranks()
        living = {rank: one for rank, one in self._ranks.items() if _is_alive(one)}
        for process in living.values():
            with suppress(psutil.NoSuchProcess):
                self._look_at(process, seconds)
        if 0 in self._ranks and 0 not in living:
            self._seconds_after_first += seconds
            if self._seconds_after_first > MOST_SECONDS_AFTER_FIRST:
                for process in living.values():
                    self._kill(process, phrase("training.rank_outlived_rank_0"))

    def _look_at(self, process: psutil.Process, seconds: float) -> None:
        is_stopped = process.status() == psutil.STATUS_STOPPED
        stopped = self._seconds_stopped.get(process.pid, 0.0) + seconds if is_stopped else 0.0
        self._seconds_stopped[process.pid] = stopped
        if stopped > MOST_STOPPED_SECONDS:
            text = phrase("training.rank_stopped_by_signal", seconds=stopped)
            self._kill(process, text)

    def _kill(self, process: psutil.Process, reason: str) -> None:
        self.reasons.setdefault(process.pid, reason)
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)


@contextmanager
def ranks_watched(size: int) -> Iterator[RankWatch]:
    """Check on the ranks that this process started, in a thread, while the context lasts."""
    watch, is_over = RankWatch(size), threading.Event()

    def look() -> None:
        before = time.monotonic()
        while not is_over.wait(LOOK_SECONDS):
            now = time.monotonic()
            watch.look(now - before)
            before = now

    thread = threading.Thread(target=look, daemon=True, name="temper-rank-watch")
    thread.start()
    try:
        yield watch
    finally:
        is_over.set()
        thread.join()
