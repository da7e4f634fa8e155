"""A held-out number of pairs counts each pair once; the trainings by TRL show it of real ones."""

from collections import defaultdict
from typing import Any

import pytest
import torch

from infrastructure.training.methods.held_out_means import weigh_pairs


class Trainer:
    """What TRL's trainers do of it: a number of each batch, and their mean when it is logged."""

    def __init__(self) -> None:
        self._metrics: Any = {"train": defaultdict(list), "eval": defaultdict(list)}
        self.logged: dict[str, float] = {}

    def prediction_step(self, model: object, inputs: dict[str, torch.Tensor]) -> None:
        self._metrics["eval"]["share"].append(inputs["input_ids"].float().mean().item())
        self._metrics["eval"]["num_tokens"] = [7.0]

    def log(self, logs: dict[str, float]) -> None:
        means = {name: sum(each) / len(each) for name, each in self._metrics["eval"].items()}
        self.logged = logs | means
        self._metrics["eval"].clear()


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_smaller_batch_weighs_less(rounds: int) -> None:
    trainer = Trainer()
    weigh_pairs(trainer)
    for _ in range(rounds):  # nothing is left of the one before
        for batch in (torch.ones(8, 3), torch.zeros(6, 3)):
            trainer.prediction_step(None, {"input_ids": batch})
        trainer.log({"loss": 1.0})
        assert trainer.logged == {"loss": 1.0, "share": pytest.approx(8 / 14), "num_tokens": 7.0}
