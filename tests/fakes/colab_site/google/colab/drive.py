"""Mounting is a link from the mount point to `cloud/`."""

import time
from pathlib import Path

from google.colab import _message, _state

NAMES = ("MyDrive", "My Drive")
STOPPED = {
    "stopped": ValueError("mount failed"),
    "slow_root": ValueError(
        "mount failed: timeout during initial read of root folder; for more info:"
        " https://research.google.com/colaboratory/faq.html#drive-timeout"
    ),
    "domain": ValueError(
        "The domain policy has disabled Drive File Stream:"
        " https://support.google.com/a/answer/7496409"
    ),
    "settings_file": ValueError("/root/.config/Google must be a directory if present"),
}


def flush_and_unmount(timeout_ms=24 * 60 * 60 * 1000):
    _state.note("flush_and_unmount", timeout_ms=timeout_ms)
    behaviour = _state.behaviour("flush")
    if behaviour == "unsupported":
        raise NotImplementedError(__name__ + " is unsupported in this environment.")
    if behaviour == "not_colab":
        raise KeyError("CLOUDSDK_CONFIG")
    if behaviour == "failed":
        raise ValueError("flush_and_unmount failed")
    if behaviour == "hangs":
        time.sleep(60)
        return  # nobody waits for it any more, and the next test has a Drive of its own
    if not _mounted().exists():
        print("Drive not mounted, so nothing to flush and unmount.")
        return
    _unmount(_mounted().read_text())


def mount(mountpoint, force_remount=False, timeout_ms=120000, readonly=False):
    _state.note("mount", mountpoint=mountpoint, force_remount=force_remount, timeout_ms=timeout_ms)
    behaviour = _state.behaviour("mount")
    if behaviour == "not_colab":
        raise NotImplementedError(
            "Mounting drive is unsupported in this environment. Use PyDrive2 instead. See examples"
            " at https://colab.research.google.com/notebooks/io.ipynb#scrollTo=7taylj9wpsA2."
        )
    if " " in mountpoint:
        raise ValueError("Mountpoint must not contain a space.")
    if behaviour == "enterprise":
        raise NotImplementedError("google.colab.drive.mount is not supported in Colab Enterprise.")
    if behaviour == "no_credentials_server":
        raise KeyError("TBE_EPHEM_CREDS_ADDR")
    if behaviour == "no_consent":
        raise _message.MessageError("Error: credential propagation was unsuccessful")
    if Path(mountpoint, "My Drive").is_dir() and not force_remount:
        print(f"Drive already mounted at {mountpoint}; to attempt to forcibly remount, …")
        return
    if force_remount:
        _unmount(mountpoint)
    if behaviour == "settings_file":
        raise STOPPED[behaviour]
    _check(mountpoint)
    if behaviour in STOPPED:
        raise STOPPED[behaviour]
    if behaviour == "nothing_there":
        return
    _link(Path(mountpoint))
    print(f"Mounted at {mountpoint}")


def _check(mountpoint):
    path = Path(mountpoint)
    if path.is_symlink():
        raise ValueError("Mountpoint must not be a symlink")
    if path.is_dir() and [*path.iterdir()]:
        raise ValueError("Mountpoint must not already contain files")
    if not path.is_dir() and path.exists():
        raise ValueError("Mountpoint must either be a directory or not exist")
    if not path.parent.exists():
        raise ValueError("Mountpoint must be in a directory that exists")


def _link(mountpoint):
    cloud = _state.folder() / "cloud"
    cloud.mkdir(exist_ok=True)
    mountpoint.mkdir(exist_ok=True)
    for name in NAMES:
        (mountpoint / name).symlink_to(cloud)
    _mounted().write_text(str(mountpoint))


def _unmount(mountpoint):
    for name in NAMES:
        Path(mountpoint, name).unlink(missing_ok=True)
    _mounted().unlink(missing_ok=True)


def _mounted():
    return _state.folder() / "mounted"
