"""Which rows the model of a run has learnt, by the run or by those that it began from, as hashes of
what they say: a measurement names those among its own, in whatever file they lie."""

import base64
import contextlib

import numpy as np
import numpy.typing as npt

from infrastructure.core.checksums import read_record, write_record
from infrastructure.core.errors import DamagedFileError
from infrastructure.run.directory import RunDirectory

MOST_ROWS = 1_000_000  # eight bytes each; of more rows those with the smallest hashes
ROWS = "rows"

Contents = npt.NDArray[np.uint64]


def record_trained_rows(run: RunDirectory, contents: Contents) -> None:
    """Add rows to those that the run has trained on.

    Args:
        contents: a hash of each row, (rows,).
    """
    known = trained_rows(run)
    kept = np.unique(contents if known is None else np.concatenate([known, contents]))[:MOST_ROWS]
    text = base64.b64encode(kept.astype("<u8").tobytes()).decode("ascii")
    write_record(run.trained_rows_file, {ROWS: text})


def trained_rows(run: RunDirectory) -> Contents | None:
    """The hashes in rising order; None where the run has none: it is older, or has other rows."""
    with contextlib.suppress(OSError, DamagedFileError, ValueError):
        text = read_record(run.trained_rows_file).get(ROWS)
        if isinstance(text, str):
            return np.frombuffer(base64.b64decode(text, validate=True), dtype="<u8")
    return None
