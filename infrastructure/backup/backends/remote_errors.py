"""Conversion of client libraries' errors to the OSError that a file system would raise.

boto, aiohttp, httpx, paramiko and Google's client each have their own exceptions; most carry an
HTTP status somewhere. Their messages may contain signed URLs and keys, so these are masked, and the
original exception is not shown.
"""

import contextlib
import errno
from collections.abc import Iterator
from typing import Any

from infrastructure.core.errors import TemperError
from infrastructure.core.redact import redact

STATUS_ERRNO = {
    401: errno.EACCES,
    402: errno.EDQUOT,
    403: errno.EACCES,
    404: errno.ENOENT,
    408: errno.ETIMEDOUT,
    410: errno.ENOENT,
    413: errno.EFBIG,
    429: errno.EAGAIN,
    507: errno.ENOSPC,
}
# Parts of class names and error codes, which are more specific than the status. The order matters.
WORDS_ERRNO = {
    "nosuchbucket": errno.ENOTCONN,
    "token": errno.EACCES,
    "credential": errno.EACCES,
    "accessdenied": errno.EACCES,
    "authentication": errno.EACCES,
    "forbidden": errno.EACCES,
    "quota": errno.EDQUOT,
    "slowdown": errno.EAGAIN,
    "throttl": errno.EAGAIN,
    "timeout": errno.ETIMEDOUT,
    "protocolerror": errno.ENOTCONN,
    "disconnected": errno.ENOTCONN,
    "networkerror": errno.ENOTCONN,
    "readerror": errno.ENOTCONN,
    "writeerror": errno.ENOTCONN,
}
MAX_TEXT = 300
# Errors of a store or client that does not support conditional writes.
UNSUPPORTED = ("notimplemented", "invalidargument", "invalidrequest", "paramvalidation")


@contextlib.contextmanager
def as_os_errors(shown: str) -> Iterator[None]:
    """Return a context that converts any error to an OSError. `shown` is the URL of the file,
    without secrets.

    Raises:
        OSError: with the matching errno (for example as FileNotFoundError or PermissionError) if
            the cause is known, and with EIO otherwise.
    """
    try:
        yield
    except (TemperError, MemoryError):
        raise
    except Exception as error:
        chain = list(_with_causes(error))
        numbers = [number for each in chain if (number := errno_of(each)) != errno.EIO]
        text = redact("; from ".join(f"{type(each).__name__}: {each}" for each in chain))
        raise OSError([*numbers, errno.EIO][0], text[:MAX_TEXT], shown) from None


def _with_causes(error: BaseException | None) -> Iterator[Exception]:
    while isinstance(error, Exception):
        yield error
        error = error.__cause__


def errno_of(error: Exception) -> int:
    """Return the errno that best describes `error`."""
    text = " ".join([_code(error), type(error).__name__]).replace("_", "").lower()
    for word, number in WORDS_ERRNO.items():
        if word in text:
            return number
    status = status_of(error)
    if status is not None:
        known = errno.ENOTCONN if status >= 500 else errno.EIO
        return STATUS_ERRNO.get(status, known)
    if isinstance(error, OSError) and error.errno:
        return error.errno
    if "notfound" in text or "nosuchkey" in text:
        return errno.ENOENT
    return _errno_of_kind(error)


def is_there(error: Exception) -> bool:
    """Return whether `error` means that a file was not created because its name already exists."""
    chain = list(_with_causes(error))
    return any(isinstance(each, FileExistsError) or status_of(each) == 412 for each in chain)


def is_unsupported(error: Exception) -> bool:
    """Return whether `error` means that a store or its client has no conditional writes."""
    words = [f"{_code(each)} {type(each).__name__}".lower() for each in _with_causes(error)]
    return isinstance(error, TypeError) or any(w in text for text in words for w in UNSUPPORTED)


def _errno_of_kind(error: Exception) -> int:
    if isinstance(error, PermissionError):
        return errno.EACCES
    if isinstance(error, TimeoutError):
        return errno.ETIMEDOUT
    is_connection = isinstance(error, ConnectionError) or "connect" in type(error).__name__.lower()
    return errno.ENOTCONN if is_connection else errno.EIO


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of an error, wherever its library stores it; None if it has none."""
    response = getattr(error, "response", None)
    status: Any = None
    if isinstance(response, dict):  # boto
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    for holder in (response, error):
        for name in ("status_code", "status", "code"):
            status = status if status is not None else getattr(holder, name, None)
    with contextlib.suppress(TypeError, ValueError):
        return int(status)
    return None


def _code(error: Exception) -> str:
    """Return the error code that boto and some others provide, such as "NoSuchBucket"."""
    response = getattr(error, "response", None)
    code = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    return str(code or "")
