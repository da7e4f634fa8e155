"""What was taken of a training comes back, each value of it."""

import dataclasses
import json
import math
import random
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.core.errors import CheckpointError
from infrastructure.training.checkpoints.snapshot import (
    Snapshot,
    restore_progress,
    restore_snapshot,
    take_snapshot,
)
from infrastructure.training.core.metric_accumulator import MetricAccumulator
from infrastructure.training.core.state import Position, SkippedBatch, TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from tests.training.toy_training import Training

# What a training that goes on finds out or gets anew; each other field is in a checkpoint.
NOT_SAVED = {"grad_norm", "learning_rate", "rewards",
    "model", "optimizer", "phase", "total_steps", "data_wait_seconds", "num_processes", "batch",
    "output", "metrics", "checkpoint", "error", "must_save", "stop_reason", "is_interrupted",
    "stop_message", "stop_signal", "best_metric", "best_is_greater",
}  # fmt: skip


def values_of(state: TrainingState) -> dict[str, Any]:
    """The fields that a checkpoint holds."""
    names = [one.name for one in dataclasses.fields(state) if one.name not in NOT_SAVED]
    return {name: getattr(state, name) for name in names}


def remarkable(training: Training) -> TrainingState:
    """A state in which no saved field has the value that it begins with."""
    state = training.state
    state.position = Position(phase=1, epoch=2, example=7)
    state.step, state.step_is_ending, state.evaluated_step = 9, True, 8
    state.num_examples, state.num_tokens, state.micro_batch_size = 70, 700, 5
    state.evaluation = {"eval_loss": 1.5, "accuracy": 0.25}
    state.best_evaluation_loss, state.loss = 1.25, 2.5
    state.measured_on = "rows"
    state.skipped = [SkippedBatch(3, 0, 12, 6, "not_finite", ("a:1", "a:2"), True)]
    state.recoveries = [{"step": 3, "kind": "not_finite"}]
    return state


def through_json(snapshot: Snapshot) -> Snapshot:
    return Snapshot(snapshot.tensors, json.loads(json.dumps(snapshot.values, allow_nan=False)))


def test_every_saved_value_comes_back() -> None:
    training, again = Training(), Training()
    expected = values_of(remarkable(training))
    assert not [name for name, value in values_of(again.state).items() if value == expected[name]]
    restore_snapshot(
        through_json(take_snapshot(training.state, training.step)), again.state, again.step
    )
    assert values_of(again.state) == expected


def test_random_numbers_go_on_where_they_were() -> None:
    training = Training()
    snapshot = take_snapshot(training.state, training.step)
    snapshot = Snapshot(
        {name: {k: t.clone() for k, t in part.items()} for name, part in snapshot.tensors.items()},
        snapshot.values,
    )
    expected = torch.rand(3), random.random(), np.random.random_sample()
    restore_snapshot(snapshot, training.state, training.step)
    assert torch.equal(torch.rand(3), expected[0])
    assert (random.random(), np.random.random_sample()) == expected[1:]


class Memory(Observer):
    """Remembers one number."""

    def __init__(self, number: int = 0) -> None:
        self.number = number

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.number = saved["number"]


def test_what_hooks_and_the_loop_remember_comes_back() -> None:
    memory = Memory()
    training, again = Training(hooks=[Memory(7)]), Training(hooks=[memory])
    training.step.losses.sums = MetricAccumulator(torch.tensor(3.5), 4, num_steps=2)
    training.step.losses.watch.until_step = 11
    restore_snapshot(
        through_json(take_snapshot(training.state, training.step)), again.state, again.step
    )
    losses = again.step.losses
    assert memory.number == 7
    assert losses.sums == MetricAccumulator(3.5, 4, num_steps=2)
    assert losses.watch.until_step == 11


def test_what_is_no_number_comes_back_as_such() -> None:
    training, again = Training(), Training()
    state = remarkable(training)
    state.loss, state.best_evaluation_loss = math.nan, math.inf
    state.evaluation = {"eval_loss": math.inf}
    restore_snapshot(through_json(take_snapshot(state, training.step)), again.state, again.step)
    assert math.isnan(again.state.loss)
    assert again.state.best_evaluation_loss == math.inf
    assert math.isnan(again.state.evaluation["eval_loss"])


