"""Places where backups lie: another disk, Google Drive, an object store, the Hugging Face Hub."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from infrastructure.backup.backends.base import Content, Place
from infrastructure.backup.backends.drive import DrivePlace, is_on_drive
from infrastructure.backup.backends.folder import FolderPlace
from infrastructure.backup.backends.fsspec_place import FsspecPlace
from infrastructure.backup.backends.hub import HubPlace

__all__ = ["Content", "Place", "open_place"]

DRIVE = "drive:"


def open_place(text: str) -> Place:
    """The place that `text` names; nothing is connected to and nothing is made yet.

    Args:
        text: a folder (on a mounted Drive it is known as such; `drive:` before it says so, and
            `file://` that it is none), an fsspec URL, or `hf://[datasets/]OWNER/NAME[/folder]`.

    Raises:
        ValueError: no place has such a name.
        MissingPackageError: what speaks to it is not installed.
    """
    if not text.strip():
        raise ValueError("backup.place is empty: name a folder or a URL, or leave it out")
    if text.startswith(DRIVE):
        return DrivePlace(_folder(text.removeprefix(DRIVE)))
    if "://" not in text and "::" not in text:
        folder = _folder(text)
        return DrivePlace(folder) if is_on_drive(folder) else FolderPlace(folder)
    scheme = text.partition("://")[0].lower()
    if scheme in ("file", "local"):
        return FolderPlace(_folder(unquote(urlsplit(text).path)))
    return HubPlace(text) if scheme == "hf" else FsspecPlace(text)


def _folder(text: str) -> Path:
    return Path(text).expanduser().absolute()
