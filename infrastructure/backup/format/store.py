"""A store of checkpoints: objects named by their hash, then a manifest named by its hash.

    objects/ab/<hash>[.zst] · versions/<sequence>-<hash name>-<hash>.json · tmp/

The manifest is the commit point: a checkpoint exists if its manifest exists. The manifest is
written only after every object that it names is on the disk and was read back. Nothing is changed
in place. FORMAT.md has the rules. A store has one writer at a time and any number of readers.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from infrastructure.backup.format.file_operations import FileOperations, by_two
from infrastructure.backup.format.hashing import available_hash, hash_of
from infrastructure.backup.format.lineage import Lineage, sequence_of
from infrastructure.backup.format.manifest import (
    HELD_ANEW,
    Manifest,
    Outline,
    Pack,
    StoredTensor,
    VersionName,
    parse_manifest,
)
from infrastructure.backup.format.objects import ObjectFiles
from infrastructure.backup.format.packs import PACK_BYTES, TensorBytes, cut, decode, encode
from infrastructure.core.errors import CheckpointError, StorageError
from infrastructure.core.messages import phrase

Result = TypeVar("Result")

SMALL_PACK_BYTES = 1024**2  # rewriting a smaller pack is not worth the space that it would save


@dataclass(frozen=True)
class Rejected:
    """A checkpoint that cannot be used because it is damaged, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True)
class Placed:
    """The stored packs of a new checkpoint, and the location of each tensor in the packs."""

    packs: tuple[Pack, ...]
    tensors: dict[str, StoredTensor]


