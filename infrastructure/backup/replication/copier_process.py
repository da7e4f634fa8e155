"""The copier process, started with `python -m`, which copies checkpoints to a backup destination.

The first line of its standard input holds its settings, so that other users of the machine cannot
see them. After that, an empty line requests a check for work at once, a line that begins with
`LOOK` requests another check of the whole newest checkpoint when nothing is left to copy, and any
other line is a folder to publish. The end of the input means that the run has ended or was killed:
the newest checkpoint and the folders are still copied, for a limited time. The process has a low
priority (nice), so that it mainly uses CPU time that the training does not need.
"""

import contextlib
import json
import os
import resource
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from infrastructure.backup.backends import open_place
from infrastructure.backup.backends.place_identity import PlaceRecord
from infrastructure.backup.format.retention import Retention
from infrastructure.backup.format.store import Store
from infrastructure.backup.replication.bandwidth import Bandwidth
from infrastructure.backup.replication.copier import Copier
from infrastructure.backup.replication.folder_upload import Publication
from infrastructure.backup.replication.remote_session import RemoteSession
from infrastructure.backup.replication.status import (
    FENCED,
    FINISHED,
    LEFT,
    LOCK_SUFFIX,
    SUCCESSOR_SUFFIX,
    BackupStatus,
    write_status,
)
from infrastructure.backup.writer.writer_process import LOCK_FILE
from infrastructure.core.error_place import described
from infrastructure.core.kept_traceback import keep_traceback, traceback_file
from infrastructure.core.lock import Lock, is_held
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact
from infrastructure.core.stop_signals import ignore_stop_signals

NICENESS = 10  # gets a tenth of the CPU if all cores are busy; at 19 it would starve
POLL_SECONDS = 0.5
STATUS_SECONDS = 1.0  # between two writes of a status in which only byte counts change
BUSY = ("copying", "confirming")
LOOK = "look "
INPUT = 0
RECORD_FILE = "place.json"


@dataclass(frozen=True)
class CopierSettings:
    """The settings of a copier.

    Attributes:
        store: the directory of the local store.
        place, run_id: the destination of the copies: `<place>/<run id>`.
        status: the status file; a lock and the record of the destination are next to it.
        keep: the number of confirmed checkpoints that stay at the destination.
        compression: "auto" (if the destination is slow), "zstd" or "off".
        bytes_per_second: the bandwidth limit; None means no limit.
        finish_seconds: how long to continue after the run has ended.
        traceback: the file for the traceback of an unexpected error; None discards it.
    """

    store: str
    place: str
    run_id: str
    status: str
    keep: int = 2
    compression: str = "auto"
    bytes_per_second: float | None = None
    finish_seconds: float = 900.0
    traceback: str | None = None

    def link(self) -> RemoteSession:
        """Open a session with the destination.

        Raises:
            ValueError, OSError, TemperError: as in `open_place`.
        """
        place = open_place(self.place)
        compresses = self.compression == "zstd" or (self.compression == "auto" and place.is_slow)
        return RemoteSession(place, self.run_id, compresses, Bandwidth(self.bytes_per_second))

    def keep_traceback(self, error: Exception) -> None:
        """Write the traceback of an error to the file `traceback`, if this setting is not None."""
        if self.traceback is not None:
            keep_traceback(error, Path(self.traceback))

    @property
    def record(self) -> PlaceRecord:
        """The record of the destination to which the run has been copied."""
        return PlaceRecord(Path(self.status).with_name(RECORD_FILE))

    @property
    def retention(self) -> Retention:
        """The rules for the checkpoints to keep at the destination: the newest, the best, the last
        emergency one.
        """
        return Retention(keep_last=self.keep, keep_best=1)


