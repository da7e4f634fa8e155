"""Errors of client libraries become those of a file system."""

import errno

import pytest

from infrastructure.backup.backends.remote_errors import (
    as_os_errors,
    errno_of,
    is_there,
    is_unsupported,
)
from infrastructure.core.errors import StorageError


class StatusError(Exception):
    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


class Response:
    def __init__(self, status_code: int) -> None:
        self.status_code = status_code


def boto(status: int | None, code: str) -> Exception:
    metadata = {} if status is None else {"HTTPStatusCode": status}
    return StatusError(response={"Error": {"Code": code}, "ResponseMetadata": metadata})


def named(name: str, base: type[Exception] = Exception) -> Exception:
    return type(name, (base,), {})()


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (boto(404, "404"), errno.ENOENT),
        (boto(404, "NoSuchBucket"), errno.ENOTCONN),
        (boto(None, "AccessDenied"), errno.EACCES),
        (boto(400, "RequestTimeout"), errno.ETIMEDOUT),
        (boto(503, "SlowDown"), errno.EAGAIN),
        (boto(500, "InternalError"), errno.ENOTCONN),
        (boto(400, "InvalidRequest"), errno.EIO),
        (StatusError(status=401), errno.EACCES),
        (StatusError(code="403"), errno.EACCES),
        (StatusError(status_code=404), errno.ENOENT),
        (StatusError(response=Response(429)), errno.EAGAIN),
        (StatusError(response=Response(413)), errno.EFBIG),
        (StatusError(response=Response(507)), errno.ENOSPC),
        (StatusError(response=Response(402)), errno.EDQUOT),
        (StatusError(response=Response(408)), errno.ETIMEDOUT),
        (StatusError(response=Response(410)), errno.ENOENT),
        (StatusError(response=Response(499)), errno.EIO),
        (StatusError(response=Response(403), status=404), errno.EACCES),
        (StatusError(code=None, status="unknown"), errno.EIO),
        (boto(None, "NoSuchKey"), errno.ENOENT),
        (boto(None, "Not_Found"), errno.ENOENT),
        (boto(400, "ThrottlingException"), errno.EAGAIN),
        (named("ForbiddenOperation"), errno.EACCES),
        (named("NetworkError"), errno.ENOTCONN),
        (named("WriteError"), errno.ENOTCONN),
        (named("SlowAnswer", TimeoutError), errno.ETIMEDOUT),
        (named("NoCredentialsError"), errno.EACCES),
        (named("LocalTokenNotFoundError", OSError), errno.EACCES),
        (named("AuthenticationException"), errno.EACCES),
        (named("ReadTimeout"), errno.ETIMEDOUT),
        (named("EndpointConnectionError"), errno.ENOTCONN),
        (named("RemoteProtocolError"), errno.ENOTCONN),
        (named("ServerDisconnectedError", OSError), errno.ENOTCONN),
        (named("ReadError"), errno.ENOTCONN),
        (named("StorageQuotaExceeded"), errno.EDQUOT),
        (ConnectionResetError(errno.ECONNRESET, "x"), errno.ECONNRESET),
        (ConnectionError(), errno.ENOTCONN),
        (FileNotFoundError("bucket/x"), errno.ENOENT),
        (PermissionError("bucket/x"), errno.EACCES),
        (OSError(errno.ENOSPC, "full"), errno.ENOSPC),
        (RuntimeError("?"), errno.EIO),
    ],
    ids=str,
)
def test_errors_of_a_library_become_errors_of_a_file_system(error: Exception, number: int) -> None:
    assert errno_of(error) == number
    with pytest.raises(OSError) as caught, as_os_errors("s3://bucket/x"):
        raise error
    assert caught.value.errno == number
    assert caught.value.__suppress_context__
    assert caught.value.filename == "s3://bucket/x"


def test_what_a_library_wraps_is_unwrapped() -> None:
    with pytest.raises(PermissionError) as caught, as_os_errors("hf://me/x"):
        raise RuntimeError("the upload failed") from StatusError(status=403)
    assert "the upload failed; from StatusError" in str(caught.value)
    with pytest.raises(OSError) as long, as_os_errors("hf://me/x"):
        raise RuntimeError("no " * 200)
    assert long.value.strerror == f"RuntimeError: {'no ' * 200}"[:300]


@pytest.mark.parametrize("error", [StorageError("x"), MemoryError(), KeyboardInterrupt()])
def test_our_own_errors_and_those_of_the_machine_stay(error: BaseException) -> None:
    with pytest.raises(type(error)), as_os_errors("x"):
        raise error


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "exists", "unsupported"),
    [
        (FileExistsError("bucket/x"), True, False),
        (StatusError(status=412), True, False),
        (caused(OSError(errno.EINVAL, "x"), boto(412, "PreconditionFailed")), True, False),
        (caused(OSError(errno.ENOSYS, "x"), boto(501, "NotImplemented")), False, True),
        (caused(OSError(errno.EINVAL, "x"), boto(400, "InvalidArgument")), False, True),
        (caused(OSError(errno.EINVAL, "x"), boto(400, "InvalidRequest")), False, True),
        (named("ParamValidationError"), False, True),
        (TypeError("unexpected keyword argument 'mode'"), False, True),
        (boto(400, "RequestTimeout"), False, False),
        (boto(400, "ExpiredToken"), False, False),
        (boto(409, "ConditionalRequestConflict"), False, False),
        (boto(503, "SlowDown"), False, False),
        (ConnectionResetError(errno.ECONNRESET, "x"), False, False),
    ],
)
def test_what_a_store_answers_to_a_condition(
    error: Exception, exists: bool, unsupported: bool
) -> None:
    assert (is_there(error), is_unsupported(error)) == (exists, unsupported)
