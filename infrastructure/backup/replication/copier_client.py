"""A client that starts the copier process of a run, and restarts it if it dies."""

import contextlib
import json
import logging
import subprocess
import threading
import time
from dataclasses import asdict

from infrastructure.backup.replication.copier_process import LOOK, CopierSettings
from infrastructure.backup.replication.folder_upload import Publication
from infrastructure.core.helper_process import HelperProcess
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact_urls

MODULE = "infrastructure.backup.replication.copier_process"
FIRST_RESTART_SECONDS, LONGEST_RESTART_SECONDS = 1.0, 300.0
STABLE_SECONDS = 60.0  # after this time, earlier failures no longer count
MANY_FAILURES = 3  # in a row; then it cannot run

log = logging.getLogger(__name__)

# Copiers of all clients that outlive their run. They are referenced here because Python warns about
# a child process that is garbage-collected while it runs.
_LEFT_TO_FINISH: list[HelperProcess] = []


class CopierClient:
    """A run's access to its copier process.

    Attributes:
        num_restarts: how often the process was restarted.
        num_failures: how often in a row the process could not be started or ended soon after its
            start.
        failure: a message on how the process ended last.
    """

    def __init__(self, settings: CopierSettings) -> None:
        self.settings = settings
        self.num_restarts = 0
        self.num_failures = 0
        self.failure: str | None = None
        self._process: HelperProcess | None = None
        self._left: list[HelperProcess] = []  # still copying after `close`
        self._lock = threading.Lock()
        self._has_failed = False  # the last process failed and was counted
        self._started_at = self._may_start_at = float("-inf")
        self._publications: dict[str, Publication] = {}  # the last one of each name
        self._look: str | None = None  # token of the last requested check

    @property
    def is_started(self) -> bool:
        """True after `start` until `close`."""
        return self._process is not None or self._has_failed

    @property
    def cannot_run(self) -> bool:
        """True if the process has failed several times in a row and is not running now."""
        return self.num_failures >= MANY_FAILURES and self.process_id is None

    @property
    def process_id(self) -> int | None:
        """The process ID of the copier, or None if it is not running."""
        is_alive = self._process is not None and self._process.poll() is None
        return self._process.pid if is_alive and self._process is not None else None

    def start(self) -> None:
        """Start the copier if it is not running.

        After a failure, wait longer before each restart.
        """
        with self._lock:  # the monitor's thread calls this, too
            self._start()

    def _start(self) -> None:
        if self.process_id is not None:
            if self.num_failures and time.monotonic() - self._started_at > STABLE_SECONDS:
                self.num_failures, self.failure = 0, None
            return
        self._count_failure()
        if time.monotonic() < self._may_start_at:
            return
        self.num_restarts += self._has_failed
        wait = min(LONGEST_RESTART_SECONDS, FIRST_RESTART_SECONDS * 2 ** min(self.num_failures, 20))
        self._started_at = time.monotonic()
        self._may_start_at = self._started_at + wait
        try:
            self._process = HelperProcess(MODULE, stdin=subprocess.PIPE)
        except OSError as error:  # out of memory, or too many processes
            self._process = None
            self._fail(phrase("backup.copier_start_failed", error=error))
            return
        self._has_failed = False
        self._send(json.dumps(asdict(self.settings)))
        for what in self._publications.values():
            self._send(what.to_line())
        if self._look is not None:
            self._send(LOOK + self._look)

    def try_again(self) -> None:
        """Without waiting, try once more to start a copier that has repeatedly failed."""
        if self.cannot_run:
            self._may_start_at = float("-inf")
        self.start()

    def nudge(self) -> None:
        """Tell the copier to check for work at once."""
        self.start()
        self._send("")

    def look_again(self, token: str) -> None:
        """Request a check of all files of the newest checkpoint, to be done when everything is
        copied.
        """
        self._look = token
        if self.process_id is None:
            self.start()
        else:
            self._send(LOOK + token)

    def publish(self, what: Publication) -> None:
        """Request the copy of a finished folder.

        If the copier is restarted, the request is sent again.
        """
        self._publications[what.name] = what
        if self.process_id is None:
            self.start()
        else:
            self._send(what.to_line())

    def close(self, seconds: float = 0.0) -> None:
        """Signal that the run has ended, and wait `seconds` for the copier to finish."""
        if self._process is not None:
            self._process.close_pipes()
            if not self._process.ends_within(seconds):
                self._left.append(self._process)
                _LEFT_TO_FINISH.append(self._process)
        self._process, self._has_failed = None, False

    def wait(self, seconds: float) -> bool:
        """Wait until the copier has ended, after `close`. Return False if it is still copying.

        Copiers of other runs are not waited for, because their destination may be unavailable.
        """
        while self._left:
            if not self._left[-1].ends_within(seconds):
                return False
            _LEFT_TO_FINISH.remove(self._left.pop())
        return True

    def _count_failure(self) -> None:
        """Count the failure of a process that has ended, unless it was counted before."""
        if self._process is None or self._has_failed:
            return
        self._process.close_pipes()
        if time.monotonic() - self._started_at > STABLE_SECONDS:
            self.num_failures = 0
        self._fail(str(self._process.fate()))

    def _fail(self, how: str) -> None:
        self._has_failed = True
        self.num_failures += 1
        self.failure = how
        if self.num_failures < MANY_FAILURES:
            log.warning(phrase("backup.copier_restarts", reason=how))
        elif self.num_failures == MANY_FAILURES:
            log.error(
                phrase(
                    "backup.copier_keeps_failing",
                    count=self.num_failures,
                    reason=how,
                    url=redact_urls(self.settings.place),
                ),
            )

    def _send(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # it died; the next call restarts it
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()
