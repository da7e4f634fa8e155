"""What a place of somebody's own may raise: OSError, and StorageError where it holds other bytes.

Whoever asks a place knows what to do about these two, and about nothing else: a `KeyError` out of
a backend would end the process that copies, and be told as a fault of ours.
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
    """A backend raised what no place may raise. An OSError: a copy is tried again, a run that
    begins says that its place cannot be used."""


def held_to_contract(place: Place, make_error: Callable[[str], Exception] = BackendError) -> Place:
    """The place itself: what its methods raise that is neither OSError nor an error of ours becomes
    an error that names the backend's own and where it was raised.

    Args:
        make_error: makes it from a sentence.
    """
    if hasattr(place.write, "__wrapped__"):
        return place  # the same object, opened again
    for name in CALLS:
        _replace(place, name, _held_call(place, getattr(place, name), make_error))
    _replace(place, "advice", _held_advice(place, make_error))
    for name in STREAMS:
        _replace(place, name, _held_stream(place, getattr(place, name), make_error))
    return place


def sentence(url: str, error: Exception) -> str:
    """What is told of an error that no place may raise."""
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
    """What helps against a fault of the backend is none of what the backend knows."""
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
    """Of a path that leads out of a place a ValueError is right, and the caller's fault."""
    for path in arguments:
        if isinstance(path, Path):
            place.parts_of(path)