class StatusFile:
    """A status file that is written when the status changes; for byte counts alone, once a
    second.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = BackupStatus()
        self._at = float("-inf")

    def show(self, status: BackupStatus) -> None:
        """Write `status` if it is due."""
        is_news = _without_counts(status) != _without_counts(self._written)
        counts_on = replace(status, changed_at=self._written.changed_at) != self._written
        if is_news or (counts_on and time.monotonic() - self._at >= STATUS_SECONDS):
            self.write(status)

    def write(self, status: BackupStatus) -> None:
        """Write `status` now. If the disk fails, skip this status; the next one is written as
        usual.
        """
        with contextlib.suppress(OSError):
            write_status(self.path, status)
            self._written, self._at = status, time.monotonic()


def _without_counts(status: BackupStatus) -> BackupStatus:
    """Return a status without its byte counts and time, which are written less often.

    "copying" and "confirming" count as one state because they alternate many times.
    """
    state = BUSY[0] if status.state in BUSY else status.state
    return replace(status, done_bytes=0, changed_at=None, state=state)


def serve(
    copier: Copier,
    file: StatusFile,
    finish_seconds: float,
    is_succeeded: Callable[[], bool],
) -> None:
    """Copy until the input has ended and everything is confirmed, or until the time is over.

    Args:
        is_succeeded: returns whether the copier of a later session waits for this copier to end. If
            this copier then fails after its own run has ended, it leaves the remaining work to the
            later one.
    """
    ended_at: float | None = None
    begun = b""  # an incomplete line
    while True:
        wait = min(copier.tick(), POLL_SECONDS)
        file.show(copier.status())
        if ended_at is None:
            data = _input_within(wait)
            if data == b"":
                ended_at = time.monotonic()
                copier.look_at_the_end()
            *lines, begun = (begun + (data or b"")).split(b"\n")
            for line in filter(None, lines):
                if line.startswith(LOOK.encode()):
                    copier.look_again(line.decode().removeprefix(LOOK))
                else:
                    copier.publish(Publication.from_line(line))
            if lines:
                copier.nudge()
            continue
        is_done = copier.is_done and not _is_written_to(copier.local)
        if copier.has_failed and is_succeeded():
            copier.close()
            return
        if (is_done and copier.has_looked) or time.monotonic() - ended_at > finish_seconds:
            status = copier.status()
            is_safe = status.is_safe and is_done and status.state != FENCED
            file.write(replace(status, state=FINISHED if is_safe else LEFT))
            copier.close()
            return
        time.sleep(wait)


def _input_within(seconds: float) -> bytes | None:
    """Return the input received within `seconds`; b"" at the end of the input, None if nothing
    came.
    """
    if select.select([INPUT], [], [], seconds)[0]:
        return os.read(INPUT, 65536)
    return None


def _is_written_to(local: Store) -> bool:
    """Return whether another process holds the lock of the store and may write checkpoints."""
    try:
        lock = Lock(local.root / LOCK_FILE)
    except OSError:
        return False
    try:
        return not lock.take(shared=True, wait=False, where_there_are_none=True)
    finally:
        lock.release()


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(INPUT, 1)
        if not byte:
            raise SystemExit("the copier got no settings")
        line += byte
    return line


def _allow_many_files() -> None:
    """Raise the limit on open files, because the copier keeps all files of a checkpoint open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    """Run the copier until the run has ended and its last checkpoint is confirmed."""
    ignore_stop_signals()
    _allow_many_files()
    settings = CopierSettings(**json.loads(_first_line()))
    try:
        _copy(settings)
    except Exception as error:  # only the last line of this process is shown
        settings.keep_traceback(error)
        path = traceback_file(error)
        kept = "" if path is None else phrase("backup.traceback_location", path=path)
        raise SystemExit(redact(f"{described(error)}{kept}")) from error


def _copy(settings: CopierSettings) -> None:
    # A user-defined backend may import PyTorch. The process is niced only after that: next to a
    # training that uses every core, the import would otherwise take minutes.
    link = settings.link()
    os.nice(NICENESS)
    path = Path(settings.status)
    path.parent.mkdir(exist_ok=True)  # not its parents: a removed run must not reappear
    successor_path = path.with_suffix(SUCCESSOR_SUFFIX)
    lock, successor = Lock(path.with_suffix(LOCK_SUFFIX)), Lock(successor_path)
    successor.take()
    lock.take()  # waits for the copier of an earlier session that still copies
    successor.release()
    file = StatusFile(path)
    local = Store(Path(settings.store))
    copier = Copier(
        local,
        link,
        settings.retention,
        record=settings.record,
        on_piece=lambda: file.show(copier.status()),
        on_fault=settings.keep_traceback,
    )
    serve(copier, file, settings.finish_seconds, lambda: is_held(successor_path) is True)
    lock.release()


if __name__ == "__main__":
    main()
