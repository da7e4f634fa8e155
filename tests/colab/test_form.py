"""The form with real widgets, as somebody uses it: typing, choosing, pressing; and without any."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from ipywidgets.embed import embed_data

import colab.form
from colab import configure, show_form
from colab.field_widgets import FieldRow
from colab.form import ConfigForm, Edits
from colab.form_state import SCHEMA, FormState
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.section import ConfigurationError
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.deployment.run_directory import RunDirectory
from infrastructure.deployment.run_record import record_run
from infrastructure.training.trainer_factory import TrainerFactory
from tests.config.field_values import as_text, other_value
from tests.deployment.runs import small_settings

TOKEN = "hf_" + "aB3dE5gH7jK9mN1pQ3sT"


@pytest.fixture(autouse=True)
def nothing_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new kernel, in an empty folder."""
    monkeypatch.setattr(colab.form, "_EDITS", Edits())
    monkeypatch.chdir(tmp_path)


def row_of(form: ConfigForm, key: str) -> FieldRow:
    return form.make_view().rows[key]


def type_into(form: ConfigForm, key: str, text: str) -> None:
    """What the browser does when somebody has typed or chosen."""
    field = row_of(form, key).input
    field.value = text == "true" if isinstance(field.value, bool) else text


def told(form: ConfigForm, key: str) -> str:
    """What stands beside a field."""
    return str(row_of(form, key).box.children[-1].value)


def shown(form: ConfigForm) -> str:
    """All that the browser is given of a form."""
    return json.dumps(embed_data(views=[form.make_view().box]), default=str)


@pytest.fixture(scope="module")
def one_form() -> ConfigForm:
    """Making all widgets takes longer than a test."""
    return ConfigForm(DeploymentConfig())


@pytest.mark.parametrize("key", SCHEMA.fields)
def test_every_setting_can_be_set_in_its_widget(key: str, one_form: ConfigForm) -> None:
    value = other_value(SCHEMA.fields[key])
    one_form.undo()
    if key.startswith("model.lora_config."):
        assert row_of(one_form, key).input.disabled
        type_into(one_form, "model.lora_config", "true")
    assert not row_of(one_form, key).input.disabled
    type_into(one_form, key, as_text(value))
    config = one_form._state.config
    assert config.value(key) == value
    assert config.source(key).place == f"form {key}"
    assert f"(form {key})" in told(one_form, key)


@pytest.mark.parametrize("key", SCHEMA.fields)
def test_every_setting_shows_what_it_does_and_what_holds(key: str, one_form: ConfigForm) -> None:
    one_form.undo()
    field = row_of(one_form, key).input
    spec = SCHEMA.fields[key]
    assert spec.description[:20].split("<")[0].split('"')[0] in told(one_form, key)
    for choice in getattr(field, "options", ()):
        one_form.undo()
        type_into(one_form, key, choice)
        assert "must be" not in told(one_form, key)


def test_a_wrong_value_stays_in_its_field_with_the_reason_and_starts_no_run() -> None:
    form = ConfigForm(DeploymentConfig())
    for text in ("0", "-3", "1e9", "999999999999", "eight"):
        type_into(form, "training.batch_size", text)
        assert row_of(form, "training.batch_size").input.value == text
        assert "training.batch_size must be a whole number" in told(form, "training.batch_size")
        assert "A run cannot start like this" in shown(form)
        with pytest.raises(ConfigurationError, match="batch_size must be"):
            TrainingDeployment(form.config)
    type_into(form, "training.batch_size", "8")
    assert "must be" not in told(form, "training.batch_size")
    assert form.config.batch_size == 8


def test_what_python_sets_is_shown_and_what_is_typed_is_read() -> None:
    form = ConfigForm(DeploymentConfig())
    form.make_view()
    form.update(batch_size=8, **{"model.lora_config.r": 4, "preset": "quick"})
    assert row_of(form, "training.batch_size").input.value == "8"
    assert row_of(form, "model.lora_config").input.value is True
    assert form.make_view().presets.value == "quick"
    assert row_of(form, "training.max_steps").input.value == "60"
    type_into(form, "training.batch_size", "16")
    assert form.config.batch_size == 16
    assert (form.config.training.max_steps, form.config.model.lora_config.r) == (60, 4)


