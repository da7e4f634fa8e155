"""Any list of layers trains by the quick start of stack-wise training, with low-rank matrices."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from infrastructure.training import TrainingConfig, UnifiedTrainer

WIDTH = 8
Layers = list[torch.nn.Module]


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            inputs = part(inputs).relu()
        return inputs


def linear() -> torch.nn.Module:
    return torch.nn.Linear(WIDTH, WIDTH)


FORMS: dict[str, Callable[[], Layers]] = {
    "linear": lambda: [linear() for _ in range(3)],
    "sequential": lambda: [
        torch.nn.Sequential(torch.nn.LayerNorm(WIDTH), linear(), torch.nn.GELU(), linear())
        for _ in range(3)
    ],
    "nested": lambda: [torch.nn.Sequential(torch.nn.Sequential(linear())) for _ in range(3)],
    "blocks": lambda: [Block() for _ in range(3)],
    "attention": lambda: [
        torch.nn.TransformerEncoderLayer(WIDTH, 2, 12, 0.0, batch_first=True) for _ in range(3)
    ],
    "without linear layers": lambda: [torch.nn.Conv1d(4, 4, 3, padding=1) for _ in range(3)],
    "mixed": lambda: [linear(), torch.nn.Tanh(), torch.nn.Sequential(linear())],
}


@pytest.mark.parametrize("form", FORMS)
def test_f13_any_list_of_layers_trains_with_low_rank_matrices(form: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = FORMS[form]()
    before = [{name: tensor.clone() for name, tensor in one.state_dict().items()} for one in layers]
    inputs = torch.randn(7, 4, WIDTH)
    with torch.no_grad():
        first = inputs
        for layer in layers:
            first = layer(first)
    config = TrainingConfig(
        **{"mode": "blockwise", "block_size": 2, "num_epochs": 4, "learning_rate": 1e-2},
        **{"quantization_enabled": True, "quantization_type": "fp32", "qlora_enabled": True},
    )
    state = UnifiedTrainer(config).train_all_layers([inputs[:3], inputs[3:5], inputs[5:]], layers)
    assert state.step > 0
    last, changed = inputs, 0
    for layer, was in zip(layers, before, strict=True):
        now = layer.state_dict()
        assert {*now} == {*was}  # nothing of the matrices is left behind
        changed += sum(not torch.equal(now[name], was[name]) for name in was)
        last = layer(last)
    assert changed
    assert not torch.allclose(first, last)
    assert (last - inputs).square().mean() < (first - inputs).square().mean()
