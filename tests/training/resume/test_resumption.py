"""An accepted change takes effect, and the training still ends where it should."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.errors import CheckpointError
from infrastructure.models.trainable_state import trainable_state
from infrastructure.run.checkpoint_paths import by_step
from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    load_checkpoint,
    load_values,
)
from infrastructure.training.checkpoints.snapshot import Snapshot
from infrastructure.training.core.state import Phase, Position, TrainingState
from infrastructure.training.distributed.group import ALONE
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.resume.resumption import (
    Resumption,
    apply_hyperparameters,
    forget_optimizer,
    hyperparameters,
    move_position,
    resumed_total_steps,
    steps_left,
)


class Steps(Observer):
    """Learning rate, position and batch of each step."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.positions: list[Position] = []
        self.num_rows: list[int] = []

    def step_start(self, state: TrainingState) -> None:
        assert state.optimizer is not None
        self.rates.append(state.optimizer.param_groups[0]["lr"])
        self.positions.append(Position(**vars(state.position)))
        self.num_rows.append(len(state.batch))


def write_rows(path: Path, numbers: range) -> None:
    rows = [{"prompt": f"Reverse {n}", "completion": str(n)[::-1]} for n in numbers]
    path.write_text("\n".join(map(json.dumps, rows)))


class Training:
    """12 rows, 4 a step, 3 epochs: 9 steps."""

    def __init__(self, model: Path, folder: Path, **settings: Any) -> None:
        data = folder / "rows.jsonl"
        if not data.exists():
            write_rows(data, range(100, 112))
        values = {
            **{"batch_size": 4, "num_epochs": 3, "learning_rate": 1e-3, "warmup_steps": 0},
            **{"scheduler_type": "linear", "checkpoint_frequency": 1, "keep_checkpoints": 99},
        }
        self.steps = Steps()
        self.trainer = EnhancedTrainer(
            ModelConfig(name=str(model)),
            TrainingConfig(**{**values, **settings}),
            DataConfig(path=str(data), max_length=64, validation_split=0, num_workers=0),
            device="cpu",
            cache_config=CacheConfig(directory=str(folder / "cache")),
            checkpoint_directory=folder / "checkpoints",
            hooks=[self.steps],
        )

    def go_on(self, folder: Path, step: int, accept: list[str]) -> "Training":
        checkpoint = by_step(CheckpointManager(folder / "checkpoints").store)[step]
        self.trainer.restore(checkpoint, accept)
        self.trainer.train()
        return self


@pytest.fixture(scope="module")
def finished(saved_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Steps]:
    folder = tmp_path_factory.mktemp("finished")
    training = Training(saved_llama, folder)
    training.trainer.train()
    assert len(training.steps.rates) == 9
    return folder, training.steps


@pytest.fixture
def begun(finished: tuple[Path, Steps], tmp_path: Path) -> Iterator[Path]:
    """A run that each test resumes in its own way, always in the same folder."""
    folder, _ = finished
    shutil.copytree(folder, tmp_path / "kept")
    yield folder
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "kept", folder)


def test_another_rate_and_decay_hold_from_the_next_step_on(
    begun: Path, saved_llama: Path, finished: tuple[Path, Steps]
) -> None:
    faster = Training(saved_llama, begun, learning_rate=2e-3, weight_decay=0.5)
    faster.go_on(begun, 4, ["learning_rate", "weight_decay"])
    assert faster.steps.rates == pytest.approx([2 * rate for rate in finished[1].rates[4:]])
    group = faster.trainer.prepare().loop.optimizer_step.optimizer.param_groups[0]
    assert group["weight_decay"] == 0.5


def test_the_change_lives_on_in_the_checkpoints_after_it(begun: Path, saved_llama: Path) -> None:
    Training(saved_llama, begun, learning_rate=2e-3).go_on(begun, 4, ["learning_rate"])
    again = Training(saved_llama, begun, learning_rate=2e-3).go_on(begun, 6, [])
    assert again.steps.rates[0] == pytest.approx(2e-3 * 3 / 9)
    with pytest.raises(
        CheckpointError,
        match=r"run\.changed_since_checkpoint\(changes=.*learning_rate.*0\.002.*0\.001",
    ):
        Training(saved_llama, begun).go_on(begun, 6, [])


