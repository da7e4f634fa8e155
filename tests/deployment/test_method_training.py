"""Around a trainer of TRL: what may differ, and what was measured, travels with the run."""

import signal
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.checksums import write_record
from infrastructure.core.console import Report
from infrastructure.deployment import method_training
from infrastructure.deployment.method_training import (
    MethodTraining,
    _Measured,
    setting_of,
    translated,
)
from infrastructure.evaluation.plain_reading import Trained
from infrastructure.run.directory import RunDirectory
from infrastructure.run.finalize import write_summary
from infrastructure.training.core import precision, product_choice
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.methods.trl_training import TrlTraining
from infrastructure.training.metrics.progress import make_progress
from tests.slow import slow_but
from tests.training.methods.method_runs import (
    configuration,
    in_fork,
    killed_at,
    run_folder,
    train,
    trained_weights,
)


@pytest.mark.parametrize(
    ("accepted", "arguments"),
    [
        (["batch_size"], ["per_device_train_batch_size"]),
        (["max_steps", "data", "torch"], ["max_steps", "data", "torch"]),
        (["data.chat_template", "teacher"], []),
    ],
)
def test_settings_are_called_as_the_trainer_s_arguments(
    accepted: list[str], arguments: list[str]
) -> None:
    assert translated(accepted) == arguments


def test_what_was_measured_before_and_after_is_kept(tmp_path: Path) -> None:
    began: list[Path] = []
    measured = _Measured(RunDirectory(tmp_path), DeploymentConfig(), began.append)
    model = torch.nn.Linear(1, 1)
    state: Any = TrainingState(model, torch.optim.SGD(model.parameters()))
    measured.train_start(state)
    assert began == [tmp_path]
    for step, loss in ((0, 2.0), (4, 1.5), (8, float("nan"))):
        state.step, state.evaluation = step, {"eval_loss": loss, "eval_num_tokens": 7.0}
        measured.eval_end(state)
    summary = measured.summary()
    assert (summary["before"], summary["after"]) == ({"eval_loss": 2.0}, {"eval_loss": "NaN"})
    assert "run.advice_few_steps" in summary["advice"][0]["text"]
    measured.config = DeploymentConfig(training={"max_steps": 8})
    assert "run.advice_less_than_one_epoch" in measured.summary()["advice"][0]["text"]
    state.is_interrupted, state.total_steps = True, 9  # there is more to train
    assert "advice" not in measured.summary()
    other = _Measured(RunDirectory(tmp_path), DeploymentConfig(), began.append)
    other.load_state_dict(measured.state_dict())
    assert (other.before, other.after) == (measured.before, measured.after)


def test_what_is_measured_after_is_the_model_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = _Measured(RunDirectory(tmp_path), DeploymentConfig(), lambda path: None)
    model = torch.nn.Linear(1, 1)
    state: Any = TrainingState(model, torch.optim.SGD(model.parameters()))
    measured.train_start(state)
    for step, loss in ((0, 2.0), (4, 1.5), (8, 1.7)):
        state.step, state.evaluation = step, {"eval_loss": loss}
        measured.eval_end(state)
    again = _Measured(RunDirectory(tmp_path), DeploymentConfig(training={"keep_best": 1}), print)
    again.state = state
    again.load_state_dict(measured.state_dict())
    monkeypatch.setattr("infrastructure.deployment.method_training.take_best", lambda *_: 4)
    again.config.training.early_stopping_patience = 1
    again.take_best(model)
    summary = again.summary()
    assert (summary["final_step"], summary["after"]) == (4, {"eval_loss": 1.5})


