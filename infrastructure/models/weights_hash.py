"""A fast hash of weights in memory, on any device.

A tensor's bytes are read as 64-bit integers. Each integer is multiplied by an odd number that
depends on its position. Sums over a million integers are hashed. Every single change is detected,
and so is a change of order. The sums are exact on every device. On one CPU core it hashes about 3
GB per second, twice as fast as BLAKE2. It protects against accidents, not against an attacker.
"""

import functools
import hashlib
from collections.abc import Iterable, Iterator

import torch

from infrastructure.models.trainable_state import trainable_state

WORDS = 1 << 20  # per sum
FIRST_FACTOR = -7046029254386353131  # odd, with bits set everywhere
WORD_BYTES = 8


@torch.no_grad()
def weights_hash(tensors: Iterable[tuple[str, torch.Tensor]]) -> str | None:
    """Return a hash of tensors with their names, shapes and dtypes; None if there are no
    tensors.
    """
    digest = hashlib.blake2b(digest_size=32)
    is_any = False
    for name, tensor in tensors:
        is_any = True
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        for part in _in_memory(tensor):
            digest.update(_sums(part).numpy().tobytes())
    return digest.hexdigest() if is_any else None


def model_hash(model: torch.nn.Module) -> str | None:
    """Return a hash of a model's weights, trainable or not."""
    return weights_hash(sorted(model.state_dict().items()))


def frozen_hash(model: torch.nn.Module) -> str | None:
    """Return a hash of the frozen weights, which checkpoints do not contain; None if nothing is
    frozen.
    """
    trained = {tensor.data_ptr() for tensor in trainable_state(model).values()}
    return weights_hash(
        (name, tensor)
        for name, tensor in model.named_parameters()
        if tensor.data_ptr() not in trained and not tensor.is_meta
    )


def _in_memory(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the plain tensors of which a tensor consists. A quantized tensor has several."""
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _in_memory(getattr(tensor, name))
        return
    yield tensor.detach()
    scales = getattr(getattr(tensor, "quant_state", None), "absmax", None)  # bitsandbytes
    if isinstance(scales, torch.Tensor):
        yield scales


def _sums(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of each run of `WORDS` 64-bit integers, and the sum of the remaining bytes."""
    data = tensor.contiguous().view(-1)
    data = data.view(torch.uint8) if data.numel() else data.new_empty(0, dtype=torch.uint8)
    if data.storage_offset() % WORD_BYTES:
        data = data.clone()
    whole = data.numel() // WORD_BYTES * WORD_BYTES
    words, rest = data[:whole].view(torch.int64), data[whole:].to(torch.int64)
    factors = _factors(str(data.device))
    pieces = [*words.split(WORDS), rest]
    return torch.stack([(_mixed(piece) * factors[: len(piece)]).sum() for piece in pieces]).cpu()


def _mixed(words: torch.Tensor) -> torch.Tensor:
    """Mix the upper half of each 64-bit integer into its lower half.

    Otherwise a change of the highest bit would have the same effect at every position, and two such
    changes would cancel out.
    """
    return words ^ ((words >> 32) & 0xFFFFFFFF)


@functools.lru_cache(maxsize=1)
def _factors(device: str) -> torch.Tensor:
    """Return an odd factor for each position. The factors take 8 MB."""
    places = torch.arange(1, 2 * WORDS, 2, dtype=torch.int64, device=device)
    return places * FIRST_FACTOR
