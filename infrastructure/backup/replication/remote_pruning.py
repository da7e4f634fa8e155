"""The removal of checkpoints and objects that are no longer needed at a destination.

A listing of a destination may be outdated or incomplete, and a file may exist although it seems to
be missing. So a checkpoint is removed only after enough newer ones were *confirmed*, and an object
only if no manifest has named it for some time, according to listings at the beginning and the end
of that time.
"""

import contextlib
import re
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from infrastructure.backup.backends.base import Content
from infrastructure.backup.format.codec import SUFFIX
from infrastructure.backup.format.manifest import Manifest, scores_of
from infrastructure.backup.format.retention import Retention
from infrastructure.backup.replication.claims import Claims
from infrastructure.backup.replication.remote_session import RemoteSession
from infrastructure.core.errors import CheckpointError, StorageError
from infrastructure.core.files import write_json
from infrastructure.core.json_text import json_of
from infrastructure.core.messages import phrase

GRACE_SECONDS = 3600.0
OBJECT_FILE = re.compile(rf"([0-9a-f]{{64}})(?:{re.escape(SUFFIX)})?")


@dataclass
class PlacePruning:
    """The removal of old checkpoints and unused objects at a backup destination.

    Attributes:
        retention: the rules for the checkpoints to keep; only confirmed checkpoints count.
        grace_seconds: the time for which no manifest must have named an object before it is
            removed.
        confirmed: checkpoints that were confirmed in this session.
        doubted: confirmed checkpoints that have since lost a file at the destination. They do not
            count as newer checkpoints when older ones are removed.
        unnamed_since: objects that no manifest names, and the time when this was first seen.
    """

    link: RemoteSession
    retention: Retention
    grace_seconds: float
    confirmed: dict[str, Manifest] = field(default_factory=dict)
    unnamed_since: dict[str, float] = field(default_factory=dict)
    doubted: Collection[str] = ()
    _read: dict[str, Manifest] = field(default_factory=dict)
    _unreadable_since: dict[str, float] = field(default_factory=dict)
    _swept_at: float | None = None

    def is_due(self) -> bool:
        """Return whether an unused object may have become old enough to be removed."""
        if self._swept_at is None:
            return True
        oldest = min([self._swept_at, *self.unnamed_since.values()])
        return self.link.clock() - oldest >= self.grace_seconds

    def steps(
        self, listed: Collection[str], on_its_way: Iterable[str], spared: Collection[str] = ()
    ) -> Iterator[float]:
        """Remove old checkpoints and unused objects. Yield the seconds to wait in between.

        Args:
            listed: the checkpoints at the destination, from a fresh listing; all belong to this
                run.
            on_its_way: objects that are being copied.
            spared: checkpoints to keep regardless of these rules.

        Raises:
            OSError: if the destination does not respond or fails.
        """
        self.link.place.require_identity()
        names = {*listed, *self.confirmed}
        for name in sorted(names):
            self._take_in(name)
            yield 0.0
        kept = self._kept(names) | (names & {*spared})
        for name in sorted(names - kept):
            self.link.remove(self.link.store.manifest_path(name))
            self._forget(name)
            yield 0.0
        if kept <= self._read.keys():  # otherwise an unread manifest may name any object
            living = {pack.hash for name in kept for pack in self._read[name].packs}
            yield from self._remove_objects({*living, *on_its_way})
        self.link.place.close()

    def _take_in(self, name: str) -> None:
        """Read the manifest `name`, unless it has been read before. Manifests never change."""
        if name in self._read:
            return
        try:
            self._read[name] = self.confirmed.get(name) or self.link.store.read(name)
            self._unreadable_since.pop(name, None)
        except CheckpointError:
            self._unreadable_since.setdefault(name, self.link.clock())

    def _kept(self, names: set[str]) -> set[str]:
        sure = {n: m for n, m in self.confirmed.items() if n not in self.doubted}
        good = sorted((n for n, m in sure.items() if m.healthy), reverse=True)
        if len(good) < self.retention.keep_last:
            return names
        oldest = good[self.retention.keep_last - 1]
        readable = {name: self._read[name] for name in names if name in self._read}
        now = self.link.clock()
        unclear = {
            name
            for name, since in self._unreadable_since.items()
            if name in names and now - since < self.grace_seconds
        }
        newer = {name for name in names if name >= oldest}
        return newer | unclear | {*self._special(readable), *self._special(sure)}

    def _special(self, manifests: dict[str, Manifest]) -> Iterator[str]:
        """Yield the further checkpoints to keep: the best and the last emergency checkpoint."""
        healthy = {n: m for n, m in sorted(manifests.items(), reverse=True) if m.healthy}
        scored = scores_of(manifests)
        yield from sorted(scored, key=lambda name: (scored[name], name))[: self.retention.keep_best]
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
            yield from Claims(self.link).prune()
            self._swept_at = now
        for digest in living & self.unnamed_since.keys():
            del self.unnamed_since[digest]
        for digest, since in list(self.unnamed_since.items()):
            if now - since < self.grace_seconds:
                continue
            path = self.link.store.objects.path_of(digest)
            self.link.sent.pop(digest, None)  # from here on it counts as missing
            self.link.named.discard(digest)
            for form in (path, path.with_name(path.name + SUFFIX)):
                self.link.remove(form)
            del self.unnamed_since[digest]
            yield 0.0

    def _sweep(self) -> Iterator[float]:
        """Record all objects at the destination as unused.

        The caller then excludes the objects that are in use.
        """
        objects = self.link.store.root / "objects"
        place, now = self.link.place, self.link.clock()
        with contextlib.suppress(FileNotFoundError):
            for folder in place.names(objects):
                for file_name in place.names(objects / folder):
                    if match := OBJECT_FILE.fullmatch(file_name):
                        self.unnamed_since.setdefault(match[1], now)
                yield 0.0


