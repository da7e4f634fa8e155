"""A real mount that goes away under a copier and comes back as another device:

    unshare -m python -m tests.faults.lost_mount FOLDER

Prints what was seen as one JSON object. In a mount namespace of its own, so nobody else sees it.
"""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

from infrastructure.backup.backends import open_place
from infrastructure.backup.format.retention import Retention
from infrastructure.backup.format.store import Store
from infrastructure.backup.replication.copier import Copier
from infrastructure.backup.replication.remote_session import RemoteSession
from tests.backup.memory_place import RUN, run_until, save
from tests.faults.drive_model import Clock


@cache
def can_mount() -> bool:
    """Whether this user may mount in a namespace of its own."""
    mount = "mount -t tmpfs none /mnt && umount /mnt"
    try:
        done = subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def main(folder: Path) -> None:
    disk, other, at = folder / "disk", folder / "other", folder / "mount"
    for each in (disk, other, at):
        each.mkdir()
    mount("-t", "tmpfs", "one", str(disk))
    mount("--bind", str(disk), str(at))
    local, clock = Store(folder / "here"), Clock(1000.0)
    link = RemoteSession(open_place(str(at)), RUN, clock=clock)
    copier = Copier(local, link, Retention(), now=clock, draw=lambda: 1.0)
    save(local, 1)
    run_until(copier.tick, lambda: copier.is_done, clock)
    devices = [at.stat().st_dev]
    subprocess.run(["umount", "-l", str(at)], check=True)
    newest = save(local, 2)
    for _ in range(20):
        clock.now += copier.tick()
    below, error = [path.name for path in at.iterdir()], copier.status().error
    mount("-t", "tmpfs", "two", str(other))
    subprocess.run(["cp", "-a", f"{disk}/.", str(other)], check=True)
    mount("--bind", str(other), str(at))
    devices.append(at.stat().st_dev)
    run_until(copier.tick, lambda: copier.is_done, clock)
    figures = {
        "below": below,
        "error": str(error),
        "devices": devices,
        "newest": newest,
        "confirmed": copier.status().confirmed_name,
        "safe": Store(at / RUN).newest() == (newest, []),
    }
    copier.close()
    print(json.dumps(figures))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
