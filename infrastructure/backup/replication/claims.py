"""Claims, which stop a second writer of the same run at a backup destination.

    <store>/claims/<number>      {"version": name, "checksum": …}

This requires conditional writes. Before a process writes a checkpoint's manifest, it creates a file
for the next number, its claim. If two processes resumed from the same checkpoint, both try to
create the same file, and only one succeeds. The other process finds an unknown checkpoint in that
file, and stops. The numbers are independent of the checkpoints' own sequence numbers, which may
differ between the two.
"""

import errno
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from infrastructure.backup.format.manifest import VersionName
from infrastructure.backup.replication.remote_session import RemoteSession
from infrastructure.core.checksums import parse_record, with_checksum
from infrastructure.core.errors import DamagedFileError
from infrastructure.core.messages import phrase

FOLDER = "claims"
NUMBER = re.compile(r"\d{12,18}")
NUM_KEPT = 16  # the newest; enough that a listing during a removal does not miss all of them
MOST_TRIES = 64  # if a stale listing hides claims, each try finds one more


class Claims:
    """The claims of a run at its backup destination."""

    def __init__(self, link: RemoteSession) -> None:
        self.link = link
        self.folder = link.store.root / FOLDER

    def holder(self) -> str | None:
        """Return the checkpoint in the newest claim; None if there is no claim or it cannot be
        read.

        Raises:
            OSError: if the destination does not respond.
        """
        return self._holder(max(self._numbers(), default=-1))

    def take(self, name: str, refuse: Callable[[str], None]) -> None:
        """Make `name` the newest claim, if the destination supports conditional writes.

        Args:
            refuse: a function that raises an error if the checkpoint in the newest claim belongs to
                another run.

        Raises:
            OSError: if the destination does not respond or fails.
        """
        number, data = -1, json.dumps(with_checksum({"version": name})).encode()
        for _ in range(MOST_TRIES):
            # Read again after it was created: pruning may have freed an older number.
            number = max([number, *self._numbers()])
            holder = self._holder(number)
            if holder == name:
                return
            if holder is not None:
                refuse(holder)
            number += 1
            if self.link.place.create(self._path(number), data) is None:
                return
        raise OSError(errno.EIO, phrase("backup.claim_not_listed"), str(self.folder))

    def prune(self) -> Iterator[float]:
        """Remove old claims one by one. Between two removals, yield the seconds to wait.

        Raises:
            OSError: if the destination does not respond or fails.
        """
        for number in self._numbers()[:-NUM_KEPT]:
            self.link.remove(self._path(number))
            yield 0.0

    def _numbers(self) -> list[int]:
        try:
            names = self.link.place.names(self.folder)
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if NUMBER.fullmatch(name))

    def _holder(self, number: int) -> str | None:
        if number < 0:
            return None
        try:
            record = parse_record(b"".join(self.link.place.read(self._path(number))))
        except (FileNotFoundError, DamagedFileError):
            return None
        name = record.get("version")
        return name if isinstance(name, str) and VersionName.parse(name) else None

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:012d}"
