"""Counted operations against PyTorch's own counter, and what a device reaches."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

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
