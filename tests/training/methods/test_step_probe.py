"""Steps that are tried before the first cost what steps cost, and leave nothing behind."""

import random
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

from infrastructure.optimization.batch_size import DoesNotFitError
from infrastructure.training.methods.step_probe import ProbedCosts, StepProbe
from infrastructure.training.methods.trl_training import TrlTraining
from infrastructure.training.methods.untouched import _contents, untouched
from tests.training.methods.method_runs import configuration


class StopError(Exception):
    """The training need not begin."""


def probed(
    method: str, folder: Path, model: Path, limit_bytes: int = 1 << 40
) -> tuple[ProbedCosts, dict[str, Any], dict[str, Any]]:
    """The costs, and what the Trainer was before and after."""
    trainer = TrlTraining(configuration(method, folder, model), folder).make_trainer(is_new=True)
    found: list[Any] = []

    class Probe(TrainerCallback):
        def on_train_begin(self, *_: object, **__: object) -> None:
            before = everything_of(trainer)
            found.append(StepProbe(trainer, method == "grpo", limit_bytes).costs(40))
            found.extend((before, everything_of(trainer)))
            raise StopError

    trainer.add_callback(Probe())
    with pytest.raises(StopError):
        trainer.train()
    costs, before, after = found
    return costs, before, after


def everything_of(trainer: Any) -> dict[str, Any]:
    """What a step would change."""
    return {
        "weights": {name: p.detach().clone() for name, p in trainer.model.named_parameters()},
        "gradients": [p.grad is None for p in trainer.model.parameters()],
        "training": [module.training for module in trainer.model.modules()],
        "optimizer": len(trainer.optimizer.state),
        "random": (random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist()),
        "counted": {
            name: repr(value)
            for name, value in vars(trainer).items()
            if isinstance(value, int | float | dict | list | deque | None)
        },
        "state": repr(trainer.state),
        "loaders": len(trainer.accelerator._dataloaders),
        "accumulates": repr(vars(trainer.accelerator.gradient_state)),
    }


@pytest.mark.parametrize("method", ["dpo", "grpo"])
def test_a_trainer_that_was_probed_is_what_it_was(
    tmp_path: Path, saved_llama: Path, method: str
) -> None:
    costs, before, after = probed(method, tmp_path, saved_llama)
    assert costs.step_seconds > 0
    assert costs.evaluation_seconds > 0
    assert costs.peak_bytes > 50e6  # this process, whatever else it holds
    torch.testing.assert_close(before.pop("weights"), after.pop("weights"), rtol=0, atol=0)
    random_before, random_after = before.pop("random"), after.pop("random")
    assert torch.equal(random_before[1], random_after[1])
    assert (random_before[0], random_before[2]) == (random_after[0], random_after[2])
    assert before == after


def test_a_step_that_does_not_fit_is_refused_before_it_is_done(
    tmp_path: Path, saved_llama: Path
) -> None:
    with pytest.raises(DoesNotFitError, match=r"lower training.batch_size and raise"):
        probed_within(tmp_path, saved_llama, 1 << 20)


def probed_within(folder: Path, model: Path, limit_bytes: int) -> None:
    trainer = TrlTraining(configuration("dpo", folder, model), folder).make_trainer(is_new=True)

    class Probe(TrainerCallback):
        def on_train_begin(self, *_: object, **__: object) -> None:
            StepProbe(trainer, False, limit_bytes).costs(40)

    trainer.add_callback(Probe())
    trainer.train()


def test_containers_stay_the_same_objects() -> None:
    inner, lengths = [1], deque([2], maxlen=4)
    held: dict[str, Any] = {"metrics": {"loss": inner}, "lengths": lengths, "step": 1}
    restore = _contents(held, set())
    inner.append(5)
    lengths.extend((3, 4))
    held["metrics"]["more"] = []
    held["step"], held["new"] = 2, 3
    restore()
    assert held == {"metrics": {"loss": [1]}, "lengths": deque([2]), "step": 1}
    assert held["metrics"]["loss"] is inner
    assert held["lengths"] is lengths


def test_what_failed_in_between_leaves_nothing_either() -> None:
    model = torch.nn.Linear(2, 2)
    gradient_state = SimpleNamespace()
    trainer = SimpleNamespace(
        args=SimpleNamespace(device="cpu"),
        model=model,
        counts=[1],
        accelerator=SimpleNamespace(gradient_state=gradient_state),
    )

    def fails() -> None:
        with untouched(trainer):
            model(torch.ones(1, 2)).sum().backward()
            trainer.counts.append(2)
            raise ValueError("in between")

    with pytest.raises(ValueError, match="in between"):
        fails()
    assert trainer.counts == [1]
    assert model.weight.grad is None


def test_a_step_takes_as_long_as_all_of_its_micro_batches(
    tmp_path: Path, saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000, 3))  # each micro-batch, and the update, between two readings
    monkeypatch.setattr(StepProbe, "_now", lambda self: float(next(clock)))
    costs, _, _ = probed("dpo", tmp_path, saved_llama)
    assert costs.step_seconds == 2 * 3.0 + 3.0
