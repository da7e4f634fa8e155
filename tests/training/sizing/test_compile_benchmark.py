"""Compiling is decided once, by measurement, and leaves no trace in the numbers."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.core.errors import CheckpointError
from infrastructure.optimization.compiling import TIMED_STEPS, decide_compiling
from infrastructure.training.sizing import compile_benchmark as compile_trial
from infrastructure.training.sizing.compile_benchmark import CompileBenchmark
from tests.training.toy import ToyAdapter, ToySource
from tests.training.toy_training import Training


class Compiler:
    """Makes a toy adapter slow until it is compiled, by a clock of its own; counts how often it was
    asked."""

    def __init__(self, adapter: ToyAdapter, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[bool] = []
        self.prepared: list[int] = []
        self.now = 0.0
        prepare = adapter.prepare_batch

        def slow_batch(examples: Sequence[int]) -> dict[str, Any]:
            self.prepared += examples
            is_compiled = bool(self.calls) and self.calls[-1]
            self.now += 0.01 if is_compiled else 0.04
            return prepare(examples)

        timed = partial(decide_compiling, clock=lambda: self.now)
        monkeypatch.setattr(compile_trial, "decide_compiling", timed)
        monkeypatch.setattr(adapter, "prepare_batch", slow_batch)
        monkeypatch.setattr(adapter, "set_compiled", self.calls.append)


def training_with_trial(
    monkeypatch: pytest.MonkeyPatch, directory: Path | None = None
) -> tuple[Training, CompileBenchmark, Compiler]:
    trial = CompileBenchmark(lambda: training.loop)
    training = Training(directory, hooks=[trial], num_epochs=10, checkpoint_frequency=5)
    return training, trial, Compiler(training.adapter, monkeypatch)


def test_a_compiler_that_pays_is_kept_and_the_weights_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training, trial, compiler = training_with_trial(monkeypatch)
    training.run()
    assert compiler.calls == [True, True]  # to measure, and to keep
    assert trial.decision is not None
    assert trial.decision.pays
    assert trial.decision.steps_left == training.state.total_steps
    timed = [list(batch) for batch in ToySource().train_batches(0, 0, 6)][:TIMED_STEPS]
    assert training.source.seen[: TIMED_STEPS * 6] == [n for batch in timed for n in batch]
    plain = Training(num_epochs=10, checkpoint_frequency=5).run()
    assert torch.equal(training.weights, plain.weights)


def test_only_the_steps_that_are_left_can_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    training, trial, compiler = training_with_trial(monkeypatch)
    training.state.step, training.state.position.example = 4, 6
    trial.train_start(training.state)
    assert trial.decision is not None
    assert trial.decision.steps_left == training.state.total_steps - 4
    (rest,) = ToySource().train_batches(0, 6, 20)
    assert training.source.seen == rest
    assert set(compiler.prepared) == {*rest}  # each batch is timed


def test_a_run_that_goes_on_does_as_it_did(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, _, _ = training_with_trial(monkeypatch, tmp_path)
    first.run()
    checkpoint = first.checkpoints.checkpoints()[1]
    again, trial, compiler = training_with_trial(monkeypatch)
    again.resume(checkpoint)
    assert compiler.calls == [True]
    assert trial.decision is None
    assert torch.equal(first.weights, again.weights)


def test_where_nothing_can_be_compiled_nothing_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compile_trial, "can_compile", lambda device: "there is no C++ compiler")
    training, trial, compiler = training_with_trial(monkeypatch)
    training.run()
    assert compiler.calls == []
    assert trial.state_dict() == {"is_compiled": False}
    assert "training.compile_not_used(reason=there is no C++ compiler)" in caplog.text


def test_a_run_that_compiles_does_not_go_on_where_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, _, _ = training_with_trial(monkeypatch, tmp_path)
    first.run()
    monkeypatch.setattr(compile_trial, "can_compile", lambda device: "there is no C++ compiler")
    again, _, compiler = training_with_trial(monkeypatch)
    cannot = r"training\.compile_unavailable_on_resume\(reason=there is no C\+\+ compiler\)"
    with pytest.raises(CheckpointError, match=cannot):
        again.resume(first.checkpoints.checkpoints()[1])
    assert compiler.calls == []
