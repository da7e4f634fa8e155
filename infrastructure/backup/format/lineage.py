"""Which versions at a place belong to the history of a local store.

    <store>/lineage.json      {"known": [names], "since": sequence, "checksum": …}

A copied run folder, or another machine that resumed the same run, writes versions of its own under
the same run id. A name is the hash of what it names, so a version at the place that this store
neither holds, nor sent, nor was restored from, is another training's. The list outlives the process
that copies: one that is started again knows strangers as well as the one before it.
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
MOST_NAMES = 256  # a place holds far fewer; older ones count by their sequence

log = logging.getLogger(__name__)


def sequence_of(name: str) -> int:
    """The sequence in the name of a version."""
    return int(name[:12])


class Lineage:
    """The names that a store knows at its place.

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
        """The names themselves."""
        return frozenset(self._known)

    @property
    def newest_sequence(self) -> int:
        """The highest one that is known; a new version gets a higher one."""
        return max(map(sequence_of, self._known), default=0)

    def begin(self, local: Collection[str], parents: Collection[str]) -> None:
        """First contact with a place: what this store holds, and descends from, is known.

        Args:
            parents: the versions before those of `local`, which may be gone from here.
        """
        if not self.is_recorded:
            self._since = min(map(sequence_of, local), default=0) - 1
            self.add([*local, *parents])

    def restored(self, listed: Collection[str]) -> None:
        """This store was brought back from a place that lists these: they are its past, also those
        that are newer than the version it resumes from.

        Raises:
            OSError: the disk refuses.
        """
        self._since = max(self._since, *map(sequence_of, listed), -1)
        self.is_recorded = False
        make_directory(self.path.parent)
        self.add(listed)

    def add(self, names: Iterable[str]) -> None:
        """Take versions for ours, on the disk before this returns.

        Raises:
            OSError: the disk refuses.
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
        """Those of the versions at a place that another training wrote."""
        ours = self._known | {*local}
        return [n for n in listed if n not in ours and sequence_of(n) > self._since]
