"""A measured training is, number for number, the training that was not measured."""

from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.config.sections.model_config import LoraConfig
from infrastructure.training.sizing.dry_run import dry_run
from tests.training.small_runs import small_trainer

SETTINGS: list[dict[str, Any]] = [
    {},
    {"gradient_accumulation": 2},
    {"lora": LoraConfig(r=4, alpha=8, dropout=0.1)},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_measuring_leaves_no_trace(saved_llama: Path, tmp_path: Path, settings: Any) -> None:
    plain = small_trainer(saved_llama, tmp_path, **settings)
    measured = small_trainer(saved_llama, tmp_path, **settings)
    measured.prepare()
    before = {name: tensor.clone() for name, tensor in measured.model.state_dict().items()}
    random_before = torch.get_rng_state()
    costs = measured.cost_measurement().costs(measured.batch_plan(), total_steps=1000)
    assert costs.step_seconds > 0
    assert torch.equal(torch.get_rng_state(), random_before)
    assert all(parameter.grad is None for parameter in measured.model.parameters())
    assert not measured.loop.optimizer_step.optimizer.state
    for name, tensor in measured.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    torch.manual_seed(0)
    trained = plain.train()
    torch.manual_seed(0)
    assert measured.train().loss == trained.loss
    for mine, other in zip(measured.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_the_model_trains_inside_and_its_gradients_are_set_aside() -> None:
    model = torch.nn.BatchNorm1d(3).eval()
    given = model.weight.grad = torch.ones(3)
    with dry_run(model, torch.device("cpu")):
        assert model.training
        assert model.weight.grad is None
        model(torch.randn(8, 3)).sum().backward()
    assert not model.training
    assert torch.equal(model.running_mean, torch.zeros(3))
    assert model.weight.grad is given
    assert torch.equal(given, torch.ones(3))
