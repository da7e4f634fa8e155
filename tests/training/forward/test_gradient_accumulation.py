"""A batch that comes in pieces gives the gradients and the loss of the whole of it."""

from typing import Any

import pytest
import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.core.precision import Precision
from infrastructure.training.core.state import StepOutput
from infrastructure.training.forward.gradient_accumulation import (
    accumulate_gradients,
    backward_of_sum,
    one_step,
)
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


THREE = [3, 4, 6]


def parts() -> tuple[ToyModel, ToyAdapter, StandardTrainingStrategy, torch.optim.Optimizer]:
    model = ToyModel(dropout=0.0)
    adapter = ToyAdapter(TrainingConfig(), model)
    strategy = StandardTrainingStrategy(TrainingConfig())
    strategy.compute_loss = adapter.compute_loss
    return model, adapter, strategy, strategy.create_optimizer(model, 0.1)


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_a_step_gives_the_gradients_of_the_mean_and_changes_no_weight() -> None:
    model, adapter, strategy, optimizer = parts()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    output = one_step(model, adapter, strategy, optimizer, THREE)
    assert output.num_items == adapter.count_items(THREE)
    found = gradients(model)
    model.zero_grad()
    loss = adapter.compute_loss(model, adapter.prepare_batch(THREE))
    (loss.loss_sum / loss.num_items).backward()
    torch.testing.assert_close(found, gradients(model))
    assert all(map(torch.equal, before, model.parameters()))


def test_steps_on_pieces_add_up_to_the_whole() -> None:
    model, adapter, strategy, optimizer = parts()
    one_step(model, adapter, strategy, optimizer, THREE)
    whole = gradients(model)
    model.zero_grad()
    for piece in (THREE[:1], THREE[1:]):
        total_items = adapter.count_items(THREE)
        one_step(model, adapter, strategy, optimizer, piece, total_items=total_items)
    torch.testing.assert_close(gradients(model), whole)


def test_gradients_are_scaled_where_a_scaler_is_given() -> None:
    model, adapter, strategy, optimizer = parts()
    one_step(model, adapter, strategy, optimizer, THREE)
    plain = gradients(model)
    model.zero_grad()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    one_step(model, adapter, strategy, optimizer, THREE, scaler=scaler)
    torch.testing.assert_close(gradients(model), [8.0 * gradient for gradient in plain])


def test_with_update_gradients_the_optimizer_steps() -> None:
    model, adapter, strategy, optimizer = parts()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    one_step(model, adapter, strategy, optimizer, THREE, update_gradients=True)
    assert not any(map(torch.equal, before, model.parameters()))
    assert gradients(model) == []


def test_the_summed_loss_is_that_of_its_items_and_nothing_learnt_gives_no_gradient() -> None:
    model, adapter, strategy, optimizer = parts()
    batch = adapter.prepare_batch(THREE)
    output = backward_of_sum(model, adapter, Precision("fp32", "cpu"), batch)
    found = gradients(model)
    model.zero_grad()
    one_step(model, adapter, strategy, optimizer, THREE)
    whole = [gradient * output.num_items for gradient in gradients(model)]
    torch.testing.assert_close(found, whole)
    model.zero_grad()
    nothing = {"features": torch.zeros(0, 4), "num_examples": 0}
    assert backward_of_sum(model, adapter, Precision("fp32", "cpu"), nothing).num_items == 0
    assert gradients(model) == []
