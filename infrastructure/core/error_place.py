"""Look-up of the line of user code that raised an error."""

import inspect
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path

OUR_PARENT = Path(__file__).resolve().parents[2]
OUR_FOLDERS = ("infrastructure", "colab", "temper")


def error_place(error: BaseException) -> str | None:
    """Return the line of user code that raised an error, such as `turns.py:21 (begin_step)`.

    Return None if the innermost code outside libraries belongs to Temper.
    """
    return next(_lines(error), None)


def named(error: BaseException) -> str:
    """Return the type and text of an error on one line, such as `KeyError: 'a'`."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def described(error: BaseException) -> str:
    """Return an error in one line: its type, its text, and the line of user code."""
    return f"{named(error)}{at_place(error)}"


def at_place(error: BaseException) -> str:
    """Return the line of user code to append to an error's text: ` at turns.py:21 (begin_step)`.

    The result is "" if the text already names that line, or if no user code raised the error.
    """
    place = error_place(error)
    return "" if place is None or place in str(error) else f" at {place}"


def caller_place(error: BaseException) -> str | None:
    """Return the innermost line of user code that led to an error.

    Return None if no user code was involved.

    The error itself may have been raised in code of Temper or of a library.
    """
    return next(filter(None, _lines(error)), None)


def place_of(function: object) -> str | None:
    """Return the line where a user-defined function begins, such as `my_losses.py:12 (focal)`.

    Return None if the line is unknown, or if the function belongs to Temper or to a library.
    """
    code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
    if code is None or _is_ours(code.co_filename) or _is_of_a_library(code.co_filename):
        return None
    return f"{Path(code.co_filename).name}:{code.co_firstlineno} ({code.co_name})"


def _lines(error: BaseException) -> Iterator[str | None]:
    """Yield the lines of user code that led to an error, innermost first; None for Temper's."""
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        file = frame.f_code.co_filename
        if _is_ours(file):
            yield None
        elif not _is_of_a_library(file):
            yield f"{Path(file).name}:{line} ({frame.f_code.co_name})"


def _is_ours(file: str) -> bool:
    return any(Path(file).is_relative_to(OUR_PARENT / name) for name in OUR_FOLDERS)


def _is_of_a_library(file: str) -> bool:
    """Return whether code belongs to a library or is not in a file, like code made from a
    string.
    """
    return file.startswith("<") or any(Path(file).is_relative_to(f) for f in _library_folders())


@cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    named = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    of_path = {entry for entry in sys.path if Path(entry).name in ("site-packages", "lib-dynload")}
    return tuple(sorted(named | of_path))
