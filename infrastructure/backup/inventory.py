"""What versions there are, here and at a place, and whether they are whole."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from infrastructure.backup.backends.base import Place
from infrastructure.backup.format.manifest import Manifest
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import CheckpointError

HERE = "here"


@dataclass(frozen=True)
class BackupEntry:
    """A version. `problem` says why nothing is known of it but its name.

    Attributes:
        places: where it is: "here", or a place's url.
        size_bytes: of all its objects, also those that other versions share.
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
    """What verifying a version found; `problem` None: it is whole. `name` None: the whole place."""

    where: str
    name: str | None
    step: int | None
    problem: str | None


def list_entries(stores: dict[str, Store]) -> list[BackupEntry]:
    """All versions of `stores` (by where they lie), the newest first; manifests are read, objects
    are not.

    Raises:
        OSError: a place does not answer.
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
    """Bytes of all objects of a version."""
    return sum(pack.size_bytes for pack in manifest.packs)


def verify_all(where: str, store: Store) -> Iterator[VerifiedVersion]:
    """Read every version of a store, the newest first, and compare it with its names.

    Raises:
        OSError: the place does not answer.
    """
    for name in store.versions():
        step = None
        try:
            manifest = store.read(name)
            step = manifest.step
            store.verify(_held(where, manifest))
        except CheckpointError as error:
            yield VerifiedVersion(where, name, step, str(error))
        else:
            yield VerifiedVersion(where, name, step, None)


def _held(where: str, manifest: Manifest) -> Manifest:
    """What is to lie there: here, all but what other machines have copied to the place."""
    if where != HERE:
        return manifest
    apart = manifest.copied_apart
    return replace(manifest, packs=tuple(p for p in manifest.packs if p.hash not in apart))


def runs_at(place: Place) -> list[str]:
    """The runs that have at least one version at a place, sorted.

    Raises:
        OSError: the place does not answer.
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
