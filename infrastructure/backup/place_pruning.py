"""Removes from a place what is no longer needed there, and nothing else.

A listing of a place may be old or short, and a file that seems to be missing may be there. So a
version goes only when enough newer ones were *confirmed*, and an object only when no manifest has
named it for a while, by listings of both ends of that while.
"""

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from infrastructure.backup.codec import SUFFIX
from infrastructure.backup.manifest import Manifest
from infrastructure.backup.replication import Link
from infrastructure.backup.retention import Retention
from infrastructure.core.errors import CheckpointError

OBJECT_FILE = re.compile(rf"([0-9a-f]{{64}})(?:{re.escape(SUFFIX)})?")


@dataclass
class PlacePruning:
    """What may go at the place of `link`.

    Attributes:
        retention: what stays, counted over confirmed versions only.
        grace_seconds: how long an object must have been without a name.
        confirmed: versions that were confirmed in this session.
        unnamed_since: objects that no manifest names, and when that was seen first.
    """

    link: Link
    retention: Retention
    grace_seconds: float
    confirmed: dict[str, Manifest] = field(default_factory=dict)
    unnamed_since: dict[str, float] = field(default_factory=dict)
    _read: dict[str, Manifest] = field(default_factory=dict)
    _unreadable_since: dict[str, float] = field(default_factory=dict)
    _swept_at: float | None = None

    def is_due(self) -> bool:
        """Whether an object has been without a name for long enough, or may have been."""
        if self._swept_at is None:
            return True
        oldest = min([self._swept_at, *self.unnamed_since.values()])
        return self.link.clock() - oldest >= self.grace_seconds

    def steps(self, listed: Collection[str], on_its_way: Iterable[str]) -> Iterator[float]:
        """Remove what may go, one file after the other; yields the seconds to wait between.

        Args:
            listed: the versions at the place, listed just now; none of another machine's.
            on_its_way: objects that are being copied.

        Raises:
            OSError: the place does not answer, or refuses.
        """
        names = {*listed, *self.confirmed}
        for name in sorted(names):
            self._take_in(name)
            yield 0.0
        kept = self._kept(names)
        for name in sorted(names - kept):
            self.link.remove(self.link.store.manifest_path(name))
            self._forget(name)
            yield 0.0
        if kept - self._read.keys():
            return  # it may name any object
        living = {pack.hash for name in kept for pack in self._read[name].packs}
        yield from self._remove_objects({*living, *on_its_way})

    def _take_in(self, name: str) -> None:
        """Read a manifest once: it never changes."""
        if name in self._read:
            return
        try:
            self._read[name] = self.confirmed.get(name) or self.link.store.read(name)
            self._unreadable_since.pop(name, None)
        except CheckpointError:
            self._unreadable_since.setdefault(name, self.link.clock())

    def _kept(self, names: set[str]) -> set[str]:
        good = sorted((n for n, m in self.confirmed.items() if m.healthy), reverse=True)
        if len(good) < self.retention.keep_last:
            return names
        oldest = good[self.retention.keep_last - 1]
        readable = {name: self._read[name] for name in names if name in self._read}
        confirmed = {name: m for name, m in self.confirmed.items() if name in names}
        now = self.link.clock()
        unclear = {
            name
            for name, since in self._unreadable_since.items()
            if name in names and now - since < self.grace_seconds
        }
        newer = {name for name in names if name >= oldest}
        return newer | unclear | {*self._special(readable), *self._special(confirmed)}

    def _special(self, manifests: dict[str, Manifest]) -> Iterator[str]:
        """The best, each n-th, and the newest emergency version."""
        healthy = {n: m for n, m in sorted(manifests.items(), reverse=True) if m.healthy}
        scored = {name: m.score for name, m in healthy.items() if m.score is not None}
        yield from sorted(scored, key=lambda name: (scored[name], name))[: self.retention.keep_best]
        if every := self.retention.keep_every:
            of_step = {m.step: name for name, m in reversed(healthy.items())}
            yield from (name for step, name in of_step.items() if step and step % every == 0)
        yield from [name for name, m in healthy.items() if m.kind == "emergency"][:1]

    def _forget(self, name: str) -> None:
        manifest = self._read.pop(name, None)
        self.confirmed.pop(name, None)
        self._unreadable_since.pop(name, None)
        for pack in manifest.packs if manifest else ():
            self.unnamed_since.setdefault(pack.hash, self.link.clock())

    def _remove_objects(self, living: set[str]) -> Iterator[float]:
        now = self.link.clock()
        if self._swept_at is None or now - self._swept_at >= self.grace_seconds:
            yield from self._sweep()
            self._swept_at = now
        for digest in living & self.unnamed_since.keys():
            del self.unnamed_since[digest]
        for digest, since in sorted(self.unnamed_since.items()):
            if now - since < self.grace_seconds:
                continue
            path = self.link.store.objects.path_of(digest)
            self.link.sent.pop(digest, None)  # from here on it counts as not there
            for form in (path, path.with_name(path.name + SUFFIX)):
                self.link.remove(form)
            del self.unnamed_since[digest]
            yield 0.0

    def _sweep(self) -> Iterator[float]:
        """See what lies there without a name, such as what a killed copier left."""
        objects = self.link.store.root / "objects"
        place, now = self.link.place, self.link.clock()
        with contextlib.suppress(FileNotFoundError):
            for folder in place.names(objects):
                for file_name in place.names(objects / folder):
                    if match := OBJECT_FILE.fullmatch(file_name):
                        self.unnamed_since.setdefault(match[1], now)
                yield 0.0
