"""Look-up of the file system that contains a path, as reported by Linux."""

from dataclasses import dataclass
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")


@dataclass(frozen=True)
class Mount:
    """A mounted file system; for example, its name is `drive` and its kind `fuse.drive`."""

    device: str
    kind: str

    @property
    def is_fuse(self) -> bool:
        """True if a program in user space implements the file system.

        Such a program may report success before it has written anything. The kind `fuseblk` does
        not count, because it is a disk with the file system of another operating system.
        """
        return self.kind == "fuse" or self.kind.startswith("fuse.")


def mount_of(path: Path, mounts: Path = MOUNTS) -> Mount | None:
    """Return the innermost mount that contains the absolute `path`; None if none is listed."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return None
    around = {
        where: Mount(line[0], line[2])
        for line in lines
        if len(line) > 2 and path.is_relative_to(where := _unescaped(line[1]))
    }
    return around[max(around, key=len)] if around else None


def _unescaped(text: str) -> str:
    return text.replace("\\040", " ").replace("\\011", "\t")
