"""A component that is taken out adds nothing, learns nothing and is zero in both matrices."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from infrastructure.features.quantum.training.lora_rank_pruning import keep_only, matrices, ranks_of

RANK = 5


class TwoLayers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 6)
        self.second = torch.nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def adapted() -> torch.nn.Module:
    """Both matrices of every component have values, as after some steps."""
    config = LoraConfig(r=RANK, target_modules=["first", "second"], init_lora_weights=False)
    torch.manual_seed(0)
    return get_peft_model(TwoLayers(), config)


@pytest.mark.parametrize(
    "kept", [{0: [1, 4], 1: [0]}, {0: [], 1: [0, 1, 2, 3, 4]}, {1: [2, 3]}, {}]
)
def test_what_is_taken_out_is_zero_and_stays_so_while_the_rest_learns(
    kept: dict[int, list[int]],
) -> None:
    """Modules that are not named stay whole."""
    model = adapted()
    paths = list(ranks_of(model))
    before = [(a.weight.clone(), b.weight.clone()) for p in paths for a, b in matrices(model, p)]
    keep_only(model, {paths[number]: components for number, components in kept.items()})
    rates = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for step in range(3):
        for number, path in enumerate(paths):
            ((a, b),) = matrices(model, path)
            there = kept.get(number, [*range(RANK)])
            gone = [component for component in range(RANK) if component not in there]
            assert not a.weight[gone].any()
            assert not b.weight[:, gone].any()
            is_as_before = step == 0
            assert (
                torch.equal(a.weight[there], before[number][0][there]) is is_as_before or not there
            )
            assert (
                torch.equal(b.weight[:, there], before[number][1][:, there]) is is_as_before
                or not there
            )
        model(torch.randn(7, 4)).square().sum().backward()
        rates.step()
        rates.zero_grad()