def test_with_other_data_the_epoch_begins_again_and_all_of_it_is_seen(
    begun: Path, saved_llama: Path
) -> None:
    write_rows(begun / "rows.jsonl", range(200, 220))  # 20 rows: 5 steps an epoch
    changed = Training(saved_llama, begun).go_on(begun, 4, ["data"])
    positions = [(p.epoch, p.example) for p in changed.steps.positions]
    assert positions == [(epoch, 4 * step) for epoch in (1, 2) for step in range(5)]
    assert changed.trainer.state.step == 4 + 10
    assert changed.steps.rates[-1] == pytest.approx(1e-3 * 1 / 14)


def test_at_the_end_of_an_epoch_other_data_begins_with_the_next(
    begun: Path, saved_llama: Path
) -> None:
    write_rows(begun / "rows.jsonl", range(200, 220))
    changed = Training(saved_llama, begun).go_on(begun, 3, ["data"])
    assert changed.steps.positions[0].epoch == 1
    assert len(changed.steps.rates) == 10


def test_a_larger_batch_goes_on_at_the_same_row(begun: Path, saved_llama: Path) -> None:
    changed = Training(saved_llama, begun, batch_size=8).go_on(begun, 4, ["batch_size"])
    assert changed.steps.num_rows == [8, 8, 4]
    assert changed.steps.positions[0] == Position(0, 1, 4)
    assert changed.trainer.state.micro_batch_size == 8
    assert changed.trainer.state.step == 7


def test_a_finished_training_goes_on_with_more_epochs(begun: Path, saved_llama: Path) -> None:
    longer = Training(saved_llama, begun, num_epochs=4).go_on(begun, 9, ["num_epochs"])
    assert [p.epoch for p in longer.steps.positions] == [3, 3, 3]
    assert longer.steps.rates[0] > 0


def test_fewer_epochs_than_are_done_end_at_once(begun: Path, saved_llama: Path) -> None:
    shorter = Training(saved_llama, begun, num_epochs=1).go_on(begun, 5, ["num_epochs"])
    assert shorter.steps.rates == []


def test_another_optimizer_begins_without_a_memory(begun: Path, saved_llama: Path) -> None:
    changed = Training(saved_llama, begun, optimizer="sgd").go_on(begun, 4, ["optimizer"])
    optimizer = changed.trainer.prepare().loop.optimizer_step.optimizer
    assert isinstance(optimizer, torch.optim.SGD)
    assert changed.steps.rates[0] == pytest.approx(1e-3 * 5 / 9)


@pytest.mark.parametrize(
    ("example", "accepted", "expected"),
    [
        (8, ["data"], (1, 0)),  # the epoch begins again
        (12, ["data"], (2, 0)),  # its last row was trained on
        (13, ["data"], (2, 0)),
        (0, ["data"], (1, 0)),
        (8, ["seed"], (1, 8)),
        (12, [], (1, 12)),
    ],
)
def test_other_data_moves_the_position_to_the_beginning_of_an_epoch(
    example: int, accepted: list[str], expected: tuple[int, int]
) -> None:
    position = {"phase": 7, "epoch": 1, "example": example}
    values = {"position": position, "identity": {"num_examples": 12}, "skipped": [3]}
    phases = [Phase("a", num_epochs=1), Phase("b", num_epochs=1), Phase("c", num_epochs=1)]
    move_position(values, accepted, phases)
    assert (position["epoch"], position["example"]) == expected
    assert values["skipped"] == ([] if "data" in accepted else [3])
    assert position["phase"] == position["epoch"], "each phase has one epoch"


@pytest.mark.parametrize(
    ("epoch", "example", "steps"),
    [
        (0, 0, 9),
        (0, 8, 7),
        (0, 9, 7),
        (1, 0, 6),
        (2, 4, 2),
        (2, 12, 0),
        (2, 11, 1),
        (3, 0, 0),
        (5, 4, 0),
    ],
)
def test_what_is_left_are_the_steps_to_the_end_of_the_last_epoch(
    epoch: int, example: int, steps: int
) -> None:
    """Of 12 rows by 5, in epochs of three steps."""
    values = {"position": {"epoch": epoch, "example": example}}
    phases = [Phase("a", num_epochs=2), Phase("b", num_epochs=1)]
    assert steps_left(values, 12, 5, phases) == steps


