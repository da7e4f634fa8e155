"""What a process does to files, recorded, and what a power cut may leave of it.

Nothing of the program is replaced but `os.fsync`: before each operation on files that Python knows
of (audit events) and at each sync, the folder is compared with what it was, so that files which
other languages' libraries write are seen, too.

What is left follows POSIX to the letter: bytes are sure when their file was synced, a name when its
directory was, and a directory's own name when the one above was. All else is there or not, in any
combination, and bytes that are not sure may be there in part. Method: enumeration of crash states
as in ALICE (Pillai et al., OSDI 2014).
"""

import os
import random
import stat
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EVENTS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link"}
Entry = tuple[Any, ...]


class Recorder:
    """Records what this process and its threads do in `root`.

    Args:
        ignored: names of functions whose syncs do not happen: planted defects.

    Attributes:
        log: ("bind", directory, name, inode or None, whether it is a directory), ("data", inode,
            bytes), ("sync_file", inode), ("sync_directory", inode), ("mark", what, value).
    """

    def __init__(self, root: Path, ignored: Collection[str] = ()) -> None:
        self.root, self.ignored = root, frozenset(ignored)
        self.log: list[Entry] = []
        self._bound: dict[tuple[int, str], tuple[int, bool]] = {}
        self._seen: dict[int, tuple[int, int]] = {}
        self._lock = threading.RLock()
        self._is_looking = False
        self._fsync = os.fsync

    @property
    def top(self) -> int:
        """The inode of `root`."""
        return self.root.stat().st_ino

    def start(self) -> None:
        """Record until the end of this process."""
        self.look()
        os.fsync = self._synced
        sys.addaudithook(self._heard)

    def mark(self, what: str, value: Any) -> None:
        """Note that something has happened."""
        with self._lock:
            self.look()
            self.log.append(("mark", what, value))

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in EVENTS or self._is_looking:
            return
        if event == "open" and not _writes(arguments):
            return
        self.look()

    def _synced(self, descriptor: int) -> None:
        caller = sys._getframe(1)
        names = {caller.f_code.co_name, caller.f_back.f_code.co_name if caller.f_back else ""}
        with self._lock:
            self.look()
            found = os.fstat(descriptor)
            if names & self.ignored:
                return
            kind = "sync_directory" if stat.S_ISDIR(found.st_mode) else "sync_file"
            self.log.append((kind, found.st_ino))

    def look(self) -> None:
        """Add to the log what has changed since the last look."""
        with self._lock:
            if self._is_looking:
                return
            self._is_looking = True
            try:
                bound: dict[tuple[int, str], tuple[int, bool]] = {}
                self._walk(str(self.root), bound)
                for key, value in bound.items():
                    if self._bound.get(key) != value:
                        self.log.append(("bind", *key, *value))
                for key in self._bound.keys() - bound.keys():
                    self.log.append(("bind", *key, None, False))
                self._bound = bound
                living = {number for number, _ in bound.values()}  # numbers are used again
                self._seen = {n: signs for n, signs in self._seen.items() if n in living}
            finally:
                self._is_looking = False

    def _walk(self, directory: str, bound: dict[tuple[int, str], tuple[int, bool]]) -> None:
        with suppress(FileNotFoundError):
            own = Path(directory).stat().st_ino
            with os.scandir(directory) as entries:
                for entry in sorted(entries, key=lambda e: e.name):
                    with suppress(FileNotFoundError):
                        found = entry.stat(follow_symlinks=False)
                        is_directory = stat.S_ISDIR(found.st_mode)
                        if not is_directory:
                            self._note(entry.path, found)
                        bound[own, entry.name] = (found.st_ino, is_directory)
                        if is_directory:
                            self._walk(entry.path, bound)

    def _note(self, path: str, found: os.stat_result) -> None:
        signs = (found.st_mtime_ns, found.st_size)
        if self._seen.get(found.st_ino) == signs:
            return
        with Path(path).open("rb") as file:
            self.log.append(("data", found.st_ino, file.read()))
        self._seen[found.st_ino] = signs


