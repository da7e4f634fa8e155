"""Places where backups lie: another disk, Google Drive, an object store, the Hugging Face Hub, or a
storage backend of somebody's own.

To add one: `register_backend(scheme, class)`, an entry point in the group "temper.backends", or its
address, `backup.place: module:Class://…`. The copier, which is a process of its own, imports it.
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
FOLDER, FSSPEC = "folder", "fsspec"  # of texts without a scheme, and of all other schemes


def _folder(text: str) -> Path:
    folder = Path(text).expanduser().absolute()
    return folder.resolve() if ".." in folder.parts else folder  # links have names people know


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
    """Make `backup.place: name://…` a place that `backend` opens, given that whole text; it goes
    before ours of that scheme, and before fsspec's.

    The copier imports it from where it is defined: a module, not a notebook's cell.

    Raises:
        ValueError: the name is taken by another one's own, or `backend` lacks a method.
    """
    BACKENDS.register(name, backend)


def open_place(text: str) -> Place:
    """The place that `text` names; nothing is connected to and nothing is made yet.

    Args:
        text: a folder (on a mounted Drive it is known as such; `drive:` before it says so, and
            `file://` that it is none), an fsspec URL, `hf://[buckets/|datasets/]OWNER/NAME[/folder]`,
            or one of somebody's own backend: `name://…` or `module:Class://…`.

    Raises:
        ValueError: no place has such a name, or its backend cannot be used.
        MissingPackageError: what speaks to it is not installed.
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
        raise ValueError(sentence(redact_urls(text), error)) from error


def require_backend(text: str) -> None:
    """Look at the backend of a place that another process will open, too.

    Raises:
        ValueError: it cannot be used, or that process could not import it, or would find nothing
            there.
    """
    name = backend_of(text)
    if name == FSSPEC and text.lower().startswith("memory:"):
        raise InputError("backup.destination_in_memory", url=redact_urls(text))
    BACKENDS.require_shareable(name)


def backend_of(text: str) -> str:
    """The name, or the address, of the backend that opens a place.

    Raises:
        ValueError: the text is empty.
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
