import pytest
import torch

from infrastructure.backup.format.tensor_bytes import DTYPES, from_bytes, to_bytes


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (3, 5), (0, 4), (1,)], ids=str)
def test_there_and_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 2, (*shape, 16), dtype=torch.uint8)
    tensor = tensor.view(dtype)[..., 0].reshape(shape)
    back = from_bytes(to_bytes(tensor))
    assert (back.dtype, back.shape) == (dtype, shape)
    assert to_bytes(back).data == to_bytes(tensor).data


def test_a_view_is_stored_as_it_looks() -> None:
    tensor = torch.arange(12.0).reshape(3, 4).t()[1:, ::2]
    assert torch.equal(from_bytes(to_bytes(tensor)), tensor)


def test_bytes_of_a_plain_tensor_are_not_copied() -> None:
    tensor = torch.zeros(4)
    stored = to_bytes(tensor)
    tensor[0] = 1
    assert bytes(stored.data[:4]) != bytes(4)


def test_what_was_read_can_be_written_to() -> None:
    from_bytes(to_bytes(torch.zeros(4))).add_(1)


def test_other_types_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"backup\.unsupported_torch_dtype.*dtype=torch\.complex128"
    ):
        to_bytes(torch.zeros(2, dtype=torch.complex128))