def _writes(arguments: tuple[Any, ...]) -> bool:
    flags = arguments[2] if len(arguments) > 2 and isinstance(arguments[2], int) else 0
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


@dataclass
class Disk:
    """What a disk holds for sure, and what may be there besides."""

    names: dict[tuple[int, str], tuple[int, bool]] = field(default_factory=dict)
    unsure: list[tuple[tuple[int, str], tuple[int | None, bool]]] = field(default_factory=list)
    contents: dict[int, bytes] = field(default_factory=dict)
    sure: dict[int, bytes] = field(default_factory=dict)

    def apply(self, entry: Entry) -> None:
        """Take in one line of a log."""
        match entry:
            case ("bind", directory, name, number, is_directory):
                self.unsure.append(((directory, name), (number, is_directory)))
            case ("data", number, data):
                self.contents[number] = data
            case ("sync_file", number):
                self.sure[number] = self.contents.get(number, b"")
            case ("sync_directory", number):
                kept = []
                for change in self.unsure:
                    if change[0][0] == number:
                        _bind(self.names, *change)
                    else:
                        kept.append(change)
                self.unsure = kept

    def make_sure(self) -> None:
        """Everything that is there is on the disk."""
        for change in self.unsure:
            _bind(self.names, *change)
        self.unsure, self.sure = [], dict(self.contents)

    def leave(self, top: int, target: Path, draw: random.Random) -> None:
        """Write one of the states that a power cut may leave to `target`."""
        count = len(self.unsure)
        ways = ["none", "all", "one", "all but one", "each by chance"]
        match draw.choice(ways):
            case "none":
                kept = set[int]()
            case "all":
                kept = set(range(count))
            case "one":
                kept = {draw.randrange(count)} if count else set()
            case "all but one":
                kept = set(range(count)) - ({draw.randrange(count)} if count else set())
            case _:
                kept = {index for index in range(count) if draw.random() < 0.5}
        names = dict(self.names)
        for index in sorted(kept):
            _bind(names, *self.unsure[index])
        part = draw.choice([1.0, 0.5, 0.0, None])
        children: dict[int, list[tuple[str, int, bool]]] = {}
        for (directory, name), (number, is_directory) in names.items():
            children.setdefault(directory, []).append((name, number, is_directory))
        self._write(top, target, children, part)

    def _write(
        self,
        number: int,
        target: Path,
        children: dict[int, list[tuple[str, int, bool]]],
        part: float | None,
    ) -> None:
        target.mkdir(exist_ok=True)
        for name, inner, is_directory in children.get(number, []):
            if is_directory:
                self._write(inner, target / name, children, part)
            else:
                (target / name).write_bytes(self._content(inner, part))

    def _content(self, number: int, part: float | None) -> bytes:
        """Of a file whose last bytes are not sure: all, half or none of what is new; or (None)
        zeros in its place, as a file system leaves that made room and wrote no bytes."""
        now, sure = self.contents.get(number, b""), self.sure.get(number, b"")
        if now == sure:
            return now
        if now.startswith(sure):
            new = now[len(sure) :]
            return sure + (bytes(len(new)) if part is None else new[: int(len(new) * part)])
        return bytes(len(now)) if part is None else now[: int(len(now) * part)]


def _bind(
    names: dict[tuple[int, str], tuple[int, bool]],
    key: tuple[int, str],
    value: tuple[int | None, bool],
) -> None:
    if value[0] is None:
        names.pop(key, None)
    else:
        names[key] = (value[0], value[1])


def disks(log: list[Entry], begin: int) -> Iterator[tuple[int, Disk]]:
    """The disk after each operation from `begin` on (what came before is on it for sure); only
    where something changed."""
    disk = Disk()
    for length, entry in enumerate(log, start=1):
        disk.apply(entry)
        if length == begin:
            disk.make_sure()
        elif length > begin and entry[0] != "mark":
            yield length, disk