@pytest.mark.parametrize("part", ["scheduler", "scaler"])
@pytest.mark.parametrize("who", ["run", "checkpoint"])
def test_a_part_that_one_of_the_two_lacks_is_refused(part: str, who: str) -> None:
    saved, living = Training(), Training()
    if part == "scaler":
        has = (living if who == "checkpoint" else saved).step
        has.scaler = torch.amp.GradScaler("cpu")
    else:
        lacks = (saved if who == "checkpoint" else living).step
        lacks.scheduler = None
    snapshot = take_snapshot(saved.state, saved.step)
    has = "current=one, saved=none" if who == "checkpoint" else "current=none, saved=one"
    name = {"scheduler": "learning-rate schedule", "scaler": "gradient scaler"}[part]
    differs = rf"run\.checkpoint_component_differs\(component={name}, {has}\)"
    with pytest.raises(CheckpointError, match=differs):
        restore_snapshot(snapshot, living.state, living.step)


def test_an_optimizer_of_other_groups_is_refused() -> None:
    saved, living = Training(), Training()
    snapshot = take_snapshot(saved.state, saved.step)
    living.step.optimizer = torch.optim.AdamW(living.state.model.parameters())
    differs = r"run\.optimizer_differs_from_checkpoint\(error=loaded state dict"
    with pytest.raises(CheckpointError, match=differs):
        restore_snapshot(snapshot, living.state, living.step)


def test_a_snapshot_is_of_its_moment() -> None:
    training = Training()
    state = remarkable(training)
    state.evaluation["of https://me:hunter2@host"] = 1.0
    snapshot = take_snapshot(state, training.step)
    before = json.dumps(snapshot.values)
    state.recoveries.append({"step": 9})
    state.skipped.clear()
    state.position.example = 99
    state.evaluation["later"] = 2.0
    assert json.dumps(snapshot.values) == before
    assert "hunter2" not in before
    assert snapshot.tensors["random"]["step"].tolist() == [9]
    again = Training()
    restore_snapshot(through_json(snapshot), again.state, again.step)
    again.state.recoveries.append({"step": 10})
    assert json.dumps(snapshot.values) == before


def test_a_measure_of_other_rows_is_forgotten_and_older_checkpoints_hold_less() -> None:
    training, others = Training(), Training()
    values = take_snapshot(remarkable(training), training.step).values
    others.state.measured_on = "other rows"
    restore_progress(json.loads(json.dumps(values)), others.state)
    assert (others.state.evaluation, others.state.evaluated_step) == ({}, -1)
    assert (others.state.best_evaluation_loss, others.state.measured_on) == (math.inf, "other rows")
    older = Training().state
    for name in ("skipped", "recoveries", "measured_on"):
        del values[name]
    restore_progress(values, older)
    assert (older.skipped, older.recoveries, older.measured_on) == ([], [], None)
    assert older.evaluation == {"eval_loss": 1.5, "accuracy": 0.25}


def test_an_optimizer_without_a_memory_and_the_form_of_the_model_come_back() -> None:
    """Layers take the form that they had before the weights are loaded into them."""
    saved, again = Training(), Training()
    for training in (saved, again):
        training.step.optimizer = torch.optim.SGD(training.state.model.parameters(), lr=0.5)
        training.step.scheduler = None
    saved.step.optimizer.param_groups[0]["lr"] = 0.25
    snapshot = take_snapshot(saved.state, saved.step)
    weight = next(again.state.model.parameters())
    expected = next(saved.state.model.parameters()).detach().clone()
    torch.nn.init.zeros_(weight)
    formed: list[Any] = []

    def take_form(model: torch.nn.Module, loop: Any) -> None:
        formed.append((model, loop, weight.detach().abs().sum().item()))

    again.step.take_form = take_form  # type: ignore[method-assign]
    del snapshot.tensors["optimizer"]
    restore_snapshot(snapshot, again.state, again.step)
    assert formed == [(again.state.model, snapshot.values["loop"], 0.0)]
    assert torch.equal(weight, expected)
    assert again.step.optimizer.param_groups[0]["lr"] == 0.25
