"""What of a Trainer's training travels in a checkpoint, and what comes back."""

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import TrainerState

from infrastructure.core.errors import CheckpointError
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.checkpoints.snapshot import Snapshot
from infrastructure.training.core.state import Position, TrainingState
from infrastructure.training.extensions.extension_hooks import HookRunner, Observer
from infrastructure.training.hf_bridge.carried_state import CarriedState
from infrastructure.training.hf_bridge.trainer_state import (
    ModelFiles,
    TrainerParts,
    TrainerSnapshots,
    _adapter_config,
    has_finite_weights,
    read_version,
    restore_counts,
    restore_model,
    restore_optimizer,
    trainer_state_of,
)
from tests.training.hf_bridge.tiny_trainer import tiny_lora, tiny_model

CPU = torch.device("cpu")


def args_of(**changed: Any) -> Any:
    args = {
        "load_best_model_at_end": False,
        "save_strategy": "SaveStrategy.STEPS",
        "push_to_hub": False,
        "restore_callback_states_from_checkpoint": False,
        "device": "cpu",
        "train_batch_size": 3,
        "gradient_accumulation_steps": 5,
    }
    return SimpleNamespace(**{**args, **changed})


def parts_of(model: Any, **changed: Any) -> TrainerParts:
    """Of a Trainer that has done one step of AdamW, on its way to the ninth."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.5)
    for number, parameter in enumerate(trained, 1):
        parameter.grad = torch.full_like(parameter, float(number))
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.25)
    state = TrainerState(global_step=7, max_steps=9, best_metric=math.inf)
    return TrainerParts(args_of(**changed), state, model, optimizer, scheduler)


class Counting(Observer):
    def __init__(self, count: int) -> None:
        self.count = count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}


def snapshots_of(parts: TrainerParts, **more: Any) -> TrainerSnapshots:
    state = TrainingState(parts.model, parts.optimizer, Position(0, 2, 15), step=7)
    state.total_steps, state.num_examples, state.num_tokens = 9, 105, 1234
    state.best_evaluation_loss, state.measured_on = 1.5, "these rows"
    state.recoveries = [{"kind": "save_refused"}]
    carried = CarriedState(None, None, CPU)
    files = ModelFiles.of(parts.model)
    hooks = HookRunner([Counting(4)])
    return TrainerSnapshots(parts, files, {"a": "fact"}, carried, state, hooks, **more)


def test_a_lora_s_configuration_is_written_as_json_can_hold_it() -> None:
    written = _adapter_config(LoraConfig(r=3, target_modules={"q_proj"}))
    assert (written["r"], written["target_modules"]) == (3, ["q_proj"])


@pytest.mark.parametrize(
    ("changed", "needs"),
    [
        ({}, False),
        ({"load_best_model_at_end": True}, True),
        ({"save_strategy": "SaveStrategy.BEST"}, True),
        ({"push_to_hub": True}, True),
        ({"restore_callback_states_from_checkpoint": True}, False),
    ],
)
def test_a_trainer_needs_folders_of_its_own_where_it_reads_them(
    changed: dict[str, Any], needs: bool
) -> None:
    assert parts_of(torch.nn.Linear(1, 1), **changed).needs_own_checkpoints is needs


def test_a_step_s_examples_and_the_device_are_those_of_the_trainer() -> None:
    parts = parts_of(torch.nn.Linear(1, 1))
    assert (parts.global_batch_size, parts.device, parts.scaler) == (15, CPU, None)
    parts.state.train_batch_size = 2  # after auto_find_batch_size
    assert parts.global_batch_size == 10
    scaler = object()
    parts.optimizer = SimpleNamespace(scaler=scaler)  # type: ignore[assignment]
    assert parts.scaler is scaler  # type: ignore[comparison-overlap]


def test_a_version_holds_all_of_the_training_and_gives_it_back(tmp_path: Path) -> None:
    model = tiny_model(0.0)
    parts = parts_of(model)
    history: Any = [{"step": 2, "changes": []}]
    snapshots = snapshots_of(parts, settings={"learning_rate": 0.5}, history=history)
    parts.optimizer.scaler = SimpleNamespace(state_dict=lambda: {"scale": 8.0})  # type: ignore[attr-defined]
    torch.rand(5)  # so that making the model again does not give the random state again
    manager = CheckpointManager(tmp_path)
    version = manager.save(snapshots.take(is_finished=False))
    drawn = torch.rand(3)
    read = read_version(version)

    assert trainer_state_of(read) == dataclasses.asdict(parts.state)
    assert read.values["identity"] == {"settings": {"learning_rate": 0.5}}
    assert (read.values["facts"], read.values["finished"]) == ({"a": "fact"}, None)
    assert read.values["position"] == {"phase": 0, "epoch": 2, "example": 15}
    assert read.values["history"] == history
    assert read.values["scheduler"]["step_size"] == 3
    assert read.values["scaler"] == {"scale": 8.0}
    assert json.dumps(read.values["hooks"]).count('"count": 4') == 1

    again, state = parts_of(tiny_model(0.0)), TrainingState(model)
    restore_model(again.model, read)
    same = zip(model.parameters(), again.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in same)
    again.optimizer.param_groups[0]["lr"] = 9.0
    restore_optimizer(again, read)
    assert again.optimizer.param_groups[0]["lr"] == 0.5
    for one, other in zip(model.parameters(), again.model.parameters(), strict=True):
        was, now = parts.optimizer.state[one], again.optimizer.state[other]
        assert torch.equal(was["exp_avg"], now["exp_avg"])
        assert was["exp_avg"].abs().sum() > 0
    assert torch.equal(torch.rand(3), drawn), "the random state is the one that was saved"
    restore_counts(state, read.values)
    assert (state.num_examples, state.num_tokens) == (105, 1234)
    assert (state.best_evaluation_loss, state.measured_on) == (1.5, "these rows")
    assert state.recoveries == [{"kind": "save_refused"}]


def test_the_best_model_travels_with_each_version(tmp_path: Path) -> None:
    parts = parts_of(torch.nn.Linear(1, 1))
    manager = CheckpointManager(tmp_path / "versions")
    assert "best" not in read_version(manager.save(snapshots_of(parts).take(False))).tensors
    folder = tmp_path / "checkpoint-3"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"\x01\x02")
    parts.state.best_model_checkpoint = str(folder)
    best = read_version(manager.save(snapshots_of(parts).take(False))).tensors["best"]
    assert {name: content.tolist() for name, content in best.items()} == {
        "model.safetensors": [1, 2]
    }


def test_states_of_callbacks_are_those_of_this_moment() -> None:
    class Patient:
        count = 0

        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": {"count": self.count}}

        @classmethod
        def from_state(cls, state: object) -> None: ...

    callback = Patient()
    handler = SimpleNamespace(callbacks=[callback])
    trainer: Any = type("Trainer", (), {})()
    trainer.callback_handler, trainer.control = handler, Patient()
    parts = parts_of(torch.nn.Linear(1, 1))
    snapshots = snapshots_of(parts)
    carried = CarriedState(trainer, None, CPU)
    snapshots = dataclasses.replace(snapshots, carried=carried)
    callback.count = 2
    states = trainer_state_of(snapshots.take(is_finished=False))["stateful_callbacks"]
    assert states["Patient"][0]["attributes"] == {"count": 2}
    assert parts.state.stateful_callbacks == {}, "the Trainer's own is left alone"


def test_a_finished_version_knows_after_how_many_steps(tmp_path: Path) -> None:
    snapshots = snapshots_of(parts_of(torch.nn.Linear(1, 1)))
    snapshots.state.best_evaluation_loss = math.inf
    values = snapshots.take(is_finished=True).values
    assert values["finished"] == 9
    assert "identity" not in values
    del values["measured_on"]  # as in older checkpoints
    state = TrainingState(torch.nn.Linear(1, 1), best_evaluation_loss=3.0)
    restore_counts(state, values)
    assert state.best_evaluation_loss == math.inf, "nothing was measured"
    assert state.measured_on is None
    state.recoveries.append({})
    assert values["recoveries"] == [{"kind": "save_refused"}], "a list of its own"


def test_an_optimizer_that_remembers_nothing_comes_back_with_its_settings() -> None:
    model = torch.nn.Linear(1, 1)
    parts = parts_of(model)
    parts.optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    snapshot = snapshots_of(parts).take(is_finished=False)
    assert snapshot.tensors.pop("optimizer") == {}
    assert snapshot.tensors["random"]["step"].tolist() == [7]
    parts.optimizer.param_groups[0]["lr"] = 9.0
    restore_optimizer(parts, snapshot)
    assert parts.optimizer.param_groups[0]["lr"] == 0.25


def test_a_lora_is_described_by_the_names_that_its_files_have() -> None:
    model = tiny_lora()
    files = ModelFiles.of(model)
    assert files.adapters is not None
    (described,) = files.adapters.values()
    assert list(files.adapters) == ["default"]
    assert described["config"]["r"] == 2
    own = dict(model.named_parameters())
    assert {*described["names"].values()} == {n for n, p in own.items() if p.requires_grad}
    for in_file, name in described["names"].items():
        assert name.replace(".default", "").replace(".modules_to_save", "") == in_file
    assert files.tied == {}
    assert json.loads(files.config or "")["n_embd"] == 16


def lora(rank: int) -> LoraConfig:
    return LoraConfig(r=rank, target_modules=["c_attn"], fan_in_fan_out=True)


def test_adapters_of_several_names_stay_apart() -> None:
    model = get_peft_model(tiny_model(), lora(2))
    model.add_adapter("second", lora(3))
    model.set_adapter("second")
    adapters = ModelFiles.of(model).adapters
    assert adapters is not None
    assert [one["config"]["r"] for one in adapters.values()] == [2, 3]
    for name, adapter in adapters.items():  # one of them is frozen, as a reference is
        assert adapter["names"]
        assert all(f".{name}." in weight for weight in adapter["names"].values())


def test_tied_weights_are_kept_once_and_known_by_both_names() -> None:
    files = ModelFiles.of(tiny_model())
    assert files.tied == {"lm_head.weight": "transformer.wte.weight"}
    assert files.adapters is None
    plain = ModelFiles.of(torch.nn.Linear(2, 2))
    assert (plain.config, plain.adapters, plain.tied) == (None, None, {})


def test_what_another_program_wrote_is_refused(tmp_path: Path) -> None:
    snapshot = snapshots_of(parts_of(torch.nn.Linear(1, 1))).take(is_finished=False)
    without = {name: value for name, value in snapshot.values.items() if name != "writer"}
    for values in ({**without, "writer": "another"}, without):  # Temper's own loop names none
        other = CheckpointManager(tmp_path).save(Snapshot(snapshot.tensors, values))
        with pytest.raises(CheckpointError) as raised:
            read_version(other)
        assert str(raised.value) == f"trainer.foreign_checkpoint(checkpoint={other})"


@pytest.mark.parametrize(
    ("tensors", "is_finite"),
    [
        ({"a": torch.ones(2), "b": torch.ones(2)}, True),
        ({"a": torch.ones(2), "b": torch.tensor([1.0, math.nan])}, False),
        ({"a": torch.tensor([math.inf]), "b": torch.ones(2)}, False),
        ({"a": torch.ones(2, dtype=torch.int64)}, True),
    ],
)
def test_every_weight_must_be_a_number(tensors: dict[str, torch.Tensor], is_finite: bool) -> None:
    assert has_finite_weights(Snapshot({"model": tensors}, {})) is is_finite
