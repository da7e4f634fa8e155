"""After a stop, the lines after `train()` do not run; the exit code says what stopped it."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infrastructure.core.errors import RunStoppedError
from infrastructure.training.core.state import StopReason, TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.hf_bridge import TemperCallback, stopped_training
from infrastructure.training.hf_bridge.stopped_training import exception_of_stop, leave_training
from tests.faults.kill_storm import in_child
from tests.training.hf_bridge.tiny_trainer import settings, trainer_of

STEPS = 4


class Stops(Observer):
    """Asks for a stop in the second step, by a signal or as a deadline does."""

    def __init__(self, number: signal.Signals | None) -> None:
        self.number = number

    def after_backward(self, state: TrainingState) -> None:
        if state.step == 1 and self.number is not None:
            os.kill(os.getpid(), self.number)

    def step_end(self, state: TrainingState) -> None:
        if state.step == 2 and self.number is None:
            state.interrupt("the deadline", StopReason.DEADLINE)


def script(folder: Path, *hooks: Observer, **options: Any) -> None:
    """A person's script, which saves the model as its result."""
    trainer = trainer_of(folder, max_steps=STEPS)
    callback = TemperCallback(
        "tiny", settings(folder), say=lambda line: None, hooks=hooks, **options
    )
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=callback.resume_from())
    trainer.save_model(str(folder / "result"))


def exit_code(work: Callable[[], None]) -> int:
    """The exit code of a process that does `work` as a script does."""

    def run() -> None:
        try:
            work()
        except KeyboardInterrupt:
            os._exit(130)  # as Python's own end by this signal looks to a shell
        except SystemExit as end:
            os._exit(int(end.code or 0))

    return os.waitstatus_to_exitcode(os.waitpid(in_child(run), 0)[1])


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (None, 75)],
)
def test_a_stopped_script_saves_no_result_until_it_is_run_again(
    tmp_path: Path, number: signal.Signals | None, code: int
) -> None:
    assert exit_code(lambda: script(tmp_path, Stops(number))) == code
    summary = json.loads((tmp_path / "runs/tiny/summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("stopped", 2)
    assert not (tmp_path / "result").exists()
    assert exit_code(lambda: script(tmp_path)) == 0
    result = (tmp_path / "result/model.safetensors").read_bytes()
    assert result == (tmp_path / "runs/tiny/final/model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, RunStoppedError)],
)
def test_a_kernel_gets_an_error_that_does_not_end_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    error: type[BaseException],
) -> None:
    monkeypatch.setattr(stopped_training, "in_notebook_kernel", lambda: True)
    with pytest.raises(error, match=r"trainer\.stopped\(run=tiny, step=2, how="):
        script(tmp_path, Stops(number))
    assert not (tmp_path / "result").exists()
    assert isinstance(exception_of_stop(None, ""), RunStoppedError)


def test_a_caller_that_handles_stops_itself_gets_control_back(tmp_path: Path) -> None:
    script(tmp_path, Stops(signal.SIGTERM), is_whole=True)
    assert (tmp_path / "result").exists()


def test_a_trainer_that_was_stopped_can_train_again_with_its_noise_once() -> None:
    removed: list[str] = []
    handle = SimpleNamespace(remove=lambda: removed.append("noise"))
    trainer = SimpleNamespace(is_in_train=True, neftune_noise_alpha=5, neftune_hook_handle=handle)
    leave_training(trainer)
    assert (trainer.is_in_train, removed) == (False, ["noise"])
    leave_training(None)
