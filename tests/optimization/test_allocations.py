import torch
from transformers import LlamaConfig, LlamaForCausalLM

from infrastructure.core.process_memory import resident_bytes
from infrastructure.optimization.allocations import (
    AllocationCounter,
    LiveTensors,
    kept_for_backward,
)

MIB = 1 << 20

FLOAT_BYTES = 4


def test_the_backward_pass_counts_for_the_line_that_calls_it() -> None:
    weight = torch.ones(50_000, requires_grad=True)
    with AllocationCounter() as counter:
        loss = (weight * 2).sum()
        loss.backward()
    assert sum(counter.bytes_of_line.values()) >= 2 * 50_000 * FLOAT_BYTES
    assert all(line.startswith(__file__) for line in counter.bytes_of_line)


def test_what_is_kept_for_the_backward_pass_is_counted_once_and_without_weights() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.Tanh(), torch.nn.Tanh())
    inputs = torch.randn(7, 10)
    with kept_for_backward(model) as total:
        loss = model(inputs).sum()
    # the input of the layer, and the output of each Tanh
    assert total[0] == FLOAT_BYTES * (7 * 10 + 2 * 7 * 20)
    loss.backward()
    assert model[0].weight.grad is not None


def test_living_tensors_are_those_that_python_or_a_graph_holds() -> None:
    weight = torch.ones(MIB, requires_grad=True)
    with LiveTensors() as tensors:
        held = torch.zeros(MIB)[:1]  # a part, which holds all of it
        loss = (weight * 2).exp().sum()  # its exponentials are what the backward pass needs
        torch.ones(MIB).sum()
        assert sorted(tensors.bytes_of_line().values()) == [4 * MIB, 4 * MIB + 4]
        tensors.grow_older()
        new = torch.zeros(MIB)
        assert len(tensors.bytes_of_line()) == len(tensors.bytes_of_line(is_old=True)) + 1
        del held, loss, new
        assert not tensors.bytes_of_line()


def test_watching_tensors_keeps_no_memory_of_those_that_are_gone() -> None:
    config = LlamaConfig(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=128, vocab_size=8000,
    )  # fmt: skip
    model, ids = LlamaForCausalLM(config), torch.zeros(4, 256, dtype=torch.long)

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        model.zero_grad()

    with LiveTensors():
        step()
        before = resident_bytes()
        for _ in range(8):
            step()
    logits_bytes = 4 * 256 * 8000 * FLOAT_BYTES
    assert resident_bytes() - before < 4 * logits_bytes  # and not 8 of them, and all the rest
