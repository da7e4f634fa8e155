"""Leader and followers see the same shares, seeds and tensors."""

import pytest
import torch

from infrastructure.training.parallel.shares import (
    choose_trained,
    fingerprint,
    forget_gradients,
    gradients_of,
    share_seed,
    shares_of,
    trained,
    with_gradient,
)


@pytest.mark.parametrize("num_examples", [0, 1, 2, 7, 8, 9])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_shares_are_the_whole_batch_in_order_and_almost_equal(num_examples: int, size: int) -> None:
    shares = shares_of(range(num_examples), size)
    assert [example for share in shares for example in share] == list(range(num_examples))
    lengths = [len(share) for share in shares]
    assert len(shares) == size
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)  # the leader is never idle


def test_each_share_draws_its_own_random_numbers_the_same_ones_each_time() -> None:
    seeds = {share_seed(seed, step, rank) for seed in (0, 1) for step in (0, 1) for rank in (1, 2)}
    assert len(seeds) == 8
    assert share_seed(3, 4, 1) == share_seed(3, 4, 1)
    assert all(0 <= seed < 1 << 32 for seed in seeds)


def layers() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))


def test_what_trains_is_sent_and_taken_over() -> None:
    here, there = layers(), layers()
    here[0].requires_grad_(False)
    assert trained(here) == "0011"
    choose_trained(there, trained(here))
    assert [p.requires_grad for p in there.parameters()] == [False, False, True, True]


def test_a_gradient_that_nobody_had_is_none_again() -> None:
    model = layers()
    model[1].weight.grad = torch.ones(1, 2)
    own = with_gradient(model)
    assert own == "0010"
    assert [g.tolist() for g in gradients_of(model)][2] == [[1.0, 1.0]]
    forget_gradients(model, [own, "0001"])
    assert [p.grad is None for p in model.parameters()] == [True, True, False, False]


def test_other_frozen_weights_or_shapes_have_another_fingerprint() -> None:
    one, same = layers(), layers()
    assert fingerprint(one) == fingerprint(same)
    with torch.no_grad():  # all of a plain model is sent with every step
        same[0].weight.add_(1)
    assert fingerprint(one) == fingerprint(same)
    wider = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    assert fingerprint(one) != fingerprint(wider)
