import copy

import torch

from infrastructure.optimization.offloaded_adamw import OffloadedAdamW

SETTINGS = {"lr": 0.01, "betas": (0.8, 0.9), "weight_decay": 0.1}


def trained(kind: type, steps: int, model: torch.nn.Module, state: object = None) -> object:
    optimizer = kind(model.parameters(), **SETTINGS)
    if state is not None:
        optimizer.load_state_dict(copy.deepcopy(state))
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(4, 16)).pow(2).sum().backward()
        optimizer.step()
    return optimizer.state_dict()


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(16, 8)


def test_it_computes_what_adamw_computes() -> None:
    ours, theirs = model(), model()
    trained(OffloadedAdamW, 5, ours)
    trained(lambda p, **kw: torch.optim.AdamW(p, fused=True, **kw), 5, theirs)  # type: ignore[arg-type]
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)


def test_it_goes_on_from_its_state() -> None:
    whole, parts = model(), model()
    trained(OffloadedAdamW, 3, whole)
    state = trained(OffloadedAdamW, 3, parts)
    again = trained(OffloadedAdamW, 2, parts, state)
    expected = trained(OffloadedAdamW, 2, whole, state)
    assert torch.equal(whole.weight, parts.weight)
    for index, values in expected["state"].items():  # type: ignore[index]
        for name, value in values.items():
            assert torch.equal(value, again["state"][index][name])  # type: ignore[index]
            assert value.device.type == "cpu"


def test_a_parameter_without_gradient_is_left_alone_and_a_closure_is_called() -> None:
    used, unused = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer = OffloadedAdamW([used, unused], lr=0.1)

    def closure() -> torch.Tensor:
        loss = used.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 2.0
    assert torch.equal(unused, torch.ones(2))
    assert not torch.equal(used, torch.ones(2))


def test_its_settings_are_those_of_adamw() -> None:
    weights = [torch.nn.Parameter(torch.ones(1))]
    ours, theirs = OffloadedAdamW(weights).defaults, torch.optim.AdamW(weights).defaults
    assert ours == {name: theirs[name] for name in ("lr", "betas", "eps", "weight_decay")}
    models = model(), model()
    for kind, one in zip((OffloadedAdamW, torch.optim.AdamW), models, strict=True):
        optimizer = kind(one.parameters(), eps=0.5)  # type: ignore[operator]
        one(torch.ones(1, 16)).sum().backward()
        optimizer.step()
    assert torch.allclose(models[0].weight, models[1].weight)
