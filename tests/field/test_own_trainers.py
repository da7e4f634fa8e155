"""S4, S5, S6, F10, P6: what a person's Trainer keeps through a kill, a Stop, a worn notebook."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import temper
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.hf_bridge import TemperCallback
from infrastructure.training.trainer_factory import TrainerFactory
from tests.faults.kill_storm import in_child
from tests.slow import slow_but
from tests.training.hf_bridge.own_trainers import NAME, callback_of, trained
from tests.training.hf_bridge.tiny_trainer import settings, stop_passes, trainer_of, weights


class At(Observer):
    """Send this process a signal in a step."""

    def __init__(self, step: int, number: signal.Signals = signal.SIGKILL) -> None:
        self.step, self.number = step, number

    def after_backward(self, state: TrainingState) -> None:
        if state.step == self.step:
            os.kill(os.getpid(), self.number)


def killed(kind: str, folder: Path, *steps: int, place: Path | None = None) -> None:
    for step in steps:
        train = partial(trained, kind, folder, callback_of(folder, place, hooks=[At(step)]))
        assert os.waitpid(in_child(train), 0)[1] == signal.SIGKILL


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    known: dict[str, dict[str, Any]] = {}

    def result_of(kind: str) -> dict[str, Any]:
        if kind not in known:
            known[kind] = trained(kind, tmp_path_factory.mktemp(kind), None)
        return known[kind]

    return result_of


def summary_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "runs" / NAME / "summary.json").read_text()))


def test_s4_the_mean_loss_and_the_log_are_those_of_the_whole_run(
    tmp_path: Path, undisturbed: Callable[[str], dict[str, Any]]
) -> None:
    expected = undisturbed("adapter")  # saved after each step, and logged after each fourth
    killed("adapter", tmp_path, 3, 6)
    result = trained("adapter", tmp_path, callback_of(tmp_path))
    assert result["train_loss"] == expected["train_loss"]
    assert result["log"] == expected["log"]
    assert result["steps"] == expected["steps"]
    seconds = summary_of(tmp_path)["seconds"]
    again = trained("adapter", tmp_path, callback_of(tmp_path))
    assert (again["train_loss"], again["log"]) == (expected["train_loss"], expected["log"])
    assert summary_of(tmp_path)["seconds"] == seconds


def test_s5_patience_goes_on_where_it_was(
    tmp_path: Path, undisturbed: Callable[[str], dict[str, Any]]
) -> None:
    expected = undisturbed("early")
    last, best = expected["steps"][0], expected["best"][1]
    assert best + 4 < last < 36, "patience ended it, evaluations after the best one"
    killed("early", tmp_path, last - 1)
    result = trained("early", tmp_path, callback_of(tmp_path))
    assert result["steps"] == expected["steps"]
    assert result["best"] == expected["best"]
    assert result["log"] == expected["log"]
    assert all(torch.equal(result["weights"][n], w) for n, w in expected["weights"].items())


@pytest.mark.parametrize("kind", slow_but(["adapter"], ["early", "adapter"]))
def test_s6_the_best_model_comes_back_from_the_place_alone(
    tmp_path: Path, kind: str, undisturbed: Callable[[str], dict[str, Any]]
) -> None:
    expected, place = undisturbed(kind), tmp_path / "place"
    last, best = expected["steps"][0], expected["best"][1]
    here, there = tmp_path / "here", tmp_path / "there"
    stop = At(last - 1, signal.SIGTERM) if best < last - 2 else At(best + 1, signal.SIGTERM)
    with stop_passes():
        trained(kind, here, callback_of(here, place, hooks=[stop]))
    shutil.rmtree(here)
    result = trained(kind, there, callback_of(there, place))
    assert result["best"] == expected["best"]
    assert all(torch.equal(result["weights"][n], w) for n, w in expected["weights"].items())
    final = there / "runs" / NAME / "final"
    (saved,) = final.glob("*.safetensors")
    own = load_file(there / "saved" / saved.name)
    assert load_file(saved).keys() == own.keys()
    assert all(torch.equal(tensor, own[n]) for n, tensor in load_file(saved).items())


def add_and_train(trainer: Any, folder: Path, *hooks: Observer) -> TemperCallback:
    """The cell with the three lines."""
    callback = TemperCallback("tiny", settings(folder), say=lambda line: None, hooks=hooks)
    trainer.add_callback(callback)
    with stop_passes():
        trainer.train(resume_from_checkpoint=callback.resume_from())
    return callback


def test_f10_the_cell_with_the_three_lines_is_run_again_after_a_stop(tmp_path: Path) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 5, "logging_steps": 5}
    plain = trainer_of(tmp_path / "plain", **options, save_strategy="no")
    plain.train()
    trainer = trainer_of(tmp_path, **options)
    for step in (3, 7):
        add_and_train(trainer, tmp_path, At(step, signal.SIGINT))
        assert trainer.state.global_step == step + 1
    callback = add_and_train(trainer, tmp_path)
    assert torch.equal(weights(trainer.model), weights(plain.model))
    losses = [[e["loss"] for e in t.state.log_history if "loss" in e] for t in (plain, trainer)]
    assert losses[0] == losses[1]
    add_and_train(trainer, tmp_path)  # it is finished
    assert torch.equal(weights(trainer.model), weights(plain.model))
    trainer.add_callback(callback)  # and the same one twice
    trainer.train(resume_from_checkpoint=callback.resume_from())
    assert trainer.callback_handler.callbacks.count(callback) == 1


def test_f10_a_callback_that_was_added_twice_counts_once(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, max_steps=3)
    seen: list[int] = []

    class Steps(Observer):
        def step_end(self, state: TrainingState) -> None:
            seen.append(state.step)

    callback = TemperCallback("tiny", settings(tmp_path), say=lambda line: None, hooks=[Steps()])
    trainer.add_callback(callback)
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=callback.resume_from())
    assert seen == [1, 2, 3]


LEFT_OVER = {
    "default_device_changed": lambda: torch.set_default_device("meta"),
    "gradients_disabled": lambda: torch.set_grad_enabled(False),
    "default_dtype_changed": lambda: torch.set_default_dtype(torch.float16),
}


@pytest.fixture
def torch_as_it_was() -> Any:
    yield
    torch.set_default_device(None)
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("torch_as_it_was")
@pytest.mark.parametrize("name", LEFT_OVER)
def test_p6_a_left_over_default_of_torch_is_named(name: str, tmp_path: Path) -> None:
    config = temper.DeploymentConfig(output_dir=str(tmp_path / "runs"))
    callback = TemperCallback("tiny", settings(tmp_path))
    LEFT_OVER[name]()
    with pytest.raises(ValueError, match=name):
        TrainerFactory().for_run(config)
    if name != "default_dtype_changed":  # with which a Trainer may be what its owner wants
        with pytest.raises(ValueError, match=name):
            callback.resume_from()
    assert not (tmp_path / "runs").exists()


def test_s5_an_evaluation_at_the_end_of_an_epoch_is_not_lost_by_a_stop(tmp_path: Path) -> None:
    """The signal comes in the last step of an epoch, after which it is due."""
    options = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    plain = trainer_of(tmp_path / "plain", **options)
    plain.train()
    first = trainer_of(tmp_path, **options)
    add_and_train(first, tmp_path, At(5, signal.SIGTERM))
    assert first.state.global_step == 6
    trainer = trainer_of(tmp_path, **options)
    add_and_train(trainer, tmp_path)
    measured = [
        [e["eval_loss"] for e in t.state.log_history if "eval_loss" in e] for t in (plain, trainer)
    ]
    assert len(measured[0]) == 2
    assert measured[0] == measured[1]
    assert trainer.state.best_global_step == plain.state.best_global_step
    assert torch.equal(weights(trainer.model), weights(plain.model))


def test_s5_an_evaluation_that_a_kill_has_broken_off_is_named(tmp_path: Path) -> None:
    def stop_and_die() -> None:
        class Dies(Observer):
            def eval_end(self, state: TrainingState) -> None:
                os.kill(os.getpid(), signal.SIGKILL)

        trainer = trainer_of(tmp_path, eval_strategy="epoch", save_strategy="epoch")
        add_and_train(trainer, tmp_path, At(5, signal.SIGTERM), Dies())

    assert os.waitpid(in_child(stop_and_die), 0)[1] == signal.SIGKILL
    trainer = trainer_of(tmp_path, eval_strategy="epoch", save_strategy="epoch")
    lines: list[str] = []
    callback = TemperCallback("tiny", settings(tmp_path), say=lines.append)
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=callback.resume_from())
    assert any("trainer.resuming" in line and "step=6" in line for line in lines)
    assert any("trainer.evaluation_interrupted" in line and "step=6" in line for line in lines)
