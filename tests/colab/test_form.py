"""The form with real widgets, as somebody uses it: typing, choosing, pressing; and without any."""

import html
import subprocess
import sys
from pathlib import Path

import pytest

import colab.form
from colab import configure, show_form
from colab.form import ConfigForm, Edits
from colab.form_labels import LABELS, label_of
from colab.form_state import SCHEMA
from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import plain
from infrastructure.core.messages import phrase
from tests.colab.forms import boxes_of, note_of, row_of, shown, type_into
from tests.config.field_values import as_text, other_value

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "hf_" + "aB3dE5gH7jK9mN1pQ3sT"


@pytest.fixture(autouse=True)
def nothing_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new kernel, in an empty folder."""
    monkeypatch.setattr(colab.form, "_EDITS", Edits())
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def one_form() -> ConfigForm:
    """Making all widgets takes longer than a test."""
    return ConfigForm(DeploymentConfig())


def test_every_setting_shows_what_it_does(one_form: ConfigForm) -> None:
    one_form.undo()
    hidden = [
        key
        for key, spec in SCHEMA.fields.items()
        if html.escape(spec.description) not in note_of(one_form, key)
    ]
    assert hidden == []
    closed = {key for key in SCHEMA.fields if row_of(one_form, key).input.disabled}
    assert closed == {key for key in SCHEMA.fields if key.startswith("model.lora_config.")}


def test_every_kind_of_field_sets_its_setting(one_form: ConfigForm) -> None:
    """`test_form_state.py` sets each setting."""
    fields = {key: row_of(one_form, key).input for key in SCHEMA.fields}
    of_kinds = {type(field): key for key, field in fields.items()}
    assert len(of_kinds) >= 3
    for key in [*of_kinds.values(), "model.lora_config.r"]:
        value = other_value(SCHEMA.fields[key])
        one_form.undo()
        if key.startswith("model.lora_config."):
            type_into(one_form, "model.lora_config", "true")
        assert not row_of(one_form, key).input.disabled
        type_into(one_form, key, as_text(value))
        config = one_form._state.config
        assert config.value(key) == value
        assert config.source(key).place == f"form {key}"
        assert f"<i>form {key}</i>" in note_of(one_form, key)


def test_what_can_have_no_effect_is_not_shown_until_it_can() -> None:
    form = ConfigForm(DeploymentConfig())
    rank = row_of(form, "model.lora_config.r").box
    assert rank not in boxes_of(form)
    type_into(form, "model.lora_config", "true")
    assert rank in boxes_of(form)
    assert row_of(form, "training.block_size").box not in boxes_of(form)
    type_into(form, "training.mode", "blockwise")
    assert row_of(form, "training.block_size").box in boxes_of(form)


def test_what_somebody_has_given_is_shown_in_any_case() -> None:
    form = ConfigForm(
        DeploymentConfig(**{"data.eval_path": "held_out.jsonl", "data.validation_split": 0.1})
    )
    assert row_of(form, "data.validation_split").box in boxes_of(form)


def test_settings_have_names_that_a_person_reads_and_keys_under_the_mouse() -> None:
    labels = [label_of(key) for key in SCHEMA.fields]
    assert [label for label in labels if "_" in label or "." in label] == []
    assert set(LABELS) <= set(SCHEMA.fields)
    of_stacks = ("qlora_enabled", "qlora_lr", "quantization_enabled", "backbone_quantized", "mode")
    assert {label_of(f"training.{name}").split(": ")[0] for name in of_stacks} == {"Block-wise"}
    assert label_of("training.qlora_rank") == "Block-wise: QLoRA rank"
    assert label_of("model.quantization") == "Quantization"
    name = row_of(ConfigForm(DeploymentConfig()), "model.lora_config").box.children[0].value
    assert name == '<span title="model.lora_config">LoRA</span>'


def test_a_slider_sends_only_what_it_was_moved_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"text": "a"}\n')
    form = ConfigForm(
        DeploymentConfig(**{"data.path": "rows.jsonl", "data.validation_split": 0.12345})
    )
    slider = row_of(form, "data.validation_split").input
    assert (slider.min, slider.max, slider.value) == (0.0, 0.99, 0.12345)
    assert form.config.data.validation_split == 0.12345
    slider.value = 0.2
    assert form.config.data.validation_split == 0.2


def test_every_choice_that_is_offered_is_taken(one_form: ConfigForm) -> None:
    offered = {key: getattr(row_of(one_form, key).input, "options", ()) for key in SCHEMA.fields}
    assert sum(map(bool, offered.values())) > 20
    for key, words in offered.items():
        spec = SCHEMA.fields[key]
        assert [plain(spec.section.check_value(spec.name, word)) for word in words] == [*words]


def test_a_wrong_value_stays_in_its_field_with_the_reason_and_starts_no_run() -> None:
    form = ConfigForm(DeploymentConfig())
    for text in ("0", "-3", "1e9", "999999999999", "eight"):
        type_into(form, "training.batch_size", text)
        assert row_of(form, "training.batch_size").input.value == text
        note = note_of(form, "training.batch_size")
        assert "config.wrong_value(setting=training.batch_size," in note
        assert "notebook.run_cannot_start()" in shown(form)
        with pytest.raises(ConfigurationError, match=r"wrong_value\(setting=training\.batch_size"):
            form.config  # noqa: B018 (whoever starts a run asks for it)
    type_into(form, "training.batch_size", "8")
    assert "must be" not in note_of(form, "training.batch_size")
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
    assert "preset ci (form)" in note_of(form, "training.batch_size")
    type_into(form, "training.batch_size", "2")
    assert (form.config.batch_size, form.config.training.max_steps) == (2, 6)
    view.presets.value = "thorough"
    assert (form.config.training.num_epochs, form.config.training.max_steps) == (10, None)
    view.reset.click()
    assert view.presets.value == ""
    assert form.config.to_dict() == DeploymentConfig(batch_size=4).to_dict()


def test_what_was_changed_can_be_copied_into_the_cell() -> None:
    form = ConfigForm(DeploymentConfig())
    assert "configure(" not in shown(form)
    type_into(form, "training.batch_size", "2")
    form.make_view().presets.value = "quick"
    line = form.make_view().box.children[-2].value
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


def trains(steps: int, num_examples: int) -> str:
    batch = phrase("notebook.num_examples", count=num_examples)
    extent = phrase("notebook.steps_of_batch", steps=steps, batch=batch)
    return phrase("notebook.it_trains", extent=extent)


def test_without_a_notebook_the_form_is_a_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    form = show_form(configure("quick", batch_size=4))
    out = capsys.readouterr().out
    assert form.view is None
    assert "training.batch_size = 4   (cell batch_size)" in out
    assert trains(60, 4) in out
    assert form.config.batch_size == 4


def test_the_form_needs_no_torch() -> None:
    """A notebook's first cells answer before torch is loaded, or where it is not installed."""
    code = "import sys; sys.modules['torch'] = None; import colab; form = colab.show_form("
    code += "colab.configure('quick')); form.make_view(); print(form.measure())"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "notebook.it_trains(extent=notebook.steps_of_batch(steps=60, " in done.stdout
    assert "notebook.measurement_failed" in done.stdout


