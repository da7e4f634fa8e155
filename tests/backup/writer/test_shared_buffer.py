"""A copy holds what was there when it was taken, whatever was copied before it."""

import os
from collections.abc import Iterator

import pytest
import torch

from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.tensor_bytes import DTYPES, dtype_name
from infrastructure.backup.writer import shared_buffer as module
from infrastructure.backup.writer.shared_buffer import (
    ALIGNMENT_BYTES,
    SharedBuffer,
    State,
    size_of_state,
)
from infrastructure.core.errors import StorageError


@pytest.fixture(params=["memory", "temporary file"])
def buffer(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SharedBuffer]:
    if request.param == "temporary file":  # as on macOS
        monkeypatch.delattr(os, "memfd_create")
    made = SharedBuffer()
    yield made
    made.close()


def copied(buffer: SharedBuffer) -> dict[str, object]:
    """What the last copy holds, as the process reads it that shares the memory."""
    found: dict[str, object] = {}
    for name, dtype, shape, begin, length in buffer.places:
        assert begin % ALIGNMENT_BYTES == 0
        data = os.pread(buffer.descriptor, length, begin)
        tensor = torch.frombuffer(bytearray(data), dtype=DTYPES[dtype]) if data else torch.zeros(0)
        found[name] = (dtype, shape, tensor.tolist())
    return found


def expected(state: State) -> dict[str, object]:
    return {
        name: (one.dtype, one.shape, list(one.data))
        if isinstance(one, TensorBytes)
        else (dtype_name(one), tuple(one.shape), one.flatten().tolist())
        for name, one in state.items()
    }


STATES: list[State] = [
    {"model/a": torch.arange(6.0).reshape(2, 3), "model/b": torch.tensor(7)},
    {"model/a": torch.arange(6.0).reshape(2, 3) + 1, "model/b": torch.tensor(8)},
    {"model/a": torch.arange(6.0).reshape(3, 2).T, "model/b": torch.tensor(9)},  # not contiguous
    {"model/a": torch.arange(6.0).reshape(3, 2), "model/b": torch.tensor(9)},
    {"model/a": torch.arange(6, dtype=torch.int32).reshape(3, 2), "model/b": torch.tensor(9)},
    {"model/b": torch.tensor(9), "model/a": torch.arange(6, dtype=torch.int32).reshape(3, 2)},
    {"model/a": torch.zeros(0, 4), "files/x": TensorBytes("U8", (3,), b"abc")},
    {"model/a": torch.zeros(0, 4), "files/x": TensorBytes("U8", (3,), b"xyz")},
    {"model/a": torch.ones(1, dtype=torch.bfloat16), "files/x": TensorBytes("U8", (5,), b"12345")},
    {"model/a": torch.arange(40.0, requires_grad=True)},
    {},
]


def test_each_copy_is_of_its_state(buffer: SharedBuffer) -> None:
    for _ in range(2):
        for state in STATES:
            buffer.take(state)
            assert copied(buffer) == expected(state)
            begin = buffer.append(b"a message")
            assert copied(buffer) == expected(state)
            assert buffer.memory[begin : begin + 9] == b"a message"
            assert size_of_state(state) == sum(place[4] for place in buffer.places)


def test_memory_that_has_grown_is_the_one_that_is_written(
    buffer: SharedBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that needs more memory moves what the next copy goes to."""
    monkeypatch.setattr(module, "GROWTH_BYTES", 4096)
    tensor = torch.zeros(1000)
    buffer.take({"model/a": tensor})
    assert len(buffer.memory) == 4096
    places = buffer.places
    for number in (1.0, 2.0):
        begin = buffer.append(bytes(10_000))
        tensor += 1
        buffer.take({"model/a": tensor})
        assert buffer.places is places
        assert copied(buffer) == {"model/a": ("F32", (1000,), [number] * 1000)}
        assert begin == 4000
    assert len(buffer.memory) == 16384


def test_where_nothing_has_changed_nothing_is_laid_out_anew(buffer: SharedBuffer) -> None:
    first, second, third, *_ = STATES
    buffer.take(first)
    places, memory = buffer.places, buffer.memory
    for state in (second, third):
        buffer.take(state)
        assert (buffer.places is places, buffer.memory is memory) == (True, True)


def test_after_its_end_it_can_be_used_again(buffer: SharedBuffer) -> None:
    for state in STATES[:2]:
        buffer.take(state)
        assert copied(buffer) == expected(state)
        buffer.close()


def test_without_memory_for_it_no_copy_is_begun(
    buffer: SharedBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, start: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        values = r"size_mib=16\.0, error=\[Errno 28\] No space left on device"
        with pytest.raises(StorageError, match=rf"no_memory_for_checkpoint_copy\({values}\)"):
            buffer.take(STATES[0])
    buffer.take(STATES[0])
    assert copied(buffer) == expected(STATES[0])
    with pytest.raises(ValueError, match=r"backup\.unsupported_torch_dtype"):
        buffer.take({"model/a": torch.zeros(2, dtype=torch.complex128)})
