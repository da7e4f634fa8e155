"""Each example's gradient is what autograd gives for it alone, and nothing is left behind."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.core.errors import TemperError
from infrastructure.features.quantum.training.count_sketch import CountSketch
from infrastructure.features.quantum.training.per_example_gradients import (
    example_gradients,
    watched_layers,
)
from infrastructure.features.quantum.training.per_example_pass import Split
from infrastructure.training.core.precision import choose_precision
from infrastructure.training.model_adapters.base_adapter import ModelAdapter
from tests.features.quantum.training.small_adapters import FP32, LORA, adapter_for, examples
from tests.slow import slow_but
from tests.training.toy import ToyAdapter

KINDS: list[dict[str, Any]] = [
    {"packing": True},
    {"packing": False},
    {"packing": True, "lora": LORA},
    {"packing": False, "lora": LORA},
    {"packing": False, "lora": LORA, "gradient_checkpointing": True},
    {"packing": True, "gradient_checkpointing": True},
]


def by_autograd(adapter: ModelAdapter, rows: list[Any], num_features: int) -> np.ndarray:
    """One example after the other, whole gradients, then the sketch."""
    model = adapter.model
    assert model is not None
    model.eval()
    layers = watched_layers(model)
    weights = [layer.weight for layer in layers.values()]
    sketch = CountSketch(num_features, 0, torch.device("cpu"))
    total = torch.zeros(len(rows), num_features)
    for i, row in enumerate(rows):
        loss = adapter.compute_loss(model, adapter.prepare_batch([row])).loss_sum
        for number, gradient in enumerate(torch.autograd.grad(loss, weights)):
            step = sketch.rows_at_once(gradient.shape[1])
            for start in range(0, len(gradient), step):
                sketch.add(total[i : i + 1], gradient[None, start : start + step], number, start)
    return total.numpy()


@pytest.mark.parametrize("kind", slow_but([*KINDS[:3], KINDS[4]], KINDS), ids=str)
def test_it_is_the_gradient_of_the_example_alone(saved_llama: Path, kind: Any) -> None:
    adapter = adapter_for(saved_llama, **kind)
    rows = examples(10)
    assert adapter.model is not None
    adapter.model.train()
    found = example_gradients(
        adapter.model, adapter, [rows[:4], rows[4:9], rows[9:]], precision=FP32
    )
    expected = by_autograd(adapter, rows, 4096)
    assert found.shape == (10, 4096)
    assert found.dtype == np.float32
    scale = np.linalg.norm(expected, axis=1, keepdims=True)
    assert (np.abs(found - expected) / scale).max() < 2e-6
    assert scale.min() > 0


def test_their_sum_is_the_gradient_that_torch_func_gives(saved_llama: Path) -> None:
    adapter = adapter_for(saved_llama, packing=False)
    rows, model = examples(6), adapter.model
    assert model is not None
    found = example_gradients(model, adapter, [rows], precision=FP32, num_features=512)
    batch = adapter.prepare_batch(rows)
    layers = watched_layers(model.eval())

    def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        inputs = {"input_ids": batch["input_ids"]}
        logits = torch.func.functional_call(model, weights, kwargs=inputs).logits
        picked = logits.flatten(0, 1)[batch["target_positions"]]
        return torch.nn.functional.cross_entropy(picked, batch["targets"], reduction="sum")

    weights = {f"{name}.weight": layer.weight.detach() for name, layer in layers.items()}
    sketch, total = CountSketch(512, 0, torch.device("cpu")), torch.zeros(1, 512)
    for number, gradient in enumerate(torch.func.grad(loss)(weights).values()):
        sketch.add(total, gradient.detach()[None], number, 0)
    np.testing.assert_allclose(found.sum(axis=0), total[0].numpy(), rtol=1e-4, atol=1e-5)


def test_activations_are_computed_again_where_training_does_so(saved_llama: Path) -> None:
    """As the measuring must fit where the training does."""
    adapter = adapter_for(saved_llama, lora=LORA, gradient_checkpointing=True)
    model = adapter.model
    assert model is not None
    called = []
    norms = [m for name, m in model.named_modules() if name.endswith("post_attention_layernorm")]
    for norm in norms:
        norm.register_forward_hook(lambda *_: called.append(1))
    example_gradients(model.train(), adapter, [examples(3)], precision=FP32)
    assert len(called) == 2 * len(norms)


def state_of(adapter: ModelAdapter) -> dict[str, Any]:
    model = adapter.model
    assert model is not None
    return {
        "tensors": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "trains": [p.requires_grad for p in model.parameters()],
        "modes": [module.training for module in model.modules()],
        "random": torch.get_rng_state(),
        "hooks": [len(module._forward_hooks) for module in model.modules()],
    }


@pytest.mark.parametrize("kind", KINDS[:5:2], ids=str)
def test_the_model_is_what_it_was_bit_for_bit(saved_llama: Path, kind: Any) -> None:
    adapter = adapter_for(saved_llama, **kind)
    model = adapter.model
    assert model is not None
    model.train()
    list(model.modules())[3].eval()
    rows = examples(6)
    adapter.compute_loss(model, adapter.prepare_batch(rows)).loss_sum.backward()
    before, kept = state_of(adapter), [parameter.grad for parameter in model.parameters()]
    first = example_gradients(model, adapter, [rows[:3], rows[3:]], precision=FP32)
    after = state_of(adapter)
    assert all(a.grad is b for a, b in zip(model.parameters(), kept, strict=True))
    for name, tensor in before["tensors"].items():
        assert torch.equal(tensor, after["tensors"][name]), name
    for one, other in zip(before["gradients"], after["gradients"], strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)
    for what in ("trains", "modes", "hooks"):
        assert before[what] == after[what]
    assert torch.equal(before["random"], after["random"])
    torch.rand(7)
    again = example_gradients(model, adapter, [rows[:3], rows[3:]], precision=FP32)
    assert np.array_equal(first, again)


def test_it_is_left_as_it_was_when_something_fails(saved_llama: Path) -> None:
    adapter = adapter_for(saved_llama, lora=LORA)
    before = state_of(adapter)

    def batches() -> Any:
        yield examples(2)
        raise KeyError("no more rows")

    assert adapter.model is not None
    with pytest.raises(KeyError):
        example_gradients(adapter.model, adapter, batches(), precision=FP32)
    after = state_of(adapter)
    for what in ("trains", "modes", "hooks"):
        assert before[what] == after[what]
    assert torch.equal(before["random"], after["random"])


def test_what_is_watched(saved_llama: Path) -> None:
    plain, lora = adapter_for(saved_llama), adapter_for(saved_llama, lora=LORA)
    names = list(watched_layers(plain.model))
    assert len(names) == 7
    assert all("layers.1." in name for name in names)
    assert all(".lora_" in name for name in watched_layers(lora.model))
    assert len(watched_layers(lora.model)) == 2 * 2 * 7


def test_where_nothing_trains_there_is_nothing_to_select_by() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2)).requires_grad_(False)
    with pytest.raises(ValueError, match=r"quantum\.no_trained_linear_layer.*model=Sequential"):
        watched_layers(model)


def test_an_adapter_that_mixes_examples_is_refused() -> None:
    adapter = ToyAdapter(None)  # its examples are one to five rows each
    with pytest.raises(ValueError, match=r"quantum\.examples_not_separable"):
        example_gradients(adapter.initialize_model(), adapter, [[3, 4]], precision=FP32)


def test_a_layer_that_is_passed_by_is_reported(saved_llama: Path) -> None:
    adapter = adapter_for(saved_llama, packing=False)
    model = adapter.model
    assert model is not None
    mlp = model.model.layers[1].mlp
    down, gate, up = mlp.down_proj, mlp.gate_proj, mlp.up_proj

    def fused(x: torch.Tensor) -> torch.Tensor:
        inner = torch.nn.functional.silu(x @ gate.weight.T) * up(x)
        return down(inner)

    mlp.forward = fused
    with pytest.raises(TemperError, match=r"quantum\.layer_without_gradient.*count=1.*total=7"):
        example_gradients(model, adapter, [examples(3)], precision=FP32)


def test_what_does_not_fit_into_memory_is_done_in_halves(
    saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = adapter_for(saved_llama, packing=False)
    rows = examples(7)
    assert adapter.model is not None
    whole = example_gradients(adapter.model, adapter, [rows], precision=FP32)
    prepare, sizes = adapter.prepare_batch, []

    def limited(batch: Any) -> Any:
        sizes.append(len(batch))
        if len(batch) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory: planted")
        return prepare(batch)

    monkeypatch.setattr(adapter, "prepare_batch", limited)
    halves = example_gradients(adapter.model, adapter, [rows], precision=FP32)
    assert sizes == [7, 3, 1, 2, 4, 2, 2]
    np.testing.assert_allclose(halves, whole, rtol=1e-4, atol=1e-5)


def test_bf16_gives_the_same_directions(saved_llama: Path) -> None:
    adapter = adapter_for(saved_llama, lora=LORA)
    rows, bf16 = examples(6), choose_precision("bf16", torch.device("cpu"))
    assert adapter.model is not None
    one, other = (
        example_gradients(adapter.model, adapter, [rows], precision=p) for p in (FP32, bf16)
    )
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    assert ((one * other).sum(axis=1) / lengths).min() > 0.99


def test_no_examples_no_gradients(saved_llama: Path) -> None:
    adapter = adapter_for(saved_llama)
    assert adapter.model is not None
    assert example_gradients(adapter.model, adapter, [], precision=FP32).shape == (0, 4096)


def test_padded_and_packed_rows_come_to_the_same() -> None:
    left, right = torch.randn(2, 5, 3), torch.randn(2, 5, 4)
    left[0, 3:] = 0
    packed = torch.cat([left[0, :3], left[1]])[None], torch.cat([right[0, :3], right[1]])[None]
    one, other = Split(2, None), Split(2, [3, 8])
    assert torch.allclose(one.products(left, right), other.products(*packed), atol=1e-6)
    assert torch.allclose(one.products(left, right)[0], left[0].T @ right[0], atol=1e-6)