def test_what_it_costs_follows_what_is_typed() -> None:
    form = ConfigForm(DeploymentConfig())
    type_into(form, "training.max_steps", "40")
    assert trains(40, 32) in shown(form)
    type_into(form, "backup.place", "/content/drive")
    assert "notebook.checkpoints_backed_up_to" in shown(form)


def test_a_secret_is_in_no_widget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("ALERT_WEBHOOK_URL", f"https://hooks.example/{TOKEN}")
    config = DeploymentConfig(
        model_name=f"https://me:{TOKEN}@hub/x", backup={"place": "s3://k:letmein99@b"}
    )
    form = ConfigForm(config)
    assert "HF_TOKEN: found (environment); ALERT_WEBHOOK_URL: found" in shown(form)
    type_into(form, "data.path", TOKEN)
    type_into(form, "run_name", f"token={TOKEN}")
    form.update(**{"data.eval_path": f"/data/{TOKEN}"})
    state = shown(form) + str(form.lines())
    assert TOKEN not in state
    assert "letmein99" not in state
    assert "notebook.secret_in_form(setting=data.path)" in state


def test_help_and_messages_cannot_bring_markup_in() -> None:
    form = ConfigForm(DeploymentConfig())
    type_into(form, "training.batch_size", "<img src=x onerror=alert(1)>")
    assert "<img" not in note_of(form, "training.batch_size")
    assert "<img" not in form.make_view().box.children[-5].value


def test_what_would_be_a_question_at_a_terminal_stands_in_the_form(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"question": "Who?", "answer": "Me."}\n')
    form = ConfigForm(DeploymentConfig(data={"path": str(tmp_path / "one.jsonl")}))
    sentence = "data.file_has_one_row"
    assert sum(sentence in line for line in form.lines()) == 1
    type_into(form, "data.accept_small_data", "true")
    assert form.config.data.accept_small_data
    assert not any(sentence in line for line in form.lines())


def test_a_path_that_does_not_exist_is_reported_beside_its_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    form = ConfigForm(configure(model="./nomodel", data_path="nope.jsonl"))
    assert "models.folder_missing(name=./nomodel" in note_of(form, "model.name")
    assert "data.path_not_found(what=training data, path=nope.jsonl" in note_of(form, "data.path")
    assert "notebook.run_can_start" not in shown(form)
    type_into(form, "model.name", "someone/on-the-hub")
    type_into(form, "data.path", "")
    assert "notebook.run_can_start" in shown(form)


def test_a_run_that_could_not_be_measured_is_not_promised_to_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("infrastructure.deployment.forecast.forecast", {}.__getitem__)
    form = ConfigForm(DeploymentConfig())
    assert "notebook.run_can_start" in shown(form)
    form.measure()
    assert "notebook.run_refuted" in shown(form)
    assert "notebook.run_can_start" not in shown(form)
    type_into(form, "training.max_steps", "40")
    assert "notebook.run_can_start" in shown(form)
