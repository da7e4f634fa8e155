"""A record of the rows on which the model of a run was trained, in this run or in earlier ones.

An evaluation can then report how many of its own rows the model was trained on.

Rows are saved as hashes of their contents, keyed with a secret, because a short row can be guessed
from a plain hash. The secret stays with the hashes in the run's own folder and its backups.
"""

import base64
import contextlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from infrastructure.core.checksums import read_record, write_record
from infrastructure.core.errors import DamagedFileError
from infrastructure.run.directory import RunDirectory
from infrastructure.run.identity import new_key, row_digest

MOST_ROWS = 1_000_000  # eight bytes each; of more rows, those with the smallest hashes
KEY, ROWS = "key", "rows"

Contents = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class TrainedRows:
    """A set of rows, as keyed hashes.

    Attributes:
        key: the secret key.
        hashes: the hashes in ascending order, an array of shape (rows,).
    """

    key: str = field(default_factory=new_key, repr=False)
    hashes: Contents = field(default_factory=lambda: np.array([], dtype=np.uint64))

    def with_contents(self, contents: Contents) -> "TrainedRows":
        """Return a set that contains the rows of this set and other rows.

        Args:
            contents: the plain hashes of the other rows, an array of shape (others,).
        """
        both = np.union1d(self.hashes, self._keyed(contents))
        return TrainedRows(self.key, both[:MOST_ROWS])

    def num_among(self, contents: Contents) -> int:
        """Return how many of these rows, given by their plain hashes, the model was trained on."""
        return int(np.isin(self._keyed(contents), self.hashes).sum())

    def _keyed(self, contents: Contents) -> Contents:
        empty, data = row_digest(self.key), contents.astype("<u8").tobytes()
        hashes = bytearray()
        for start in range(0, len(data), 8):
            digest = empty.copy()
            digest.update(data[start : start + 8])
            hashes += digest.digest()[:8]
        return np.frombuffer(hashes, dtype="<u8")


def record_trained_rows(
    run: RunDirectory, contents: Contents, earlier: TrainedRows | None = None
) -> None:
    """Add rows to the record of the rows on which the run was trained.

    Args:
        contents: the plain hash of each row, an array of shape (rows,).
        earlier: the trained rows of an earlier run, if this run starts from its model. The key of
            these rows is reused.
    """
    known = trained_rows(run) or earlier or TrainedRows()
    kept = known.with_contents(contents)
    text = base64.b64encode(kept.hashes.astype("<u8").tobytes()).decode("ascii")
    write_record(run.trained_rows_file, {KEY: kept.key, ROWS: text})


def trained_rows(run: RunDirectory) -> TrainedRows | None:
    """Return the trained rows; None if the run has no record of them or the record is damaged."""
    with contextlib.suppress(OSError, DamagedFileError, ValueError):
        record = read_record(run.trained_rows_file)
        key, text = record.get(KEY), record.get(ROWS)
        if isinstance(key, str) and isinstance(text, str) and len(bytes.fromhex(key)) == 32:
            hashes = np.frombuffer(base64.b64decode(text, validate=True), dtype="<u8")
            return TrainedRows(key, hashes)
    return None
