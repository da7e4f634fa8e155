"""What a run will take is told before its first step and stands beside the truth at its end."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.backup.format.store import Store
from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.console import Report
from infrastructure.core.hardware import gib
from infrastructure.core.messages import phrase
from infrastructure.deployment import forecast as forecast_module
from infrastructure.deployment.deploy_training import TrainingDeployment, checked_before
from infrastructure.deployment.forecast import (
    SAVE_SECONDS,
    SAVE_SECONDS_PER_BYTE,
    SMALL_BYTES,
    SMALL_FILES_BYTES,
    STEP_BYTES,
    Forecast,
    RunForecast,
    bytes_of_model,
    costs_of,
    evaluations_left,
    forecast,
    made_of,
    saves_of,
    space_of,
)
from infrastructure.features.quantum.training.data_selection_step import DataSelectionStep
from infrastructure.optimization.batch_size import DoesNotFitError
from infrastructure.optimization.memory_prediction import MemoryBudget, MemoryLine
from infrastructure.run.directory import RunDirectory
from infrastructure.run.finalize import read_summary
from infrastructure.training.core import precision, product_choice
from infrastructure.training.distributed.shard import Sharding
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.methods.step_probe import ProbedCosts, StepProbe
from infrastructure.training.methods.trl_training import TrlTraining
from infrastructure.training.sizing.batch_plan import BatchPlan
from infrastructure.training.sizing.cost_measurement import (
    LOOP_SECONDS,
    SAVING_BYTES,
    CostMeasurement,
    StepCosts,
)
from infrastructure.training.trainer_factory import TrainerFactory
from tests.deployment.runs import small_config, small_settings, write_rows
from tests.slow import slow
from tests.training.methods.method_runs import configuration, in_fork, run_folder

FITS = Forecast(
    num_steps=100,
    step_seconds=2.0,
    seconds=240.0,
    peak_memory_bytes=1 << 30,
    memory_bytes=4 << 30,
    disk_bytes=1 << 20,
    disk_free_bytes=1 << 30,
    backup_bytes=None,
    session_seconds=None,
    measure_seconds=40.0,
)


def only_run(config: DeploymentConfig) -> Path:
    (path,) = Path(config.output_dir).iterdir()
    return path


def test_a_run_is_forecast_before_its_first_step_and_compared_at_its_end(tmp_path: Path) -> None:
    config, lines = small_config(tmp_path, max_steps=3), []
    summary = TrainingDeployment(config, lines.append).run()
    predicted = next(
        i for i, line in enumerate(lines) if line.startswith("deployment.forecast_summary")
    )
    assert predicted < next(
        i for i, line in enumerate(lines) if line.startswith("deployment.training_starts(")
    )
    rows = {row["what"]: row for row in summary["forecast"]}
    assert rows.keys() >= {"seconds", "peak_memory_bytes", "disk_bytes"}
    assert abs(rows["peak_memory_bytes"]["error"]) < 0.15
    assert abs(rows["disk_bytes"]["error"]) < 0.3
    assert rows["peak_memory_bytes"]["was"] > 50e6  # this process, whatever else it holds
    kept = json.loads((only_run(config) / "forecast.json").read_text())
    assert kept["num_steps"] == summary["total_steps"]
    assert "was" in (only_run(config) / "report.html").read_text()


def test_it_is_forecast_in_the_format_that_the_run_will_train_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    formats: list[str] = []

    def watched(trainer: EnhancedTrainer) -> StepCosts:
        formats.append(trainer.precision.name)
        return costs_of(trainer)

    monkeypatch.setattr(forecast_module, "costs_of", watched)
    monkeypatch.setattr(precision, "best_precision", lambda device: "bf16")
    for in_fp32 in (1.0, 3.0):
        seconds = {"bf16": 2.0, "fp32": in_fp32}
        monkeypatch.setattr(product_choice, "product_seconds", lambda seconds=seconds: seconds)
        forecast(small_config(tmp_path))
    assert formats == ["fp32", "bf16"]


def test_a_training_that_was_forecast_gives_the_same_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_forecast = TrainingDeployment(small_config(tmp_path, max_steps=3), lambda line: None).run()
    monkeypatch.setattr(RunForecast, "measure", lambda self, trainer: None)
    settings = {**small_settings(tmp_path, max_steps=3), "new_run": True}
    without_forecast = TrainingDeployment(DeploymentConfig(**settings), lambda line: None).run()
    assert without_forecast["forecast"] == []
    assert without_forecast["after"] == with_forecast["after"]


def test_a_quantum_step_may_cost_a_share_of_the_time_that_was_forecast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured_again(step: DataSelectionStep) -> float:
        raise AssertionError("the forecast has measured the training")

    monkeypatch.setattr(DataSelectionStep, "training_seconds", measured_again)
    settings = small_settings(tmp_path, max_steps=3)
    settings |= {"training.enabled_extensions": ["quantum"], "quantum.max_overhead_percent": 1e5}
    summary = TrainingDeployment(DeploymentConfig(**settings), lambda line: None).run()
    run = only_run(DeploymentConfig(**settings))
    (record,) = json.loads((run / "quantum.json").read_text())["records"]
    seconds = json.loads((run / "forecast.json").read_text())["step_seconds"]
    assert record["allowed_seconds"] == pytest.approx(1000 * seconds * summary["total_steps"])


@slow
def test_the_decided_batch_stands_in_run_json_and_the_same_command_goes_on(
    tmp_path: Path,
) -> None:
    write_rows(tmp_path / "rows.jsonl", 100, 900)
    settings: dict[str, Any] = {"batch_size": "auto", "num_epochs": 1, "checkpoint_frequency": 2}
    config = small_config(tmp_path, **settings, deadline="0.001s")
    stopped = TrainingDeployment(config, lambda line: None).run()
    assert stopped["status"] == "stopped"
    decided = json.loads((only_run(config) / "run.json").read_text())["decided"]
    assert decided["training.batch_size"]["origin"].startswith("training.batch_size_measured_now(")
    (tmp_path / "cache/tuning.json").unlink()  # whoever measured anew might choose another
    finished = TrainingDeployment(small_config(tmp_path, **settings), lambda line: None).run()
    assert finished["status"] == "finished"
    assert finished["paths"]["run"] == str(only_run(config))
    per_step = [
        decided[f"training.{key}"]["value"] for key in ("batch_size", "gradient_accumulation")
    ]
    num_examples = json.loads((only_run(config) / "run.json").read_text())["data"]["num_examples"]
    assert finished["total_steps"] == -(-num_examples // (per_step[0] * per_step[1]))
    assert not (tmp_path / "cache/tuning.json").exists()


def test_a_training_that_cannot_fit_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path)
    monkeypatch.setattr(MemoryBudget, "of", lambda config: MemoryBudget(cpu_limit="1MB"))
    with pytest.raises(DoesNotFitError, match=r"training\.weights_exceed_memory"):
        TrainingDeployment(config, lambda line: None).run()
    assert not list(Path(config.output_dir).glob("*/checkpoints/versions/*"))


def test_it_begins_all_the_same_where_memory_is_not_looked_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**small_settings(tmp_path, max_steps=1), "enable_memory_optimization": False}
    monkeypatch.setattr(MemoryBudget, "of", lambda config: MemoryBudget(cpu_limit="1MB"))
    lines: list[str] = []
    summary = TrainingDeployment(DeploymentConfig(**settings), lines.append).run()
    assert (summary["steps"], summary["forecast"]) == (1, [])
    assert any(
        line.startswith("deployment.starts_despite_memory")
        and "training.weights_exceed_memory" in line
        for line in lines
    )


def test_where_only_smaller_pieces_fit_the_training_begins_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = CostMeasurement.costs

    def tight(*arguments: Any) -> Any:
        costs = real(*arguments)
        line = replace(costs.memory, fixed_bytes=0.0, bytes_per_unit=1.0)
        most = 2 * costs.longest_units + costs.copy_bytes
        heaviest = 4 * costs.longest_units
        return replace(costs, memory=line, limit_bytes=most, heaviest_units=heaviest)

    monkeypatch.setattr(CostMeasurement, "costs", tight)
    lines: list[str] = []
    summary = TrainingDeployment(small_config(tmp_path, max_steps=1), lines.append).run()
    assert any(line.startswith("deployment.micro_batches_reduced") for line in lines)
    assert summary["recoveries"][0]["action"] == "deployment.starts_with_micro_batches(size=2)"
    assert summary["status"] == "finished"


def test_a_forecast_that_fails_stops_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(CostMeasurement, "costs", broken)
    summary = TrainingDeployment(small_config(tmp_path, max_steps=1), lambda line: None).run()
    assert summary["status"] == "finished"
    assert summary["forecast"] == []
    assert "deployment.no_forecast" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"session_seconds": 100.0}, "deployment.session_ends_first"),
        ({"peak_memory_bytes": 8 << 30}, "deployment.micro_batch_is_split("),
        ({"disk_free_bytes": 1000}, "deployment.forecast_disk_full"),
    ],
)
def test_what_does_not_fit_is_reported_with_what_to_do(
    changes: dict[str, Any], message: str
) -> None:
    lines = replace(FITS, **changes).lines()
    assert lines[-1].startswith("deployment.forecast_does_not_fit")
    assert message in lines[-1]


def test_all_that_does_not_fit_is_named_with_its_values() -> None:
    few: dict[str, Any] = {
        "session_seconds": 239.0,
        "memory_bytes": (1 << 30) - 1,
        "disk_free_bytes": 1 << 19,
    }
    assert replace(FITS, **few, has_smaller_pieces=False).lines()[1] == (
        "deployment.forecast_does_not_fit(problems=deployment.session_ends_first(time=3 min 59 s);"
        " deployment.micro_batch_does_not_fit(consequence=deployment.run_will_stop_there());"
        " deployment.forecast_disk_full(free=512.0 KiB))"
    )
    just: dict[str, Any] = {
        "session_seconds": 240.0,
        "memory_bytes": 1 << 30,
        "disk_free_bytes": 1 << 20,
    }
    assert replace(FITS, **just).problems() == []


def test_several_processes_are_named_with_what_is_not_forecast() -> None:
    line = replace(FITS, num_processes=2).lines()[0]
    assert "shared=deployment.forecast_processes(num_processes=2)," in line
    assert "processes" not in FITS.lines()[0]


def test_a_forecast_has_the_time_of_all_and_of_a_step_the_memory_and_the_disk() -> None:
    [line] = replace(FITS, backup_bytes=3 << 20, most_disk_bytes=2 << 20).lines()
    assert "time=4 min 00 s, cost=, num_steps=100, step_seconds=2.0, " in line
    assert "memory=1.0 GiB, memory_limit=4.0 GiB, " in line
    assert "disk=1.0 MiB, most_disk=2.0 MiB, backup=, 3.0 MiB of backup)" in line
    assert "disk=1.0 MiB, most_disk=1.0 MiB, backup=)" in FITS.lines()[0]  # of an older version


def test_processes_of_one_cpu_share_its_memory_and_a_step_of_each_is_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = []
    costs = StepCosts(MemoryLine(0, 1), 8, 8, 0, 0.5, 0.1, 4 << 30)

    def measured(self: CostMeasurement, plan: BatchPlan, *others: Any) -> StepCosts:
        plans.append(plan)
        return costs

    def there(self: MemoryBudget, device: torch.device, num_processes: int = 1) -> int:
        return (4 << 30) // num_processes

    monkeypatch.setattr(CostMeasurement, "costs", measured)
    monkeypatch.setattr(MemoryBudget, "limit_bytes", there)
    settings = small_settings(tmp_path, batch_size=4, gradient_accumulation=3)
    config = DeploymentConfig(**settings, num_processes=2)
    found = costs_of(TrainerFactory().for_run(config))
    assert plans == [BatchPlan(4, 2)]
    assert (found.step_seconds, found.limit_bytes) == (1.0, 2 << 30)


def test_saving_takes_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = StepCosts(MemoryLine(0, 1), 8, 8, 0, 0.5, 0.1, 4 << 30)
    monkeypatch.setattr(CostMeasurement, "costs", lambda *_: costs)
    seldom, often = (
        forecast(small_config(tmp_path, max_steps=8, checkpoint_frequency=steps)).seconds
        for steps in (8, 2)
    )
    assert 3 * SAVE_SECONDS < often - seldom < 4 * SAVE_SECONDS  # of a tiny model


def test_auto_spreads_a_model_where_a_process_lacks_the_memory_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**small_settings(tmp_path), "enable_testing": True}
    config = DeploymentConfig(**settings, num_processes=2)
    trainer = TrainerFactory().for_run(config)
    trainer.initialize_data()
    assert trainer.placement.sharding is None
    assert trainer.placement.reason.startswith("training.state_fits_each_process")
    monkeypatch.setattr(MemoryBudget, "of", lambda config: MemoryBudget(cpu_limit="200MB"))
    trainer = TrainerFactory().for_run(config)
    trainer.initialize_data()
    assert trainer.placement.sharding is Sharding.SHARD
    assert "training.state_is_sharded" in trainer.placement.reason
    there = gib(trainer.memory_budget.limit_bytes(trainer.device, 2))
    assert f", available={there}, " in trainer.placement.reason
    assert "training.sharded_state(size=2, share=1/2)" in trainer.placement.reason
    lines: list[str] = []
    assert checked_before(config, trainer, lines.append) == []
    assert lines[0].startswith("deployment.sharded_model_not_checked")


@pytest.mark.parametrize("there_bytes", [1 << 40, 1 << 20])
def test_a_model_that_no_process_can_hold_stays_on_the_disk(
    there_bytes: int, tmp_path: Path, saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryBudget, "limit_bytes", lambda *_: there_bytes)
    settings = {**small_settings(tmp_path), "model": {"name": str(saved_llama)}}
    trainer = TrainerFactory().for_run(DeploymentConfig(**settings, num_processes=2))
    trainer.initialize_data()
    is_small = there_bytes == 1 << 20
    assert trainer.adapter.on_disk == is_small
    assert ("training.no_process_has_whole_model" in trainer.placement.reason) == is_small
    assert trainer.placement.sharding == (Sharding.SHARD if is_small else None)
    if is_small:
        with pytest.raises(ConfigurationError, match=r"training\.model_exceeds_each_process"):
            trainer.evaluate()
    else:
        assert trainer.evaluate()["eval_loss"] > 0


def test_the_time_that_steps_do_not_take_is_explained() -> None:
    short = replace(FITS, num_steps=6, step_seconds=0.28, seconds=16.0)
    assert "rest=deployment.forecast_rest()," in short.lines()[0]
    assert "deployment.forecast_rest" not in replace(short, seconds=2.0).lines()[0]
    for seconds, is_long in ((303.0, True), (300.0, False), (297.0, False)):
        assert ("forecast_rest" in replace(FITS, seconds=seconds).lines()[0]) is is_long


def test_a_busy_machine_is_named() -> None:
    [line] = replace(FITS, others_share=0.48).lines()
    assert line.endswith("deployment.forecast_busy_cpu(share=48.0%)")
    assert "forecast_busy_cpu" in replace(FITS, others_share=0.2).lines()[0]
    assert replace(FITS, others_share=0.1).lines() == FITS.lines()


def test_a_session_with_an_end_is_named() -> None:
    assert len(FITS.lines()) == 1, "where nobody knows of an end, nothing is said of one"
    line = replace(FITS, session_seconds=12 * 3600.0).lines()[-1]
    assert line == "deployment.forecast_fits(time=12 h 00 min)"


def test_the_disk_has_to_hold_what_lies_there_at_any_time() -> None:
    more = replace(FITS, most_disk_bytes=(1 << 30) + 1)
    assert any("deployment.forecast_disk_full" in line for line in more.problems())
    assert not FITS.problems()
    assert not replace(FITS, disk_free_bytes=FITS.disk_bytes).problems()
    assert not replace(FITS, disk_free_bytes=None, disk_bytes=1 << 60).problems()


def test_the_disk_of_a_run_is_forecast(tmp_path: Path) -> None:
    """Within 15% where the best checkpoint is among the newest; else there is one more."""
    settings = small_settings(tmp_path, max_steps=4, keep_checkpoints=2, keep_best=1)
    settings["model"]["embedded"] |= {"hidden_size": 256, "intermediate_size": 512, "num_layers": 2}
    summary = TrainingDeployment(DeploymentConfig(**settings), lambda line: None).run()
    run = Path(summary["paths"]["run"])
    (row,) = (row for row in summary["forecast"] if row["what"] == "disk_bytes")
    forecast = json.loads((run / "forecast.json").read_text())
    version = (forecast["most_disk_bytes"] - forecast["disk_bytes"]) // 2
    more = len(Store(run / "checkpoints").versions()) - 2
    assert more in (0, 1)
    assert row["was"] == pytest.approx(row["foretold"] + more * version, rel=0.15)
    assert row["was"] < forecast["most_disk_bytes"]


def training_of(**settings: Any) -> TrainingConfig:
    values = {"validation_interval": None, "checkpoint_interval": None, "checkpoint_seconds": None}
    return TrainingConfig(**{**values, **settings})


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({"validation_interval": 1}, {0: 3, 9: 3, 10: 2, 20: 1, 24: 1}),
        ({"validation_interval": 2}, {0: 2, 20: 1}),
        ({"validation_frequency": 4}, {0: 7, 8: 5}),
        ({"validation_frequency": 5}, {0: 5, 20: 1}),  # the last one is that at the end
        ({}, {0: 1, 24: 1}),
    ],
)
def test_the_evaluations_that_are_left_are_counted(
    settings: dict[str, Any], left: dict[int, int]
) -> None:
    training = training_of(**settings)
    assert {step: evaluations_left(training, step, end=25, per_epoch=10) for step in left} == left


@pytest.mark.parametrize(
    ("settings", "saves"),
    [
        ({}, 1),
        ({"checkpoint_interval": 1}, 3),
        ({"checkpoint_interval": 2}, 2),
        ({"checkpoint_frequency": 5}, 5),
        ({"checkpoint_seconds": 120.0}, 3),
        ({"checkpoint_frequency": 12, "checkpoint_seconds": 120.0}, 5),
    ],
)
def test_the_checkpoints_of_a_training_are_counted(settings: dict[str, Any], saves: int) -> None:
    assert saves_of(training_of(**settings), end=25, per_epoch=10, seconds=250.0) == saves


def test_the_space_of_a_run_is_that_of_its_versions_its_model_and_its_files(tmp_path: Path) -> None:
    kept: dict[str, Any] = {"keep_checkpoints": 3, "keep_best": 5}
    place = {"place": str(tmp_path / "place"), "keep": 5}
    config = DeploymentConfig(training=kept, backup=place)
    tokenizer = RunDirectory(tmp_path).tokenizer
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_bytes(bytes(1000))
    sizes: dict[str, int] = {"version_bytes": 10**7, "final_bytes": 10**6, "other_bytes": 10**5}
    files = SMALL_FILES_BYTES + 10 * STEP_BYTES + 2 * 1000

    def space(num_saves: int = 10, **more: int) -> Any:
        given = {"num_steps": 10, "num_saves": num_saves, **sizes, **more}
        space: Any = space_of(config, tmp_path, **given)
        assert space.pop("disk_free_bytes") > 0  # others write to the same disk
        return space

    found = space()
    assert found["disk_bytes"] == 5 * 10**7 + 10**6 + 10**5 + files
    assert found["most_disk_bytes"] == 9 * 10**7 + 10**6 + 10**5 + files
    assert found["backup_bytes"] == 5 * 10**7 + 10**6
    assert space(passing_bytes=77)["most_disk_bytes"] == found["most_disk_bytes"] + 77
    assert space(passing_bytes=77)["disk_bytes"] == found["disk_bytes"]
    few = space(2)
    assert found["disk_bytes"] - few["disk_bytes"] == 3 * 10**7
    assert found["most_disk_bytes"] - few["most_disk_bytes"] == 6 * 10**7
    assert space(2, first_bytes=10)["disk_bytes"] == few["disk_bytes"] + 10 - 10**7
    assert space(first_bytes=10) == found  # rotation has removed it
    config.enable_backups = False
    assert space()["backup_bytes"] is None


def test_a_lora_is_saved_without_its_base() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2).half())
    model[0].requires_grad_(False)
    assert bytes_of_model(model, is_lora=False) == 4 * 16 + 2 * 10
    assert bytes_of_model(model, is_lora=True) == 2 * 10


def test_what_was_forecast_is_compared_with_what_was(tmp_path: Path) -> None:
    lines: list[str] = []
    forecast = RunForecast(RunDirectory(tmp_path), DeploymentConfig(), lines.append, 40.0)
    assert forecast.compared(200.0) == []
    forecast.keep(FITS, 6)
    assert lines == FITS.lines()
    forecast.peak.highest_bytes = 1 << 29
    rows = {row["what"]: row for row in forecast.compared(200.0)}
    assert rows["seconds"] == {
        **{"what": "seconds", "foretold": 240.0, "was": 200.0},
        **{"error": pytest.approx(0.2), "first_step": 6},
    }
    assert rows["peak_memory_bytes"]["error"] == 1.0
    size = (tmp_path / "forecast.json").stat().st_size
    assert rows["disk_bytes"]["was"] == size
    forecast.peak.highest_bytes = 0  # nobody has measured it
    assert {row["what"] for row in forecast.compared(200.0)} == {"seconds", "disk_bytes"}
    again = RunForecast(RunDirectory(tmp_path), DeploymentConfig(), lines.append)
    assert again.measure_seconds == FITS.measure_seconds


def test_the_price_of_a_forecast_is_that_of_its_time() -> None:
    assert "cost=, so about $0.20,, num_steps=" in replace(FITS, price_per_hour="$3").lines()[0]


def test_a_run_that_goes_on_is_forecast_for_the_steps_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = StepCosts(MemoryLine(0, 1), 8, 8, 0, 0.5, 100.0, 4 << 30)
    monkeypatch.setattr(CostMeasurement, "costs", lambda *_: costs)
    by_steps: dict[str, Any] = {"checkpoint_frequency": 4, "checkpoint_seconds": None}
    config = small_config(tmp_path, max_steps=8, validation_frequency=2, **by_steps)
    whole = forecast(config)
    assert (whole.num_steps, whole.step_seconds) == (8, 0.5)
    trainer = TrainerFactory().for_run(config)
    trainer.prepare()
    trainer.state.step = 6
    watched: Any = SimpleNamespace(share=lambda: 0.4)
    rest = made_of(trainer, costs, config, tmp_path, 40.0, watched)
    data: Any = trainer.initialize_data()
    held_out = data.report.num_evaluation
    assert (rest.num_steps, rest.step_seconds, rest.others_share) == (2, 0.5, 0.4)
    one_save = pytest.approx(SAVE_SECONDS, rel=0.2)
    assert rest.seconds - 2 * 0.5 - 40.0 - held_out * 100.0 == one_save
    assert rest.disk_bytes == whole.disk_bytes  # all of the run is there


@pytest.mark.parametrize(
    ("changes", "others", "expected"),
    [
        ({}, 0.4, {"peak_memory_bytes": 100 + 4 * 8 * 6}),
        ({"precision": "bf16"}, 0.4, {"peak_memory_bytes": 100 + 2 * 8 * 6}),
        ({"num_processes": 2}, None, {"num_processes": 2}),
        ({"device": torch.device("cuda")}, None, {}),
        ({"lora": {"r": 2}}, 0.4, {}),
    ],
)
def test_a_forecast_has_each_part_of_a_run(
    changes: dict[str, Any],
    others: float | None,
    expected: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twelve steps of 0.25 s, six of which are left; an epoch has three, one evaluation is due."""
    sizes: dict[str, Any] = {}

    def watched(*place: Any, **given: Any) -> Any:
        assert place == (config, tmp_path)
        sizes.update(given)
        return space_of(*place, **given)

    monkeypatch.setattr(forecast_module, "space_of", watched)
    periods = {"checkpoint_frequency": 4, "checkpoint_seconds": 600.0, "validation_interval": 3}
    config = DeploymentConfig(
        training={"deadline": "2h", "validation_frequency": None, **periods}, price_per_hour="$3"
    )
    state = SimpleNamespace(step=6, model=torch.nn.Linear(30, 40))
    state.model.bias.requires_grad_(False)
    parts = SimpleNamespace(
        seconds_left=lambda step, left, seconds: step * 1000 + left * seconds,
        growth_bytes=lambda step, units, value_bytes: step * units * value_bytes,
        disk_bytes=lambda: (11, 13),
    )
    data = SimpleNamespace(num_examples=9, report=SimpleNamespace(num_evaluation=5))
    loop = SimpleNamespace(
        total_steps=12, data=data, global_batch_size=4, evaluate=True, config=config.training
    )
    settings = {"precision": "fp32", "num_processes": 1, "device": torch.device("cpu"), **changes}
    trainer: Any = SimpleNamespace(
        **{**settings, "state": state},
        prepare=lambda: SimpleNamespace(loop=loop),
        placement=SimpleNamespace(size=settings["num_processes"]),
        strategy=SimpleNamespace(
            run_parts=lambda _: parts, precision=SimpleNamespace(name=settings["precision"])
        ),
        hooks=SimpleNamespace(
            extensions=[SimpleNamespace(seconds_beside_steps=lambda n=n: n) for n in (2.0, 5.0)]
        ),
        create_optimizer=lambda module: torch.optim.SGD(
            [p for _, p in module.named_parameters()], momentum=0.5
        ),
        adapter=SimpleNamespace(describe=lambda: {"lora": settings.get("lora")}),
    )
    costs = StepCosts(MemoryLine(60, 1), 8, 8, 32, 0.25, 10.0, 777)
    watching: Any = SimpleNamespace(share=lambda: 0.4)
    found = made_of(trainer, costs, config, tmp_path, 40.0, watching)
    version = 1240 * 4 + 1200 * 4 + SMALL_BYTES
    final = 1200 * 4 if settings.get("lora") else 1240 * 4
    # Steps, extensions, both evaluations, and the part of the five saves that is left.
    seconds = 6001.5 + 7.0 + 40.0 + 2 * 5 * 10.0
    saves = 3 + int(seconds // 120.0)
    expected_seconds = seconds + (saves - saves // 2) * (
        SAVE_SECONDS + version * SAVE_SECONDS_PER_BYTE
    )
    assert found.seconds == pytest.approx(expected_seconds, abs=1e-6)
    assert sizes == {
        **{"num_steps": 12, "num_saves": saves, "version_bytes": version, "final_bytes": final},
        **{"other_bytes": 11, "passing_bytes": 13},
    }
    values = {
        **{"num_steps": 6, "step_seconds": 6001.5 / 6, "memory_bytes": 777, "num_processes": 1},
        **{"session_seconds": 7200.0, "measure_seconds": 40.0, "price_per_hour": "$3"},
        **{"peak_memory_bytes": 100 + 4 * 8 * 6, "others_share": others, **expected},
    }
    assert {name: getattr(found, name) for name in values} == values


@pytest.mark.parametrize("sharding", list(Sharding))
def test_the_costs_of_a_sharded_model_are_those_of_one_part(
    sharding: Sharding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast_module, "spread_costs", lambda *given, **named: (given, named))
    loop = SimpleNamespace(optimizer_step=SimpleNamespace(optimizer=SimpleNamespace(state={})))
    trainer: Any = SimpleNamespace(
        prepare=lambda: SimpleNamespace(loop=loop),
        placement=SimpleNamespace(size=3, sharding=sharding),
        batch_plan=lambda: BatchPlan(4, 3),
        cost_measurement=lambda: "measurement",
    )
    offload = {"offload": sharding is Sharding.OFFLOAD}
    found: Any = costs_of(trainer)
    assert found == (("measurement", BatchPlan(4, 3), 3), offload)


def test_a_micro_batch_is_halved_until_it_fits(tmp_path: Path) -> None:
    lines: list[str] = []
    made = RunForecast(RunDirectory(tmp_path), DeploymentConfig(), lines.append)
    state = SimpleNamespace(micro_batch_size=8, step=3, recoveries=[])
    budget = SimpleNamespace(way_out=lambda device: f"less on {device}")
    trainer: Any = SimpleNamespace(state=state, memory_budget=budget, device="cpu")

    def keep_within(num_mebibytes: int) -> None:
        limit_bytes = num_mebibytes << 20
        costs = StepCosts(MemoryLine(0, 1 << 20), 9, 2, 0, 0.5, 0.1, limit_bytes)
        made._keep_within(trainer, costs)

    keep_within(9)
    assert (state.micro_batch_size, lines, state.recoveries) == (8, [], [])
    keep_within(4)
    why = "9.0 MiB of 4.0 MiB"
    assert state.micro_batch_size == 2
    assert lines == [f"deployment.micro_batches_reduced(size=2, memory={why})"]
    [entry] = state.recoveries
    assert (entry["kind"], entry["message"], entry["step"]) == ("out_of_memory", why, 3)
    with pytest.raises(
        DoesNotFitError,
        match=r"out_of_memory_before_start\(needed=2\.0 MiB, available=1\.0 MiB, "
        r"remedies=deployment\.lower_memory_use\(\), alternative=less on cpu\)",
    ):
        keep_within(1)


@pytest.mark.parametrize(("num_lines", "num_shown"), [(24, 24), (25, 1)])
@pytest.mark.parametrize("is_verbose", [False, True])
def test_a_long_plan_is_shown_by_its_first_line(
    num_lines: int, num_shown: int, is_verbose: bool, tmp_path: Path
) -> None:
    lines: list[str] = []
    report = Report(lines.append, is_verbose)
    made = RunForecast(RunDirectory(tmp_path), DeploymentConfig(), report)
    plan = [f"phase {n}" for n in range(num_lines)]
    made._report_plan(plan)
    assert lines == (plan if is_verbose else plan[:num_shown])


def test_a_measured_forecast_reaches_plan_extensions_and_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is shown without times where nothing was measured."""
    lines: list[str] = []
    known: list[float] = []
    plans: Any = SimpleNamespace(lines=lambda seconds=None: [f"plan: {seconds}"])
    extension = SimpleNamespace(forecast_known=known.append)
    trainer: Any = SimpleNamespace(
        strategy=SimpleNamespace(run_parts=lambda _: plans),
        state=SimpleNamespace(step=6, micro_batch_size=8),
        hooks=SimpleNamespace(extensions=[extension]),
        device=torch.device("cpu"),
        memory_budget=MemoryBudget(),
    )
    costs = StepCosts(MemoryLine(0, 1), 8, 8, 0, 0.5, 0.1, 4)
    monkeypatch.setattr(forecast_module, "costs_of", lambda _: costs)
    monkeypatch.setattr(forecast_module, "made_of", lambda *_: FITS)
    config = DeploymentConfig()
    made = RunForecast(RunDirectory(tmp_path), config, lines.append)
    with pytest.raises(DoesNotFitError):
        made.measure(trainer)
    assert lines == ["plan: 0.5", *FITS.lines()]
    assert (known, made.first_step) == ([0.5], 6)
    assert json.loads((tmp_path / "forecast.json").read_text())["seconds"] == 240.0
    config.enable_memory_optimization = False
    trainer.state.step = 0
    made.measure(trainer)
    assert made.first_step == 0
    config.enable_memory_optimization = True
    trainer.device = torch.device("cuda")
    made.measure(trainer)

    def fail(*_: object) -> None:
        raise DoesNotFitError("too large") if is_small else KeyError("planted")

    monkeypatch.setattr(forecast_module, "made_of", fail)
    for is_small in (True, False):
        config.enable_memory_optimization = False
        lines.clear()
        made.measure(trainer)
        why = ["deployment.starts_despite_memory(reason=too large)"] if is_small else []
        assert lines == [*why, "plan: None"]
    config.enable_memory_optimization, is_small = True, True
    with pytest.raises(DoesNotFitError):
        made.measure(trainer)


def test_a_run_without_held_out_rows_has_no_time_for_evaluations(tmp_path: Path) -> None:
    config = small_config(tmp_path, max_steps=2)
    trainer = TrainerFactory().for_run(config)
    loop = trainer.prepare().loop
    watched: Any = SimpleNamespace(share=lambda: 0.0)

    def seconds(evaluation_seconds: float) -> float:
        costs = StepCosts(MemoryLine(0, 1), 8, 8, 0, 0.5, evaluation_seconds, 4 << 30)
        return made_of(trainer, costs, config, tmp_path, 0.0, watched).seconds

    assert seconds(100.0) > seconds(0.0) + 100.0
    loop.evaluate = None
    assert seconds(100.0) == seconds(0.0)


@pytest.mark.parametrize("starts_with_one", [False, True])
@pytest.mark.parametrize("held_out", [[], [1]])
def test_a_run_by_trl_has_time_for_its_evaluations_and_space_for_its_first_checkpoint(
    held_out: list[int], starts_with_one: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs, given = ProbedCosts(0.5, 100.0, 8, 4 << 30, writes=False), {}

    def watched(*place: Any, **sizes: Any) -> Any:
        given.update(sizes)
        return space_of(*place, **sizes)

    monkeypatch.setattr(StepProbe, "__post_init__", lambda self: None)

    def probed(self: StepProbe, steps_left: int) -> ProbedCosts:
        done = trainer.state.global_step
        expected = (trainer, False, 5, 10 - done)
        assert (self.trainer, self.writes, self.limit_bytes, steps_left) == expected
        return costs

    monkeypatch.setattr(StepProbe, "costs", probed)
    monkeypatch.setattr(MemoryBudget, "limit_bytes", lambda self, device: 5)
    monkeypatch.setattr(forecast_module, "space_of", watched)
    by_steps: dict[str, Any] = {"validation_frequency": 4, "checkpoint_frequency": 4}
    training: Any = SimpleNamespace(
        config=DeploymentConfig(
            training={
                **{"method": "dpo", "checkpoint_seconds": None, "deadline": "2h", **by_steps}
            },
            price_per_hour="$3",
        ),
        device=torch.device("cpu"),
        data=SimpleNamespace(held_out=held_out),
        installed=SimpleNamespace(method=SimpleNamespace(generates=False)),
    )
    trainer = SimpleNamespace(
        model=torch.nn.Linear(2, 2),
        state=SimpleNamespace(global_step=2, max_steps=10),
        args=SimpleNamespace(eval_on_start=starts_with_one, gradient_accumulation_steps=1),
        accelerator=SimpleNamespace(num_processes=1),
        callback_handler=SimpleNamespace(train_dataloader=range(10)),
        get_optimizer_cls_and_kwargs=lambda *_: (torch.optim.AdamW, {}),
    )
    evaluations = 3 + starts_with_one if held_out else 0  # at 4, 8 and 10
    found = forecast_module.measured(training, trainer, tmp_path)
    assert found.seconds == 8 * (0.5 + LOOP_SECONDS) + evaluations * 100.0
    weights, version = 6 * 4 + SMALL_BYTES, 6 * 4 + SMALL_BYTES + 2 * 6 * 4 + 2 * 4
    sizes = {"version_bytes": version, "first_bytes": weights, "final_bytes": 6 * 4}
    assert given == {"num_steps": 10, "num_saves": 1 + 3, "other_bytes": version, **sizes}
    values = {
        **{"num_steps": 8, "step_seconds": 0.5 + LOOP_SECONDS, "measure_seconds": 100.0},
        **{"peak_memory_bytes": 8, "memory_bytes": 4 << 30, "has_smaller_pieces": False},
        **{"has_growing_answers": False, "session_seconds": 7200.0, "price_per_hour": "$3"},
    }
    assert {name: getattr(found, name) for name in values} == values
    assert found.others_share is not None
    trainer.state.global_step, trainer.accelerator.num_processes = 0, 2
    monkeypatch.setattr(forecast_module, "BACKGROUND_BYTES", version)
    found = forecast_module.measured(training, trainer, tmp_path)
    assert (given["other_bytes"], found.others_share) == (0, None)
    assert found.peak_memory_bytes == 8 + version + SAVING_BYTES
    monkeypatch.setattr(forecast_module, "BACKGROUND_BYTES", version + 1)
    assert forecast_module.measured(training, trainer, tmp_path).peak_memory_bytes == 8
    training.device = torch.device("cuda")
    monkeypatch.setattr(forecast_module, "BACKGROUND_BYTES", 0)
    assert forecast_module.measured(training, trainer, tmp_path).peak_memory_bytes == 8


def test_a_run_by_trl_is_forecast_before_its_first_step_and_compared_at_its_end(
    tmp_path: Path, saved_llama: Path
) -> None:
    more: dict[str, Any] = {"training": {"max_steps": 4, "deadline": "2h"}}
    config = configuration("dpo", tmp_path, saved_llama, price_per_hour="3 EUR", **more)

    def trained() -> None:
        lines: list[str] = []
        TrainingDeployment(config, lines.append).run()
        (tmp_path / "lines.txt").write_text("\n".join(lines))

    assert in_fork(trained) == 0
    lines = (tmp_path / "lines.txt").read_text().splitlines()
    [line] = [line for line in lines if "deployment.forecast_summary" in line]
    assert " EUR," in line
    assert "num_steps=4" in line
    [starts] = [line for line in lines if "deployment.training_starts" in line]
    assert lines.index(line) < lines.index(starts)
    run = run_folder(config)
    summary = read_summary(RunDirectory(run))
    rows = {row["what"]: row for row in summary["forecast"]}
    assert rows.keys() == {"seconds", "peak_memory_bytes", "disk_bytes"}
    assert abs(rows["peak_memory_bytes"]["error"]) < 0.15
    assert abs(rows["disk_bytes"]["error"]) < 0.3
    assert summary["cost"]["text"].endswith("EUR")
    assert any(line.startswith("run.total_cost(") for line in lines)
    assert json.loads((run / "forecast.json").read_text())["num_steps"] == 4
    assert "time from the first step to the end" in (run / "report.html").read_text()


def test_it_is_measured_without_a_run(tmp_path: Path, saved_llama: Path) -> None:
    """What the form of a notebook shows."""
    config = configuration("grpo", tmp_path, saved_llama)

    def measured_alone() -> None:
        measured = forecast(config)
        assert measured.num_steps == 8
        assert measured.has_growing_answers
        assert "deployment.forecast_growing_answers" in measured.lines()[0]
        assert not (tmp_path / "runs").exists()

    assert in_fork(measured_alone) == 0


def test_it_is_measured_in_the_format_that_the_run_will_train_in(
    tmp_path: Path, saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "best_precision", lambda device: "bf16")
    monkeypatch.setattr(product_choice, "product_seconds", lambda: {"bf16": 2.0, "fp32": 1.0})
    config = configuration("dpo", tmp_path, saved_llama, training={"mixed_precision": True})

    def watched(training: TrlTraining, trainer: Any, folder: Path) -> Forecast:
        assert not trainer.args.bf16
        return FITS

    monkeypatch.setattr(forecast_module, "measured", watched)
    assert in_fork(lambda: [FITS].remove(forecast(config))) == 0


def test_what_does_not_fit_is_refused_before_the_first_step(
    tmp_path: Path, saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryBudget, "limit_bytes", lambda self, device: 1 << 20)
    config = configuration("dpo", tmp_path, saved_llama)

    def refused() -> None:
        with pytest.raises(DoesNotFitError, match=r"methods\.micro_batch_too_large"):
            TrainingDeployment(config, lambda line: None).run()

    assert in_fork(refused) == 0
    assert not (run_folder(config) / "final").exists()


def test_no_smaller_pieces_are_promised_where_there_are_none() -> None:
    shown = Forecast(
        num_steps=10,
        step_seconds=1.0,
        seconds=10.0,
        peak_memory_bytes=4 << 30,
        memory_bytes=1 << 30,
        disk_bytes=1,
        disk_free_bytes=None,
        backup_bytes=None,
        session_seconds=None,
        measure_seconds=0.0,
        has_smaller_pieces=False,
    )
    assert phrase("deployment.run_will_stop_there") in shown.problems()[0]
