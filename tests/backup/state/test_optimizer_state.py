"""What an optimizer remembers comes back from tensors and JSON, whatever it is made of."""

import json
from collections.abc import Callable
from typing import Any

import bitsandbytes
import pytest
import torch

from infrastructure.backup.state.optimizer_state import merge_optimizer, split_optimizer

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
MAKERS: dict[str, Make] = {
    "adamw": lambda given: torch.optim.AdamW(given, lr=0.1, betas=(0.8, 0.95)),
    "adamw_8bit": lambda given: bitsandbytes.optim.AdamW8bit(given, lr=0.1, betas=(0.8, 0.95)),
    "sgd": lambda given: torch.optim.SGD(given, lr=0.1),
}


@pytest.mark.parametrize("name", MAKERS)
def test_an_optimizer_goes_on_as_if_it_had_never_stopped(name: str) -> None:
    """Eight bits have a count of steps that is no tensor, and tables."""
    torch.manual_seed(0)
    gradients = torch.randn(5, 128, 64)
    began = torch.randn(128, 64)

    def part() -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
        parameter = torch.nn.Parameter(began.clone())
        return parameter, MAKERS[name]([parameter])

    def step(parameter: torch.nn.Parameter, optimizer: torch.optim.Optimizer, number: int) -> None:
        parameter.grad = gradients[number].clone()
        optimizer.step()

    calm, optimizer = part()
    for number in range(3):
        step(calm, optimizer, number)
    tensors, values = split_optimizer(optimizer.state_dict())
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())
    kept = {key: tensor.clone() for key, tensor in tensors.items()}
    resumed, other = part()
    resumed.data.copy_(calm.data)
    read: dict[str, Any] = json.loads(json.dumps(values))
    other.load_state_dict(merge_optimizer(kept, read))
    for number in (3, 4):
        step(calm, optimizer, number)
        step(resumed, other, number)
    assert torch.equal(resumed, calm)
    assert other.param_groups[0]["lr"] == 0.1
