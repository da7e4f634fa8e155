"""What is named is put back bit for bit, whatever happens; what is not named is left as it is."""

import contextlib
import random
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.models.preserve import measuring, preserve

CPU = torch.device("cpu")


def small_model() -> torch.nn.Module:
    """Of each kind one: a layer that trains, a frozen one, buffers, modes, a gradient."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout().eval()
        )
    model[1].requires_grad_(False)
    model[0].weight.grad = torch.ones(3, 3)
    return model


def change_everything(model: torch.nn.Module) -> None:
    random.random()
    np.random.rand()
    model.train()
    for parameter in model.parameters():
        parameter.requires_grad_(not parameter.requires_grad)
    model.requires_grad_(True)
    model(torch.randn(8, 3)).square().sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    model[1].running_var = torch.full((3,), 7.0)  # another tensor under its name


def state_of(model: torch.nn.Module) -> dict[str, Any]:
    weights = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    gradients = {n: p.grad for n, p in model.named_parameters()}
    return {
        "random": (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()),
        "modes": [module.training for module in model.modules()],
        "requires_grad": [parameter.requires_grad for parameter in model.parameters()],
        "gradients": [(g, None if g is None else g.clone()) for g in gradients.values()],
        "buffers": [(b.data_ptr(), b.clone()) for b in model.buffers()],
        "weights": {name: t for name, t in weights.items() if name.startswith("0.")},
    }


def is_same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(is_same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(is_same, left, right))
    return bool(left == right)


SUBSETS = ["random", "modes", "requires_grad", "gradients", "buffers", "weights"]


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("named", [[name] for name in SUBSETS] + [SUBSETS, []])
def test_what_is_named_is_put_back_and_nothing_else(named: list[str], raises: bool) -> None:
    model = small_model()
    before = state_of(model)
    options: dict[str, Any] = {name: CPU if name == "random" else True for name in named}
    with contextlib.suppress(KeyError), preserve(model, **options):
        change_everything(model)
        if raises:
            raise KeyError
    after = state_of(model)
    assert [name for name in SUBSETS if is_same(after[name], before[name])] == named


def test_gradients_are_set_aside_and_come_back_as_the_same_tensors() -> None:
    model = small_model()
    given = model[0].weight.grad
    with preserve(model, gradients=True):
        assert [parameter.grad for parameter in model.parameters()] == [None] * 4
    assert model[0].weight.grad is given


def test_the_random_state_alone_needs_no_model() -> None:
    state = torch.get_rng_state()
    with preserve(random=CPU):
        torch.rand(1)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_device_that_failed_is_not_touched_any_more() -> None:
    model = small_model()
    kept = preserve(model, random=CPU, modes=True, buffers=True, weights=True)
    with contextlib.suppress(torch.AcceleratorError), kept:
        change_everything(model)
        there = state_of(model)
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")
    after = state_of(model)
    assert [n for n in SUBSETS if is_same(after[n], there[n])] == [
        n for n in SUBSETS if n != "modes"
    ]


def test_attributes_and_hooks_are_put_back_into_the_tables_that_are_there() -> None:
    model = small_model()
    first: Any = model[0]
    hook = first.register_forward_hook(lambda *_: None)
    tables = first._forward_hooks, first._parameters, model._modules
    with preserve(model, attributes=True):
        hook.remove()
        first.register_forward_pre_hook(lambda *_: None)
        first.extra, first.out_features = 1, 7
        first.forward = None
        first.bias = None
        model.add_module("more", torch.nn.Linear(1, 1))
    assert (len(first._forward_hooks), len(first._forward_pre_hooks)) == (1, 0)
    assert (first._forward_hooks, first._parameters, model._modules) == tables
    assert first._forward_hooks is tables[0]
    assert (first.out_features, len(model), first.bias is None) == (3, 3, False)
    assert not {"extra", "forward"} & vars(first).keys()


@pytest.mark.parametrize("trains", [False, True])
def test_a_measurement_computes_gradients_as_a_step_does_and_leaves_none(trains: bool) -> None:
    model = small_model()
    first: Any = model[0]
    first.gradient_checkpointing = True  # which works in training mode alone
    before, random_state = state_of(model), torch.get_rng_state()
    with torch.no_grad(), measuring(model, CPU, parameters_have_gradients=trains):
        assert torch.is_grad_enabled()
        assert [module.training for module in model] == [True, False, False]
        assert all(p.grad is None for p in model.parameters())
        assert first.weight.requires_grad is trains
        torch.rand(3)
        if trains:
            first(torch.ones(1, 3)).sum().backward()
    after = state_of(model)
    assert [name for name in SUBSETS if not is_same(after[name], before[name])] == []
    assert torch.equal(torch.get_rng_state(), random_state)


def test_a_measurement_computes_no_gradients_of_parameters_unless_they_are_needed() -> None:
    model = small_model()
    with measuring(model, CPU):
        assert not any(parameter.requires_grad for parameter in model.parameters())
