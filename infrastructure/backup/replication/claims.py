"""Who may write the next manifest at a place that can create a file only where there is none.

    <store>/claims/<number>      {"version": name, "checksum": …}

Of two trainings that go on from the same past, both want the number after the highest, and one gets
it: the other sees a name that it does not know, and writes nothing. The numbers are those of the
place, since versions of two trainings may never have a sequence in common.
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

FOLDER = "claims"
NUMBER = re.compile(r"\d{12,18}")
NUM_KEPT = 16  # the newest: no listing, whatever is removed meanwhile, misses all of them
MOST_TRIES = 64  # each finds one more claim that the listing did not show


class Claims:
    """The claims at the place of `link`."""

    def __init__(self, link: RemoteSession) -> None:
        self.link = link
        self.folder = link.store.root / FOLDER

    def holder(self) -> str | None:
        """The version in the newest claim; None: there is none, or it cannot be read.

        Raises:
            OSError: the place does not answer.
        """
        return self._holder(max(self._numbers(), default=-1))

    def take(self, name: str, refuse: Callable[[str], None]) -> None:
        """Make the newest claim that of `name`, where the place can do that.

        Args:
            refuse: is given the version in the newest claim, and raises where it is a stranger's.

        Raises:
            OSError: the place does not answer, or refuses.
        """
        number, data = -1, json.dumps(with_checksum({"version": name})).encode()
        for _ in range(MOST_TRIES):
            # also after it was made: an older number is free again where old claims were removed
            number = max([number, *self._numbers()])
            holder = self._holder(number)
            if holder == name:
                return
            if holder is not None:
                refuse(holder)
            number += 1
            if self.link.place.create(self._path(number), data) is None:
                return
        raise OSError(errno.EIO, "a claim that was made is not to be seen", str(self.folder))

    def prune(self) -> Iterator[float]:
        """Remove old claims, one after the other; yields the seconds to wait between.

        Raises:
            OSError: the place does not answer, or refuses.
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
