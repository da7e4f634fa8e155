"""Every field has a variable; the loop over all fields is the test of that."""

from typing import Literal, get_args, get_origin

import pytest

from infrastructure.config.aliases import KEYS
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.describe import describe
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.environment import (
    DISABLING,
    OTHER_VARIABLES,
    SET_BY_SYSTEMS,
    VARIABLES,
    variable_of,
)
from infrastructure.config.sources.flags import flag_names
from infrastructure.config.sources.load import load_config
from infrastructure.core.messages import WORDS
from tests.config.field_values import as_text, other_value

FIELDS = schema_of(DeploymentConfig).fields
DEFAULTS = DeploymentConfig().to_dict()


def test_every_field_has_a_variable() -> None:
    for key in FIELDS:
        value = other_value(FIELDS[key])
        assert value != FIELDS[key].default, key
        variable = variable_of(key)
        config = load_config(environment={variable: as_text(value)})
        assert config.value(key) == value, key
        assert config.source(key).place == f"environment {variable}", key


@pytest.mark.parametrize(("variable", "key"), VARIABLES.items())
def test_the_plain_variables(variable: str, key: str) -> None:
    value = other_value(FIELDS[key])
    config = load_config(environment={variable: as_text(value)})
    assert config.value(key) == value
    assert config.source(key).place == f"environment {variable}"


@pytest.mark.parametrize("text", ["true", "True", "1", "yes", "YES"])
@pytest.mark.parametrize("variable", DISABLING)
def test_disabling(variable: str, text: str) -> None:
    config = load_config(environment={variable: text})
    assert config.value(DISABLING[variable]) in (False, "cpu")


@pytest.mark.parametrize("text", ["false", "0", "no"])
@pytest.mark.parametrize("variable", DISABLING)
def test_not_disabling(variable: str, text: str) -> None:
    config = load_config(environment={variable: text})
    assert config.value(DISABLING[variable]) in (True, "auto")


def test_a_variable_sets_what_it_is_named_after() -> None:
    for variable, key in VARIABLES.items():
        assert key == KEYS.get(variable.lower(), variable.lower())
    named = {variable: variable.lower().replace("disable", "enable") for variable in DISABLING}
    assert named | {"DISABLE_GPU": "device"} == DISABLING


def test_disabling_needs_a_truth_value() -> None:
    with pytest.raises(
        ValueError,
        match=r"config\.invalid_environment_variable.*variable=DISABLE_GPU, reason=.*not_a_boolean"
        r'.*value="maybe"',
    ):
        load_config(environment={"DISABLE_GPU": "maybe"})


@pytest.mark.parametrize("text", ["true", "1", "yes", "false", "0", "no"])
def test_truth_values_of_fields(text: str) -> None:
    config = load_config(environment={"TEMPER_DATA__PACKING": text})
    assert config.data.packing is (text in ("true", "1", "yes"))


def test_other_spellings_have_variables_too() -> None:
    assert load_config(environment={"TEMPER_DATA__BATCH_SIZE": "3"}).batch_size == 3
    assert load_config(environment={"TEMPER_MODEL_NAME": "x"}).model_name == "x"


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("TEMPER_TRAINING__BATCHSIZE", "TEMPER_TRAINING__BATCH_SIZE"),
        ("TEMPER_TRAINING_BATCH_SIZE", "TEMPER_TRAINING__BATCH_SIZE"),
        ("TEMPER_LOGLEVEL", "TEMPER_LOG_LEVEL"),
    ],
)
def test_an_unknown_variable_suggests_the_nearest(variable: str, meant: str) -> None:
    with pytest.raises(ValueError, match="unknown_environment_variable") as raised:
        load_config(environment={variable: "1"})
    assert f"variable={variable}, hint=" in str(raised.value)
    assert f"config.meant_variable(meant={meant})" in str(raised.value)
    with pytest.raises(ValueError, match=r"=TEMPER_XYZZY, hint=config\.config_lists_all_keys\(\)"):
        load_config(environment={"TEMPER_XYZZY": "1"})


def test_variables_of_others_are_left_alone() -> None:
    environment = {
        "TEMPER_PYTHON": "python3.12",
        "TEMPER_INSTALLER": "pip",
        "PATH": "/bin",
        "HF_TOKEN": "x",
        "BATCH_SIZE": "",
        "CI": "1",
    }
    assert load_config(environment=environment).to_dict() == DeploymentConfig().to_dict()


