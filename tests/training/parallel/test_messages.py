"""What the processes of one training say arrives as it was said."""

import socket

import numpy as np
import pytest
import torch

from infrastructure.training.data.store.examples import TokenizedExample
from infrastructure.training.parallel.messages import (
    Channel,
    Message,
    packed_examples,
    unpacked_examples,
)


def pair() -> tuple[Channel, Channel]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
    return Channel(here), Channel(there)


def example(*ids: int, task: str = "") -> TokenizedExample:
    supervised = np.array([number % 2 == 0 for number in ids])
    return TokenizedExample(np.array(ids, dtype=np.int32), supervised, task)


def test_values_and_tensors_arrive_as_they_were_sent() -> None:
    here, there = pair()
    tensors = {"a": torch.arange(6).reshape(2, 3), "b": torch.tensor([True, False])}
    here.send(Message("compute", {"seed": 3, "scale": None}, tensors))
    here.send(Message("add up"))
    first, second = there.receive(), there.receive()
    assert (first.kind, first.values) == ("compute", {"seed": 3, "scale": None})
    assert all(torch.equal(first.tensors[name], tensor) for name, tensor in tensors.items())
    assert (second.kind, second.values, dict(second.tensors)) == ("add up", {}, {})
    here.close()
    with pytest.raises((EOFError, OSError)):
        there.receive()
    there.close()


def test_token_examples_keep_their_lengths_types_and_tasks() -> None:
    given = [example(1, 2, 3), example(4, task="sums"), example(5, 6)]
    found = unpacked_examples(packed_examples(given))
    for was, now in zip(given, found, strict=True):
        np.testing.assert_array_equal(was.input_ids, now.input_ids, strict=True)
        np.testing.assert_array_equal(was.supervised, now.supervised, strict=True)
        assert was.task == now.task


@pytest.mark.parametrize("given", [[], [7, 8], ["a", {"b": [1.5, None]}]])
def test_plain_examples_are_sent_as_json(given: list[object]) -> None:
    assert unpacked_examples(packed_examples(given)) == given


@pytest.mark.parametrize("given", [[(1, 2)], [torch.ones(1)], [np.int64(1)]])
def test_examples_that_would_change_on_their_way_are_refused(given: list[object]) -> None:
    with pytest.raises(TypeError):
        packed_examples(given)
