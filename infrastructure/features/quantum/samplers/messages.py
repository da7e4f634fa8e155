"""Messages between this process and a sampler process: JSON and arrays, never pickled."""

import json
import struct
from collections.abc import Mapping
from typing import BinaryIO

import numpy as np

from infrastructure.core.errors import InputError
from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.features.quantum.solving.arrays import Array

# A received and a sent message: JSON values, and arrays by name.
Message = tuple[JsonObject, dict[str, Array]]
Outgoing = tuple[Mapping[str, object], dict[str, Array]]
_LENGTH = struct.Struct("<Q")
MOST_HEADER_BYTES = 1 << 26


def send(stream: BinaryIO, values: Mapping[str, object], arrays: Mapping[str, Array]) -> None:
    """Write one message; raise OSError if the other process no longer reads."""
    packed = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    shapes = {name: [array.dtype.str, list(array.shape)] for name, array in packed.items()}
    header = json.dumps({"values": dict(values), "arrays": shapes}).encode()
    stream.write(_LENGTH.pack(len(header)) + header)
    for array in packed.values():
        if array.size:
            stream.write(array.reshape(-1).view(np.uint8).data)
    stream.flush()


def receive(stream: BinaryIO) -> Message:
    """Read one message.

    Raises:
        EOFError: the other process has ended, possibly in the middle of a message.
        ValueError: the data is not a message.
    """
    (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    if length > MOST_HEADER_BYTES:
        raise InputError("quantum.malformed_message")
    header = json.loads(bytes(_exactly(stream, length)))
    arrays = {}
    for name, (dtype, shape) in header["arrays"].items():
        array = np.empty(shape, np.dtype(dtype))
        if array.size:
            _fill(stream, array.reshape(-1).view(np.uint8).data)
        arrays[name] = array
    return header["values"], arrays


def _exactly(stream: BinaryIO, count: int) -> bytearray:
    data = bytearray(count)
    _fill(stream, memoryview(data))
    return data


def _fill(stream: BinaryIO, view: memoryview) -> None:
    place = 0
    while place < len(view):
        count = stream.readinto(view[place:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError(phrase("quantum.other_process_ended"))
        place += count
