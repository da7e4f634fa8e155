"""Which place it is: a marker with a random id at the place decides, and nothing else.

    <place>/.temper-place/<id>      {"format": 1, "id": "<id>"}

A path is no proof: where a mount went away, it leads to an empty folder of this machine's own disk.
A device number is none either: a Drive that is mounted again has another one. The id is part of the
marker's name, so two runs that make one at the same instant make two markers, and the place has
both ids from then on: nothing is ever written over, and no store needs an exclusive operation.
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
    """What a marker holds; the id decides."""

    format: NotRequired[int]
    id: str


def ids_at(place: FileOperations) -> list[str]:
    """The ids of a place, sorted; none where nobody has marked it yet.

    Raises:
        OSError: the place does not answer.
    """
    try:
        names = place.names(FOLDER)
    except FileNotFoundError:
        return []
    return [name for name in sorted(names) if ID.fullmatch(name) and has_id(place, name)]


def has_id(place: FileOperations, place_id: str) -> bool:
    """Whether the marker of this id is there, whole.

    Raises:
        OSError: the place does not answer.
    """
    marker = _read_marker(place, place_id)
    return marker is not None and marker["id"] == place_id


def _read_marker(place: FileOperations, place_id: str) -> PlaceMarker | None:
    """The marker of an id; None: there is none, or its writer was killed."""
    try:
        marker = as_object(parse_json(b"".join(place.read(FOLDER / place_id))))
        return {"id": as_text(marker["id"])}
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def mark(place: FileOperations) -> str:
    """Mark a place that has no id; its id.

    Raises:
        OSError: the place does not answer, or refuses.
    """
    place_id = secrets.token_hex(16)
    place.make_directory(FOLDER)
    marker: PlaceMarker = {"format": FORMAT, "id": place_id}
    place.write(FOLDER / place_id, [json.dumps(marker).encode()])
    return place_id


class PlaceRecord:
    """Which place a run was copied to, in a file of this machine.

    Args:
        path: the file; it is made with the first `write`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def id_of(self, url: str) -> str | None:
        """The id that the place at `url` had; None: the run was never copied there."""
        return dict(self._read()).get(url)

    def write(self, url: str, place_id: str) -> None:
        """From here on `url` means the place with this id.

        Raises:
            OSError: the disk refuses.
        """
        if self.id_of(url) != place_id:
            write_record(self.path, {**dict(self._read()), url: place_id})

    def forget(self, url: str) -> None:
        """Whatever lies at `url` is the place from its next contact on.

        Raises:
            OSError: the disk refuses.
        """
        if self.id_of(url) is not None:
            write_record(self.path, {other: i for other, i in self._read() if other != url})

    def _read(self) -> Iterator[tuple[str, str]]:
        try:
            for url, place_id in read_record(self.path).items():
                if isinstance(place_id, str):
                    yield url, place_id
        except DamagedFileError as error:  # as if it were the first contact
            log.warning(phrase("backup.identity_record_damaged", error=error))
        except OSError:
            return
