"""The manifest of a checkpoint: canonical JSON, named by its hash. Every field is validated."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Self, TypeGuard, TypeVar

from infrastructure.backup.format.hashing import HEX_HASH
from infrastructure.core.errors import CheckpointError, InputError
from infrastructure.core.json_text import parse_json

FORMAT_VERSION = 1
# More than any real version needs; a reader does not allocate memory for anything larger.
MAX_MANIFEST_BYTES = 64 * 1024**2
MAX_OBJECT_BYTES = 1 << 40
FILES = "files"  # the class of a run's small files, which are not needed to resume
# Written again by each version, as a separate object: they hardly change, so all versions would
# share one object, and one damaged bit in it would make all of them unusable.
HELD_ANEW = ("random/", f"{FILES}/run.json@")
# A key of a version's values: the objects that other machines wrote straight to the destination and
# that were confirmed there before the manifest was written; see FORMAT.md.
COPIED_APART = "copied_apart"
MEASURED_ON = "measured_on"  # a key of the values: the held-out rows of the score
VERSION_NAME = re.compile(r"(\d{12})-([a-z0-9]{1,16})-([0-9a-f]{64})")


class SaveKind(StrEnum):
    """The reason why a checkpoint was written. Readers of the format accept no other value."""

    SCHEDULED = "scheduled"
    MANUAL = "manual"
    STOPPED = "stopped"
    EMERGENCY = "emergency"


FIELDS = {
    "format": int,
    "sequence": int,
    "parent": str | None,
    "created": str,
    "kind": str,
    "healthy": bool,
    "step": int,
    "score": int | float | None,
    "values": dict,
    "packs": list,
    "tensors": dict,
}


@dataclass(frozen=True)
class Pack:
    """A stored file that holds tensors, named by its hash."""

    hash: str
    size_bytes: int


@dataclass(frozen=True)
class StoredTensor:
    """The location of a tensor: its pack (an index into the manifest's packs), and its hash."""

    pack: int
    hash: str


@dataclass(frozen=True, order=True)
class VersionName:
    """The name of a checkpoint, `<sequence>-<hash name>-<hash>`, in which the hash is that of its
    manifest.

    Names sort by age.
    """

    sequence: int
    hash_name: str
    digest: str

    def __str__(self) -> str:
        return f"{self.sequence:012d}-{self.hash_name}-{self.digest}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse the name of a checkpoint. Return None if `text` is not one."""
        match = VERSION_NAME.fullmatch(text)
        return cls(int(match[1]), match[2], match[3]) if match else None


@dataclass(frozen=True)
class Outline:
    """The fields of `Manifest` that determine whether a checkpoint is kept or removed."""

    hash_name: str
    kind: str
    healthy: bool
    step: int
    score: float | None
    measured_on: str | None
    packs: tuple[Pack, ...]
    needed_packs: tuple[Pack, ...]


@dataclass(frozen=True)
class Manifest:
    """The contents of the manifest of one checkpoint.

    Attributes:
        hash_name: the hash that names the checkpoint and its objects.
        sequence: the number of the checkpoint in its store, counting up; the newest has the
            highest.
        parent: the name of the checkpoint before it, for debugging.
        kind: the `SaveKind` that says why the checkpoint was written.
        healthy: False for a bad state, such as one after a NaN loss. It is kept for inspection, and
            no run resumes from it automatically.
        step: the number of completed optimizer steps.
        score: the held-out loss of exactly this state (lower is better), or None if it was not
            measured.
        values: everything that is not a tensor, as JSON.
        packs: the objects, in the order that tensors refer to.
        tensors: full name ("model/layer.weight") to location.
    """

    hash_name: str
    sequence: int
    parent: str | None
    created: str
    kind: str
    healthy: bool
    step: int
    score: float | None
    values: dict[str, Any]
    packs: tuple[Pack, ...]
    tensors: dict[str, StoredTensor]

    def created_at(self, otherwise: float | None = None) -> float | None:
        """Return the creation time in seconds since 1970, or `otherwise` if it is invalid."""
        try:
            return datetime.fromisoformat(self.created).timestamp()
        except ValueError:
            return otherwise

    @property
    def needed_packs(self) -> tuple[Pack, ...]:
        """The packs that a resume needs: all packs except those that contain only copies of run
        files.
        """
        needed = {
            place.pack for name, place in self.tensors.items() if name.partition("/")[0] != FILES
        }
        return tuple(pack for index, pack in enumerate(self.packs) if index in needed)

    @property
    def measured_on(self) -> str | None:
        """The held-out rows on which `score` was measured; None if they were not recorded."""
        rows = self.values.get(MEASURED_ON)
        return rows if isinstance(rows, str) else None

    @property
    def copied_apart(self) -> frozenset[str]:
        """The hashes of the packs that other machines copied directly to the backup destination.

        The machine that wrote this manifest never had these packs.
        """
        hashes = self.values.get(COPIED_APART)
        return frozenset(filter(_is_hash, hashes)) if isinstance(hashes, list) else frozenset()

    @property
    def outline(self) -> Outline:
        """The few fields of the manifest that determine whether the checkpoint is kept."""
        return Outline(
            hash_name=self.hash_name,
            kind=self.kind,
            healthy=self.healthy,
            step=self.step,
            score=self.score,
            measured_on=self.measured_on,
            packs=self.packs,
            needed_packs=self.needed_packs,
        )

    def to_bytes(self) -> bytes:
        """Return canonical JSON: sorted keys, no spaces, ASCII, no NaN."""
        contents = {
            "format": FORMAT_VERSION,
            "sequence": self.sequence,
            "parent": self.parent,
            "created": self.created,
            "kind": self.kind,
            "healthy": self.healthy,
            "step": self.step,
            "score": self.score,
            "values": self.values,
            "packs": [[pack.hash, pack.size_bytes] for pack in self.packs],
            "tensors": {name: [place.pack, place.hash] for name, place in self.tensors.items()},
        }
        text = json.dumps(contents, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return text.encode("ascii")


Version = TypeVar("Version", Manifest, Outline)


def scores_of(versions: Mapping[str, Version]) -> dict[str, float]:
    """Return the scores of those healthy checkpoints that can be compared, by name.

    Scores are comparable if they were measured on the same held-out rows as the newest score.
    """
    scored = {n: v for n, v in versions.items() if v.healthy and v.score is not None}
    if not scored:
        return {}
    rows = scored[max(scored)].measured_on
    return {n: v.score for n, v in scored.items() if v.score is not None and v.measured_on == rows}


def parse_manifest(data: bytes, name: VersionName) -> Manifest:
    """Parse the manifest called `name`, checking every field.

    Raises:
        CheckpointError: if `data` is not a manifest of this format, or is inconsistent.
    """
    contents = _parse_json(data)
    if not isinstance(contents, dict):
        raise CheckpointError("backup.manifest_not_an_object")
    version = contents.get("format")
    if version != FORMAT_VERSION:
        raise CheckpointError(
            "backup.unknown_manifest_format", version=version, supported=FORMAT_VERSION
        )
    for field, kind in FIELDS.items():
        value = contents.get(field, ...)  # `...` has none of the types
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise CheckpointError("backup.invalid_manifest_field", field=field)
    if contents["sequence"] != name.sequence:
        raise CheckpointError("backup.manifest_sequence_mismatch", sequence=contents["sequence"])
    if contents["kind"] not in set(SaveKind) or contents["step"] < 0:
        raise CheckpointError("backup.invalid_manifest_kind_or_step")
    packs = tuple(_pack(entry) for entry in contents["packs"])
    return Manifest(
        hash_name=name.hash_name,
        sequence=name.sequence,
        parent=contents["parent"],
        created=contents["created"],
        kind=contents["kind"],
        healthy=contents["healthy"],
        step=contents["step"],
        score=contents["score"],
        values=contents["values"],
        packs=packs,
        tensors=_tensors(contents["tensors"], len(packs)),
    )


def _parse_json(data: bytes) -> object:
    if len(data) > MAX_MANIFEST_BYTES:
        raise CheckpointError("backup.manifest_too_large", size=len(data))
    try:
        return parse_json(data.decode(), parse_constant=_no_constant)
    except ValueError as error:
        raise CheckpointError("backup.manifest_not_json", error=error) from error


def _no_constant(text: str) -> None:
    raise InputError("backup.json_constant_not_allowed", constant=text)


def _is_hash(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and HEX_HASH.fullmatch(value) is not None


def _is_count(value: object, below: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below


def _pack(entry: object) -> Pack:
    match entry:
        case [digest, size] if _is_hash(digest) and _is_count(size, MAX_OBJECT_BYTES):
            return Pack(digest, size)
    raise CheckpointError("backup.manifest_invalid_pack")


def _tensors(entries: Mapping[str, object], num_packs: int) -> dict[str, StoredTensor]:
    tensors = {}
    for name, entry in entries.items():
        match entry:
            case [pack, digest] if _is_count(pack, num_packs) and _is_hash(digest):
                tensors[name] = StoredTensor(pack, digest)
            case _:
                raise CheckpointError("backup.manifest_tensor_without_pack", name=name[:80])
    return tensors