def test_choosing_a_preset_and_undoing_all() -> None:
    form = ConfigForm(DeploymentConfig(batch_size=4))
    view = form.make_view()
    view.presets.value = "ci"
    assert form.config.batch_size == 8
    assert "preset ci (form)" in told(form, "training.batch_size")
    type_into(form, "training.batch_size", "2")
    assert (form.config.batch_size, form.config.training.max_steps) == (2, 6)
    view.reset.click()
    assert view.presets.value == ""
    assert form.config.to_dict() == DeploymentConfig(batch_size=4).to_dict()


def test_what_was_changed_can_be_copied_into_the_cell() -> None:
    form = ConfigForm(DeploymentConfig())
    assert "configure(" not in shown(form)
    type_into(form, "training.batch_size", "2")
    form.make_view().presets.value = "quick"
    line = form.make_view().box.children[-1].value
    assert "configure(..., **{&quot;preset&quot;: &#x27;quick&#x27;" in line
    assert "&quot;training.batch_size&quot;: 2})" in line


def test_what_was_changed_holds_through_a_second_run_all() -> None:
    first = show_form(configure("quick"))
    first.make_view()
    type_into(first, "training.seed", "7")
    second = show_form(configure("quick"))
    assert second.config.training.seed == 7
    assert second.config.source("training.seed").place == "form training.seed"
    assert row_of(second, "training.seed").input.value == "7"
    newer = show_form(configure("quick", **{"training.seed": 3}))
    assert newer.config.training.seed == 3
    second.undo()
    assert show_form(configure("quick")).config.training.seed == 0


def test_without_a_notebook_the_form_is_a_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    form = show_form(configure("quick", batch_size=4))
    out = capsys.readouterr().out
    assert form.view is None
    assert "training.batch_size = 4   (cell batch_size)" in out
    assert "It trains 60 steps of 4 examples." in out
    assert form.config.batch_size == 4


def test_what_it_costs_follows_what_is_typed() -> None:
    form = ConfigForm(DeploymentConfig())
    type_into(form, "training.max_steps", "40")
    assert "It trains 40 steps of 32 examples." in shown(form)
    type_into(form, "backup.place", "/content/drive")
    assert "copied to /content/drive" in shown(form)


def test_a_secret_is_in_no_widget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("ALERT_WEBHOOK_URL", f"https://hooks.example/{TOKEN}")
    config = DeploymentConfig(
        model_name=f"https://me:{TOKEN}@hub/x", backup={"place": "s3://k:letmein99@b"}
    )
    form = ConfigForm(config)
    assert "HF_TOKEN" in shown(form)
    type_into(form, "data.path", TOKEN)
    type_into(form, "run_name", f"token={TOKEN}")
    form.update(**{"data.eval_path": f"/data/{TOKEN}"})
    state = shown(form) + str(form.lines())
    assert TOKEN not in state
    assert "letmein99" not in state
    assert "looks like a secret" in state


def test_help_and_messages_cannot_bring_markup_in() -> None:
    form = ConfigForm(DeploymentConfig())
    type_into(form, "training.batch_size", "<img src=x onerror=alert(1)>")
    assert "<img" not in told(form, "training.batch_size")
    assert "<img" not in form.make_view().box.children[-4].value


@pytest.fixture
def small(tmp_path: Path) -> DeploymentConfig:
    return DeploymentConfig(**small_settings(tmp_path))


def test_measuring_tells_time_and_memory_and_trains_nothing(
    tmp_path: Path, small: DeploymentConfig
) -> None:
    form = ConfigForm(small)
    view = form.make_view()
    assert "is measured before the first step" in shown(form)
    view.measure.click()
    assert "Forecast: about" in shown(form)
    assert "It fits into this session" in shown(form)
    assert not (tmp_path / "runs").exists()
    type_into(form, "training.batch_size", "2")
    assert "Measured with training.batch_size 4: Forecast: about" in shown(form)
    type_into(form, "training.batch_size", "4")
    assert "Measured with" not in shown(form)


def test_what_cannot_be_measured_is_told_in_the_form(tmp_path: Path) -> None:
    form = ConfigForm(DeploymentConfig(data_path=str(tmp_path / "none.jsonl")))
    assert form.measure()[0].startswith("It cannot be measured: ")
    type_into(form, "training.batch_size", "0")
    assert "training.batch_size must be" in form.measure()[0]


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


def test_a_run_from_the_form_records_what_was_set_there(
    tmp_path: Path, small: DeploymentConfig
) -> None:
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
        "training.recovery.max_rollbacks": "1",
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
