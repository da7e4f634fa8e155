"""Optimizers and schedules by name and by address."""

import pytest
import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.strategies import get_training_strategy
from infrastructure.training.strategies.optimizers import OPTIMIZERS, SCHEDULERS, build_optimizer


def groups() -> list[dict[str, object]]:
    return [{"params": [torch.nn.Parameter(torch.ones(3, 2))], "weight_decay": 0.25}]


@pytest.mark.parametrize("name", ["torch.optim:Adamax", "adamw"])
def test_an_optimizer_with_betas_gets_ours(name: str) -> None:
    made = build_optimizer(name, groups(), 3e-3)
    assert [(g["lr"], g["betas"], g["weight_decay"]) for g in made.param_groups] == [
        (3e-3, (0.9, 0.95), 0.25)
    ]


@pytest.mark.parametrize("name", ["torch.optim:RMSprop", "sgd"])
def test_one_without_betas_gets_none(name: str) -> None:
    made = build_optimizer(name, groups(), 3e-3)
    assert [(g["lr"], g["weight_decay"]) for g in made.param_groups] == [(3e-3, 0.25)]


def test_the_step_of_an_address_is_that_of_its_class() -> None:
    config = TrainingConfig(optimizer="torch.optim:Adamax", weight_decay=0.0, learning_rate=0.1)
    strategy = get_training_strategy("standard", config)
    model, same = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    same.load_state_dict(model.state_dict())
    ours = strategy.create_optimizer(model, 0.1)
    theirs = torch.optim.Adamax(same.parameters(), lr=0.1, betas=(0.9, 0.95))
    for one, optimizer in ((model, ours), (same, theirs)):
        one(torch.ones(4)).square().sum().backward()
        optimizer.step()
    assert torch.equal(model.weight, same.weight)
    assert torch.equal(model.bias, same.bias)


def test_a_registered_name_is_used_and_its_class_must_be_there() -> None:
    with OPTIMIZERS.registered("mine", torch.optim.Adagrad):
        strategy = get_training_strategy("standard", TrainingConfig(optimizer="mine"))
        made = strategy.create_optimizer(torch.nn.Linear(2, 2), 1.0)
    assert isinstance(made, torch.optim.Adagrad)
    with pytest.raises(ValueError, match=r"core\.\w+"):
        build_optimizer("torch.optim:NoSuch", groups(), 1.0)


def test_a_schedule_may_be_anyones() -> None:
    with SCHEDULERS.registered("square", lambda done: (1 - done) ** 2):
        config = TrainingConfig(scheduler_type="square", warmup_steps=0)
        factor = get_training_strategy("standard", config).rate_factor(10)
    assert [factor(step) for step in (0, 5, 10)] == pytest.approx([1.0, 0.25, 0.0])
