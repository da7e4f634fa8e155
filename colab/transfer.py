"""The transfer of a remote file to this machine, completely or not at all.

Received bytes are stored in a part file. A killed transfer resumes from it, if the remote file is
unchanged and the machine was not restarted in between. A transfer that breaks off or becomes too
slow is retried, within a total time limit.
"""

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colab.remote_files import FileChangedError, Opened, RemoteFile
from infrastructure.core.errors import DataError, StorageError
from infrastructure.core.files import write_json
from infrastructure.core.hardware import disk_free_bytes
from infrastructure.core.json_text import as_object, as_text, parse_json
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.formatting import format_bytes, format_duration

SPARE_BYTES = 200 << 20  # without which everything else on the machine would suffer
LOOK_BYTES = 64 << 20  # between two checks of the disk
LONGEST_NAME_BYTES = 120
MOST_ENDING = 16
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class Patience:
    """The time limits and retries of a transfer.

    Attributes:
        silence_seconds: the longest time for which the source may send nothing.
        pace_seconds, least_bytes: the transfer is too slow if fewer than `least_bytes` arrive
            within `pace_seconds`.
        num_attempts: the transfer fails after this many attempts in a row that each bring less than
            `least_bytes`.
        first_wait_seconds: the wait before the second attempt. Each further wait is twice as long.
    """

    silence_seconds: float = 30.0
    pace_seconds: float = 60.0
    least_bytes: int = 60_000
    num_attempts: int = 5
    first_wait_seconds: float = 1.0


