"""Repair of a run's checkpoints and small files, before the run resumes.

Files that are damaged or missing on this machine are restored from the destination, or from the
copies in a checkpoint. Files that cannot be restored are reported. If everything on this machine is
intact, the destination is not read.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from infrastructure.backup.format.manifest import FILES, Manifest, Pack
from infrastructure.backup.format.store import Store
from infrastructure.backup.replication.upload import fetch_objects, fetch_version
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.errors import CheckpointError, StorageError
from infrastructure.core.messages import phrase

# Objects of versions that are not being resumed are read completely up to this many bytes; beyond
# that, only their sizes are compared.
READ_ALL_BYTES = 4 * 1024**3

log = logging.getLogger(__name__)


class Outcome(StrEnum):
    """The result of repairing one file or checkpoint."""

    REPAIRED = "repaired"
    IN_PART = "repaired in part"
    LOST = "lost"


@dataclass(frozen=True)
class Repair:
    """The repair of one file, object or checkpoint that was damaged or missing.

    Attributes:
        what: the path of the file in the run, or the object or checkpoint.
        text: a message for the user.
    """

    what: str
    outcome: Outcome
    text: str


class StoreRepair:
    """The repair of the checkpoints of a store, object by object.

    Args:
        local: the store; the caller must be its only writer.
        remote: a store elsewhere with the same checkpoints, or None.
        where: the name of `remote` in messages.
    """

    def __init__(self, local: Store, remote: Store | None = None, where: str = "") -> None:
        self.local, self.remote, self.where = local, remote, where
        self._silence: str | None = None  # why the destination does not respond

    def steps(self, confirmed: str | None = None) -> Iterator[Repair]:
        """Repair the checkpoints as far as possible. Yield a `Repair` for each damaged object or
        checkpoint.

        Args:
            confirmed: the newest checkpoint that is known to be at the destination.

        Raises:
            StorageError: if the local disk fails.
        """
        try:
            names = self.local.versions()
            yield from self._missing_version(names, confirmed)
            manifests = {}
            for name in names:
                try:
                    manifests[name] = self.local.read(name)
                except CheckpointError as error:
                    yield self._manifest(name, error)
                    if (manifest := self._read_here(name)) is not None:
                        manifests[name] = manifest
            yield from self._objects(list(manifests.values()))
        except OSError as error:
            raise StorageError(
                "backup.store_repair_failed", root=self.local.root, error=error
            ) from error

    def _missing_version(self, names: list[str], confirmed: str | None) -> Iterator[Repair]:
        """Restore the newest checkpoint at the destination if it is missing on this machine."""
        if confirmed is None or confirmed <= max(names, default=""):
            return
        what = f"checkpoint {confirmed[:12]}"
        try:
            manifest = self._require_remote().read(confirmed)
            fetch_version(self._require_remote(), confirmed, self.local, do_nothing)
        except (CheckpointError, OSError) as error:
            text = phrase(
                "backup.confirmed_checkpoint_lost",
                what=what,
                where=self.where,
                error=self._why(error),
            )
            yield Repair(what, Outcome.LOST, text)
            return
        names.insert(0, confirmed)
        text = phrase("backup.missing_checkpoint_restored", step=manifest.step, where=self.where)
        yield Repair(what, Outcome.REPAIRED, text)

    def _manifest(self, name: str, error: CheckpointError) -> Repair:
        what = f"checkpoint {name[:12]}"
        try:
            remote = self._require_remote()
            remote.read(name)
            path = self.local.manifest_path(name)
            data = remote.objects.read_small(remote.manifest_path(name))
            digest, hash_name = name.rpartition("-")[2], name.split("-")[1]
            self.local.prepare()
            self.local.objects.put(path, [data], digest, hash_name)
        except (CheckpointError, StorageError, OSError) as failure:
            return Repair(what, Outcome.LOST, f"{what}: {error}; {self._why(failure)}")
        text = phrase("backup.manifest_restored", what=what, error=error, where=self.where)
        return Repair(what, Outcome.REPAIRED, text)

    def _objects(self, manifests: list[Manifest]) -> Iterator[Repair]:
        seen: set[str] = set()
        read_bytes = 0
        serving = [manifest for manifest in manifests if manifest.healthy]
        newest = next(iter(serving), None)
        if (fetched := self._parts_of_others(serving)) is not None:
            yield fetched
        for manifest in [m for m in (newest, *manifests) if m is not None]:
            for pack in manifest.packs:
                if pack.hash in seen or self._is_elsewhere(pack, manifest):
                    continue
                seen.add(pack.hash)
                reads = manifest is newest or read_bytes + pack.size_bytes <= READ_ALL_BYTES
                read_bytes += pack.size_bytes if reads else 0
                try:
                    self._check(pack, manifest.hash_name, reads)
                except CheckpointError as error:
                    yield self._object(pack, manifest, error)

    def _parts_of_others(self, serving: list[Manifest]) -> Repair | None:
        """Fetch the objects that other machines wrote, for the newest checkpoint that can be
        completed.
        """
        reason = ""
        for manifest in serving:
            if not any(self._is_elsewhere(pack, manifest) for pack in manifest.packs):
                break
            what = phrase("backup.checkpoint_parts_elsewhere", step=manifest.step)
            try:
                fetch_objects(self._require_remote(), manifest, self.local, run_files=False)
            except (CheckpointError, StorageError, OSError) as error:
                reason = reason or phrase(
                    "backup.checkpoint_parts_unavailable", what=what, error=self._why(error)
                )
                continue
            if not reason:
                text = phrase(
                    "backup.checkpoint_parts_fetched", step=manifest.step, where=self.where
                )
                return Repair(f"step {manifest.step}", Outcome.REPAIRED, text)
            break
        return (
            Repair(phrase("backup.parts_of_other_machines"), Outcome.LOST, reason)
            if reason
            else None
        )

    def _is_elsewhere(self, pack: Pack, manifest: Manifest) -> bool:
        """Return whether an object that another machine wrote is missing on this machine."""
        if pack.hash not in manifest.copied_apart:
            return False
        try:
            self.local.objects.require_there(pack)
        except CheckpointError:
            return True
        return False

    def _check(self, pack: Pack, hash_name: str, reads: bool) -> None:
        """Compare an object with its hash or, if `reads` is False, only check that it exists.

        Raises:
            CheckpointError: if the object is damaged or missing.
        """
        if reads:
            self.local.objects.verify(pack, hash_name)
        else:
            self.local.objects.require_there(pack)

    def _object(self, pack: Pack, manifest: Manifest, error: CheckpointError) -> Repair:
        what = f"object {pack.hash[:12]}"
        held = f"step {manifest.step}, {', '.join(contents_of(pack, manifest))}"
        try:
            data = self._require_remote().objects.read(pack, manifest.hash_name)
            self.local.prepare()
            self.local.objects.write_pack([data], manifest.hash_name)
        except (CheckpointError, StorageError, OSError) as failure:
            consequence = (
                phrase("backup.checkpoint_unusable")
                if pack in manifest.needed_packs
                else phrase("backup.object_not_needed_to_resume")
            )
            text = f"{error} ({held}); {self._why(failure)}; {consequence}"
            return Repair(what, Outcome.LOST, text)
        text = phrase("backup.object_restored", error=error, held=held, where=self.where)
        return Repair(what, Outcome.REPAIRED, text)

    def _read_here(self, name: str) -> Manifest | None:
        try:
            return self.local.read(name)
        except CheckpointError:
            return None

    def _require_remote(self) -> Store:
        if self.remote is None:
            raise CheckpointError("backup.no_other_copy")
        if self._silence is not None:  # ask only once: each request may take long
            raise CheckpointError(self._silence)
        return self.remote

    def _why(self, error: Exception) -> str:
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, FileNotFoundError):
            return phrase("backup.has_no_copy", where=self.where)
        if isinstance(cause, OSError):
            self._silence = phrase("backup.destination_silent", where=self.where, error=cause)
            return self._silence
        if isinstance(error, StorageError) or self.remote is None or self._silence is not None:
            return str(error)
        return phrase("backup.other_copy_damaged", where=self.where)


def contents_of(pack: Pack, manifest: Manifest) -> list[str]:
    """Return a description of an object's contents: classes of tensors, or paths of run files."""
    index = manifest.packs.index(pack)
    names = [name for name, place in manifest.tensors.items() if place.pack == index]
    kinds = (
        name.partition("/")[2].partition("@")[0]
        if name.startswith(f"{FILES}/")
        else name.partition("/")[0]
        for name in names
    )
    return sorted(set(kinds))
