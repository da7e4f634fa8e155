"""The gradients of the last batch are computed again, and leave no trace."""

import pytest
import torch

from infrastructure.training.core.state import Phase
from infrastructure.training.loop.last_gradients import last_gradients, trainable_parameters
from tests.training.toy_training import Training

BATCH = [0, 1, 2, 3, 4]  # of one to five items


def test_the_gradients_are_those_of_the_mean_loss_without_dropout() -> None:
    """In micro-batches of two, and of all parameters of the optimizer."""
    training = Training(dropout=0.5)
    state, loop, adapter = training.state, training.loop, training.adapter
    with pytest.raises(ValueError, match=r"training\.no_gradients_before_first_step"):
        last_gradients(loop, state)
    state.model.train()
    loop.single_step(state, BATCH)
    random = torch.get_rng_state()
    found = last_gradients(loop, state)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(module.training for module in state.model.modules())
    assert all(p.grad is None for p in state.model.parameters())
    state.model.eval()
    output = adapter.compute_loss(state.model, adapter.prepare_batch(BATCH))
    (output.loss_sum / output.num_items).backward()
    expected = {name: p.grad for name, p in state.model.named_parameters()}
    torch.testing.assert_close(found, expected)


def test_what_a_phase_trains_counts_whether_it_is_frozen_now_or_not() -> None:
    training = Training()
    model = training.state.model
    model.other = torch.nn.Parameter(torch.ones(1), requires_grad=False)  # of no optimizer
    every = ["inner.weight", "inner.bias", "head.weight", "head.bias"]
    training.loop.single_step(training.state, BATCH)
    for phase, names in ((Phase(), every), (Phase("", 1, frozenset(every[2:])), every[2:])):
        training.state.phase = phase
        for is_frozen in (True, False):
            before = dict.fromkeys(every, not is_frozen) | {"other": False}
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(before[name])
            parameters = trainable_parameters(training.loop, training.state)
            assert list(parameters) == names
            assert all(p is model.get_parameter(name) for name, p in parameters.items())
            assert list(last_gradients(training.loop, training.state)) == names
            assert {n: p.requires_grad for n, p in model.named_parameters()} == before
