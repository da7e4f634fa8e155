"""A record of which checkpoints at a destination belong to the history of a local store.

    <store>/lineage.json      {"known": [names], "since": sequence, "checksum": …}

If a run folder was copied, or another machine resumed the same run, a second process writes its own
checkpoints under the same run id. A checkpoint at the destination belongs to that process if this
store does not hold it, did not send it and was not restored from it. Checkpoints are named by the
hash of their contents, so their names are enough to decide this. The list is on disk, so a
restarted copier also recognizes the checkpoints of another run.
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
    """Return the sequence number in the name of a checkpoint."""
    return int(name[:12])


class Lineage:
    """The record of those checkpoints at a destination that belong to a store's history.

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
        """The names of the checkpoints that belong to the history of this store."""
        return frozenset(self._known)

    @property
    def newest_sequence(self) -> int:
        """The highest sequence number in this store's history.

        A new checkpoint gets a higher number.
        """
        return max(map(sequence_of, self._known), default=0)

    def begin(self, local: Collection[str], parents: Collection[str]) -> None:
        """Record the checkpoints of this store and their parents, unless a record already exists.

        Args:
            parents: the checkpoints from which those of `local` follow; this store may have removed
                them.
        """
        if not self.is_recorded:
            self._since = min(map(sequence_of, local), default=0) - 1
            self.add([*local, *parents])

    def restored(self, listed: Collection[str]) -> None:
        """Record that this store was restored from a destination with the checkpoints `listed`.

        All of them belong to the history of this store, even those newer than the checkpoint from
        which the run resumes.

        Raises:
            OSError: if the disk fails.
        """
        self._since = max(self._since, *map(sequence_of, listed), -1)
        self.is_recorded = False
        make_directory(self.path.parent)
        self.add(listed)

    def add(self, names: Iterable[str]) -> None:
        """Record checkpoints as belonging to this store. When this returns, the record is on the
        disk.

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
        """Return those checkpoints at a destination that another run wrote."""
        ours = self._known | {*local}
        return [n for n in listed if n not in ours and sequence_of(n) > self._since]
