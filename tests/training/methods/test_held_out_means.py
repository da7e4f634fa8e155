"""A held-out number of pairs counts each pair once; the trainings by TRL show it of real ones."""

from collections import defaultdict
from typing import Any

import pytest
import torch

from infrastructure.training.methods.held_out_means import weigh_pairs


class Trainer:
    """What TRL's trainers do of it: a number of each batch, and their mean when it is logged."""

    def __init__(self, attribute: str) -> None:
        self.collected: Any = {"train": {"share": [0.5]}, "eval": defaultdict(list)}
        setattr(self, attribute, self.collected)
        self.logged: dict[str, float] = {}

    def prediction_step(self, model: object, inputs: dict[str, torch.Tensor]) -> None:
        ids = next(value for name, value in inputs.items() if name.endswith("input_ids"))
        self.collected["eval"]["share"].append(ids.float().mean().item())
        self.collected["eval"]["num_tokens"] = [7.0]

    def log(self, logs: dict[str, float]) -> None:
        means = {name: sum(each) / len(each) for name, each in self.collected["eval"].items()}
        self.logged = logs | means
        self.collected["eval"].clear()


@pytest.mark.parametrize(
    ("attribute", "ids"),
    [("_metrics", "input_ids"), ("_stored_metrics", "chosen_input_ids")],  # the latter: ORPO
)
@pytest.mark.parametrize("rounds", [1, 2])
def test_a_smaller_batch_weighs_less(rounds: int, attribute: str, ids: str) -> None:
    trainer = Trainer(attribute)
    weigh_pairs(trainer)
    for _ in range(rounds):  # nothing is left of the one before
        for batch in (torch.ones(8, 3), torch.zeros(6, 3)):
            trainer.prediction_step(None, {"labels": torch.ones(1), ids: batch})
        trainer.log({"loss": 1.0})
        assert trainer.logged == {"loss": 1.0, "share": pytest.approx(8 / 14), "num_tokens": 7.0}
        assert trainer.collected["train"] == {"share": [0.5]}
