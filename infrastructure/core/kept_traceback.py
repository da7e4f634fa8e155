"""The traceback of an error that nobody foresaw, in a file of the run: what is shown of it is one
sentence, and whoever has to find the cause needs the lines."""

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
    """Write the traceback of `error` to `path`, without secrets, in place of an earlier one's. A
    disk that refuses is no second error."""
    with suppress(OSError):
        write_text(path, redact("".join(traceback.format_exception(error))))
        vars(error)[_ATTRIBUTE] = path


def traceback_file(error: BaseException) -> Path | None:
    """Where the traceback of `error` is kept, if it is."""
    path: Path | None = vars(error).get(_ATTRIBUTE)
    return path


@contextmanager
def traceback_kept_in(path: Path) -> Iterator[None]:
    """Inside, an error that says no sentence of ours leaves its traceback in `path`."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, TemperError) or error_place(error) is not None:
            keep_traceback(error, path)
        raise
