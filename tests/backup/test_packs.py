import json

import pytest
import torch
from safetensors.torch import load

from infrastructure.backup.packs import PACK_BYTES, TensorBytes, cut, decode, encode, size_of
from infrastructure.core.errors import CheckpointError

TENSORS = {
    "model/b": TensorBytes("BOOL", (3,), b"\1\0\1"),
    "model/w": TensorBytes("F32", (2,), b"\0\0\x80\x3f" * 2),
    "model/n": TensorBytes("I64", (), (-5).to_bytes(8, "little", signed=True)),
    "model/empty": TensorBytes("BF16", (0, 4), b""),
    "model/ü": TensorBytes("F16", (1,), b"\0\x3c"),
}


def test_safetensors_reads_them() -> None:
    found = load(b"".join(bytes(buffer) for buffer in encode(TENSORS)))
    assert torch.equal(found["model/w"], torch.ones(2))
    assert found["model/n"].item() == -5
    assert found["model/b"].tolist() == [True, False, True]
    assert found["model/empty"].shape == (0, 4)
    assert found["model/ü"].item() == 1.0


def test_there_and_back() -> None:
    buffers = encode(TENSORS)
    data = b"".join(bytes(buffer) for buffer in buffers)
    assert size_of(buffers) == len(data)
    for name, found in decode(data).items():
        expected = TENSORS[name]
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert bytes(found.data) == bytes(expected.data)


def test_the_order_of_the_tensors_does_not_matter() -> None:
    backwards = dict(reversed(TENSORS.items()))
    assert list(map(bytes, encode(backwards))) == list(map(bytes, encode(TENSORS)))


def with_header(header: str, num_bytes: int = 8) -> bytes:
    return len(header).to_bytes(8, "little") + header.encode() + bytes(num_bytes)


def tensor_header(begin: object, end: object, shape: object = (2,), dtype: object = "F32") -> str:
    return json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 7,
        b"\0" * 8,
        b"\xff" * 64,
        with_header("[]"),
        with_header("3"),
        with_header('{"a": 3}'),
        with_header('{"a": {}}'),
        with_header("[" * 100_000),
        with_header(tensor_header(0, 16)),
        with_header(tensor_header(-8, 0)),
        with_header(tensor_header(8, 0)),
        with_header(tensor_header("0", 8)),
        with_header(tensor_header(0, 8, [-2])),
        with_header(tensor_header(0, 8, [1e300])),
        with_header(tensor_header(0, 8, [-1, -2])),
        with_header(tensor_header(0, 8, "2")),
        with_header(tensor_header(0, 8, [3])),
        with_header(tensor_header(0, 8, [2], "F33")),
        with_header(tensor_header(0, 8, [2], None)),
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError, match="no safetensors bytes"):
        decode(data)


@pytest.mark.parametrize(("dtype", "size"), [("F32", 7), ("F32", 9), ("F33", 8), ("", 0)])
def test_what_is_no_tensor(dtype: str, size: int) -> None:
    with pytest.raises(ValueError, match=r"bytes|cannot be stored"):
        TensorBytes(dtype, (2,), bytes(size))


def test_they_are_cut_between_tensors() -> None:
    half = TensorBytes("U8", (PACK_BYTES // 2,), bytes(PACK_BYTES // 2))
    huge = TensorBytes("U8", (PACK_BYTES + 1,), bytes(PACK_BYTES + 1))
    groups = list(cut({"a": half, "b": half, "c": half, "d": huge, "e": half, "f": half}))
    assert [list(group) for group in groups] == [["a", "b"], ["c"], ["d"], ["e", "f"]]
    assert list(cut({})) == []
