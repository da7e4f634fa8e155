"""A check, before the first step, that the disk can hold the checkpoints that rotation keeps."""

from pathlib import Path

from infrastructure.backup.backends.base import Place
from infrastructure.backup.format.objects import SLACK_BYTES
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import StorageError
from infrastructure.core.hardware import GIB, gib
from infrastructure.core.messages import phrase


def require_free_space(where: str, store: Store, keep: int, bytes_per_version: int) -> str:
    """Check that a store has room for `keep` checkpoints, and return a message on its free space.

    There must be room for one more checkpoint, because a new checkpoint is written before an old
    one is removed. The estimate assumes that no bytes are shared between checkpoints.

    Raises:
        StorageError: if the checkpoints do not fit.
        OSError: if a destination does not respond.
    """
    num_more = max(1, keep + 1 - len(store.versions()))
    needed = num_more * bytes_per_version + SLACK_BYTES
    is_place = isinstance(store.operations, Place)
    free = store.operations.free_bytes(store.root if is_place else _existing(store.root))
    checkpoints = "1 checkpoint" if num_more == 1 else f"{num_more} checkpoints"
    size = _size(bytes_per_version)
    what = phrase(
        "backup.space_needed", checkpoints=checkpoints, size=size, reserve=_size(SLACK_BYTES)
    )
    text = f"{where}: {what} need {_size(needed)}"
    if free is None:
        return phrase("backup.free_space_unknown", need=text)
    if free < needed:
        fits_one = free >= bytes_per_version + SLACK_BYTES
        lower = phrase("backup.or_keep_fewer_checkpoints") if num_more > 1 and fits_one else ""
        raise StorageError(
            "backup.no_space_for_rotation", need=text, free=_size(free), alternative=lower
        )
    return f"{text}, {_size(free)} are free"


def _existing(directory: Path) -> Path:
    """Return the nearest existing parent folder, because a store's folder may not exist yet."""
    directory = directory.absolute()
    return next(folder for folder in (directory, *directory.parents) if folder.is_dir())


def _size(num_bytes: float) -> str:
    return gib(int(num_bytes)) if num_bytes >= GIB else f"{num_bytes / 2**20:.1f} MiB"
