"""The file system that a path is on, as reported by Linux."""

from dataclasses import dataclass
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")


@dataclass(frozen=True)
class Mount:
    """A mounted file system, such as `drive` of the kind `fuse.drive`."""

    device: str
    kind: str

    @property
    def is_fuse(self) -> bool:
        """Whether a program in user space implements the file system.

        Such a program may respond before it has done anything. This excludes `fuseblk`, which is a
        disk with a foreign file system.
        """
        return self.kind == "fuse" or self.kind.startswith("fuse.")


def mount_of(path: Path, mounts: Path = MOUNTS) -> Mount | None:
    """Return the innermost mount that contains the absolute `path`; None: there is no list."""
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
