"""Back to the newest checkpoint that is good, in the same process."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.backup.format.manifest import SaveKind
from infrastructure.core.errors import CheckpointError
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.run.history import HISTORY
from infrastructure.training.checkpoints.checkpoint_manager import load_checkpoint
from infrastructure.training.checkpoints.snapshot import Snapshot, take_snapshot
from infrastructure.training.core.state import TrainingState
from infrastructure.training.distributed.group import Group
from infrastructure.training.extensions.extension_hooks import Extension
from infrastructure.training.loop import checkpointer as module
from tests.training.toy_training import Training


def save(training: Training, step: int, healthy: bool = True) -> Path:
    """A checkpoint whose weights are all its step."""
    training.state.step = step
    with torch.no_grad():
        for parameter in training.state.model.parameters():
            parameter.fill_(step)
    snapshot = take_snapshot(training.state, training.step)
    return training.checkpoints.save(snapshot, healthy=healthy)


def weights_after(training: Training) -> set[float]:
    return {*training.weights.tolist()}


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path)


def test_the_newest_serves(training: Training) -> None:
    save(training, 1)
    newest = save(training, 2)
    training.state.step = 3
    assert training.checkpointer.roll_back(training.state) == newest
    assert (training.state.step, weights_after(training)) == (2, {2.0})


def test_of_this_very_step_too(training: Training) -> None:
    newest = save(training, 2)
    assert training.checkpointer.roll_back(training.state) == newest


def test_what_is_damaged_later_or_evidence_is_passed_over(
    training: Training, caplog: pytest.LogCaptureFixture
) -> None:
    good = save(training, 1)
    damaged = save(training, 2)
    save(training, 3, healthy=False)
    save(training, 9)
    damaged.write_bytes(b"?")
    training.state.step = 5
    assert training.checkpointer.roll_back(training.state) == good
    assert weights_after(training) == {1.0}
    passed_over = f"checkpoint_not_rolled_back_to(checkpoint={damaged.stem[:12]}, error="
    assert f"training.{passed_over}" in caplog.text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("is_spread", [False, True])
def test_weights_that_are_no_numbers_are_no_way_to_go_on(
    training: Training,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    value: float,
    is_spread: bool,
) -> None:
    monkeypatch.setattr(module, "is_sharded", lambda _: is_spread)
    monkeypatch.setattr(module, "load_together", lambda _, found, *__: load_checkpoint(found))
    monkeypatch.setattr(training.checkpoints, "fetch_parts", lambda _: None)
    save(training, 1)
    good = save(training, 2)
    with torch.no_grad():
        training.state.model.head.weight[0, 0] = value
    training.state.step = 3
    training.checkpoints.save(take_snapshot(training.state, training.step))
    assert training.checkpointer.roll_back(training.state) == good
    assert "error=training.tensor_not_finite(name=head.weight))" in caplog.text


def test_a_buffer_may_be_infinite_and_whole_numbers_are_numbers(training: Training) -> None:
    training.state.model.register_buffer("mask", torch.tensor([float("-inf")]))
    training.state.model.register_buffer("count", torch.tensor([7]))
    newest = save(training, 2)
    assert training.checkpointer.roll_back(training.state) == newest


def test_without_a_good_one_the_state_stays(training: Training) -> None:
    save(training, 2, healthy=False)
    training.state.step = 3
    folder = training.checkpoints.store.root
    with pytest.raises(CheckpointError, match=rf"no_checkpoint_to_roll_back_to\(root={folder}\)"):
        training.checkpointer.roll_back(training.state)
    assert (training.state.step, weights_after(training)) == (3, {2.0})


@pytest.mark.parametrize("can_be_had", [True, False])
def test_parts_of_other_machines_are_here_before_all_ranks_go_back(
    training: Training, monkeypatch: pytest.MonkeyPatch, can_be_had: bool
) -> None:
    steps: list[str] = []

    def fetch(checkpoint: Path) -> None:
        steps.append(f"fetch {step_of(checkpoint)}")
        if not can_be_had and step_of(checkpoint) == 2:
            raise CheckpointError("the place does not answer")

    def load(_: object, checkpoint: Path, *__: object) -> Snapshot:
        steps.append(f"load {step_of(checkpoint)}")
        return load_checkpoint(checkpoint)

    save(training, 1)
    save(training, 2)
    monkeypatch.setattr(module, "is_sharded", lambda _: True)
    monkeypatch.setattr(module, "load_together", load)
    monkeypatch.setattr(training.checkpoints, "fetch_parts", fetch)
    training.checkpointer.roll_back(training.state)
    assert steps == ["fetch 2", *(["load 2"] if can_be_had else ["fetch 1", "load 1"])]


def test_a_version_of_a_spread_model_has_its_kind_and_its_score(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[tuple[object, dict[str, object]]] = []
    monkeypatch.setattr(module, "is_sharded", lambda _: True)
    monkeypatch.setattr(
        module,
        "save_together",
        lambda _, manager, snapshot, model, **facts: saved.append((manager, facts)),
    )
    state = training.state
    state.evaluation, state.evaluated_step = {"eval_loss": 0.5}, state.step
    training.checkpointer.save(state, SaveKind.STOPPED)
    assert saved == [(training.checkpoints, {"kind": SaveKind.STOPPED, "score": 0.5})]
    training.checkpointer.manager = None  # and nothing is saved by any rank
    training.checkpointer.save(state, SaveKind.STOPPED)
    assert len(saved) == 1


@pytest.mark.parametrize("others_wait", [True, False])
def test_a_spread_model_is_rescued_where_the_others_take_part(
    training: Training, monkeypatch: pytest.MonkeyPatch, others_wait: bool
) -> None:
    """They get the kind of the checkpoint instead of a decision."""
    events: list[object] = []

    class Sending(Group):
        def decide(self, make: Callable[[], Any]) -> Any:
            events.append(made := make())
            return made

    saver = training.checkpointer
    monkeypatch.setattr(module, "is_sharded", lambda _: True)
    monkeypatch.setattr(saver, "begin", lambda state, kind: events.append(kind))
    monkeypatch.setattr(saver, "announce", lambda state, wait: events.append(("announce", wait)))
    training.step.group, saver.others_wait = Sending(), others_wait
    saver.rescue(training.state, SaveKind.EMERGENCY)
    whole = [{"last": "emergency"}, SaveKind.EMERGENCY, ("announce", True)]
    assert events == (whole if others_wait else [])
    events.clear()
    saver.rescue_with_first(training.state, {"saves": False})
    assert events == []
    saver.rescue_with_first(training.state, {"last": "stopped"})
    assert events == [SaveKind.STOPPED, {}]


def test_a_save_on_request_and_a_bad_state_have_their_kinds(training: Training) -> None:
    state, saver, store = training.state, training.checkpointer, training.checkpoints.store
    state.evaluation, state.evaluated_step = {"eval_loss": 0.5}, state.step
    saver.save_now(state)
    saver.keep_evidence(state)
    saved = [store.read(name) for name in reversed(store.versions())]
    kinds = [(manifest.kind, manifest.score, manifest.healthy) for manifest in saved]
    assert kinds == [("manual", 0.5, True), ("emergency", None, False)]


def test_only_rank_0_saves_what_the_result_depends_on_and_the_history(training: Training) -> None:
    saver, group = training.checkpointer, Group()
    saver.identity, saver.history = (lambda: {"seed": 7}), ({"step": 3},)  # type: ignore[assignment]
    training.step.group = group
    values = saver.snapshot(training.state).values
    assert (values["identity"], values[HISTORY]) == ({"seed": 7}, [{"step": 3}])
    group.rank = 1
    assert saver.snapshot(training.state).values.keys() == values.keys() - {"identity", HISTORY}


def test_without_a_folder_nothing_is_saved_and_the_reason_is_given() -> None:
    training = Training()
    with pytest.raises(ValueError, match=r"training\.no_checkpoint_directory"):
        training.checkpointer.save_now(training.state)


class Decision(Extension):
    """Holds what it has decided."""

    choice = 0

    def state_dict(self) -> dict[str, object]:
        return {"choice": self.choice}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.choice = state["choice"]


def test_what_was_decided_just_now_is_in_the_checkpoint(tmp_path: Path) -> None:
    """Whoever goes on after a kill must do the same."""
    decision = Decision()
    training = Training(tmp_path, hooks=[decision])
    training.step.mark_safe(training.state)
    decision.choice = 7
    training.checkpointer.save_decision(training.state)
    training.checkpointer.announce(training.state, wait=True)
    decision.choice = 0
    training.checkpointer.roll_back(training.state)
    assert decision.choice == 7


def test_a_buffer_of_a_compiled_model_may_be_infinite_too(training: Training) -> None:
    model = training.state.model
    model.register_buffer("mask", torch.tensor([float("-inf")]))
    newest = save(training, 2)
    training.state.model = torch.compile(model, backend="eager")
    assert training.checkpointer.roll_back(training.state) == newest


class Late(Extension):
    """Is added to a training that is made already, and remembers nothing at first."""

    num_steps = 0

    def step_end(self, state: TrainingState) -> None:
        self.num_steps += 1

    def state_dict(self) -> dict[str, object]:
        return {"num_steps": self.num_steps} if self.num_steps else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.num_steps = state.get("num_steps", 0)


def test_a_hook_that_came_later_goes_back_to_what_it_began_with(tmp_path: Path) -> None:
    training, late = Training(tmp_path, num_epochs=1), Late()
    training.loop.hooks.hooks.insert(0, late)
    training.adapter.poison_example = next(training.source.train_batches(0, 12, 6))[2]
    training.run()
    assert [batch.step for batch in training.state.skipped] == [3]
    assert late.num_steps == 4
