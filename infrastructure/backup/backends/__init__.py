"""Backup destinations: another disk, Google Drive, an object store, the Hugging Face Hub, others.

To add a storage backend, call `register_backend(scheme, class)`, declare an entry point in the
group "temper.backends", or use its address: `backup.place: module:Class://…`. The copier, which is
a separate process, imports the backend.
"""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from infrastructure.backup.backends.base import Content, Place
from infrastructure.backup.backends.bucket import START, BucketPlace
from infrastructure.backup.backends.contract import held_to_contract, sentence
from infrastructure.backup.backends.drive import DrivePlace, is_on_drive
from infrastructure.backup.backends.folder import FolderPlace
from infrastructure.backup.backends.fsspec_place import FsspecPlace
from infrastructure.backup.backends.hub import HubPlace
from infrastructure.config import registries
from infrastructure.core.errors import InputError, TemperError
from infrastructure.core.named_object import is_address
from infrastructure.core.redact import redact_urls
from infrastructure.core.registry import Registry

__all__ = ["Content", "Place", "open_place", "register_backend", "require_backend"]

DRIVE = "drive:"
FOLDER, FSSPEC = "folder", "fsspec"  # for texts without a scheme, and for all other schemes


def _folder(text: str) -> Path:
    folder = Path(text).expanduser().absolute()
    return folder.resolve() if ".." in folder.parts else folder  # keep symlinks


def _open_folder(text: str) -> Place:
    folder = _folder(text)
    return DrivePlace(folder) if is_on_drive(folder) else FolderPlace(folder)


def _open_file(text: str) -> Place:
    return FolderPlace(_folder(unquote(urlsplit(text).path)))


def _open_hub(text: str) -> Place:
    return BucketPlace(text) if text.startswith(START) else HubPlace(text)


BACKENDS: Registry[Callable[[str], Place]] = registries.BACKENDS
BACKENDS.provide(
    {
        FOLDER: _open_folder,
        "file": _open_file,
        "local": _open_file,
        "drive": lambda text: DrivePlace(_folder(text.removeprefix(DRIVE))),
        "hf": _open_hub,
        FSSPEC: FsspecPlace,
    },
    Place,
)


def register_backend(name: str, backend: Callable[[str], Place]) -> None:
    """Register `backend` for destinations with the scheme `name`: `backup.place: name://…`.

    `backend` is called with the full URL. It takes precedence over a built-in backend and over
    fsspec's backend for this scheme. The copier process imports the backend, so it must be defined
    in a module, not in a notebook cell.

    Raises:
        ValueError: if another user-defined backend has this name, or `backend` lacks a method.
    """
    BACKENDS.register(name, backend)


def open_place(text: str) -> Place:
    """Return the destination that `text` names, without connecting to it or creating anything.

    Args:
        text: a folder (one on a mounted Drive is recognized; the prefix `drive:` forces Drive, and
            `file://` an ordinary folder), an fsspec URL,
            `hf://[buckets/|datasets/]OWNER/NAME[/folder]`, or the address of a user-defined
            backend: `name://…` or `module:Class://…`.

    Raises:
        ValueError: if the text is not a valid destination, or its backend cannot be used.
        MissingPackageError: if a package that the backend needs is not installed.
    """
    name = backend_of(text)
    if BACKENDS.origin(name) is None:
        place: Place = BACKENDS.make(name, text)
        return place
    try:
        return held_to_contract(BACKENDS.make(name, text))
    except (ValueError, OSError, TemperError):
        raise
    except Exception as error:
        raise InputError(sentence(redact_urls(text), error)) from error


def require_backend(text: str) -> None:
    """Check that a destination's backend can also be used from another process.

    Raises:
        ValueError: if the backend cannot be used or another process cannot import it, or if the
            destination exists only in the memory of this process.
    """
    name = backend_of(text)
    if name == FSSPEC and text.lower().startswith("memory:"):
        raise InputError("backup.destination_in_memory", url=redact_urls(text))
    BACKENDS.require_shareable(name)


def backend_of(text: str) -> str:
    """Return the name or the address of the backend that opens a destination.

    Raises:
        ValueError: if the text is empty.
    """
    if not text.strip():
        raise InputError("backup.destination_empty")
    if text.startswith(DRIVE):
        return "drive"
    scheme, separator, _ = text.partition("://")
    if not separator:
        return FSSPEC if "::" in text else FOLDER
    if is_address(scheme):
        return scheme
    scheme = scheme.lower()
    is_scheme = scheme not in (FOLDER, FSSPEC) or BACKENDS.is_own(scheme)
    return scheme if is_scheme and BACKENDS.has(scheme) else FSSPEC
