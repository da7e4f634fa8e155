"""What leader and followers must see alike: shares of a batch, and tensors in one order."""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from infrastructure.backup.format.hashing import available_hash, new_digest
from infrastructure.backup.format.tensor_bytes import to_bytes
from infrastructure.training.core.metric_accumulator import Sum
from infrastructure.training.models.trainable_state import trainable_state


def shares_of(examples: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Consecutive shares for `size` processes, none more than one example longer than another; the
    first ones are the longer ones, the last may be empty."""
    length, longer = divmod(len(examples), size)
    ends = [length * (rank + 1) + min(rank + 1, longer) for rank in range(size)]
    return [examples[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def share_seed(seed: int, step: int, rank: int) -> int:
    """The seed of a follower's random numbers in one step, so that the same number of processes
    draws the same ones again."""
    digest = hashlib.sha256(f"{seed} {step} {rank}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def sent_tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    """What a step begins with: all that a checkpoint would hold of the model."""
    return list(trainable_state(model).values())


def trained(model: torch.nn.Module) -> str:
    """Which parameters collect gradients, a digit for each."""
    return "".join(str(int(p.requires_grad)) for p in model.parameters())


def choose_trained(model: torch.nn.Module, digits: str) -> None:
    """Let those parameters collect gradients of which `trained` said so."""
    for parameter, digit in zip(model.parameters(), digits, strict=True):
        parameter.requires_grad_(digit == "1")


def with_gradient(model: torch.nn.Module) -> str:
    """Which of the parameters that collect gradients have one, a digit for each."""
    return "".join(str(int(p.grad is not None)) for p in _trained(model))


def gradients_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """The gradients of what collects them; where there is none yet, there are zeros afterwards."""
    for parameter in _trained(model):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return [parameter.grad for parameter in _trained(model) if parameter.grad is not None]


def forget_gradients(model: torch.nn.Module, of_each: Sequence[str]) -> None:
    """No gradient where nobody had one: an optimizer leaves such a parameter as it is.

    Args:
        of_each: what `with_gradient` gave, from each process.
    """
    for parameter, digits in zip(_trained(model), zip(*of_each, strict=True), strict=True):
        if "1" not in digits:
            parameter.grad = None


def loss_tensor(loss_sum: Sum, device: torch.device) -> torch.Tensor:
    """A sum of losses that can be summed further: float64, (1,)."""
    return torch.as_tensor(loss_sum, dtype=torch.float64, device=device).reshape(1).clone()


def fingerprint(model: torch.nn.Module) -> str:
    """A hash of the weights that are never sent, and of the shape and type of all the others."""
    digest = new_digest(available_hash())
    sent = trainable_state(model)
    for name, tensor in sent.items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
    held = {tensor.data_ptr() for tensor in sent.values()}
    for name, parameter in model.named_parameters():
        if parameter.data_ptr() not in held:
            digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
            digest.update(to_bytes(parameter).data)
    return digest.hexdigest()


def _trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