def test_other_held_out_rows_make_the_first_measurement_void(tmp_path: Path) -> None:
    measured = _Measured(RunDirectory(tmp_path), DeploymentConfig(), lambda path: None)
    model = torch.nn.Linear(1, 1)
    state: Any = TrainingState(model, torch.optim.SGD(model.parameters()))
    measured.take_best(model)  # before it began, there is nothing to take

    def measure(step: int, rows: str | None, loss: float) -> None:
        state.step, state.measured_on, state.evaluation = step, rows, {"eval_loss": loss}
        measured.eval_end(state)

    measured.train_start(state)
    measure(0, "rows", 2.0)
    measure(2, None, 1.5)
    measure(4, "rows", 1.0)
    assert (measured.before, measured.changed_after) == ({"eval_loss": 2.0}, None)
    assert "held_out_changed_after" not in measured.summary()
    measured.train_start(state)
    measure(6, "others", 3.0)
    assert measured.summary()["held_out_changed_after"] == 4
    assert (measured.before, measured.after) == ({}, {"eval_loss": 3.0})
    measure(8, "others", 2.5)
    assert measured.state_dict() == {
        **{"before": {}, "after": {"eval_loss": 2.5}, "measured_on": "others"},
        "by_step": {str(2 * n): {"eval_loss": loss} for n, loss in enumerate((1.5, 1, 3, 2.5), 1)},
        "changed_after": 4,
    }
    again = _Measured(RunDirectory(tmp_path), DeploymentConfig(), lambda path: None)
    again.load_state_dict(measured.state_dict())
    assert again.state_dict() == measured.state_dict()
    older = {name: of for name, of in measured.state_dict().items() if name != "by_step"}
    again.load_state_dict(older)
    assert again.by_step == {}


