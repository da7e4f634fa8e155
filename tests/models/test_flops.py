"""Counted operations against PyTorch's own counter, and what a device reaches."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from infrastructure.models import flops
from infrastructure.models.flops import (
    FlopsEstimate,
    arithmetic_of,
    measure_operations_per_second,
)

LENGTH = 64


def llama(tied: bool) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=LENGTH,
            tie_word_embeddings=tied,
            attn_implementation="eager",
        )
    )


@pytest.mark.parametrize("tied", [True, False])
def test_operations_are_those_that_pytorch_counts(tied: bool) -> None:
    model = llama(tied)
    tokens = torch.randint(0, 256, (1, LENGTH))
    with FlopCounterMode(display=False) as counter:
        model(tokens, labels=tokens).loss.backward()
    counted = arithmetic_of(model).per_second(tokens_per_second=LENGTH, tokens_per_example=LENGTH)
    assert counted == pytest.approx(counter.get_total_flops(), rel=0.05)


def test_weights_that_do_not_train_have_no_gradient_of_their_own() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(10, 10, bias=False), torch.nn.Linear(10, 10, False))
    assert arithmetic_of(model) == FlopsEstimate(6.0 * 200, 0.0)
    model[0].weight.requires_grad_(False)
    assert arithmetic_of(model) == FlopsEstimate(4.0 * 200 + 2.0 * 100, 0.0)


def test_what_this_processor_reaches_is_measured_without_a_trace() -> None:
    state = torch.get_rng_state()
    speed = measure_operations_per_second(torch.device("cpu"), torch.float32)
    assert 1e8 < speed < 1e14
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("tied", [True, False])
def test_each_weight_and_each_position_has_its_operations(tied: bool) -> None:
    model = llama(tied)
    table = model.get_input_embeddings().weight
    total = sum(p.numel() for p in model.parameters()) - (0 if tied else table.numel())
    assert arithmetic_of(model) == FlopsEstimate(6.0 * total, 12.0 * 2 * 64)
    assert FlopsEstimate(7.0, 3.0).per_second(2.0, 5.0) == 2 * (7 + 3 * 5)


@pytest.mark.parametrize(
    ("name", "shape", "chosen", "share"),
    [
        ("mlp.experts.up", (8, 2, 3), 2, 0.25),
        ("mlp.experts.up", (8, 2, 3), 8, 1.0),
        ("mlp.experts.up", (4, 2, 3), 6, 1.0),
        ("mlp.experts.up", (8, 2, 3), None, 1.0),
        ("mlp.experts.up", (8, 6), 2, 1.0),
        ("mlp.others.up", (8, 2, 3), 2, 1.0),
    ],
)
def test_a_token_uses_its_share_of_the_experts(
    name: str, shape: tuple[int, ...], chosen: int | None, share: float
) -> None:
    model = torch.nn.Module()
    model.config = SimpleNamespace(num_experts_per_tok=chosen)  # type: ignore[assignment]
    part: torch.nn.Module = model
    for step in name.split(".")[:-1]:
        part.add_module(step, torch.nn.Module())
        part = part.get_submodule(step)
    part.up = torch.nn.Parameter(torch.ones(shape))
    assert arithmetic_of(model).per_token == 6.0 * share * part.up.numel()


@pytest.mark.parametrize(
    ("seconds", "fastest"),
    [
        ([0.001, 0.0156, 0.0078125, 0.015625, 0.02, 0.03], 2**-7),
        ([0.001, 0.0625, 0.03125, 0.02], 0.02),
        ([0.3, 0.25], 0.25),
    ],
)
def test_the_fastest_product_counts_after_the_first(
    seconds: list[float], fastest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as a tenth of a second allows, at most five."""
    products = list[torch.Tensor]()

    def product(factor: torch.Tensor) -> float:
        products.append(factor)
        return seconds[len(products) - 1]

    monkeypatch.setattr(flops, "_seconds_of_product", product)
    speed = measure_operations_per_second(torch.device("cpu"), torch.bfloat16)
    assert speed == 2.0 * 512**3 / fastest
    assert len(products) == len(seconds)
    assert (products[0].shape, products[0].dtype) == ((512, 512), torch.bfloat16)


def test_only_a_gpu_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    for device in (torch.device("cpu"), torch.device("cuda", 1)):
        flops.synchronize(device)
    assert waited == [torch.device("cuda", 1)]
