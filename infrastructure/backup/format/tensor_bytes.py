"""Conversion of tensors to the bytes that a store holds, and back."""

import torch

from infrastructure.backup.format.packs import TensorBytes
from infrastructure.core.errors import InputError

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "F32": torch.float32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
    "C64": torch.complex64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
# Types that NumPy lacks, and NumPy types of the same width.
NOT_IN_NUMPY = {
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}


def dtype_name(tensor: torch.Tensor) -> str:
    """Return the name that a store uses for a tensor's type.

    Raises:
        ValueError: if tensors of this type cannot be stored.
    """
    name = NAMES.get(tensor.dtype)
    if name is None:
        raise InputError("backup.unsupported_torch_dtype", dtype=tensor.dtype)
    return name


def to_bytes(tensor: torch.Tensor) -> TensorBytes:
    """Return the bytes of a tensor. They share the memory of a contiguous CPU tensor.

    Raises:
        ValueError: if tensors of this type cannot be stored.
    """
    dtype = dtype_name(tensor)
    own = tensor.detach()
    if not (own.is_cpu and own.is_contiguous()):
        own = own.cpu().contiguous()
    if own.dtype in NOT_IN_NUMPY:
        own = own.view(NOT_IN_NUMPY[own.dtype])
    data = own.numpy().data.cast("B") if own.numel() else b""
    return TensorBytes(dtype, tuple(tensor.shape), data)


def from_bytes(stored: TensorBytes) -> torch.Tensor:
    """Return a CPU tensor that shares the memory of `stored`, or a copy if the memory is
    read-only.
    """
    dtype = DTYPES[stored.dtype]
    if not len(stored.data):
        return torch.empty(stored.shape, dtype=dtype)
    data = memoryview(stored.data)
    if data.readonly:
        data = memoryview(bytearray(data))
    return torch.frombuffer(data, dtype=dtype).reshape(stored.shape)