@pytest.mark.parametrize(
    ("ends_with_best", "best", "final_step", "after"),
    [
        (True, 4, 4, {"loss": 4}),
        (True, 6, 6, {}),
        (True, 8, None, {"loss": 8}),
        (False, 4, None, {"loss": 8}),
    ],
)
def test_the_best_checkpoint_is_taken_where_a_run_ends_with_it(
    ends_with_best: bool,
    best: int,
    final_step: int | None,
    after: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config: Any = SimpleNamespace(training=SimpleNamespace(ends_with_best=ends_with_best))
    run = RunDirectory(tmp_path)
    measured = _Measured(run, config, lambda path: None)
    taken: list[tuple[object, ...]] = []
    state: Any = SimpleNamespace(step=8)
    measured.state = state
    measured.by_step = {"4": {"loss": 4}, "8": {"loss": 8}}
    measured.after = {"loss": 8}

    def take(*given: object) -> int:
        taken.append(given)
        return best

    monkeypatch.setattr(method_training, "take_best", take)
    model = torch.nn.Linear(1, 1)
    measured.take_best(model)
    assert (measured.final_step, measured.after) == (final_step, after)
    assert taken == [(model, run.checkpoints, 8)] * ends_with_best


@pytest.mark.parametrize(
    ("method", "has_loss"), [("dpo", True), ("grpo", False), ("nothing-known", True)]
)
def test_the_advice_at_the_end_is_about_what_was_measured(
    method: str, has_loss: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def advise(*values: Any, **named: Any) -> list[str]:
        given.append((values, named))
        return ["train longer"] if len(given) == 1 else []

    monkeypatch.setattr(method_training, "advice_at_end", advise)
    training = SimpleNamespace(
        method=method, best_metric="f1", best_is_greater=True, max_steps=8, ends_with_best=False
    )
    run, config = RunDirectory(tmp_path), SimpleNamespace(training=training)
    measured = _Measured(run, config, lambda path: None)  # type: ignore[arg-type]
    assert measured.summary() == {}
    position = SimpleNamespace(epoch=3)
    state = SimpleNamespace(step=8, position=position, is_cut_short=False, error=None)
    measured.state = state  # type: ignore[assignment]
    measured.before, measured.after = {"a": 1}, {"b": 2}
    assert measured.summary() == {
        **{"before": {"a": 1}, "after": {"b": 2}, "advice": ["train longer"]}
    }
    measured.final_step, training.max_steps = 4, 9
    assert "advice" not in measured.summary()
    both = ({"a": 1}, {"b": 2}) if has_loss else ({}, {})
    assert given == [
        ((run, "f1", 8, 3, *both), {"best_is_greater": True, "is_cut_short": True}),
        ((run, "f1", 4, 3, *both), {"best_is_greater": True, "is_cut_short": False}),
    ]
    for change in ({"is_cut_short": True}, {"error": OSError()}):
        measured.state = SimpleNamespace(**{**vars(state), **change})  # type: ignore[assignment]
        assert not measured.is_finished
        assert "advice" not in measured.summary()
    assert len(given) == 2


def test_a_setting_has_the_name_that_accepts_it() -> None:
    assert setting_of("per_device_train_batch_size") == "batch_size"
    assert setting_of("data") == "data"
    assert setting_of("adam_beta1") == "method_settings"
    arguments = translated(["method_settings"])
    assert "adam_beta1" in arguments
    assert "per_device_train_batch_size" not in arguments


@pytest.mark.parametrize("is_shown", [False, True])
def test_a_notebook_s_panel_shows_the_result_and_nothing_else_does(
    is_shown: bool, tmp_path: Path
) -> None:
    run, lines = RunDirectory(tmp_path), list[str]()
    numbers = {"before": {"eval_loss": 2.0}, "after": {"eval_loss": 1.0}}
    write_summary(run, {"status": "finished", "paths": {}, **numbers})
    MethodTraining(
        run,
        DeploymentConfig(),
        Report(lines.append, is_verbose=False),
        (),
        str,
        make_progress,
        is_result_shown=is_shown,
    )._summary()
    assert ("held-out loss" not in "".join(lines)) == is_shown
    assert any(line.startswith("run.files_head(") for line in lines)


def test_a_session_adds_to_the_cost_of_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Callback:
        """Stands for a run and stores what it is given."""

        def __init__(self, *given: object, **named: object) -> None:
            self.run = SimpleNamespace(copies=SimpleNamespace(short=str))

    class Forecast:
        """Compares what it foretold."""

        kept = SimpleNamespace(peak=Observer())

        def __init__(self, *given: object) -> None: ...

        def compared(self) -> list[str]:
            return ["as foretold"]

    monkeypatch.setattr(method_training, "TemperCallback", Callback)
    monkeypatch.setattr(method_training, "MethodForecast", Forecast)
    now = iter([100.0, 130.0, 140.0])
    monkeypatch.setattr(method_training, "time", SimpleNamespace(monotonic=lambda: next(now)))
    run = RunDirectory(tmp_path)
    write_summary(run, {"status": "interrupted", "paths": {}, "cost": {"seconds": 600.0}})
    config = DeploymentConfig(price_per_hour="36 EUR")
    own = Observer()
    lines: list[str] = []
    report = Report(lines.append, is_verbose=False)
    training = MethodTraining(
        run, config, report, (), str, make_progress, [own], how_to_begin_anew="so"
    )
    data = SimpleNamespace(held_out=[1, 2, 3], system_prompt="Be brief.")
    trl: Any = SimpleNamespace(data=data, describe_model=dict)
    callback: Any
    callback, forecast = training._callback(trl)
    assert callback.hooks[0] is training.measured
    assert callback.hooks[1] is forecast
    assert callback.hooks[-1] is own
    assert callback.run.how_to_begin_anew == "so"
    summary = callback.run.more_of_summary()
    assert (summary["cost"]["seconds"], summary["forecast"]) == (630.0, [])
    assert summary["system_prompt"] == "Be brief."
    assert "num_pairs" not in summary
    measured = training.measured
    model = torch.nn.Linear(1, 1)
    measured.state = TrainingState(model, torch.optim.SGD(model.parameters()))
    measured.after = {"eval_rewards/accuracies": 0.5}
    summary = callback.run.more_of_summary()
    assert (summary["cost"]["seconds"], summary["forecast"]) == (640.0, ["as foretold"])
    assert summary["num_pairs"] == 3
    read: list[Any] = []

    def check(folder: Path, trained: Trained) -> list[str]:
        read.append((folder, trained))
        return ["it was read"]

    monkeypatch.setattr(method_training, "check_saved", check)
    trl.questions = lambda count: ["a question"] * count
    trl.tokenizer, trl.end_token_ids = "a tokenizer", [3]
    trl.precision = SimpleNamespace(autocast="of bf16")
    callback.run.check_saved("a model", tmp_path / "final")
    expected = ("a model", "a tokenizer", ["a question"] * 3, [3], "of bf16")
    assert read == [(tmp_path / "final", Trained(*expected))]
    assert lines == ["it was read"]
    assert callback.run.before_saving == measured.take_best


class BegunError(Exception):
    """What is to be seen has been."""


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("resumed", [None, "checkpoint-4"])
def test_held_out_rows_are_measured_before_the_first_step_and_not_where_it_goes_on(
    resumed: str | None, recorded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that has a record keeps its dtype, and looks for no faster one."""
    precisions: list[str] = []

    class Training:
        """Made from a configuration; it has no model to load."""

        def __init__(self, config: DeploymentConfig, folder: Path) -> None: ...

        def lines(self) -> list[str]:
            return []

        def choose_by_product(self) -> None:
            precisions.append("chosen")

        def keep_precision(self, precision: str) -> None:
            precisions.append(f"kept {precision}")

        def make_trainer(self, *, is_new: bool, say: object) -> None:
            assert is_new == (resumed is None)
            raise BegunError

    class Callback:
        """Of a run that has a version, or none."""

        def resume_from(self) -> str | None:
            return resumed

    monkeypatch.setattr(method_training, "TrlTraining", Training)
    monkeypatch.setattr(MethodTraining, "_callback", lambda self, training: (Callback(), None))
    run, report = RunDirectory(tmp_path), Report(str, is_verbose=False)
    training = MethodTraining(run, DeploymentConfig(), report, (), str, make_progress)
    if recorded:
        write_record(run.run_file, {"configuration": {}, "precision": "bf16"})
    with pytest.raises(BegunError):
        training.train()
    assert precisions == ["kept bf16" if recorded else "chosen"]


@pytest.mark.parametrize("begun_in", slow_but(["fp32"], ["fp32", "bf16"]))
def test_a_run_keeps_the_number_format_that_a_product_has_chosen(
    begun_in: str, tmp_path: Path, saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is faster by the time when it goes on, which another machine may see otherwise."""
    monkeypatch.setattr(precision, "best_precision", lambda device: "bf16")
    products = {"bf16": 2.0, "fp32": 1.0}

    def measure(other: bool) -> None:
        is_fp32 = (begun_in == "fp32") != other
        seconds = products if is_fp32 else {"bf16": 1.0, "fp32": 1.0}
        monkeypatch.setattr(product_choice, "product_seconds", lambda: seconds)

    more: dict[str, Any] = {
        "training": {"mixed_precision": True, "max_steps": 4, "gradient_accumulation": 1},
        "data": {"validation_split": 0},
    }
    whole = configuration("dpo", tmp_path / "whole", saved_llama, **deepcopy(more))
    config = configuration("dpo", tmp_path / "killed", saved_llama, **deepcopy(more))
    measure(other=False)
    assert in_fork(lambda: train(whole)) == 0
    assert killed_at(3, lambda: train(config)) == signal.SIGKILL
    measure(other=True)
    assert in_fork(lambda: train(config)) == 0
    for run in map(run_folder, (whole, config)):
        record = RunDirectory(run).read_run()
        assert record["precision"] == begun_in
        assert ("training.mixed_precision" in record["decided"]) == (begun_in == "fp32")
    weights = [trained_weights(run_folder(each) / "final") for each in (whole, config)]
    assert torch.equal(*weights)


def test_a_product_decides_on_no_format_that_is_given_and_no_other_weights(
    tmp_path: Path, saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "best_precision", lambda device: "bf16")
    monkeypatch.setattr(product_choice, "product_seconds", lambda: {"bf16": 2.0, "fp32": 1.0})

    def chosen(model: dict[str, object] | None = None, **given: object) -> bool:
        training = {"mixed_precision": True, **given}
        config = configuration("dpo", tmp_path, saved_llama, training=training)
        config.model = config.model.copy_with(**(model or {}))
        return TrlTraining(config, tmp_path).choose_by_product() is not None

    assert chosen()
    assert not chosen(mixed_precision="bf16")
    assert not chosen(method_settings={"bf16": True})
    assert not chosen({"dtype": "bf16"})
