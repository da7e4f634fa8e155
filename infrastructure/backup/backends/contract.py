"""A wrapper that restricts a user-defined backup destination to the errors that it may raise.

A destination may raise OSError, and StorageError if a file has other bytes. Its callers handle only
these two errors. A `KeyError` from a backend would end the copier process and would be reported as
a bug in Temper.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

from infrastructure.backup.backends.base import Place
from infrastructure.core.error_place import described
from infrastructure.core.errors import TemperError
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact

STREAMS = ("read", "read_into", "read_back")

CALLS = (
    *("identify", "require_identity", "probe", "sweep", "confirm"),
    *("size", "names", "write", "create", "remove", "free_bytes", "make_directory", "sync_file"),
    *("sync_directory", "rename", "truncate", "forget_cached", "close"),
)


class BackendError(OSError):
    """An error that replaces an error which a backend was not allowed to raise.

    It is an OSError, so copying is retried, and a starting run reports that its backup destination
    cannot be used.
    """


def held_to_contract(place: Place, make_error: Callable[[str], Exception] = BackendError) -> Place:
    """Wrap the methods of a backup destination so that they raise only allowed errors.

    An error that is neither an OSError nor one of Temper's is replaced by an error that names the
    original error and the line that raised it. Return the wrapped destination.

    Args:
        make_error: creates the new error from a message.
    """
    if hasattr(place.write, "__wrapped__"):
        return place  # the same object was opened before
    for name in CALLS:
        _replace(place, name, _held_call(place, getattr(place, name), make_error))
    _replace(place, "advice", _held_advice(place, make_error))
    for name in STREAMS:
        _replace(place, name, _held_stream(place, getattr(place, name), make_error))
    return place


def sentence(url: str, error: Exception) -> str:
    """Return the message for an error that a backend is not allowed to raise."""
    raised = described(error)
    return redact(phrase("backup.backend_raised_wrong_error", url=url, error=raised))


def _replace(place: Place, name: str, method: Callable[..., Any]) -> None:
    setattr(place, name, method)


def _held_call(
    place: Place, method: Callable[..., Any], make_error: Callable[[str], Exception]
) -> Callable[..., Any]:
    @wraps(method)
    def call(*arguments: Any, **keywords: Any) -> Any:
        _refuse_paths_out(place, arguments)
        try:
            return method(*arguments, **keywords)
        except (OSError, TemperError, AssertionError):
            raise
        except Exception as error:
            raise make_error(sentence(place.url, error)) from error

    return call


def _held_advice(place: Place, make_error: Callable[[str], Exception]) -> Callable[[OSError], str]:
    """Wrap `advice`.

    If the error reports a bug in the backend, the advice is to fix the backend; the backend's own
    advice is not asked for.
    """
    advice = _held_call(place, place.advice, make_error)

    def call(error: OSError) -> str:
        return (
            phrase("backup.fix_backend_and_resume")
            if isinstance(error, BackendError)
            else str(advice(error))
        )

    return call


def _held_stream(
    place: Place, method: Callable[..., Iterator[Any]], make_error: Callable[[str], Exception]
) -> Callable[..., Iterator[Any]]:
    @wraps(method)
    def call(*arguments: Any, **keywords: Any) -> Iterator[Any]:
        _refuse_paths_out(place, arguments)
        try:
            yield from method(*arguments, **keywords)
        except (OSError, TemperError, AssertionError):
            raise
        except Exception as error:
            raise make_error(sentence(place.url, error)) from error

    return call


def _refuse_paths_out(place: Place, arguments: tuple[Any, ...]) -> None:
    """Raise ValueError if an argument is a path outside of the destination."""
    for path in arguments:
        if isinstance(path, Path):
            place.parts_of(path)
