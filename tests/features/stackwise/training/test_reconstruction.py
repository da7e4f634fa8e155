"""The loss of feature reconstruction; that decoders train with their units is in test_strategy."""

import pytest
import torch

from infrastructure.features.stackwise.training.reconstruction import (
    FeatureDecoders,
    reconstruction_loss,
)


@pytest.mark.parametrize("positions", [None, [1, 4, 5]])
def test_the_loss_is_the_mean_error_at_trained_positions(positions: list[int] | None) -> None:
    decoders = FeatureDecoders(10, 2)
    assert [tuple(p.shape) for p in decoders[1].parameters()] == [
        *((10,), (10,), (2, 10), (2,), (10, 2), (10,)),
    ]
    assert len(FeatureDecoders(2, 1)[0][1].weight) == 1
    output, given = torch.randn(2, 2, 3, 10, generator=torch.Generator().manual_seed(0)).half()
    output.requires_grad_()
    given.requires_grad_()
    at = None if positions is None else torch.tensor(positions)
    loss = reconstruction_loss(decoders[0], output, given, at)
    rows = slice(None) if positions is None else positions
    found = decoders[0](output.detach().float().flatten(0, 1)[rows])
    error = found - given.detach().float().flatten(0, 1)[rows]
    assert loss.item() == pytest.approx(error.square().mean().item(), rel=1e-5)
    loss.backward()
    assert given.grad is None
    assert output.grad is not None
    touched = output.grad.flatten(0, 1).any(dim=1).nonzero().flatten().tolist()
    assert touched == (positions or list(range(6)))
