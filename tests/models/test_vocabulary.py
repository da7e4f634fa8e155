"""A model gets a row in each table for a token that it lacks, without random numbers."""

from typing import Any

import pytest
import torch

from infrastructure.models.vocabulary import add_row, has_row
from tests.models.architectures import VOCAB_SIZE, tiny_model


def tables_of(model: Any) -> list[torch.Tensor]:
    head = model.get_output_embeddings()
    return [model.get_input_embeddings().weight, *head.parameters()]


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "phi"])  # apart, tied, with a bias
@pytest.mark.parametrize("token_id", [VOCAB_SIZE - 1, VOCAB_SIZE, VOCAB_SIZE + 2])
def test_added_rows_are_the_mean_of_those_that_were_there(architecture: str, token_id: int) -> None:
    model = tiny_model(architecture)
    before = [table.detach().clone() for table in tables_of(model)]
    assert has_row(model, token_id) is (token_id < VOCAB_SIZE)
    add_row(model, token_id)
    assert has_row(model, token_id)
    assert not has_row(model, max(token_id, VOCAB_SIZE - 1) + 1)
    for table, was in zip(tables_of(model), before, strict=True):
        assert len(table) == max(VOCAB_SIZE, token_id + 1)
        assert torch.equal(table[:VOCAB_SIZE], was)
        for row in table[VOCAB_SIZE:]:
            torch.testing.assert_close(row, was.mean(dim=0))


def test_a_mean_of_half_precision_is_that_of_all_digits() -> None:
    model = tiny_model("llama", torch.bfloat16)
    with torch.no_grad():
        model.get_input_embeddings().weight[:] = 1.0
        model.get_input_embeddings().weight[0] = 98.0  # the mean of all is 2
    add_row(model, VOCAB_SIZE)
    assert model.get_input_embeddings().weight[-1].tolist() == [2.0] * 32