def test_empty_means_not_set_but_for_visible_devices() -> None:
    environment = {"TEMPER_RUN_NAME": "", "CUDA_VISIBLE_DEVICES": ""}
    config = load_config(environment=environment)
    assert (config.run_name, config.cuda_visible_devices) == (None, "")


def test_none_where_none_may_stand() -> None:
    config = load_config(environment={"TEMPER_TRAINING__MAX_GRAD_NORM": "none"})
    assert config.training.max_grad_norm is None
    with pytest.raises(ValueError, match=r"config\.wrong_value.*setting=training\.seed,"):
        load_config(environment={"TEMPER_TRAINING__SEED": "none"})


def test_every_choice_field_is_covered_by_another_choice() -> None:
    for spec in FIELDS.values():
        if get_origin(spec.info.annotation) is Literal:
            assert other_value(spec) in get_args(spec.info.annotation)


def plain_names(key: str) -> set[str]:
    """Return variables that look like a setting but set nothing."""
    flags = [flag.removeprefix("--").replace("-", "_") for flag in flag_names(key)]
    names = {key.rpartition(".")[2], key.replace(".", "_"), key.replace(".", "__"), *flags}
    known = {*VARIABLES, *DISABLING, *SET_BY_SYSTEMS, *OTHER_VARIABLES}
    return {name.upper() for name in names} - known


def test_any_other_plain_name_of_a_setting_is_reported_with_the_right_one() -> None:
    values = {
        name: as_text(other_value(FIELDS[key])) for key in FIELDS for name in plain_names(key)
    }
    config = load_config(environment=values)
    assert config.to_dict() == DEFAULTS
    notes, shown = config.notes(), describe(config)
    assert len(notes) == len(values)
    assert [note for note in notes if note not in shown] == []
    for key in FIELDS:
        right = [plain for plain, one in VARIABLES.items() if one == key] or [variable_of(key)]
        for name in plain_names(key):
            start = f"config.unused_environment_variable(variable={name}, "
            [note] = [note for note in notes if note.startswith(start)]
            assert right[0] in note, key


def test_it_is_not_reported_where_the_right_name_stands_beside_it() -> None:
    environment = {"SEED": "7", "TEMPER_TRAINING__SEED": "7", "MODEL": "x", "MODEL_NAME": "x"}
    assert load_config(environment=environment).notes() == []


@pytest.mark.parametrize("name", ["MEMORY_OPTIMIZATION", "GPU_OPTIMIZATION"])
def test_what_looks_like_a_switch_is_reported(name: str) -> None:
    config = load_config(environment={f"DISABLE_{name}": "true"})
    (note,) = config.notes()
    assert f"alternatives=TEMPER_ENABLE_{name}=false)" in note


def test_several_settings_of_one_name_are_all_named() -> None:
    (note,) = load_config(environment={"MEMORY_LIMIT": "8GB"}).notes()
    assert "config.unused_environment_variable(variable=MEMORY_LIMIT, " in note
    assert "TEMPER_DATA__MEMORY_LIMIT" in note
    assert "TEMPER_RESOURCES__GPU__MEMORY_LIMIT" in note


def test_a_changed_configuration_reports_it_too() -> None:
    config = load_config(environment={"SEED": "7"})
    assert config.changed([]).notes() == config.notes() != []


@pytest.mark.parametrize("key", FIELDS)
def test_a_value_that_does_not_fit_is_refused_as_a_flag_s_is(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under every name that sets something, by which the words call it."""
    wrong = wrong_value(key)
    if wrong is None:
        return
    names = [variable_of(key), *(plain for plain, one in VARIABLES.items() if one == key)]
    with pytest.raises(ValueError) as by_flag:
        load_config(environment={}, flags={key: wrong})
    assert key in str(by_flag.value)
    for name in names:
        with pytest.raises(ValueError) as caught:
            load_config(environment={name: wrong})
        assert str(caught.value) == str(by_flag.value)
        with monkeypatch.context() as as_words:
            as_words.delenv(WORDS)
            with pytest.raises(ValueError, match=rf"^{name}\b"):
                load_config(environment={name: wrong})


def wrong_value(key: str) -> str | None:
    """A text that the field does not take; None: it takes every text."""
    for text in ("-7", "1e999", "no such word \x00"):
        try:
            FIELDS[key].section.check_value(FIELDS[key].name, text)
        except ValueError:
            return text
    return None
