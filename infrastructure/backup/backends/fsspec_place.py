"""A backup destination in any store that fsspec supports: S3, Google Cloud Storage, Azure, SFTP.

In these stores, a file is safe as soon as the write returns. To check a file, Temper compares the
server's own checksum. If the server has no comparable checksum, Temper reads the file back.
"""

import base64
import binascii
import errno
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from infrastructure.backup.backends.base import Content, Evidence, Place, require_content
from infrastructure.backup.backends.remote_errors import as_os_errors, is_there, is_unsupported
from infrastructure.backup.format.file_operations import CHUNK_BYTES, Buffer
from infrastructure.config.registries import BACKENDS
from infrastructure.core.errors import InputError, MissingPackageError, StorageError
from infrastructure.core.lookup import unknown_name
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.core.redact import redact, redact_urls

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

Result = TypeVar("Result")

# A single request is atomic, and the server computes a checksum of its bytes. s3fs sends up to
# twice its 50 MB part size in one request.
ONE_REQUEST_BYTES = 96 * 1024**2
# Protocols that cannot be written to, or that cache locally and would read that cache back.
# fmt: off
NO_STORES = {
    "http", "https", "data", "git", "github", "gist", "zip", "tar", "libarchive", "reference",
    "dask", "wandb", "dvc", "root", "pyscript", "dir", "generic", "async_wrapper", "asyncwrapper",
    "asynclocal", "cached", "blockcache", "filecache", "simplecache",
}
NO_SCHEMES = {"folder", "fsspec"}  # built-in backends that are not URL schemes
COMMON = ("s3", "gs", "az", "hf", "sftp")  # the most used schemes
BUCKETS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "tos", "tosfs"}
# fmt: on
# Schemes whose server refuses to create a file that exists; other fsspec file systems check first
# and then write. An S3-compatible server may ignore the condition: lineage then detects the other
# run.
CONDITIONAL = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory"}
CHECKSUMS = ("ETag", "etag", "md5", "md5Hash", "md5Checksum", "sha256", "checksum")
PIP_LINES = {
    "s3": "pip install s3fs",
    "s3a": "pip install s3fs",
    "gs": "pip install gcsfs",
    "gcs": "pip install gcsfs",
    "az": "pip install adlfs",
    "abfs": "pip install adlfs",
    "abfss": "pip install adlfs",  # which fsspec knows by that package alone
    "sftp": "pip install paramiko",
    "ssh": "pip install paramiko",
}
ADVICE = {
    errno.EACCES: "backup.advice_check_credentials",
    errno.EPERM: "backup.advice_check_permissions",
    errno.ENOENT: "backup.advice_check_bucket",
    errno.EDQUOT: "backup.advice_quota",
    errno.ENOSPC: "backup.advice_full",
    errno.EAGAIN: "backup.advice_store_busy",
    errno.EFBIG: "backup.advice_file_too_large",
}


