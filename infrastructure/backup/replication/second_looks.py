"""Repeated checks of files that were confirmed at a destination.

Checks run at a limited rate while a run is copied, and once at its end.

A destination can lose files later. If a file is missing or changed, it no longer counts as
confirmed, and the copier writes it again.
"""

from collections.abc import Iterator, Sequence

from infrastructure.backup.replication.remote_session import RemoteSession, UploadedFile
from infrastructure.core.errors import StorageError
from infrastructure.core.messages import phrase

LOOK_AGAIN_SECONDS = 600.0  # between two checks of a file
MOST_LOOKS_PER_HOUR = 1000  # over all files; with more than 166 of them, each waits longer
READING_SHARE = 0.05  # share of the time for checks that read a file back
UNSEEN_SECONDS = 60.0  # before the next check of a file that could not be seen
MISSING_SECONDS = 600.0  # after this time a file counts as missing, also on a mount
LAST_WAITS_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)  # between checks of files that cannot be seen
LAST_SECONDS = 60.0  # for reading back recently compared files at the end


class SecondLooks:
    """A schedule for checking files again. Each `UploadedFile` records the results of its
    checks.
    """

    def __init__(self, link: RemoteSession) -> None:
        self.link = link
        self._next_at = float("-inf")

    def one(self, files: Sequence[UploadedFile]) -> None:
        """Check the file whose last check is the oldest, if its next check is due.

        Raises:
            OSError: if the destination does not respond.
        """
        began = self.link.clock()
        if not files or began < self._next_at:
            return
        period = max(LOOK_AGAIN_SECONDS, len(files) * 3600.0 / MOST_LOOKS_PER_HOUR)
        file = min(files, key=lambda each: _due_at(each, period))
        if _due_at(file, period) > began:
            return
        self._look(file, reads=not self.link.place.is_slow)
        duration_seconds = self.link.clock() - began
        self._next_at = began + max(3600.0 / MOST_LOOKS_PER_HOUR, duration_seconds / READING_SHARE)

    def last(self, files: Sequence[UploadedFile]) -> Iterator[float]:
        """Check all of `files`, the least recently compared first.

        Yield the seconds to wait between two checks.

        A file that the destination does not show after several attempts counts as missing.

        Raises:
            OSError: if the destination does not respond.
        """
        began = self.link.clock()
        left = sorted(files, key=lambda each: each.confirmed_at or 0.0)
        for wait in (*LAST_WAITS_SECONDS, None):
            for file in left:
                now = self.link.clock()
                is_old = now - (file.confirmed_at or 0.0) > self.link.fresh_seconds
                self._look(file, reads=is_old or now - began < LAST_SECONDS)
                yield 0.0
            left = [file for file in left if file.confirmed_at and file.present_at < began]
            if not left:
                return
            if wait is not None:
                yield wait
        for file in left:
            self._give_up(file)

    def _look(self, file: UploadedFile, reads: bool) -> None:
        try:
            is_there = self.link.still_has(file, reads=reads)
        except StorageError:  # recorded in `file`
            return
        if not is_there and self.link.clock() - file.present_at > MISSING_SECONDS:
            self._give_up(file)

    def _give_up(self, file: UploadedFile) -> None:
        file.confirmed_at = None
        file.problem = phrase(
            "backup.uploaded_file_disappeared", url=self.link.place.url, path=file.path
        )


def _due_at(file: UploadedFile, period: float) -> float:
    is_seen = file.present_at >= file.looked_at
    return max(file.present_at, file.looked_at) + (period if is_seen else UNSEEN_SECONDS)
