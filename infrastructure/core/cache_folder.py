"""The cache folder, for files that Temper can create again."""

import contextlib
import functools
import logging
import os
import stat
import tempfile
from pathlib import Path

from infrastructure.core.messages import phrase

logger = logging.getLogger(__name__)
IN_HOME = Path(".cache") / "temper"
OWN_ONLY = 0o700


def cache_directory(configured: str | Path | None = None) -> Path:
    """Return the configured folder, or `~/.cache/temper` if none is configured.

    If the user has no writable home folder, as in many containers, return a temporary folder that
    only this user can write to, and log a warning.

    Args:
        configured: the setting `cache.directory`.
    """
    if configured:
        return Path(configured).expanduser()
    home = _home()
    if home is not None and _can_be_written(home / IN_HOME):
        return home / IN_HOME
    return _among_temporary_files(home)


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # no HOME, and the machine does not know this user ID
        return None


def _can_be_written(folder: Path) -> bool:
    """Return whether files can be created in the folder; it need not exist yet."""
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


@functools.cache
def _among_temporary_files(home: Path | None) -> Path:
    folder = Path(tempfile.gettempdir()) / f"temper-cache-{os.getuid()}"
    with contextlib.suppress(OSError):  # ownership is checked below
        folder.mkdir(OWN_ONLY)
    if not _is_own(folder):
        folder = Path(tempfile.mkdtemp(prefix="temper-cache-"))
    reason = (
        phrase("core.no_home_folder")
        if home is None
        else phrase("core.cache_not_writable", folder=home / IN_HOME)
    )
    logger.warning(phrase("core.temporary_cache_folder", folder=folder, reason=reason))
    return folder


def _is_own(folder: Path) -> bool:
    """Return whether `folder` is a folder that only this user can write to."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not others_write