class Transfer:
    """The transfer of one file into `folder`, which contains nothing else.

    Args:
        accept: a function that is called with the file's name before anything is written, and
            raises an error to refuse the name.
        is_checked: whether the file's hash is known and will be compared.
        timeout_seconds: the time limit of the whole transfer.
        on_progress: a function that is called with the number of received bytes and the total,
            which may be None.
    """

    def __init__(
        self,
        remote: RemoteFile,
        folder: Path,
        accept: Callable[[str], None],
        *,
        is_checked: bool,
        timeout_seconds: float,
        patience: Patience,
        on_progress: Progress,
    ) -> None:
        self.remote, self.folder, self.accept, self.on_progress = (
            remote,
            folder,
            accept,
            on_progress,
        )
        self.is_checked, self.timeout_seconds, self.patience = is_checked, timeout_seconds, patience
        self.was_resumed = False
        self._until = time.monotonic() + timeout_seconds
        self._state = folder / "state.json"

    def bring(self) -> tuple[Path, str | None]:
        """Transfer the file. Return its local path and its version.

        Raises:
            DataError: if the file did not arrive, or it is unknown whether it is complete.
            StorageError: if the disk has too little free space.
        """
        num_failed, counted_bytes = 0, self.held_bytes()
        while True:
            try:
                return self._attempt()
            except ConnectionError as error:
                reason = str(error)
                if isinstance(error, FileChangedError):
                    self.discard()
            held = self.held_bytes()
            if held >= counted_bytes + self.patience.least_bytes:
                num_failed, counted_bytes = 0, held
            num_failed += 1
            if num_failed >= self.patience.num_attempts:
                raise DataError(
                    "notebook.download_failed",
                    file=self.remote.shown,
                    error=reason,
                    kept=self._kept(),
                )
            wait = self.patience.first_wait_seconds * 2 ** (num_failed - 1)
            self._require_time(wait)
            time.sleep(wait)

    def discard(self) -> None:
        """Delete the received bytes."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def held_bytes(self) -> int:
        """Return the number of received bytes from which the transfer can resume."""
        state = self._known()
        return self._part(as_text(state["name"])).stat().st_size if state else 0

    def _attempt(self) -> tuple[Path, str | None]:
        state, held = self._known(), self.held_bytes()
        self.was_resumed = held > 0
        if state and state["size_bytes"] == held:
            self.accept(state["name"])
            return self._part(state["name"]), state["version"]
        with self.remote.open(held, state["version"] if state else None) as opened:
            if opened.start not in (0, held):
                raise ConnectionError(phrase("notebook.other_part_sent"))
            if state and opened.start and opened.size_bytes != state["size_bytes"]:
                raise FileChangedError(phrase("notebook.file_length_changed"))
            part = self._begin(opened)
            self._write(part, opened)
        size_bytes = part.stat().st_size
        if opened.size_bytes not in (None, size_bytes):
            raise ConnectionError(
                phrase("notebook.transfer_cut", done=size_bytes, total=opened.size_bytes)
            )
        return part, opened.version

    def _begin(self, opened: Opened) -> Path:
        """Return the path of the part file for `opened`. If the file is new, write its record."""
        if not opened.end_is_known and not self.is_checked:
            raise DataError("notebook.file_length_unknown", file=self.remote.shown)
        name = safe_name(opened.name)
        self.accept(name)
        self.was_resumed = opened.start > 0
        if not opened.start:
            self.discard()
            self._part(name).parent.mkdir(parents=True)
            facts = {"name": name, "size_bytes": opened.size_bytes, "version": opened.version}
            write_json(self._state, {**facts, "boot": _boot()})
        require_free_space(self.remote.shown, self.folder, (opened.size_bytes or 0) - opened.start)
        return self._part(name)

    def _write(self, part: Path, opened: Opened) -> None:
        pace, looked = _Pace(self.patience, opened.start), opened.start
        done = opened.start
        with _disk_errors(part), part.open("ab") as file:
            for chunk in opened.chunks:
                file.write(chunk)
                file.flush()  # what is kept is what lies on the disk
                done += len(chunk)
                self.on_progress(done, opened.size_bytes)
                self._require_time()
                pace.require(done)
                if done - looked >= LOOK_BYTES:
                    require_free_space(
                        self.remote.shown, self.folder, (opened.size_bytes or 0) - done
                    )
                    looked = done
            os.fsync(file.fileno())

    def _require_time(self, more_seconds: float = 0.0) -> None:
        if time.monotonic() + more_seconds > self._until:
            raise DataError(
                "notebook.download_too_slow",
                file=self.remote.shown,
                duration=format_duration(self.timeout_seconds),
                kept=self._kept(),
            )

    def _kept(self) -> str:
        held = self.held_bytes()
        if not held:
            return phrase("notebook.nothing_downloaded_kept")
        return phrase("notebook.partial_download_kept", size=format_bytes(held))

    def _part(self, name: str) -> Path:
        return self.folder / "part" / name

    def _known(self) -> dict[str, Any] | None:
        """Return the record of the part file, or None if it cannot be resumed."""
        try:
            state = as_object(parse_json(self._state.read_text()))
            self._part(as_text(state["name"])).stat()
            is_same_file = self.is_checked or state["version"] is not None
            is_of_this_machine = state["boot"] == _boot() is not None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return dict(state) if is_same_file and is_of_this_machine else None


class _Pace:
    """A check that enough bytes have arrived recently."""

    def __init__(self, patience: Patience, done_bytes: int) -> None:
        self._patience = patience
        self._began, self._bytes = time.monotonic(), done_bytes

    def require(self, done_bytes: int) -> None:
        """Check that enough bytes have arrived recently. `done_bytes` is the total so far.

        Raises:
            ConnectionError: if too few bytes arrived.
        """
        seconds, came = time.monotonic() - self._began, done_bytes - self._bytes
        if seconds < self._patience.pace_seconds:
            return
        if came < self._patience.least_bytes:
            raise ConnectionError(
                phrase(
                    "notebook.transfer_slow",
                    size=format_bytes(came),
                    duration=format_duration(seconds),
                )
            )
        self._began, self._bytes = time.monotonic(), done_bytes


def require_free_space(what: str, folder: Path, more_bytes: int) -> None:
    """Check that `more_bytes` fit into `folder`, with some space left.

    Raises:
        StorageError: if they do not fit.
    """
    free, needed = disk_free_bytes(folder), max(0, more_bytes) + SPARE_BYTES
    if free is not None and free < needed:
        raise StorageError(
            "notebook.not_enough_space",
            file=what,
            needed=format_bytes(needed),
            folder=folder,
            free=format_bytes(free),
        )


def safe_name(name: str) -> str:
    """Return a safe local file name for a remote file: not a path, not hidden, not empty."""
    last = re.split(r"[/\\]", name)[-1]
    kept = re.sub(r"[^\w.()+ -]", "_", last).strip().lstrip("._ -")
    stem, dot, ending = kept.rpartition(".")
    if len(kept.encode()) > LONGEST_NAME_BYTES and len(ending) < MOST_ENDING:
        kept = _cut(stem, LONGEST_NAME_BYTES - MOST_ENDING) + dot + ending
    return _cut(kept, LONGEST_NAME_BYTES) or "data"


def _cut(text: str, num_bytes: int) -> str:
    return text.encode()[:num_bytes].decode(errors="ignore")


def _boot() -> str | None:
    """Return the ID of the machine's current boot, or None if it is unknown."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return None


@contextmanager
def _disk_errors(part: Path) -> Iterator[None]:
    """Convert disk errors inside the block to StorageErrors, but not connection errors."""
    try:
        yield
    except ConnectionError:
        raise
    except OSError as error:
        raise StorageError("notebook.part_not_written", path=part, error=error.strerror) from error