@pytest.mark.parametrize(
    ("planned_steps", "max_steps", "total"),
    [
        (9, None, 70),  # as before: whatever the checkpoint says
        (9, 60, 70),
        (12, None, 50 + 5),  # two more steps in this epoch, and one epoch of three
        (12, 55, 55),
        (12, 54, 54),
        (12, 99, 55),
    ],
)
def test_a_training_whose_plan_has_changed_ends_after_the_epochs_that_are_left(
    planned_steps: int, max_steps: int | None, total: int
) -> None:
    loop: Any = SimpleNamespace(
        data=SimpleNamespace(num_examples=12),
        global_batch_size=5,
        phases=[Phase("a", num_epochs=2), Phase("b", num_epochs=1)],
        config=SimpleNamespace(max_steps=max_steps),
    )
    was = {"planned_steps": 9, "total_steps": 70}
    values = {"step": 50, "position": {"epoch": 1, "example": 4}}
    assert resumed_total_steps(was, values, loop, planned_steps) == total


def test_an_optimizer_that_is_forgotten_is_as_the_new_one() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    old = {"0.exp_avg": torch.ones(2)}
    snapshot = Snapshot({"model": {"w": weight}, "optimizer": old}, {"optimizer": 1, "step": 4})
    forget_optimizer(snapshot, torch.optim.SGD([weight], lr=0.25))
    assert snapshot.tensors == {"model": {"w": weight}, "optimizer": {}}
    assert snapshot.values["optimizer"]["param_groups"][0]["lr"] == 0.25
    assert snapshot.values["step"] == 4


def test_settings_of_groups_are_set_with_the_rate_of_this_step() -> None:
    layers = [torch.nn.Linear(1, 1) for _ in range(2)]
    groups = [{"params": layer.parameters(), "lr": 1.0} for layer in layers]
    optimizer = torch.optim.AdamW(groups)
    scheduler = LambdaLR(optimizer, [lambda step: 1 / (1 + step), lambda step: 0.5])
    scheduler.last_epoch = 3
    wanted = hyperparameters(optimizer)
    assert all("params" not in group for group in wanted)
    for group, rate in zip(wanted, (8.0, 6.0), strict=True):
        group |= {"initial_lr": rate, "weight_decay": rate / 2}
    apply_hyperparameters(optimizer, scheduler, wanted)
    assert (
        [group["lr"] for group in optimizer.param_groups] == scheduler.get_last_lr() == [2.0, 3.0]
    )
    assert [group["weight_decay"] for group in optimizer.param_groups] == [4.0, 3.0]
    assert scheduler.base_lrs == [8.0, 6.0]
    apply_hyperparameters(optimizer, None, [{"lr": 5.0}, {"lr": 7.0}])
    assert [group["lr"] for group in optimizer.param_groups] == [5.0, 7.0]


def resumption_of(folder: Path, model: Path, step: int) -> Resumption:
    """With the values of a checkpoint of the same run, in a session of its own."""
    checkpoint = by_step(CheckpointManager(folder / "checkpoints").store)[step]
    snapshot, session = load_values(checkpoint), Training(model, folder).trainer.prepare()
    return Resumption(session, checkpoint, snapshot, snapshot.values["identity"], [])


def is_restored(resumption: Resumption) -> bool:
    saved = load_checkpoint(resumption.checkpoint).tensors["model"]
    now = trainable_state(resumption.session.state.model)
    return all(torch.equal(saved[name], tensor) for name, tensor in now.items())


def test_ranks_restore_the_progress_first_and_their_parts_later(
    begun: Path, saved_llama: Path
) -> None:
    resumption = resumption_of(begun, saved_llama, 4)
    resumption.restore_progress()
    state = resumption.session.state
    assert (state.step, state.checkpoint) == (4, resumption.checkpoint)
    assert not is_restored(resumption)
    resumption.restore_part(ALONE)
    assert is_restored(resumption)


@pytest.mark.parametrize(("step", "is_saved"), [(4, False), (9, True)])
def test_the_newest_checkpoint_is_not_saved_again(
    step: int, is_saved: bool, begun: Path, saved_llama: Path
) -> None:
    resumption = resumption_of(begun, saved_llama, step)
    resumption.restore()
    assert is_restored(resumption)
    assert resumption.session.loop.checkpointer.start_is_saved == is_saved