class FsspecPlace(Place):
    """The directory at an fsspec URL.

    Args:
        url: a URL with a scheme, such as `s3://bucket/folder`. Options come from the environment.

    Raises:
        ValueError: if no file system has this scheme, or the file system is read-only or only a
            cache of another one.
        MissingPackageError: if a package that the scheme needs is not installed.
    """

    is_slow = True

    def __init__(self, url: str) -> None:
        self.scheme, _, address = url.partition("://")
        self.url = redact_urls(f"{self.scheme}://{address.partition('?')[0].rstrip('/')}")
        self._address = url
        self.root = _root_of(url, self.scheme, self.url)

    @cached_property
    def file_system(self) -> "AbstractFileSystem":
        """The fsspec client, created on first access. Some clients connect when they are created.

        Raises:
            OSError: if the client cannot be created or does not connect.
        """
        import fsspec

        with as_os_errors(self.url):
            return fsspec.core.url_to_fs(self._address)[0]

    def confirm(self, path: Path, content: Content) -> Evidence:
        self.require_identity()
        try:
            info = self._call(path, self._info)
        except FileNotFoundError as error:
            raise StorageError("backup.uploaded_file_missing", path=self.shown(path)) from error
        if info.get("size") == content.size_bytes and _has_checksum(info, content):
            return Evidence.CHECKSUM
        require_content(self, path, content)
        return Evidence.READ_BACK

    def advice(self, error: OSError) -> str:
        code = ADVICE.get(error.errno or 0)
        return super().advice(error) if code is None else phrase(code)

    def read(self, path: Path) -> Iterator[bytes]:
        at = self.at(path)
        with as_os_errors(self.shown(path)):
            self.file_system.invalidate_cache(at)
            with self.file_system.open(at, "rb", block_size=CHUNK_BYTES) as file:
                while chunk := file.read(CHUNK_BYTES):
                    yield bytes(chunk)

    def size(self, path: Path) -> int:
        size = self._call(path, self._info).get("size")
        if not isinstance(size, int):
            raise OSError(errno.EIO, phrase("backup.store_reports_no_size"), self.shown(path))
        return size

    def names(self, directory: Path) -> list[str]:
        return self._call(directory, self._names)

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        try:
            self._call(path, partial(self._write, buffers=buffers))
        except FileNotFoundError:
            if self.scheme in BUCKETS:  # no directories; a missing bucket is not created
                raise
            self._call(path, lambda at: self.file_system.makedirs(self._parent(at), exist_ok=True))
            self._call(path, partial(self._write, buffers=buffers))

    def create(self, path: Path, data: bytes) -> bool | None:
        if self.scheme not in CONDITIONAL:
            return None
        return self._call(path, partial(self._create, data=data))

    def remove(self, path: Path) -> None:
        self._call(path, self.file_system.rm_file)

    def at(self, path: Path) -> str:
        """Return the path of `path` in the file system.

        Raises:
            ValueError: if the path leads out of the destination.
        """
        return "/".join([self.root.rstrip("/"), *self.parts_of(path)])

    def shown(self, path: Path) -> str:
        """Return the URL of `path`, without secrets."""
        return "/".join([self.url, *path.parts])

    def _call(self, path: Path, operation: Callable[[str], Result]) -> Result:
        at = self.at(path)
        with as_os_errors(self.shown(path)):
            return operation(at)

    def _info(self, at: str) -> dict[str, object]:
        self.file_system.invalidate_cache(at)
        self.file_system.invalidate_cache(self._parent(at))
        return dict(self.file_system.info(at))

    def _names(self, at: str) -> list[str]:
        self.file_system.invalidate_cache(at)
        listed = (str(name).rstrip("/") for name in self.file_system.ls(at, detail=False))
        here = self.file_system._strip_protocol(at).strip("/")
        names = {name.rpartition("/")[2] for name in listed if name.strip("/") != here}
        return sorted(names - {""})

    def _write(self, at: str, buffers: Sequence[Buffer]) -> None:
        start = bytearray()
        rest = iter(buffers)
        for buffer in rest:
            start += buffer
            if len(start) > ONE_REQUEST_BYTES:
                break
        else:
            self.file_system.pipe_file(at, bytes(start))
            return
        with self.file_system.open(at, "wb") as file:
            file.write(start)
            for buffer in rest:
                file.write(buffer)

    def _create(self, at: str, data: bytes) -> bool | None:
        try:
            self.file_system.pipe_file(at, data, mode="create")
        except Exception as error:
            if is_there(error):
                return False
            if is_unsupported(error):
                return None
            raise
        return True

    @staticmethod
    def _parent(at: str) -> str:
        return at.rpartition("/")[0]


def _root_of(url: str, scheme: str, shown: str) -> str:
    """Return the path of `url`'s folder in its file system, without connecting."""
    fsspec = require("fsspec", f"the backup destination {shown}")
    if "::" in url or scheme in NO_STORES:
        raise InputError("backup.destination_not_writable_store", url=shown)
    known = {*fsspec.available_protocols(), *fsspec.registry}
    if scheme not in known and scheme in PIP_LINES:
        raise _package_missing(scheme, shown)
    if scheme not in known:
        schemes = {*BACKENDS.names(), *known} - {*NO_STORES, *NO_SCHEMES}
        raise InputError(
            "backup.unknown_url_scheme",
            url=shown,
            reason=unknown_name("scheme", scheme, schemes, COMMON),
        )
    try:
        kind = fsspec.get_filesystem_class(scheme)
        return str(kind._strip_protocol(url))
    except ImportError as error:
        raise _package_missing(scheme, shown) from error
    except Exception as error:  # each file system raises its own errors
        reason = redact(f"{type(error).__name__}: {error}")
        raise InputError("backup.destination_cannot_be_opened", url=shown, reason=reason) from None


def _package_missing(scheme: str, shown: str) -> MissingPackageError:
    line = PIP_LINES.get(scheme, phrase("backup.install_package_of_scheme", scheme=scheme))
    return MissingPackageError("backup.destination_package_missing", url=shown, hint=line)


def _has_checksum(info: Mapping[str, object], content: Content) -> bool:
    """Return whether the server has computed a matching hash of the file.

    A different checksum does not prove damage: an S3 ETag is an MD5 only if the file was sent in
    one request and is not encrypted with a custom key. A checksum that a client stored with the
    file (such as Azure's Content-MD5) proves nothing.
    """
    return any(_hex(info.get(name)) in (content.md5, content.sha256) for name in CHECKSUMS)


def _hex(value: object) -> str | None:
    """Return a checksum as hex digits, from `"d41d…"`, `1B2M2Y8A…==` or bytes."""
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if not isinstance(value, str):
        return None
    text = value.strip('"')
    if re.fullmatch(r"[0-9a-fA-F]+", text):
        return text.lower()
    try:
        return base64.b64decode(text, validate=True).hex()
    except (ValueError, binascii.Error):
        return None
