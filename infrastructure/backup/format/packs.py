"""Packs: safetensors files that each hold a group of tensors, without pickle or compression.

Source of the layout: https://github.com/huggingface/safetensors (header length as 8 little-endian
bytes, JSON header, tensor bytes).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from infrastructure.backup.format.file_operations import Buffer
from infrastructure.core.errors import CheckpointError, InputError
from infrastructure.core.json_text import (
    JsonValue,
    as_integer,
    as_list,
    as_object,
    as_text,
    parse_json,
)

PACK_BYTES = 64 * 1024**2
ALIGNMENT_BYTES = 8
METADATA = "__metadata__"  # a key of safetensors; packs do not use it
# Bits of one element, by safetensors' name of the type.
BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "U64": 64,
    "I64": 64,
    "F64": 64,
    "C64": 64,
}


@dataclass(frozen=True)
class TensorBytes:
    """A tensor as little-endian, contiguous bytes in row-major order.

    Attributes:
        dtype: safetensors' name of the type, such as "F32".
        shape: lengths of the dimensions; () for a single number.
        data: the bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    data: Buffer

    def __post_init__(self) -> None:
        if self.dtype not in BITS:
            raise InputError("backup.unsupported_stored_dtype", dtype=self.dtype)
        expected = prod(self.shape) * BITS[self.dtype] // 8
        if len(self.data) != expected:
            raise InputError(
                "backup.tensor_size_mismatch",
                dtype=self.dtype,
                shape=list(self.shape),
                size=len(self.data),
            )

    @property
    def identity(self) -> bytes:
        """The type and shape as bytes, to distinguish tensors that have equal data."""
        return f"{self.dtype}{list(self.shape)}:".encode()


def cut(tensors: Mapping[str, TensorBytes]) -> Iterator[dict[str, TensorBytes]]:
    """Yield groups of tensors, in order. A group has at most `PACK_BYTES`, unless it is one larger
    tensor.
    """
    group: dict[str, TensorBytes] = {}
    size_bytes = 0
    for name, tensor in tensors.items():
        if group and size_bytes + len(tensor.data) > PACK_BYTES:
            yield group
            group, size_bytes = {}, 0
        group[name] = tensor
        size_bytes += len(tensor.data)
    if group:
        yield group


def encode(tensors: Mapping[str, TensorBytes]) -> list[Buffer]:
    """Return a safetensors file with these tensors as a list of buffers, without copying the
    tensors.
    """
    header: dict[str, object] = {}
    end = 0
    # wider elements first, so that every tensor begins at a multiple of its element's size
    ordered = sorted(tensors.items(), key=lambda item: (-BITS[item[1].dtype], item[0]))
    for name, tensor in ordered:
        begin, end = end, end + len(tensor.data)
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT_BYTES)
    return [len(text).to_bytes(8, "little"), text, *(tensor.data for _, tensor in ordered)]


def decode(pack: Buffer) -> dict[str, TensorBytes]:
    """Return the tensors in a safetensors file, by name, without copying their bytes.

    Raises:
        CheckpointError: if the bytes are not a safetensors file.
    """
    view = memoryview(pack)
    try:
        start = 8 + int.from_bytes(view[:8], "little")
        if start > len(view):
            raise InputError("backup.safetensors_header_too_long")
        header = parse_json(bytes(view[8:start]).decode())
        return {
            name: _tensor(entry, view[start:])
            for name, entry in as_object(header).items()
            if name != METADATA
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError("backup.not_safetensors", error=error) from error


def _tensor(value: JsonValue, data: memoryview) -> TensorBytes:
    entry = as_object(value)
    begin, end = map(as_integer, as_list(entry["data_offsets"]))
    if not 0 <= begin <= end <= len(data):
        raise InputError("backup.tensor_out_of_range", begin=begin, end=end, size=len(data))
    shape = tuple(map(as_integer, as_list(entry["shape"])))
    if any(length < 0 for length in shape):
        raise InputError("backup.invalid_tensor_shape", shape=list(shape))
    return TensorBytes(as_text(entry["dtype"]), shape, data[begin:end])


def size_of(buffers: Iterable[Buffer]) -> int:
    """Return the total number of bytes in `buffers`."""
    return sum(len(buffer) for buffer in buffers)
