"""Lists of the checkpoints on this machine and at a backup destination, and their verification."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from infrastructure.backup.backends.base import Place
from infrastructure.backup.format.manifest import Manifest, Pack
from infrastructure.backup.format.store import Store
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.errors import CheckpointError

HERE = "here"


@dataclass(frozen=True)
class BackupEntry:
    """A checkpoint in a list. `problem` is the reason if its manifest cannot be read.

    Attributes:
        places: where it is stored: "here", or the URL of a destination.
        size_bytes: the size of all its objects, including those that other checkpoints share.
    """

    name: str
    places: tuple[str, ...]
    step: int | None = None
    kind: str | None = None
    created: str | None = None
    healthy: bool | None = None
    score: float | None = None
    size_bytes: int | None = None
    problem: str | None = None


@dataclass(frozen=True)
class VerifiedVersion:
    """The result of verifying a checkpoint or, if `name` is None, a whole destination.

    If `problem` is None, the checkpoint is intact.
    """

    where: str
    name: str | None
    step: int | None
    problem: str | None


def list_entries(stores: dict[str, Store]) -> list[BackupEntry]:
    """List all checkpoints of `stores` (by location), the newest first. Only manifests are read.

    Raises:
        OSError: if a destination does not respond.
    """
    where: dict[str, list[str]] = {}
    for place, store in stores.items():
        for name in store.versions():
            where.setdefault(name, []).append(place)
    return [_entry(name, where[name], stores) for name in sorted(where, reverse=True)]


def _entry(name: str, places: list[str], stores: dict[str, Store]) -> BackupEntry:
    problem = None
    for place in places:
        try:
            manifest = stores[place].read(name)
        except CheckpointError as error:
            problem = str(error)
            continue
        return BackupEntry(
            name,
            tuple(places),
            manifest.step,
            manifest.kind,
            manifest.created,
            manifest.healthy,
            manifest.score,
            size_bytes_of(manifest),
        )
    return BackupEntry(name, tuple(places), problem=problem)


def size_bytes_of(manifest: Manifest) -> int:
    """Return the size of all objects of a checkpoint."""
    return sum(pack.size_bytes for pack in manifest.packs)


def verify_all(
    where: str,
    store: Store,
    names: Collection[str] | None = None,
    show_progress: Callable[[int, int], None] = do_nothing,
) -> list[VerifiedVersion]:
    """Verify checkpoints of a store, the newest first, by hashing their bytes.

    An object that several checkpoints share is read only once.

    Args:
        names: the checkpoints to verify; by default, all.
        show_progress: a function that gets the number of bytes done and in total.

    Raises:
        OSError: if the destination does not respond.
    """
    problems: dict[str, str | None] = {}
    manifests: dict[str, Manifest] = {}
    for name in store.versions() if names is None else names:
        try:
            manifests[name] = _held(where, store.read(name))
            problems[name] = None
        except CheckpointError as error:
            problems[name] = str(error)
    checked: dict[str, str | None] = {}
    done_bytes, total_bytes = 0, sum(map(size_bytes_of, manifests.values()))
    for name, manifest in manifests.items():
        for pack in manifest.packs:
            if pack.hash not in checked:
                checked[pack.hash] = _problem_of(pack, manifest, store)
            problems[name] = problems[name] or checked[pack.hash]
            done_bytes += pack.size_bytes
            show_progress(done_bytes, total_bytes)
    steps = {name: manifest.step for name, manifest in manifests.items()}
    return [VerifiedVersion(where, name, steps.get(name), why) for name, why in problems.items()]


def _problem_of(pack: Pack, manifest: Manifest, store: Store) -> str | None:
    try:
        store.objects.verify(pack, manifest.hash_name)
    except CheckpointError as error:
        return str(error)
    return None


def _held(where: str, manifest: Manifest) -> Manifest:
    """Return the manifest with only those objects that the store at `where` must contain.

    The local store need not hold objects that other machines copied straight to the destination.
    """
    if where != HERE:
        return manifest
    apart = manifest.copied_apart
    return replace(manifest, packs=tuple(p for p in manifest.packs if p.hash not in apart))


def runs_at(place: Place) -> list[str]:
    """Return the runs that have at least one checkpoint at a destination, sorted.

    Raises:
        OSError: if the destination does not respond.
    """
    try:
        names = place.names(Path())
    except FileNotFoundError:
        return []
    return [name for name in names if _has_version(place, name)]


def _has_version(place: Place, name: str) -> bool:
    try:
        return bool(Store(Path(name), place).versions())
    except NotADirectoryError:
        return False
