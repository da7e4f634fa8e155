"""The versions at a destination that belong to the history of a local store.

    <store>/lineage.json      {"known": [names], "since": sequence, "checksum": …}

A copied run folder, or another machine that resumed the same run, writes its own versions under the
same run id. A name is the hash of what it names, so a version at the destination that this store
neither holds, nor sent, nor was restored from, belongs to another run. The list outlives the copier
process: a restarted copier recognizes foreign versions as well as the one before it.
"""

import logging
from collections.abc import Collection, Iterable
from pathlib import Path

from infrastructure.core.checksums import read_record, write_record
from infrastructure.core.errors import DamagedFileError
from infrastructure.core.files import make_directory
from infrastructure.core.json_text import as_integer, as_list, as_text
from infrastructure.core.messages import phrase

FILE = "lineage.json"
MOST_NAMES = 256  # a destination holds far fewer; older ones are judged by their sequence

log = logging.getLogger(__name__)


def sequence_of(name: str) -> int:
    """Return the sequence in the name of a version."""
    return int(name[:12])


class Lineage:
    """The names at the destination that a store knows.

    Args:
        root: the local store.
    """

    def __init__(self, root: Path) -> None:
        self.path = root / FILE
        self._known: set[str] = set()
        self._since = -1
        self.is_recorded = False
        try:
            record = read_record(self.path)
            self._known = {as_text(name) for name in as_list(record["known"])}
            self._since = as_integer(record["since"])
            self.is_recorded = True
        except FileNotFoundError:
            pass
        except (DamagedFileError, KeyError, TypeError, ValueError) as error:
            log.warning(phrase("backup.lineage_record_damaged", error=error))

    @property
    def known(self) -> frozenset[str]:
        """The known names."""
        return frozenset(self._known)

    @property
    def newest_sequence(self) -> int:
        """The highest known sequence. A new version gets a higher one."""
        return max(map(sequence_of, self._known), default=0)

    def begin(self, local: Collection[str], parents: Collection[str]) -> None:
        """Record, at first contact with a destination, what this store holds and descends from.

        Args:
            parents: the versions before those of `local`, which may no longer be here.
        """
        if not self.is_recorded:
            self._since = min(map(sequence_of, local), default=0) - 1
            self.add([*local, *parents])

    def restored(self, listed: Collection[str]) -> None:
        """Record that this store was restored from a destination that lists these versions.

        They are its history, including those that are newer than the version that it resumes from.

        Raises:
            OSError: if the disk fails.
        """
        self._since = max(self._since, *map(sequence_of, listed), -1)
        self.is_recorded = False
        make_directory(self.path.parent)
        self.add(listed)

    def add(self, names: Iterable[str]) -> None:
        """Record versions as those of this store. They are on the disk when this returns.

        Raises:
            OSError: if the disk fails.
        """
        new = self._known | {*names}
        if self.is_recorded and new == self._known:
            return
        kept = sorted(new)[-MOST_NAMES:]
        if len(kept) < len(new):
            self._since = max(self._since, sequence_of(kept[0]) - 1)
        self._known = {*kept}
        self.path.parent.mkdir(exist_ok=True)
        write_record(self.path, {"known": kept, "since": self._since})
        self.is_recorded = True

    def strangers(self, listed: Iterable[str], local: Collection[str]) -> list[str]:
        """Return the versions at a destination that another run wrote."""
        ours = self._known | {*local}
        return [n for n in listed if n not in ours and sequence_of(n) > self._since]
