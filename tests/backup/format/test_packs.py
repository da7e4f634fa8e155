import json

import pytest
import torch
from safetensors.torch import load

from infrastructure.backup.format.packs import PACK_BYTES, TensorBytes, cut, decode, encode, size_of
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


@pytest.mark.parametrize("names", [list(TENSORS), ["model/empty"], []])
def test_there_and_back(names: list[str]) -> None:
    tensors = {name: TENSORS[name] for name in names}
    buffers = encode(tensors)
    data = b"".join(bytes(buffer) for buffer in buffers)
    assert size_of(buffers) == len(data)
    decoded = decode(data)
    assert decoded.keys() == tensors.keys()
    for name, found in decoded.items():
        expected = tensors[name]
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
        with_header(tensor_header(0, 8, [2.0])),
        with_header(tensor_header(0, 8, [True, 2])),
        with_header(tensor_header(0, 8, [-1, -1, 2])),
        with_header(tensor_header(-1, 8, [1], "U8")),
        with_header("{}", 0)[:7] + b"\1{}",  # a header of 2**56 bytes and two
        b"\3" + with_header("{}", 0)[1:],
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"backup\.not_safetensors"):
        decode(data)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (tensor_header(4, 16), "tensor_out_of_range(begin=4, end=16, size=8)"),
        (tensor_header(0, 8, [-1, -2]), "invalid_tensor_shape(shape=[-1, -2])"),
        (tensor_header(0, 8, [3]), "tensor_size_mismatch(dtype=F32, shape=[3], size=8)"),
        (tensor_header(0, 8, [2], "F33"), "unsupported_stored_dtype(dtype=F33)"),
    ],
)
def test_what_is_wrong_with_other_bytes_is_named(header: str, problem: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        decode(with_header(header))
    assert str(raised.value) == f"backup.not_safetensors(error=backup.{problem})"
    with pytest.raises(CheckpointError, match="safetensors_header_too_long"):
        decode(with_header("{}", 0)[:-1])


@pytest.mark.parametrize(("dtype", "size"), [("F32", 7), ("F32", 9), ("F33", 8), ("", 0)])
def test_what_is_no_tensor(dtype: str, size: int) -> None:
    with pytest.raises(ValueError, match=r"tensor_size_mismatch|unsupported_stored_dtype"):
        TensorBytes(dtype, (2,), bytes(size))


def test_they_are_cut_between_tensors() -> None:
    half = TensorBytes("U8", (PACK_BYTES // 2,), bytes(PACK_BYTES // 2))
    huge = TensorBytes("U8", (PACK_BYTES + 1,), bytes(PACK_BYTES + 1))
    groups = list(cut({"a": half, "b": half, "c": half, "d": huge, "e": half, "f": half}))
    assert [list(group) for group in groups] == [["a", "b"], ["c"], ["d"], ["e", "f"]]
    assert list(cut({})) == []
    assert [list(group) for group in cut({"a": huge, "b": half})] == [["a"], ["b"]]
    one = TensorBytes("U8", (1,), b"x")
    full = list(cut({"a": half, "b": half, "c": one, "d": half, "e": half}))
    assert [list(group) for group in full] == [["a", "b"], ["c", "d"], ["e"]]


def test_each_tensor_begins_at_a_multiple_of_the_size_of_its_elements() -> None:
    """So that it can be used where it lies; nothing but the header's end is filled up."""
    length, text, *_ = map(bytes, encode(TENSORS))
    assert len(text) == int.from_bytes(length, "little")
    assert len(text) % 8 == 0
    assert b" " not in text.rstrip()
    sizes = {"I64": 8, "F32": 4, "F16": 2, "BF16": 2, "BOOL": 1}
    for found in json.loads(text).values():
        assert found["data_offsets"][0] % sizes[found["dtype"]] == 0
