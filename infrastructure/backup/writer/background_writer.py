"""A writer that writes checkpoints in a helper process while the training continues.

The training waits only until the state is copied to shared memory. Only one checkpoint is written
at a time. The helper ends after its standard input ends, so the last checkpoint of a killed run is
still written. Until then the helper holds the lock of the store, and a process that resumes the run
waits for it. If the helper dies, nothing is lost: this process shares the memory with it and writes
the checkpoint itself.
"""

import json
import logging
import select
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from infrastructure.backup.format.retention import Retention
from infrastructure.backup.writer.shared_buffer import Place, SharedBuffer, State
from infrastructure.backup.writer.writer_process import LOCK_FILE, commit_message
from infrastructure.core.errors import StorageError
from infrastructure.core.files import make_directory
from infrastructure.core.helper_process import HelperProcess
from infrastructure.core.lock import Lock
from infrastructure.core.messages import phrase

MODULE = "infrastructure.backup.writer.writer_process"

ENDS_SECONDS = 1.0  # between the end of its output and the end of the process

log = logging.getLogger(__name__)


class BackgroundWriter:
    """The writer of the store in `root`. It also removes checkpoints, as `retention` specifies.

    Args:
        root: the directory of the store.
    """

    def __init__(self, root: Path, retention: Retention) -> None:
        self.root = root
        self.retention = retention
        self._copy = SharedBuffer()
        self._helper: HelperProcess | None = None
        self._lock: Lock | None = None
        self._places: list[Place] | None = None
        self._spelled = b"[]"
        self._in_flight: tuple[int, int] | None = None  # offset and length of its message

    def begin(self, state: State, values: Mapping[str, object], **facts: object) -> None:
        """Copy the state and start writing it. `facts` are the keyword arguments of `Store.commit`.

        Call `collect(wait=True)` first, because only one checkpoint can be written at a time.

        Raises:
            ValueError: if a tensor has a type that cannot be stored.
            StorageError: if there is not enough memory for the copy.
        """
        assert self._in_flight is None, "a version is in flight"
        self._copy.take(state)
        text = self._message({"values": values, "facts": facts})
        self._in_flight = (self._copy.append(text), len(text))
        self._hand_over(b"%d %d\n" % self._in_flight)

    def collect(self, wait: bool = False) -> str | None:
        """Return the name of the checkpoint being written, or None if it is not committed yet.

        Raises:
            StorageError: if the disk fails or does not return what was written. Earlier checkpoints
                are not affected.
        """
        if self._in_flight is None or not (wait or self._has_answer()):
            return None
        place, self._in_flight = self._in_flight, None
        answer = self._answer()
        if answer is None:
            log.warning(
                phrase("backup.writer_process_gone", reason=self._fate()),
            )
            answer = commit_message(self.root, self.retention, self._copy.memory, *place)
        if "error" in answer:
            raise StorageError(answer["error"])
        return str(answer["name"])

    def close(self) -> None:
        """End the helper after it has finished the current checkpoint."""
        try:
            self.collect(wait=True)
        except StorageError as error:
            log.warning(phrase("backup.last_checkpoint_not_written", error=error))
        if self._helper is not None and self._helper.stdin is not None:
            self._helper.stdin.close()
            self._helper.wait()
            self._helper.close_pipes()
        self._helper = None
        self._copy.close()
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    def _message(self, rest: Mapping[str, object]) -> bytes:
        """Build the message for the helper.

        The layout is serialized again only if it has changed.
        """
        if self._places is not self._copy.places:
            self._places = self._copy.places
            self._spelled = json.dumps(self._places).encode()
        return b"[%b,%b]" % (self._spelled, json.dumps(rest, allow_nan=False).encode())

    def _hand_over(self, message: bytes) -> None:
        """Send the helper one short line with the location of the checkpoint's description in
        shared memory.
        """
        for _ in range(2):  # the second time to a new helper
            if self._helper is None or self._helper.poll() is not None:
                self._abandon()
                self._helper = self._start()
            try:
                assert self._helper.stdin is not None
                self._helper.stdin.write(message)
                self._helper.stdin.flush()
                return
            except OSError:
                continue

    def _abandon(self) -> None:
        if self._helper is not None:
            self._helper.kill()
            self._helper.wait()
            self._helper.close_pipes()
        self._helper = None

    def _fate(self) -> str:
        if self._helper is None:
            return phrase("backup.writer_not_started")
        return self._helper.fate(ENDS_SECONDS) or phrase("backup.writer_not_responding")

    def _start(self) -> HelperProcess:
        descriptor = self._copy.descriptor
        if self._lock is None:
            make_directory(self.root)
            self._lock = Lock(self.root / LOCK_FILE)
            self._lock.take()
        return HelperProcess(
            MODULE,
            str(self.root.resolve()),
            json.dumps(asdict(self.retention)),
            str(descriptor),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[descriptor, self._lock.descriptor],
        )

    def _has_answer(self) -> bool:
        assert self._helper is not None
        assert self._helper.stdout is not None
        return bool(select.select([self._helper.stdout], [], [], 0)[0])

    def _answer(self) -> dict[str, Any] | None:
        """Return the helper's response, or None if the helper has died."""
        if self._helper is None or self._helper.stdout is None:
            return None
        line = self._helper.stdout.readline()
        return dict(json.loads(line)) if line.endswith(b"\n") else None
