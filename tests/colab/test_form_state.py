"""What is typed is taken or refused, never moved; and nothing wrong becomes a configuration."""

import re

import pytest

from colab.form_state import SCHEMA, FormState
from infrastructure.config.base import ConfigurationError, kinds
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import Layer
from tests.config.field_values import as_text, other_value

TOKEN = "hf_" + "aB3dE5gH7jK9mN1pQ3sT"


def typed(**texts: str) -> FormState:
    """A form in which texts were typed; `__` stands for a dot."""
    state = FormState(DeploymentConfig())
    for name, text in texts.items():
        state.enter(name.replace("__", "."), text)
    return state


def test_every_setting_can_be_typed_and_is_recorded_as_set_in_the_form() -> None:
    for key in SCHEMA.fields:
        spec = SCHEMA.fields[key]
        value = other_value(spec)
        state = FormState(DeploymentConfig())
        if key.startswith("model.lora_config."):
            state.enter("model.lora_config", "true")
        state.enter(key, as_text(value))
        assert state.wrong == {}, key
        assert state.config.value(key) == value, key
        assert state.config.to_dict()["sources"][key] == {
            "layer": "form",
            "place": f"form {key}",
        }, key


# Each field that is more than a text or a truth refuses one of these.
WRONG = ("-7", "many words")
TAKES_TEXTS = {str, bool, type(None)}


def refused_text(key: str) -> str | None:
    """A text that the field does not take."""
    spec = SCHEMA.fields[key]
    for text in WRONG:
        try:
            spec.section.check_value(spec.name, text)
        except ConfigurationError:
            return text
    return None


@pytest.mark.parametrize("key", [key for key, spec in SCHEMA.fields.items() if not spec.is_switch])
def test_what_a_setting_does_not_take_is_reported_beside_it_and_starts_no_run(key: str) -> None:
    spec, text = SCHEMA.fields[key], refused_text(key)
    if text is None:
        assert kinds(spec.info.annotation) <= {*TAKES_TEXTS, list, "all-linear"}
        return
    state = FormState(DeploymentConfig())
    before = state.config.value(key)
    state.enter(key, text)
    shown = state.messages()[key]
    assert shown.startswith(("config.wrong_value(", "config.setting_says("))
    assert f"(setting={key}," in shown
    assert state.text(key) == text
    assert state.config.value(key) == before
    with pytest.raises(ConfigurationError, match=rf"config\.\w+\(setting={re.escape(key)},"):
        state.checked()


def test_a_wrong_value_is_reported_until_it_is_right() -> None:
    state = typed(training__batch_size="0")
    assert state.problems()[0].startswith("config.wrong_value(setting=training.batch_size,")
    with pytest.raises(ConfigurationError, match=r"wrong_value\(setting=training\.batch_size"):
        state.checked()
    state.enter("training.batch_size", "8")
    assert state.problems() == []
    assert state.checked().batch_size == 8


def test_values_that_do_not_go_together_are_reported() -> None:
    state = typed(model__embedded__hidden_size="30")
    [problem] = state.problems()
    assert "config.hidden_size_not_divisible" in problem
    assert state.text("model.embedded.hidden_size") == "30"
    with pytest.raises(ConfigurationError, match=r"config\.hidden_size_not_divisible"):
        state.checked()
    state.enter("model.embedded.num_heads", "3")
    assert state.problems() == []
    assert state.checked().model.embedded.hidden_size == 30


def test_what_cannot_be_carried_out_is_reported_as_when_a_run_starts() -> None:
    state = typed(data__max_length="900", training__enabled_extensions="multimodal")
    with pytest.raises(ConfigurationError, match=r"vision_tower\.not_set"):
        state.checked()
    assert state.problems() == state.config.problems()


def test_going_back_to_the_old_value_undoes_the_change() -> None:
    state = typed(training__seed="5")
    assert state.source("training.seed").layer is Layer.FORM
    state.enter("training.seed", "0")
    assert state.edits == {}
    assert state.source("training.seed").layer is Layer.DEFAULT


def test_the_old_value_over_a_preset_is_a_change() -> None:
    state = FormState(DeploymentConfig())
    state.choose("quick")
    state.enter("training.max_steps", "none")
    assert state.config.training.max_steps is None
    assert state.config.training.warmup_steps == 6


