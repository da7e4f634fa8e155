"""Backups of a checkpoint that several machines write together.

Each machine copies its own objects from memory directly to the backup destination. The manifest is
written after all of them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Self

from infrastructure.backup.format.file_operations import Buffer
from infrastructure.backup.format.hashing import hash_of
from infrastructure.backup.format.manifest import Pack, StoredTensor
from infrastructure.backup.format.packs import TensorBytes, encode, size_of
from infrastructure.backup.format.store import Placed, groups_of
from infrastructure.backup.replication.copier_process import CopierSettings
from infrastructure.backup.replication.remote_session import RemoteSession
from infrastructure.backup.replication.upload import ObjectUpload
from infrastructure.core.errors import CheckpointError, StorageError
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact

NUM_ATTEMPTS = 4
FIRST_WAIT_SECONDS = 1.0


@dataclass(frozen=True)
class ApartSettings:
    """The settings with which each machine of a run copies to the same backup destination.

    Attributes:
        identity: the id in the destination's marker file. It distinguishes the destination from
            other folders of the same name.
        hash_name: the hash that names the objects.
    """

    settings: CopierSettings
    identity: str
    hash_name: str

    def to_json(self) -> JsonObject:
        """Return JSON for `from_json` on another machine."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Create the settings from the result of `to_json`."""
        return cls(**{**values, "settings": CopierSettings(**values["settings"])})

    def link(self) -> RemoteSession:
        """Open a session with the destination from this machine.

        Raises:
            ValueError, OSError, TemperError: if the destination is not available from this machine.
        """
        link = self.settings.link()
        link.place.identify(self.identity)
        for name in link.store.versions():
            with suppress(CheckpointError):  # its objects are looked up before they are written
                link.named |= {pack.hash for pack in link.store.read(name).packs}
        return link


def place_apart(
    link: RemoteSession,
    tensors: Mapping[str, TensorBytes],
    hash_name: str,
    sleep: Callable[[float], None] = time.sleep,
) -> Placed:
    """Write the objects of a checkpoint to a destination, and wait until all of them are confirmed.

    Raises:
        StorageError: if the destination fails, does not respond, or does not confirm.
    """
    packs: dict[Pack, Sequence[Buffer]] = {}
    places: dict[str, StoredTensor] = {}
    for group in groups_of(tensors):
        buffers = encode(group)
        pack = Pack(hash_of(hash_name, buffers), size_of(buffers))
        packs.setdefault(pack, buffers)
        number = list(packs).index(pack)
        for name, tensor in group.items():
            digest = hash_of(hash_name, [tensor.identity, tensor.data])
            places[name] = StoredTensor(number, digest)
    files = {pack.hash: buffers for pack, buffers in packs.items()}
    _copy(ObjectUpload(link, list(packs), files), link, sleep)
    return Placed(tuple(packs), places)


def _copy(upload: ObjectUpload, link: RemoteSession, sleep: Callable[[float], None]) -> None:
    for attempt in range(NUM_ATTEMPTS):
        try:
            link.place.require_identity()
            for wait in upload.steps():
                if wait:
                    sleep(wait)
        except (OSError, StorageError) as error:
            problem = redact(str(error))
        else:
            if upload.are_confirmed:
                return
            problem = phrase("backup.nothing_confirmed_for_long")
        sleep(FIRST_WAIT_SECONDS * 2**attempt)
    raise StorageError("backup.upload_not_confirmed", url=link.place.url, problem=problem)
