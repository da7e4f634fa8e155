"""Places where backups lie: another disk, Google Drive, an object store, the Hugging Face Hub."""

from pathlib import Path

from infrastructure.backup.places.base import Content, Place
from infrastructure.backup.places.folder import FolderPlace

__all__ = ["Content", "Place", "open_place"]


def open_place(text: str) -> Place:
    """The place that `text` names; nothing is connected to and nothing is made yet.

    Raises:
        ValueError: no place has such a name.
    """
    if not text:
        raise ValueError("backup.place is empty: name a folder, or leave it out")
    return FolderPlace(Path(text).expanduser().absolute())
