"""Starts the copier process of a training, and starts it again should it die."""

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
STABLE_SECONDS = 60.0  # one that lived so long does not die of what ended those before it
MANY_FAILURES = 3  # in a row: it cannot run

log = logging.getLogger(__name__)

# Copiers of all clients that go on after their training: kept, since a lost child would be
# reported as forgotten.
_LEFT_TO_FINISH: list[HelperProcess] = []


class CopierClient:
    """The copier process as its training sees it.

    Attributes:
        num_restarts: how often it was started again.
        num_failures: how often in a row it could not be started, or ended soon.
        failure: how it ended last, in words.
    """

    def __init__(self, settings: CopierSettings) -> None:
        self.settings = settings
        self.num_restarts = 0
        self.num_failures = 0
        self.failure: str | None = None
        self._process: HelperProcess | None = None
        self._left: list[HelperProcess] = []  # that still copy after `close`
        self._lock = threading.Lock()
        self._has_failed = False  # the last one, which was counted
        self._started_at = self._may_start_at = float("-inf")
        self._publications: dict[str, Publication] = {}  # the last of each name
        self._look: str | None = None  # the last that was asked for

    @property
    def is_started(self) -> bool:
        """Whether `start` was called, and `close` was not since."""
        return self._process is not None or self._has_failed

    @property
    def cannot_run(self) -> bool:
        """Whether it ended again and again, and does not run now."""
        return self.num_failures >= MANY_FAILURES and self.process_id is None

    @property
    def process_id(self) -> int | None:
        """Of the copier; None: none runs."""
        is_alive = self._process is not None and self._process.poll() is None
        return self._process.pid if is_alive and self._process is not None else None

    def start(self) -> None:
        """Start the copier unless it runs; one that died is started again, not too often."""
        with self._lock:  # the monitor's thread looks, too
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
        except OSError as error:  # no memory, too many processes
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
        """Start one that cannot run once more without waiting any longer."""
        if self.cannot_run:
            self._may_start_at = float("-inf")
        self.start()

    def nudge(self) -> None:
        """Let it look at once."""
        self.start()
        self._send("")

    def look_again(self, token: str) -> None:
        """Let it look again at all of the newest version, when nothing is left to copy."""
        self._look = token
        if self.process_id is None:
            self.start()
        else:
            self._send(LOOK + token)

    def publish(self, what: Publication) -> None:
        """Let it copy a finished folder; one that is started again is told again."""
        self._publications[what.name] = what
        if self.process_id is None:
            self.start()
        else:
            self._send(what.to_line())

    def close(self, seconds: float = 0.0) -> None:
        """Tell it that the training has ended, and wait `seconds` for its end; it finishes by
        itself."""
        if self._process is not None:
            self._process.close_pipes()
            if not self._process.ends_within(seconds):
                self._left.append(self._process)
                _LEFT_TO_FINISH.append(self._process)
        self._process, self._has_failed = None, False

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended; call `close` before. False: it still copies. That of another
        run, whose place may be away, is not waited for."""
        while self._left:
            if not self._left[-1].ends_within(seconds):
                return False
            _LEFT_TO_FINISH.remove(self._left.pop())
        return True

    def _count_failure(self) -> None:
        """Of one that has ended, once."""
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
        with contextlib.suppress(OSError, ValueError):  # it died; the next call starts another one
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()
