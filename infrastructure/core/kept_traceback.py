"""A file in the run directory for the traceback of an unexpected error.

The screen shows only one sentence of such an error, which is not enough to find its cause.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from infrastructure.core.error_place import error_place
from infrastructure.core.errors import TemperError
from infrastructure.core.files import write_text
from infrastructure.core.redact import redact

ERRORS_FOLDER = Path("logs") / "errors"
TRACEBACK_FILE = ERRORS_FOLDER / "traceback.txt"
COPIER_TRACEBACK_FILE = ERRORS_FOLDER / "copier.txt"
_ATTRIBUTE = "_temper_traceback_file"


def keep_traceback(error: BaseException, path: Path) -> None:
    """Write the traceback of `error` to `path`, with secrets masked, replacing any earlier one.

    If the disk cannot be written to, no second error is raised.
    """
    with suppress(OSError):
        write_text(path, redact("".join(traceback.format_exception(error))))
        vars(error)[_ATTRIBUTE] = path


def traceback_file(error: BaseException) -> Path | None:
    """Return the file to which the traceback of `error` was written, or None if there is none."""
    path: Path | None = vars(error).get(_ATTRIBUTE)
    return path


@contextmanager
def traceback_kept_in(path: Path) -> Iterator[None]:
    """Write the traceback of an unexpected error in the block to `path`, and re-raise the error.

    A `TemperError` that Temper itself raised is expected, and its traceback is not written.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, TemperError) or error_place(error) is not None:
            keep_traceback(error, path)
        raise
