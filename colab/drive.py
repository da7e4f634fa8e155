"""Google Drive in a Colab session: mount it, try it out, and unmount it.

Whatever Drive does, the result is a usable folder, if need be on this machine, and one sentence
with the reason. The errors of Colab's package: drive.py of googlecolab/colabtools, 3c07d776.
"""

import errno
import importlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from colab.runtime import Platform, platform
from infrastructure.backup.backends.drive import OWN_DRIVE, DrivePlace
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact
from infrastructure.core.waiting import within

MOUNT_POINT = Path("/content/drive")
CONSENT_SECONDS = 120.0  # for the user to find the window and to agree
ANSWER_SECONDS = 60.0  # for the mounted folder to accept and return a few bytes
FLUSH_SECONDS = 600.0
GRACE_SECONDS = 30.0  # for Colab's own timeout to be reported

# Parts of the messages of Colab's package, and what the user can do.
ADVICE = {
    "credential propagation was unsuccessful": "Drive was not mounted because nobody agreed to it:"
    " run the cell again, allow pop-ups, and choose the account that Colab is open with",
    "timeout during initial read of root folder": "Drive was not mounted in time because its top"
    " folder holds very many files: move them into folders on drive.google.com, and run the cell"
    " again",
    "domain policy has disabled": "Drive was not mounted because your organisation has switched it"
    " off: use another account, or a repository on the Hub as place",
    "must not already contain files": "Drive was not mounted because {mount} holds files of this"
    " machine: move them away, and run the cell again",
    "must not be a symlink": "Drive was not mounted because {mount} is a link: remove it, and run"
    " the cell again",
    "must either be a directory": "Drive was not mounted because {mount} is a file: remove it, and"
    " run the cell again",
    "must be in a directory that exists": "Drive was not mounted because there is no folder"
    " {mount.parent}: make it, and run the cell again",
    "must not contain a space": "Drive was not mounted because there is a space in {mount}",
    "must be a directory if present": "Drive was not mounted because its folder for settings in"
    " ~/.config is a file: remove it, and run the cell again",
    "mount failed": "Drive was not mounted because its program stopped: run the cell again, and if"
    " that does not help, restart the session",
    "Colab Enterprise": "Colab Enterprise has no Drive: use a bucket (gs://…) or a repository on"
    " the Hub as place",
    "unsupported in this environment": "This machine cannot mount Drive: use a repository on the"
    " Hub as place",
}


@dataclass(frozen=True)
class StorageFolder:
    """A folder for what is to be kept.

    Attributes:
        path: the folder; on Drive it was created and tried out.
        is_drive: whether it is on Drive, so that it survives the end of this machine.
        reason: one sentence: where it is, or why it is not on Drive.
    """

    path: Path
    is_drive: bool
    reason: str


class _RefusedError(Exception):
    """Drive was not mounted; the text is for the user."""


def mount_drive(folder: str = "temper") -> StorageFolder:
    """Return the folder of that name on your Drive, which is mounted if it is not yet.

    Outside Colab, or if Drive refuses, return a folder next to the notebook. Repeated calls are
    fine.

    Raises:
        ValueError: `folder` leads out of the Drive.
    """
    parts = PurePosixPath(folder).parts
    if not parts or ".." in parts or parts[0] == "/":
        raise ValueError(f"name a folder of your Drive, as in 'temper/tests', not {folder!r}")
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
    """Let Drive upload what it holds back, and unmount it: the last call of a session.

    The absence of an error proves nothing (colabtools #287), so this is not a confirmation.

    Returns:
        One sentence: what happened.
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
    """Return the folder on Drive, mounting it if needed, and again if its connection was lost.

    Raises:
        _RefusedError: it cannot be mounted.
        OSError: it does not keep what is written to it, or does not respond (TimeoutError).
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
    """Mount Drive through Colab, which asks the user; Colab's own timeout bounds the wait."""
    longest_ms = int(CONSENT_SECONDS * 1000)
    try:
        drive = importlib.import_module("google.colab.drive")
        drive.mount(str(MOUNT_POINT), force_remount=force_remount, timeout_ms=longest_ms)
    except Exception as error:  # Colab's own package raises many kinds, KeyError among them
        raise _RefusedError(_advice(error)) from error
    if not _is_mounted():
        raise _RefusedError(f"Drive is said to be mounted, but {_top()} is missing: run this again")


def _advice(error: Exception) -> str:
    for text, advice in ADVICE.items():
        if text in str(error):
            return advice.format(mount=MOUNT_POINT)
    return phrase("notebook.drive_not_mounted", error=_words(error))


def _words(error: Exception) -> str:
    return " ".join(redact(f"{type(error).__name__}: {error}").split())


def _is_mounted() -> bool:
    return within(ANSWER_SECONDS, lambda: os.path.isdir(_top()))  # noqa: PTH112


def _top() -> Path:
    """Return the folder of the user's own files: DriveFS has it under two names.

    Not `Path.is_dir`, which raises if a mount has lost its connection.
    """
    tops = [MOUNT_POINT / name for name in OWN_DRIVE]
    return next((top for top in tops if os.path.isdir(top)), tops[0])  # noqa: PTH112


def _tried(folder: str) -> Path:
    """Create the folder, and return it after it has kept a few bytes and returned them.

    Raises:
        OSError: it does not; TimeoutError: it does not respond.
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
            raise OSError(errno.EIO, "it gives back other bytes than it was given")
    finally:
        probe.unlink(missing_ok=True)
