"""Commits versions in a helper process, so that a training waits only for a copy in memory.

One version is in flight; the next one waits for it. The helper ends when its standard input does,
so a training that is killed still gets its last version written; until then the helper holds the
store's lock, and whoever goes on with the training waits for it. A helper that dies costs nothing:
the bytes are in memory that this process has too, and are written from here.
"""

import contextlib
import json
import logging
import mmap
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from infrastructure.backup.packs import TensorBytes
from infrastructure.backup.retention import Retention
from infrastructure.backup.writer_process import LOCK_FILE, commit_message
from infrastructure.core.errors import StorageError
from infrastructure.core.lock import Lock

PACKAGE_PARENT = Path(__file__).resolve().parents[2]
ALIGNMENT_BYTES = 64
GROWTH_BYTES = 16 * 1024**2  # so that a slightly longer message needs no new mapping

log = logging.getLogger(__name__)


class BackgroundWriter:
    """Writes versions into the store in `root`, and removes what `retention` does not keep.

    Args:
        root: the store's directory.
        compress: as in `Store`; costs the helper's time, not the training's.
    """

    def __init__(self, root: Path, retention: Retention, *, compress: bool = False) -> None:
        self.root = root
        self.retention = retention
        self.compress = compress
        self._file: BinaryIO | None = None
        self._memory: mmap.mmap | None = None
        self._helper: subprocess.Popen[bytes] | None = None
        self._lock: Lock | None = None
        self._places: list[tuple[Any, ...]] = []
        self._spelled = b"[]"
        self._in_flight: tuple[int, int] | None = None  # where its message lies, and how long it is

    def begin(
        self, tensors: Mapping[str, TensorBytes], values: dict[str, Any], **facts: Any
    ) -> None:
        """Take a copy and begin to write it; `facts` are `Store.commit`'s keywords.

        Call `collect(wait=True)` before: one version is in flight at a time.
        """
        assert self._in_flight is None, "a version is in flight"
        places, size_bytes = _lay_out(tensors)
        text = self._message(places, {"values": values, "facts": facts, "compress": self.compress})
        self._reserve(size_bytes + len(text))
        assert self._memory is not None
        for (_, _, _, begin, length), tensor in zip(places, tensors.values(), strict=True):
            self._memory[begin : begin + length] = tensor.data
        self._memory[size_bytes : size_bytes + len(text)] = text
        self._in_flight = (size_bytes, len(text))
        self._hand_over(b"%d %d\n" % self._in_flight)

    def collect(self, wait: bool = False) -> str | None:
        """The name of the version that was in flight, once it is committed; else None.

        Raises:
            StorageError: the disk refuses or lies; what was saved before is untouched.
        """
        if self._in_flight is None or not (wait or self._has_answer()):
            return None
        place, self._in_flight = self._in_flight, None
        answer = self._answer()
        if answer is None:
            log.warning("the helper that writes checkpoints is gone; this one is written here")
            assert self._memory is not None
            answer = commit_message(self.root, self.retention, self._memory, *place)
        if "error" in answer:
            raise StorageError(answer["error"])
        return str(answer["name"])

    def close(self) -> None:
        """End the helper; what is in flight is finished first."""
        try:
            self.collect(wait=True)
        except StorageError as error:
            log.warning("the last checkpoint was not written: %s", error)
        if self._helper is not None and self._helper.stdin is not None:
            self._helper.stdin.close()
            self._helper.wait()
            if self._helper.stdout is not None:
                self._helper.stdout.close()
        self._helper = None
        if self._file is not None:
            self._file.close()
        if self._lock is not None:
            self._lock.release()
        self._file = self._memory = self._lock = None

    def _message(self, places: list[tuple[Any, ...]], rest: dict[str, Any]) -> bytes:
        """What the helper needs to know. The places take long to spell, and seldom change."""
        if places != self._places:
            self._places, self._spelled = places, json.dumps(places).encode()
        return b"[%b,%b]" % (self._spelled, json.dumps(rest, allow_nan=False).encode())

    def _reserve(self, size_bytes: int) -> None:
        """Kept from version to version: fresh memory would cost more than the copy."""
        if self._file is None:
            self._file = _anonymous_file()
        if self._memory is None or len(self._memory) < size_bytes:
            os.ftruncate(self._file.fileno(), -(-size_bytes // GROWTH_BYTES) * GROWTH_BYTES)
            self._memory = mmap.mmap(self._file.fileno(), 0)

    def _hand_over(self, message: bytes) -> None:
        """Tell the helper where the version lies; so short a line never waits for it to be read."""
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
            for pipe in (self._helper.stdin, self._helper.stdout):
                with contextlib.suppress(OSError):  # bytes that nobody took
                    if pipe is not None:
                        pipe.close()
        self._helper = None

    def _start(self) -> subprocess.Popen[bytes]:
        assert self._file is not None
        descriptor = self._file.fileno()
        if self._lock is None:
            self.root.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self.root / LOCK_FILE)
            self._lock.take()
        command = [sys.executable, "-m", "infrastructure.backup.writer_process"]
        path = os.pathsep.join(filter(None, [str(PACKAGE_PARENT), os.environ.get("PYTHONPATH")]))
        return subprocess.Popen(
            [
                *command,
                str(self.root.resolve()),
                json.dumps(asdict(self.retention)),
                str(descriptor),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[descriptor, self._lock.descriptor],
            start_new_session=True,  # Ctrl-C in the terminal is for the training alone
            env={**os.environ, "PYTHONPATH": path},
        )

    def _has_answer(self) -> bool:
        assert self._helper is not None
        assert self._helper.stdout is not None
        return bool(select.select([self._helper.stdout], [], [], 0)[0])

    def _answer(self) -> dict[str, Any] | None:
        """What the helper says; None if it has died."""
        if self._helper is None or self._helper.stdout is None:
            return None
        line = self._helper.stdout.readline()
        return dict(json.loads(line)) if line.endswith(b"\n") else None


def _anonymous_file() -> BinaryIO:
    """A file without a name, in memory where the system can do so."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("checkpoint"), "r+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def _lay_out(tensors: Mapping[str, TensorBytes]) -> tuple[list[tuple[Any, ...]], int]:
    """Where each tensor goes: (name, type, shape, begin, length); and the size of all."""
    places = []
    end = 0
    for name, tensor in tensors.items():
        begin = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        end = begin + len(tensor.data)
        places.append((name, tensor.dtype, tensor.shape, begin, len(tensor.data)))
    return places, end
