"""Google Drive in a Colab session: mounting, testing and unmounting it.

If Drive cannot be used, a folder on this machine is used instead, and a sentence says why. For the
errors of Colab's package, see drive.py of googlecolab/colabtools, commit 3c07d776.
"""

import errno
import importlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from colab.runtime import Platform, platform
from infrastructure.backup.backends.drive import OWN_DRIVE, DrivePlace
from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact
from infrastructure.core.waiting import within

MOUNT_POINT = Path("/content/drive")
CONSENT_SECONDS = 120.0  # for the user to find the window and to agree
ANSWER_SECONDS = 60.0  # for the mounted folder to accept and return a few bytes
FLUSH_SECONDS = 600.0
GRACE_SECONDS = 30.0  # for Colab's own timeout to be reported

# Parts of the messages of Colab's package, and the codes of what the user can do.
REFUSALS = {
    "credential propagation was unsuccessful": "notebook.drive_not_permitted",
    "timeout during initial read of root folder": "notebook.drive_top_folder_too_large",
    "domain policy has disabled": "notebook.drive_disabled_by_organization",
    "must not already contain files": "notebook.mount_point_not_empty",
    "must not be a symlink": "notebook.mount_point_is_a_link",
    "must either be a directory": "notebook.mount_point_is_a_file",
    "must be in a directory that exists": "notebook.mount_point_parent_missing",
    "must not contain a space": "notebook.mount_point_with_space",
    "must be a directory if present": "notebook.drive_settings_folder_is_a_file",
    "mount failed": "notebook.drive_program_stopped",
    "Colab Enterprise": "notebook.no_drive_in_colab_enterprise",
    "unsupported in this environment": "notebook.drive_not_supported",
}


@dataclass(frozen=True)
class StorageFolder:
    """A folder for files to keep.

    Attributes:
        path: the folder. On Drive, it was created and tested.
        is_drive: whether the folder is on Drive, so that it survives the end of this machine.
        reason: a sentence on where the folder is, or why it is not on Drive.
    """

    path: Path
    is_drive: bool
    reason: str


class _RefusedError(Exception):
    """An error for a Drive that could not be mounted, with a message for the user."""


def mount_drive(folder: str = "temper") -> StorageFolder:
    """Mount your Drive if it is not mounted yet, and return its folder called `folder`.

    Outside Colab, or if Drive cannot be used, return a folder next to the notebook. This can be
    called repeatedly.

    Raises:
        ValueError: if `folder` leads out of the Drive.
    """
    parts = PurePosixPath(folder).parts
    if not parts or ".." in parts or parts[0] == "/":
        raise InputError("notebook.not_a_drive_folder", folder=folder)
    here = Path.cwd() / folder
    if platform() is not Platform.COLAB:
        return StorageFolder(here, False, phrase("notebook.no_drive_outside_colab"))
    try:
        path = _ready(folder)
    except _RefusedError as error:
        return StorageFolder(here, False, str(error))
    except TimeoutError as error:
        return StorageFolder(here, False, phrase("notebook.drive_not_responding", error=error))
    except OSError as error:
        there = DrivePlace(_top() / folder)
        what = error.strerror or type(error).__name__
        return StorageFolder(
            here, False, f"Drive refuses {there.root} ({what}): {there.advice(error)}"
        )
    return StorageFolder(path, True, phrase("notebook.drive_mounted", path=path))


def flush_drive(seconds: float = FLUSH_SECONDS) -> str:
    """Let Drive upload its pending files, and unmount it. Call this at the end of a session.

    Success does not prove that everything was uploaded, because Drive may fail without an error
    (colabtools #287).

    Returns:
        A sentence on what happened.
    """
    if platform() is not Platform.COLAB:
        return phrase("notebook.nothing_to_flush")
    try:
        drive = importlib.import_module("google.colab.drive")
        longest_ms = int(seconds * 1000)
        within(seconds + GRACE_SECONDS, lambda: drive.flush_and_unmount(timeout_ms=longest_ms))
    except TimeoutError as error:
        return phrase("notebook.drive_still_uploading", error=error)
    except Exception as error:  # Colab's own package raises many kinds, KeyError among them
        return phrase("notebook.drive_not_flushed", error=_words(error))
    return phrase("notebook.drive_flushed")


def _ready(folder: str) -> Path:
    """Mount Drive if needed, and return a folder on it after testing that the folder works.

    Raises:
        _RefusedError: if Drive cannot be mounted.
        OSError: if the folder does not return what is written to it, or does not respond
            (TimeoutError).
    """
    if not _is_mounted():
        _mount()
    try:
        return _tried(folder)
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise
    _mount(force_remount=True)
    return _tried(folder)


def _mount(force_remount: bool = False) -> None:
    """Mount Drive through Colab, which asks the user for consent."""
    longest_ms = int(CONSENT_SECONDS * 1000)
    try:
        drive = importlib.import_module("google.colab.drive")
        drive.mount(str(MOUNT_POINT), force_remount=force_remount, timeout_ms=longest_ms)
    except Exception as error:  # Colab's own package raises many kinds, KeyError among them
        raise _RefusedError(_advice(error)) from error
    if not _is_mounted():
        raise _RefusedError(phrase("notebook.drive_without_its_folder", folder=_top()))


def _advice(error: Exception) -> str:
    for text, code in REFUSALS.items():
        if text in str(error):
            return phrase(code, mount=MOUNT_POINT)
    return phrase("notebook.drive_not_mounted", error=_words(error))


def _words(error: Exception) -> str:
    return " ".join(redact(f"{type(error).__name__}: {error}").split())


def _is_mounted() -> bool:
    return within(ANSWER_SECONDS, lambda: os.path.isdir(_top()))  # noqa: PTH112


def _top() -> Path:
    """Return the folder of the user's own files on Drive, which can have one of two names.

    `Path.is_dir` is not used, because it raises if a mount has lost its connection.
    """
    tops = [MOUNT_POINT / name for name in OWN_DRIVE]
    return next((top for top in tops if os.path.isdir(top)), tops[0])  # noqa: PTH112


def _tried(folder: str) -> Path:
    """Create a folder on Drive, test that files can be written and read there, and return it.

    Raises:
        OSError: if this fails; TimeoutError if the folder does not respond.
    """
    path = _top() / folder
    within(ANSWER_SECONDS, lambda: _try_out(path))
    return path


def _try_out(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    written, probe = secrets.token_bytes(16), folder / f".temper-{secrets.token_hex(4)}"
    try:
        probe.write_bytes(written)
        if probe.read_bytes() != written:
            raise OSError(errno.EIO, phrase("notebook.drive_returns_other_bytes"))
    finally:
        probe.unlink(missing_ok=True)
