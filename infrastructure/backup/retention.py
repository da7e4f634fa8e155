"""Which versions of a store stay."""

from infrastructure.backup.manifest import Manifest
from infrastructure.backup.store import Store
from infrastructure.core.errors import CheckpointError


def versions_to_keep(store: Store, keep_last: int) -> set[str]:
    """The newest `keep_last` healthy versions that verify, and what is newer than the oldest of
    them: evidence of damage or of a loss that was not finite.

    While fewer than `keep_last` verify, everything stays: nothing is removed on the strength of a
    version that might not load.
    """
    verified = 0
    kept: set[str] = set()
    for name in store.versions():
        kept.add(name)
        verified += is_good(store, name)
        if verified == keep_last:
            return kept
    return kept


def is_good(store: Store, name: str) -> bool:
    """Whether a version is healthy and whole; what was verified before is not read again."""
    try:
        manifest: Manifest = store.read(name)
    except CheckpointError:
        return False
    return manifest.healthy and all(
        store.objects.is_whole(pack, manifest.hash_name) for pack in manifest.packs
    )
