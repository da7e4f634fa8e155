"""What decides a Trainer's result is recognised, and its reading leaves no trace."""

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from infrastructure.training.hf_bridge.trainer_facts import checked_names
from infrastructure.training.models.weights_hash import frozen_hash
from tests.training.hf_bridge.tiny_trainer import Rows, tiny_lora, tiny_model

CPU = torch.device("cpu")


class Drawing(Dataset[dict[str, torch.Tensor]]):
    """Gives a row another way each time."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.rand(2)}


def test_other_rows_are_other_data_and_reading_them_draws_nothing() -> None:
    state = torch.get_rng_state()
    facts = data_facts(Rows(), CPU)
    assert facts == data_facts(Rows(), CPU)
    assert facts["num_examples"] == len(Rows())
    assert facts["rows"] != data_facts(Rows(seed=1), CPU)["rows"]
    assert data_facts(Drawing(), CPU) == {"num_examples": 3, "rows": None}
    assert torch.equal(torch.get_rng_state(), state)


def test_of_a_stream_nothing_is_known() -> None:
    stream: Any = iter([])
    assert data_facts(stream, CPU) == {"num_examples": None, "rows": None}


def test_frozen_weights_count_and_those_that_train_do_not() -> None:
    assert frozen_hash(tiny_model()) is None
    before = frozen_hash(tiny_lora())
    assert before == frozen_hash(tiny_lora())
    for name, differs in (("lora_A", False), ("ln_1.weight", True)):
        model = tiny_lora()
        with torch.no_grad():
            next(p for n, p in model.named_parameters() if name in n).view(-1)[0] += 1e-6
        assert (frozen_hash(model) != before) is differs


@pytest.mark.parametrize("name", ["data", "torch", "trl", "max_steps", "base_model"])
def test_what_may_differ_has_a_name(name: str) -> None:
    assert checked_names([name]) == {name}