def prune_once(link: RemoteSession, retention: Retention, record: Path) -> list[str]:
    """Remove old checkpoints and unused objects at a destination once, outside of the copier.

    A checkpoint counts as confirmed if it can be read back from the destination. For the next call,
    the file `record` stores since when each unused object has not been named by a manifest.

    Returns:
        Messages on what was removed.

    Raises:
        OSError: if the destination does not respond or fails.
    """
    pruning = PlacePruning(replace(link, clock=time.time), retention, GRACE_SECONDS)
    pruning.unnamed_since = _read_record(record)
    listed = link.store.versions()
    for name in listed:
        manifest = _confirmed_manifest(link, name)
        if manifest is not None:
            pruning.confirmed[name] = manifest
        if sum(m.healthy for m in pruning.confirmed.values()) == retention.keep_last:
            break
    before = len(pruning.unnamed_since)
    for _ in pruning.steps(listed, ()):
        pass
    num_removed = len({*listed} - {*link.store.versions()})
    write_json(record, pruning.unnamed_since)
    waiting = len(pruning.unnamed_since)
    url = link.place.url
    sentences = [phrase("backup.checkpoints_removed_there", count=num_removed, url=url)]
    if waiting:
        sentences.append(phrase("backup.unreferenced_objects_remain", count=waiting))
    elif before:
        sentences.append(phrase("backup.unreferenced_objects_removed", count=before))
    return sentences


def _confirmed_manifest(link: RemoteSession, name: str) -> Manifest | None:
    """Return the manifest of a checkpoint if it is intact and confirmed at the destination."""
    try:
        manifest = link.store.read(name)
        link.store.verify(manifest)
        for path in [link.store.manifest_path(name), *_object_paths(link, manifest)]:
            if not link.place.confirm(path, Content.of(link.place.read(path), link.place.hashes)):
                return None
    except (CheckpointError, StorageError, FileNotFoundError):
        return None
    return manifest


def _object_paths(link: RemoteSession, manifest: Manifest) -> Iterator[Path]:
    for pack in manifest.packs:
        path = link.store.objects.path_of(pack.hash)
        try:
            link.place.size(path)
        except FileNotFoundError:
            path = path.with_name(path.name + SUFFIX)
        yield path


def _read_record(path: Path) -> dict[str, float]:
    record = json_of(path)
    times = {name: time for name, time in record.items() if isinstance(time, float)}
    return times if len(times) == len(record) else {}