class Store:
    """The checkpoints in the directory `root`, which the first checkpoint creates.

    Args:
        operations: the file system.
        compress: whether to write objects compressed if that is smaller. Compressed and
            uncompressed objects can always be read.
    """

    def __init__(
        self, root: Path, operations: FileOperations | None = None, *, compress: bool = False
    ) -> None:
        self.root = root
        self.operations = operations or FileOperations()
        self.objects = ObjectFiles(root, self.operations, compress)
        self.hash_name = available_hash()  # of new versions; each name contains its version's
        self._is_prepared = False
        self._outlines: dict[str, Outline] = {}  # of versions that were read before

    def versions(self) -> list[str]:
        """Return the names of all checkpoints, the newest first, without verifying them."""
        try:
            names = self.operations.names(self.root / "versions")
        except FileNotFoundError:
            return []
        stems = [name.removesuffix(".json") for name in names if name.endswith(".json")]
        return sorted((stem for stem in stems if VersionName.parse(stem)), reverse=True)

    def manifest_path(self, name: str) -> Path:
        """Return the path of the manifest of checkpoint `name`."""
        return self.root / "versions" / f"{name}.json"

    def read(self, name: str) -> Manifest:
        """Read the manifest of a checkpoint, without its objects.

        Raises:
            CheckpointError: if it is missing or does not match its name.
        """
        return parse_manifest(*self._read_bytes(name))

    def outline(self, name: str) -> Outline:
        """Return the part of a checkpoint that rotation needs, without reading its objects.

        The manifest is read and compared with its name each time, but parsed only once, because the
        same name means the same bytes.

        Raises:
            CheckpointError: as in `read`.
        """
        data, parsed = self._read_bytes(name)
        if name not in self._outlines:
            self._outlines[name] = parse_manifest(data, parsed).outline
        return self._outlines[name]

    def _read_bytes(self, name: str) -> tuple[bytes, VersionName]:
        parsed = VersionName.parse(name)
        if parsed is None:
            raise CheckpointError("backup.not_a_checkpoint_name", name=name)
        data = self.objects.read_small(self.manifest_path(name))
        try:
            digest = hash_of(parsed.hash_name, [data])
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        if digest != parsed.digest:
            raise CheckpointError("backup.manifest_changed")
        return data, parsed

    def verify(self, manifest: Manifest, *, run_files: bool = True) -> None:
        """Read every object of a checkpoint and compare it with its hash.

        Args:
            run_files: include objects that contain only copies of the run's small files.

        Raises:
            CheckpointError: if an object is missing, truncated or changed. The message names it.
        """
        packs = manifest.packs if run_files else manifest.needed_packs
        for _ in _each(lambda pack: self._verify(pack, manifest), packs):
            pass

    def _verify(self, pack: Pack, manifest: Manifest) -> None:
        try:
            self.objects.verify(pack, manifest.hash_name)
        except CheckpointError as error:
            if pack.hash not in manifest.copied_apart:
                raise
            raise CheckpointError("backup.object_only_at_destination", error=error) from error

    def load(
        self,
        manifest: Manifest,
        *,
        only: str | None = None,
        without: str | None = None,
        names: Collection[str] | None = None,
    ) -> Iterator[tuple[str, TensorBytes]]:
        """Yield the tensors of a checkpoint with their full names, pack by pack. Each tensor is
        verified.

        Args:
            only: the class of tensors to read; by default, every class.
            without: a class of tensors not to read.
            names: full names of the tensors to read; by default, all.

        Raises:
            CheckpointError: if an object is damaged, or lacks a tensor that the manifest names.
        """
        by_pack: dict[int, list[str]] = {}
        for name, place in manifest.tensors.items():
            tensor_class = name.partition("/")[0]
            is_named = names is None or name in names
            if is_named and only in (None, tensor_class) and without != tensor_class:
                by_pack.setdefault(place.pack, []).append(name)
        packs = [manifest.packs[index] for index in by_pack]
        contents = _each(lambda pack: decode(self.objects.read(pack, manifest.hash_name)), packs)
        for pack, wanted, tensors in zip(packs, by_pack.values(), contents, strict=True):
            for name in wanted:
                if name not in tensors:
                    raise CheckpointError(
                        "backup.object_lacks_tensor", hash=pack.hash[:12], name=name
                    )
                yield name, tensors[name]

    def newest(self) -> tuple[str | None, list[Rejected]]:
        """Return the newest checkpoint from which a run can resume, and the newer ones, which are
        damaged.

        The first value is None if there is no such checkpoint. Copies of run files are not checked.
        """
        rejected: list[Rejected] = []
        for name in self.versions():
            try:
                manifest = self.read(name)
                if manifest.healthy:
                    self.verify(manifest, run_files=False)
                    return name, rejected
            except CheckpointError as error:
                rejected.append(Rejected(name, str(error)))
        return None, rejected

    def newest_healthy(self) -> str | None:
        """Return the newest checkpoint from which a run may resume, judging only by the
        manifests.
        """
        for name in self.versions():
            with contextlib.suppress(CheckpointError):
                if self.outline(name).healthy:
                    return name
        return None

    def commit(
        self,
        tensors: Mapping[str, TensorBytes],
        values: dict[str, Any],
        *,
        step: int,
        kind: str = "scheduled",
        healthy: bool = True,
        score: float | None = None,
    ) -> str:
        """Write a checkpoint.

        Tensors that the newest checkpoint already holds are not written again.

        Args:
            tensors: the tensors by full name. The part of the name before the slash is the class; a
                pack holds tensors of one class.
            values: everything that is not a tensor, as JSON.
            step, kind, healthy, score: as in `Manifest`.

        Returns:
            The name of the checkpoint, all of which is then on the disk and was read back.

        Raises:
            StorageError: if the disk fails or does not keep what was written. Earlier checkpoints
                are not affected.
        """
        kept = self.place(tensors)
        return self.publish(kept, values, step=step, kind=kind, healthy=healthy, score=score)

    def place(self, tensors: Mapping[str, TensorBytes]) -> Placed:
        """Write those tensors of a new checkpoint that the newest checkpoint does not contain.

        This is the first half of `commit`. Several processes may call it at once.

        Raises:
            StorageError: as in `commit`.
        """
        try:
            self.prepare()
            return self._place(tensors)
        except OSError as error:
            raise self._refusal(error) from error

    def publish(
        self,
        placed: Placed,
        values: dict[str, Any],
        *,
        step: int,
        kind: str = "scheduled",
        healthy: bool = True,
        score: float | None = None,
    ) -> str:
        """Write the manifest of a checkpoint whose objects exist, and return the checkpoint's name.

        This is the second half of `commit`. Only the single writer of the store may call it.

        Raises:
            StorageError: as in `commit`.
        """
        try:
            names = self.versions()
            newest = max([*map(sequence_of, names[:1]), Lineage(self.root).newest_sequence])
            manifest = Manifest(
                hash_name=self.hash_name,
                sequence=newest + 1,
                parent=names[0] if names else None,
                created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                kind=kind,
                healthy=healthy,
                step=step,
                score=score,
                values=values,
                packs=placed.packs,
                tensors=placed.tensors,
            )
            data = manifest.to_bytes()
            digest = hash_of(self.hash_name, [data])
            name = str(VersionName(manifest.sequence, self.hash_name, digest))
            self.objects.put(self.manifest_path(name), [data], digest, self.hash_name)
            return name
        except OSError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: OSError) -> StorageError:
        return StorageError(phrase("backup.checkpoint_not_written", root=self.root, error=error))

    def remove_all_but(self, kept: Collection[str]) -> list[str]:
        """Remove the checkpoints that are not in `kept`, then the objects that no checkpoint names.

        Manifests are removed first, so that no checkpoint exists without its objects. If a kept
        manifest cannot be read, no objects are removed, because the manifest may name them.

        Returns:
            The names of the removed checkpoints.

        Raises:
            StorageError: if the disk fails. Nothing that is kept is touched.
        """
        removed = [name for name in self.versions() if name not in kept]
        try:
            for name in removed:
                self.operations.remove(self.manifest_path(name))
                self._outlines.pop(name, None)
            if removed:
                self.operations.sync_directory(self.root / "versions")
            living = self._named_objects()
            if living is not None:
                self.objects.remove_all_but(living)
        except OSError as error:
            raise StorageError("backup.pruning_failed", root=self.root, error=error) from error
        return removed

    def sweep(self) -> None:
        """Remove the partial files of a killed writer. A new writer calls this before it writes.

        Raises:
            OSError: if the disk fails.
        """
        self.objects.sweep()

    def _named_objects(self) -> set[str] | None:
        try:
            return {pack.hash for name in self.versions() for pack in self.outline(name).packs}
        except CheckpointError:
            return None

    def prepare(self) -> None:
        """Create the directories of the store, and sync them to the disk.

        Raises:
            OSError: if the disk fails.
        """
        if self._is_prepared:
            return
        self.operations.make_directory(self.root)
        for directory in ("objects", "versions", "tmp"):
            self.operations.make_directory(self.root / directory)
        self.operations.sync_directory(self.root)
        self.operations.sync_directory(self.root.parent)
        self._is_prepared = True

    def _place(self, tensors: Mapping[str, TensorBytes]) -> Placed:
        hashes = {
            name: hash_of(self.hash_name, [tensor.identity, tensor.data])
            for name, tensor in tensors.items()
        }
        held = self._held_already(hashes, tensors)
        packs = list(dict.fromkeys(held.values()))
        index = {pack: i for i, pack in enumerate(packs)}
        places = {name: StoredTensor(index[pack], hashes[name]) for name, pack in held.items()}
        new = {name: tensor for name, tensor in tensors.items() if name not in places}
        self.objects.require_space(sum(len(tensor.data) for tensor in new.values()))
        for group in groups_of(new):
            packs.append(self.objects.write_pack(encode(group), self.hash_name))
            places |= {name: StoredTensor(len(packs) - 1, hashes[name]) for name in group}
        return Placed(tuple(packs), places)

    def _held_already(
        self, hashes: Mapping[str, str], tensors: Mapping[str, TensorBytes]
    ) -> dict[str, Pack]:
        """Return the tensors that are already stored, by name, each with the pack that
        contains it.
        """
        names = self.versions()
        if not names:
            return {}
        try:
            newest = self.read(names[0])
        except CheckpointError:
            return {}
        if newest.hash_name != self.hash_name:
            return {}
        held = {
            tensor: newest.packs[place.pack]
            for tensor, place in newest.tensors.items()
            if hashes.get(tensor) == place.hash and not tensor.startswith(HELD_ANEW)
        }
        kept = {
            pack
            for pack, living_bytes in _living_bytes(held, tensors).items()
            if not is_mostly_dead(pack, living_bytes)
            and self.objects.is_whole(pack, self.hash_name)
        }
        return {tensor: pack for tensor, pack in held.items() if pack in kept}


