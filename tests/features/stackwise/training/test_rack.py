"""A model is cut into its parts by structure, and each part runs by itself."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.features.stackwise.training.growth import copy_from_below
from infrastructure.features.stackwise.training.rack import Rack
from infrastructure.features.stackwise.training.stack_phases import Unit
from infrastructure.models.model_inputs import call_model, logits_of
from tests.models.architectures import ARCHITECTURES, VOCAB_SIZE, tiny_model

IDS = torch.randint(3, VOCAB_SIZE, (2, 12), generator=torch.Generator().manual_seed(0))


def logits(model: torch.nn.Module) -> torch.Tensor:
    return logits_of(call_model(model, {"input_ids": IDS}))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_every_architecture_is_cut_by_structure(architecture: str) -> None:
    model = tiny_model(architecture).eval()
    rack = Rack(model)
    rack.check()
    whole = logits(model)
    for layer in range(len(rack)):
        hidden = rack.hidden_at(layer, lambda: logits(model))
        assert hidden.shape == (2, 12, rack.hidden_size)
        with rack.span(layer, len(rack), hidden):
            torch.testing.assert_close(logits(model), whole, rtol=1e-5, atol=1e-5)
    with rack.span(0, 1):
        assert not torch.allclose(logits(model), whole)
    torch.testing.assert_close(logits(model), whole, rtol=0, atol=0)  # nothing is left behind


def test_a_difference_from_one_of_four_layers_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check starts at the first two layers, the middle one and the last one."""
    hidden_at = Rack.hidden_at
    noticed = []
    for wrong in range(8):

        def planted(self: Rack, layer: int, run: Any, wrong: int = wrong) -> torch.Tensor:
            return hidden_at(self, layer, run) * (1 + 99 * (layer == wrong))

        monkeypatch.setattr(Rack, "hidden_at", planted)
        try:
            Rack(tiny_model("llama", num_hidden_layers=8)).check()
        except ValueError as error:
            noticed.append((wrong, f"layer={wrong}, " in str(error)))
    assert noticed == [(0, True), (1, True), (4, True), (7, True)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_parameter_lies_below_in_or_above_the_layers(architecture: str) -> None:
    model = tiny_model(architecture)
    rack = Rack(model)
    inside = [name for name, _ in rack.parameters_of(0, len(rack))]
    names = [name for name, _ in model.named_parameters()]
    assert sorted([*rack.below, *inside, *rack.above]) == sorted(names)
    assert any("emb" in name or "wte" in name for name in rack.below)
    assert any("norm" in name or "ln_f" in name for name in rack.above)


@pytest.mark.parametrize(
    ("first", "last", "sources"),
    [
        (2, 4, [0, 1, 0, 1, 4]),
        (3, 4, [0, 1, 2, 2, 4]),
        (2, 5, [0, 1, 0, 1, 0]),  # fewer layers below than in the unit: they are repeated
        (1, 5, [0, 0, 0, 0, 0]),
        (3, 5, [0, 1, 2, 1, 2]),
    ],
)
def test_a_copied_unit_is_the_one_below(first: int, last: int, sources: list[int]) -> None:
    rack = Rack(tiny_model("llama", num_hidden_layers=5))
    before = [{n: t.clone() for n, t in one.state_dict().items()} for one in rack.layers]
    copy_from_below(rack, Unit(1, first, last))
    for layer, source in zip(rack.layers, sources, strict=True):
        assert all(torch.equal(t, before[source][n]) for n, t in layer.state_dict().items())


def test_layers_of_another_shape_are_not_copied() -> None:
    layers = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4, bias=False)]
    rack: Any = SimpleNamespace(layers=layers)
    with pytest.raises(ValueError, match=r"stackwise\.layer_shapes_differ"):
        copy_from_below(rack, Unit(1, 1, 2))


def test_a_model_without_a_list_of_layers_is_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9))
    with pytest.raises(ValueError, match=r"stackwise\.no_layer_list"):
        Rack(model)
