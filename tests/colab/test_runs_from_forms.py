"""Runs that begin in a form, and what one would cost: with real widgets and a real training."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from colab.form import ConfigForm
from colab.form_state import SCHEMA, FormState
from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.deployment.run_finalizer import record_run
from infrastructure.run.directory import RunDirectory
from infrastructure.training.trainer_factory import TrainerFactory
from tests.colab.forms import shown, type_into
from tests.config.field_values import other_value
from tests.deployment.runs import small_settings


@pytest.fixture
def small(tmp_path: Path) -> DeploymentConfig:
    return DeploymentConfig(**{**small_settings(tmp_path), "enable_testing": True})


def test_measuring_shows_time_and_memory_and_trains_nothing(
    tmp_path: Path, small: DeploymentConfig
) -> None:
    form = ConfigForm(small)
    view = form.make_view()
    assert "notebook.cost_measured_later()" in shown(form)
    view.measure.click()
    assert "deployment.forecast_summary" in shown(form)
    assert not (tmp_path / "runs").exists()
    type_into(form, "training.batch_size", "2")
    assert "deployment.forecast_summary" not in shown(form)
    assert "notebook.cost_measured_later()" in shown(form)
    type_into(form, "training.batch_size", "4")
    assert "deployment.forecast_summary" in shown(form)


def test_what_cannot_be_measured_is_reported_in_the_form(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.jsonl")
    form = ConfigForm(DeploymentConfig(data_path=missing, output_dir=str(tmp_path)))
    assert form.measure()[0].startswith("notebook.measurement_failed")
    type_into(form, "training.batch_size", "0")
    assert "config.wrong_value(setting=training.batch_size," in form.measure()[0]


def test_a_wrong_value_starts_no_run(tmp_path: Path, small: DeploymentConfig) -> None:
    form = ConfigForm(small)
    type_into(form, "training.batch_size", "0")
    with pytest.raises(ConfigurationError, match=r"wrong_value\(setting=training\.batch_size"):
        TrainingDeployment(form.config).run()
    assert not (tmp_path / "runs").exists()


def filled_forms() -> Iterator[tuple[FormState, list[str]]]:
    """Forms in which every setting is set in one, each with as many as go together."""
    left = list(SCHEMA.fields)
    while left:
        state, taken = FormState(DeploymentConfig()), []
        for key in left:
            with suppress(ConfigurationError):
                state.update({key: other_value(SCHEMA.fields[key])})
                taken.append(key)
        yield state, taken
        left = [key for key in left if key not in taken]


def test_every_setting_of_a_form_arrives_in_run_json(tmp_path: Path) -> None:
    trainer = TrainerFactory().for_run(DeploymentConfig(**small_settings(tmp_path)))
    trainer.prepare()
    arrived = []
    for number, (state, taken) in enumerate(filled_forms()):
        run = RunDirectory(tmp_path / str(number))
        run.path.mkdir()
        record_run(run, state.config, trainer)
        recorded = json.loads(run.run_file.read_text())["config"]
        for key in taken:
            value = json.loads(json.dumps(other_value(SCHEMA.fields[key])))
            assert recorded[key] == {"value": value, "source": f"form {key}"}
        arrived += taken
    assert sorted(arrived) == sorted(SCHEMA.fields)


def test_a_run_from_the_form_records_what_was_set_there(small: DeploymentConfig) -> None:
    form = ConfigForm(small)
    changed = {
        "training.seed": "5",
        "training.max_steps": "2",
        "training.learning_rate": "0.002",
        "data.validation_split": "0.2",
        "model.lora_config": "true",
        "model.lora_config.r": "2",
        "monitor.thresholds.cpu_percent": "80%",
        "monitor.alert_sinks": "log",
        "training.recovery.loss_spike": "stop",
        "cache.max_age_days": "3",
        "log_level": "WARNING",
        "run_name": "from-the-form",
        "enable_testing": "false",
    }
    for key, text in changed.items():
        type_into(form, key, text)
    summary = TrainingDeployment(form.config, say=lambda line: None).run()
    run = json.loads(Path(summary["paths"]["run"], "run.json").read_text())
    assert summary["steps"] == 2
    for key in changed:
        recorded = run["config"][key]
        assert recorded["source"] == f"form {key}"
        assert recorded["value"] == form.config.value(key)