def test_a_preset_lies_under_what_was_set_by_hand() -> None:
    state = FormState(DeploymentConfig())
    state.enter("training.max_steps", "9")
    state.choose("quick")
    assert state.text("training.max_steps") == "9"
    assert state.text("training.warmup_steps") == "6"
    assert state.source("training.warmup_steps").place == "preset quick (form)"
    state.choose(None)
    assert state.text("training.warmup_steps") == "50"


def test_a_rhythm_in_steps_switches_the_one_in_epochs_off() -> None:
    state = typed(training__checkpoint_frequency="10")
    assert state.text("training.checkpoint_interval") == "none"
    state.enter("training.checkpoint_interval", "2")
    [problem] = state.problems()
    assert "config.sources_disagree" in problem
    state.enter("training.checkpoint_frequency", "none")
    assert state.checked().training.checkpoint_interval == 2


def test_lora_is_switched_with_all_that_is_in_it() -> None:
    state = typed(model__lora_config="true", model__lora_config__r="8")
    assert state.config.model.lora_config is not None
    assert state.config.model.lora_config.r == 8
    state.enter("model.lora_config", "false")
    assert state.checked().model.lora_config is None
    assert state.is_absent("model.lora_config.r")
    assert state.changes() == {"model.lora_config": False}
    state.enter("model.lora_config", "true")
    assert state.checked().model.lora_config.r == 8


def test_empty_means_none_but_for_visible_devices() -> None:
    state = FormState(DeploymentConfig(run_name="mine"))
    state.enter("run_name", "")
    state.enter("cuda_visible_devices", "")
    assert state.config.run_name is None
    assert state.config.cuda_visible_devices == ""
    state.enter("output_dir", "")
    assert "config.wrong_value(setting=output_dir," in state.messages()["output_dir"]


def test_a_secret_is_not_taken_and_not_shown() -> None:
    for text in (TOKEN, "s3://me:letmein99@host/b", "token=abcdefgh1"):
        state = typed(backup__place=text, model__name=text)
        assert state.messages().keys() == {"backup.place", "model.name"}
        shown = str([state.text("model.name"), state.problems(), state.changes()])
        assert text not in shown
        assert "letmein99" not in shown


def test_a_place_with_a_password_stays_what_it_is_and_is_shown_without_it() -> None:
    place = "sftp://me:letmein99@host/backups"
    state = FormState(DeploymentConfig(backup={"place": place}))
    assert state.text("backup.place") == "sftp://***@host/backups"
    state.enter("backup.place", "sftp://***@host/backups")
    state.enter("training.seed", "3")
    assert state.checked().backup.place == place
    state.enter("backup.place", "sftp://***@other/backups")
    assert state.messages()["backup.place"] == "notebook.secret_in_form(setting=backup.place)"


def test_values_from_python_are_all_taken_or_none() -> None:
    state = typed(training__seed="x")
    state.update({"batch_size": 8, "model": {"lora_config": {"r": 4}}, "training.seed": 3})
    config = state.checked()
    assert (config.batch_size, config.training.seed) == (8, 3)
    assert config.model.lora_config is not None
    assert config.source("training.batch_size").place == "form training.batch_size"
    for wrong in ({"batch_size": 2, "training.seed": -1}, {"batch_size": 2, "nonsense": 1}):
        with pytest.raises(ConfigurationError):
            state.update(wrong)
        assert state.checked().batch_size == 8
    with pytest.raises(ConfigurationError, match=r"config\.hidden_size_not_divisible"):
        state.update({"model.embedded.hidden_size": 30})
    with pytest.raises(ConfigurationError, match="what=preset, name=nonsense,"):
        state.update({"preset": "nonsense"})
    state.update({"preset": "quick"})
    assert state.checked().training.max_steps == 60


def test_undoing_all_gives_back_what_it_began_with() -> None:
    state = typed(training__seed="x", training__batch_size="3", training__max_steps="9")
    state.choose("ci")
    state.reset()
    assert state.checked().to_dict() == DeploymentConfig().to_dict()
    assert state.changes() == {}


def test_what_was_changed_makes_the_same_configuration_in_a_cell() -> None:
    state = typed(training__batch_size="3", data__packing="false")
    state.choose("quick")
    again = DeploymentConfig(**state.changes())
    assert again.model_dump() == state.checked().model_dump()


def test_what_nobody_gave_stays_not_given() -> None:
    state = typed(training__batch_size="auto")
    assert "gradient_accumulation" not in state.checked().training.model_fields_set
