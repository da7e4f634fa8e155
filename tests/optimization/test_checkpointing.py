from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.optimization.checkpointing import can_do, checkpoint_gradients

INPUTS = torch.arange(128).view(2, 64)


def kept_and_gradient(model: Any, mode: str) -> tuple[int, torch.Tensor]:
    checkpoint_gradients(model, mode)
    model.zero_grad()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if (place := tensor.untyped_storage().data_ptr()) not in weights:
            kept[place] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(input_ids=INPUTS, labels=INPUTS).loss
    loss.backward()
    gradient: torch.Tensor = model.model.layers[0].mlp.up_proj.weight.grad.clone()
    return sum(kept.values()), gradient


def test_each_mode_keeps_less_and_gives_the_same_gradient(small_llama: Any) -> None:
    off, expected = kept_and_gradient(small_llama, "off")
    last = off
    for mode in ("selective", "all"):
        if mode == "all" or can_do(small_llama, mode):
            kept, gradient = kept_and_gradient(small_llama, mode)
            assert torch.allclose(gradient, expected, atol=1e-7)
            assert kept < 0.75 * last
            last = kept
    _, gradient = kept_and_gradient(small_llama, "offload")
    assert torch.allclose(gradient, expected, atol=1e-7)
    assert kept_and_gradient(small_llama, "off")[0] == off


def test_a_model_that_cannot_is_refused() -> None:
    with pytest.raises(ValueError, match=r"optimization\.no_gradient_checkpointing.*model=Linear"):
        checkpoint_gradients(torch.nn.Linear(2, 2), "all")


def test_an_older_transformers_is_reported(
    small_llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        small_llama, "gradient_checkpointing_enable", lambda gradient_checkpointing_kwargs: None
    )
    with pytest.raises(
        ValueError, match=r"optimization\.checkpointing_mode_unsupported.*mode=selective"
    ):
        checkpoint_gradients(small_llama, "selective")
    checkpoint_gradients(small_llama, "all")


@pytest.mark.parametrize(
    ("mode", "device", "given"),
    [
        ("selective", "cuda", {"every_n_layers": 2}),
        ("all", "cuda", {}),
        ("offload", "cuda", {"offload": True}),
        ("offload", "cpu", {}),
    ],
)
def test_each_mode_is_given_to_the_model(mode: str, device: str, given: dict[str, Any]) -> None:
    calls: list[dict[str, Any]] = []

    class Model:
        supports_gradient_checkpointing = True

        def parameters(self) -> Iterator[Any]:
            return iter([SimpleNamespace(device=torch.device(device))])

        def gradient_checkpointing_enable(
            self, gradient_checkpointing_kwargs: Any, every_n_layers: int = 1, offload: bool = False
        ) -> None:
            calls.append({"every_n_layers": every_n_layers, "offload": offload})
            assert gradient_checkpointing_kwargs == {"use_reentrant": False}

    checkpoint_gradients(Model(), mode)
    assert calls == [{"every_n_layers": 1, "offload": False} | given]
