"""Rows are tried one by one on the weights as they are; nothing is changed by it."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.recovery.bad_loss import find_bad_rows
from infrastructure.training.recovery.loss_spikes import LossSpikeDetector
from infrastructure.training.strategies import get_training_strategy
from tests.training.toy import ToyAdapter, ToyModel

ROWS = [3, 8, 2, 13, 7, 1]  # of 4, 4, 3, 4, 3 and 2 items


class Adapter(ToyAdapter):
    """Some rows are special: by example, what their loss is multiplied with."""

    def __init__(self, **special: float) -> None:
        self.config = TrainingConfig()
        super().__init__(self.config, ToyModel(dropout=0.5))
        self.special = {int(name[1:]): factor for name, factor in special.items()}
        self.now: Sequence[int] = ()
        self.num_trained = 0

    def prepare_batch(self, examples: Sequence[int]) -> dict[str, Any]:
        self.now = examples
        return super().prepare_batch(examples)

    def compute_loss(self, model: torch.nn.Module, batch: dict[str, Any]) -> Any:
        self.num_trained += model.training
        torch.rand(1)
        output = super().compute_loss(model, batch)
        factor = next((self.special[row] for row in self.now if row in self.special), 1.0)
        output.loss_sum = output.loss_sum * factor
        return output

    def bad_rows(self, rows: Sequence[int] = ROWS, factor: float = 20.0) -> list[int]:
        model = self.initialize_model()
        strategy = get_training_strategy("standard", self.config)
        strategy.compute_loss = self.compute_loss
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        watch = LossSpikeDetector(factor, recent=[1.0] * 20)
        return find_bad_rows(model, self, strategy, optimizer, rows, watch)


@pytest.mark.parametrize(
    ("special", "bad"),
    [
        ({}, []),
        ({"r8": float("nan")}, [1]),
        ({"r3": float("inf"), "r7": float("nan")}, [0, 4]),  # and none that comes after them
        ({"r2": 1e4}, [2]),
        ({"r2": 1e4, "r1": float("nan")}, [2, 5]),
        ({f"r{row}": float("nan") for row in ROWS}, [*range(6)]),
        ({f"r{row}": 1e4 for row in ROWS}, []),  # not one of them is above the others
    ],
)
def test_rows_are_bad_by_their_own_loss_among_those_of_the_batch(
    special: dict[str, float], bad: list[int]
) -> None:
    adapter = Adapter(**special)
    before = [p.detach().clone() for p in adapter.model.parameters()]
    state = torch.get_rng_state()
    assert adapter.bad_rows() == bad
    assert adapter.num_trained == 0
    assert adapter.model.training
    assert torch.equal(torch.get_rng_state(), state)
    after = [*adapter.model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(p.grad is None for p in after)


def test_a_row_whose_gradient_alone_is_no_number_is_bad() -> None:
    adapter = Adapter()
    adapter.model.head.weight.register_hook(
        lambda gradient: gradient * torch.inf if adapter.now == [13] else gradient
    )
    assert adapter.bad_rows() == [3]


def test_where_not_one_row_fits_nobody_knows_and_another_error_is_raised() -> None:
    adapter = Adapter()
    adapter.fail_above = 0
    assert adapter.bad_rows() == []
    assert all(p.grad is None for p in adapter.model.parameters())
    broken = Adapter()
    broken.count_items = lambda examples: 1 // 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        broken.bad_rows()
