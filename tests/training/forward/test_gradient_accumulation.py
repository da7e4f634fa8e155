"""A batch that comes in pieces gives the gradients and the loss of the whole of it."""

from typing import Any

import pytest
import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.core.state import StepOutput
from infrastructure.training.forward.gradient_accumulation import accumulate_gradients
from infrastructure.training.strategies import StandardTrainingStrategy
from tests.training.toy import ToyAdapter, ToyModel

EXAMPLES = [0, 1, 2, 3, 4]  # of one to five items


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_pieces_weigh_as_much_as_they_have_items(size: int) -> None:
    model = ToyModel(dropout=0.0)
    adapter = ToyAdapter(TrainingConfig(), model)
    strategy = StandardTrainingStrategy(TrainingConfig())
    strategy.compute_loss = adapter.compute_loss
    optimizer = strategy.create_optimizer(model, 0.1)
    outputs: list[StepOutput] = []

    def gradients(micro_batch_size: int) -> tuple[list[Any], float, int]:
        model.zero_grad()
        window = accumulate_gradients(
            model,
            adapter,
            strategy,
            optimizer,
            None,
            EXAMPLES,
            micro_batch_size=micro_batch_size,
            total_items=adapter.count_items(EXAMPLES),
            after_loss=outputs.append,
        )
        found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return found, float(window.loss_sum), window.num_items

    whole, in_pieces = gradients(len(EXAMPLES)), gradients(size)
    torch.testing.assert_close(in_pieces, whole)
    assert in_pieces[2] == adapter.count_items(EXAMPLES)
    sizes = [adapter.count_items(EXAMPLES[at : at + size]) for at in range(0, len(EXAMPLES), size)]
    assert [output.num_items for output in outputs[1:]] == sizes
