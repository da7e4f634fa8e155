"""Starts the copier process of a training, and starts it again should it die."""

import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from infrastructure.backup.copier_process import CopierSettings

PACKAGE_PARENT = Path(__file__).resolve().parents[2]
FIRST_RESTART_SECONDS, LONGEST_RESTART_SECONDS = 1.0, 300.0

log = logging.getLogger(__name__)

# Copiers that go on after their training: kept, since a lost child would be reported as forgotten.
_LEFT_TO_FINISH: list[subprocess.Popen[bytes]] = []


class CopierClient:
    """The copier process as its training sees it."""

    def __init__(self, settings: CopierSettings) -> None:
        self.settings = settings
        self.num_restarts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._may_start_at = float("-inf")

    @property
    def is_started(self) -> bool:
        """Whether `start` was called, and `close` was not since."""
        return self._process is not None

    @property
    def process_id(self) -> int | None:
        """Of the copier; None: none runs."""
        is_alive = self._process is not None and self._process.poll() is None
        return self._process.pid if is_alive and self._process is not None else None

    def start(self) -> None:
        """Start the copier unless it runs; one that died is started again, not too often."""
        if self.process_id is not None or time.monotonic() < self._may_start_at:
            return
        if self._process is not None:
            self.num_restarts += 1
            code = self._process.returncode
            log.warning("the copier of backups ended with code %s; it is started again", code)
            self._close_input()
        wait = min(LONGEST_RESTART_SECONDS, FIRST_RESTART_SECONDS * 2 ** min(self.num_restarts, 20))
        self._may_start_at = time.monotonic() + wait
        path = os.pathsep.join(filter(None, [str(PACKAGE_PARENT), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "infrastructure.backup.copier_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is for the training alone
            env={**os.environ, "PYTHONPATH": path},
        )
        self._send(json.dumps(asdict(self.settings)))

    def nudge(self) -> None:
        """Let it look at once."""
        self.start()
        self._send("")

    def close(self, seconds: float = 0.0) -> None:
        """Tell it that the training has ended, and wait `seconds` for its end; it finishes by
        itself."""
        self._close_input()
        if self._process is not None:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                _LEFT_TO_FINISH.append(self._process)
        self._process = None

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended; call `close` before. False: it still copies."""
        for process in list(_LEFT_TO_FINISH):
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                return False
            _LEFT_TO_FINISH.remove(process)
        return True

    def _send(self, line: str) -> None:
        with contextlib.suppress(OSError):  # it died; the next call starts another one
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()

    def _close_input(self) -> None:
        with contextlib.suppress(OSError):  # bytes that nobody took
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()
