"""Removal of rank-1 components from LoRA matrices.

A component whose row of A and column of B are zero adds nothing, and its gradient is zero. So the
pruned model is still an ordinary PEFT model of the same shape, which PEFT can load.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from infrastructure.models.lora import adapted_paths


def ranks_of(model: torch.nn.Module) -> dict[str, int]:
    """Return the number of components of each LoRA module, in the order of the modules' names."""
    return {
        path: sum(a.weight.shape[0] for a, _ in matrices(model, path))
        for path in sorted(adapted_paths(model))
    }


def matrices(
    model: torch.nn.Module, path: str
) -> Iterator[tuple[torch.nn.Linear, torch.nn.Linear]]:
    """Yield A (r, inputs) and B (outputs, r) of each adapter in the module at `path`."""
    module: Any = model.get_submodule(path)
    for name in module.lora_A:
        yield module.lora_A[name], module.lora_B[name]


@torch.no_grad()
def keep_only(model: torch.nn.Module, kept: Mapping[str, Sequence[int]]) -> None:
    """Set all components of the named modules to zero, except the kept ones."""
    for path, components in kept.items():
        for a, b in matrices(model, path):
            dropped = torch.ones(a.weight.shape[0], dtype=torch.bool, device=a.weight.device)
            dropped[list(components)] = False
            a.weight[dropped] = 0.0
            b.weight[:, dropped] = 0.0
