"""Prediction of the size in bytes of an optimizer's state for a model.

This works for any optimizer: a small one is created in the same way over samples of the model's
weights and stepped once, and its state is measured.
"""

import math
from collections.abc import Callable, Iterator

import torch

# Numbers in the sample of one weight; 8-bit optimizers keep small weights in 32 bits.
SAMPLE_NUMBERS = 1 << 16

CreateOptimizer = Callable[[torch.nn.Module], torch.optim.Optimizer]


def optimizer_state_bytes(
    create_optimizer: CreateOptimizer, model: torch.nn.Module, device_type: str | None = None
) -> int:
    """Predict the size in bytes of an optimizer's state for the model's trainable weights.

    Args:
        create_optimizer: a function that creates the optimizer for a module, and reads only the
            named parameters of the module.
        device_type: count only tensors on this type of device, "cuda" or "cpu"; by default, on any.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    kinds: dict[tuple[torch.Size, torch.dtype], list[str]] = {}
    for name, parameter in trained.items():
        kinds.setdefault((parameter.shape, parameter.dtype), []).append(name)
    samples = {names[0]: _sample(trained[names[0]]) for names in kinds.values()}
    if not samples:
        return 0
    optimizer = create_optimizer(NamedParameters(samples))
    optimizer.step()
    return sum(
        round(len(names) * _share(trained[names[0]], samples[names[0]]) * state_bytes)
        for names in kinds.values()
        for state_bytes in [_state_bytes(optimizer.state.get(samples[names[0]], {}), device_type)]
    )


class NamedParameters(torch.nn.Module):
    """A module that holds parameters of another module under the same names."""

    def __init__(self, named: dict[str, torch.nn.Parameter]) -> None:
        super().__init__()
        self._named = named

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Parameter]]:
        yield from self._named.items()


def _sample(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    """Return a parameter of the same kind with a zero gradient, with fewer rows if it is large."""
    shape = list(parameter.shape)
    if shape and parameter.numel() > SAMPLE_NUMBERS:
        shape[0] = max(1, SAMPLE_NUMBERS // math.prod(shape[1:]))
    sample = torch.nn.Parameter(torch.zeros(shape, dtype=parameter.dtype, device=parameter.device))
    sample.grad = torch.zeros_like(sample)
    return sample


def _share(parameter: torch.Tensor, sample: torch.Tensor) -> float:
    return parameter.numel() / max(1, sample.numel())


def _state_bytes(state: object, device_type: str | None) -> int:
    if isinstance(state, dict):
        return sum(_state_bytes(value, device_type) for value in state.values())
    if not isinstance(state, torch.Tensor) or device_type not in (None, state.device.type):
        return 0
    return state.numel() * state.element_size()
