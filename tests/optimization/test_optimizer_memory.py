"""What an optimizer will hold is what it then holds, whatever the optimizer."""

import pytest
import torch

from infrastructure.config import registries
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.optimization.optimizer_memory import SAMPLE_NUMBERS, optimizer_state_bytes
from infrastructure.training.strategies import get_training_strategy

OPTIMIZERS = registries.OPTIMIZERS.built_in


class Model(torch.nn.Module):
    """Weights larger than a sample, smaller, frozen, of one dimension, and of none."""

    def __init__(self) -> None:
        super().__init__()
        self.large = torch.nn.Linear(512, 3 * SAMPLE_NUMBERS // 512)
        self.small = torch.nn.Linear(16, 16)
        self.same = torch.nn.Linear(16, 16)
        self.frozen = torch.nn.Linear(64, 64).requires_grad_(False)
        self.rounded = torch.nn.Parameter(torch.zeros(128, 64, dtype=torch.bfloat16))
        self.scale = torch.nn.Parameter(torch.ones(()))


def held_bytes(state: object) -> int:
    if isinstance(state, dict):
        return sum(map(held_bytes, state.values()))
    return state.numel() * state.element_size() if isinstance(state, torch.Tensor) else 0


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("strategy", ["standard", "finetune"])
def test_it_is_known_before_the_first_step(name: str, strategy: str) -> None:
    made = get_training_strategy(strategy, TrainingConfig(optimizer=name, layerwise_lr_decay=0.9))
    model = Model()
    predicted_bytes = optimizer_state_bytes(lambda m: made.create_optimizer(m, 1e-3), model)
    assert all(p.grad is None for p in model.parameters())
    optimizer = made.create_optimizer(model, 1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    was = sum(map(held_bytes, optimizer.state.values()))
    assert predicted_bytes == pytest.approx(was, rel=0.03)
    assert (was == 0) == (name == "sgd")


def test_it_is_counted_by_device() -> None:
    strategy = get_training_strategy("standard", TrainingConfig())
    model = Model()

    def bytes_on(device_type: str | None) -> int:
        return optimizer_state_bytes(
            lambda m: strategy.create_optimizer(m, 1e-3), model, device_type
        )

    assert bytes_on("cpu") == bytes_on(None) > 0
    assert bytes_on("cuda") == 0


def test_a_large_model_is_not_copied() -> None:
    """Nothing as large as a weight is made: one of a trillion numbers is counted at once."""
    strategy = get_training_strategy("standard", TrainingConfig())
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.zeros(1, 1).expand(1 << 20, 1 << 20))
    found = optimizer_state_bytes(lambda m: strategy.create_optimizer(m, 1e-3), model)
    assert found == pytest.approx(8 * 2**40, rel=0.01)