def _each(work: Callable[[Pack], Result], packs: Sequence[Pack]) -> Iterator[Result]:
    """Yield `work(pack)` for each pack, in order. Two threads are used if the packs are large."""
    is_large = sum(pack.size_bytes for pack in packs) > PACK_BYTES
    return by_two(work, packs) if is_large else map(work, packs)


def _living_bytes(held: Mapping[str, Pack], tensors: Mapping[str, TensorBytes]) -> dict[Pack, int]:
    living: dict[Pack, int] = {}
    for name, pack in held.items():
        living[pack] = living.get(pack, 0) + len(tensors[name].data)
    return living


def is_mostly_dead(pack: Pack, living_bytes: int) -> bool:
    """Return whether a new checkpoint would use less than half of an existing pack.

    If so, the new checkpoint writes these bytes again, so that the disk never holds more unused
    than used bytes of a pack.
    """
    return pack.size_bytes > SMALL_PACK_BYTES and 2 * living_bytes < pack.size_bytes


def groups_of(tensors: Mapping[str, TensorBytes]) -> Iterator[dict[str, TensorBytes]]:
    """Yield groups of tensors for one pack each: all of the same class, up to the maximum size."""
    classes: dict[str, dict[str, TensorBytes]] = {}
    for name, tensor in tensors.items():
        classes.setdefault(name.partition("/")[0], {})[name] = tensor
    for members in classes.values():
        yield from cut(members)
