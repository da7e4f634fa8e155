"""The identity of a backup destination, defined by a marker file there with a random id.

    <place>/.temper-place/<id>      {"format": 1, "id": "<id>"}

A path cannot identify a destination: if a mount disappeared, the path leads to an empty folder on
this machine's own disk. A device number cannot identify it either, because it changes when a Drive
is mounted again. The id is part of the marker's file name, so if two runs create a marker at the
same moment, there are two files, and the destination has both ids from then on. So this works on
stores without atomic operations.
"""

import json
import logging
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NotRequired, TypedDict

from infrastructure.backup.format.file_operations import FileOperations
from infrastructure.core.checksums import read_record, write_record
from infrastructure.core.errors import DamagedFileError
from infrastructure.core.json_text import as_object, as_text, parse_json
from infrastructure.core.messages import phrase

FOLDER = Path(".temper-place")
ID = re.compile(r"[0-9a-f]{32}")
FORMAT = 1

log = logging.getLogger(__name__)


class PlaceMarker(TypedDict):
    """The contents of a marker file. Only the id matters."""

    format: NotRequired[int]
    id: str


def ids_at(place: FileOperations) -> list[str]:
    """Return the ids of a destination, sorted; an empty list if it has no marker file yet.

    Raises:
        OSError: if the destination does not respond.
    """
    try:
        names = place.names(FOLDER)
    except FileNotFoundError:
        return []
    return [name for name in sorted(names) if ID.fullmatch(name) and has_id(place, name)]


def has_id(place: FileOperations, place_id: str) -> bool:
    """Return whether the marker file of this id exists and is intact.

    Raises:
        OSError: if the destination does not respond.
    """
    marker = _read_marker(place, place_id)
    return marker is not None and marker["id"] == place_id


def _read_marker(place: FileOperations, place_id: str) -> PlaceMarker | None:
    """Return the marker file of an id; None if it is missing or incomplete."""
    try:
        marker = as_object(parse_json(b"".join(place.read(FOLDER / place_id))))
        return {"id": as_text(marker["id"])}
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def mark(place: FileOperations) -> str:
    """Create a marker file at a destination that has none, and return its new id.

    Raises:
        OSError: if the destination does not respond or fails.
    """
    place_id = secrets.token_hex(16)
    place.make_directory(FOLDER)
    marker: PlaceMarker = {"format": FORMAT, "id": place_id}
    place.write(FOLDER / place_id, [json.dumps(marker).encode()])
    return place_id


class PlaceRecord:
    """A local file that records which destination a run was copied to.

    Args:
        path: the file, which the first `write` creates.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def id_of(self, url: str) -> str | None:
        """Return the recorded id of the destination at `url`; None if the run was never copied to
        it.
        """
        return dict(self._read()).get(url)

    def write(self, url: str, place_id: str) -> None:
        """Record that `url` leads to the destination with this id.

        Raises:
            OSError: if the disk fails.
        """
        if self.id_of(url) != place_id:
            write_record(self.path, {**dict(self._read()), url: place_id})

    def forget(self, url: str) -> None:
        """Forget the id of `url`, so that the next contact accepts any destination there.

        Raises:
            OSError: if the disk fails.
        """
        if self.id_of(url) is not None:
            write_record(self.path, {other: i for other, i in self._read() if other != url})

    def _read(self) -> Iterator[tuple[str, str]]:
        try:
            for url, place_id in read_record(self.path).items():
                if isinstance(place_id, str):
                    yield url, place_id
        except DamagedFileError as error:  # treat it as the first contact
            log.warning(phrase("backup.identity_record_damaged", error=error))
        except OSError:
            return
