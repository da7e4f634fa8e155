"""A preset lies just under the layer that names it, and one preset holds."""

from collections.abc import Mapping
from typing import Any

import pytest

from infrastructure.config import deployment_config
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import GivenValue, Layer, Source
from infrastructure.config.merging.presets import OWN_LOOP_ONLY, PRESETS
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.load import load_config

STEPS = "training.max_steps"
QUICK, CI = PRESETS["quick"].settings[STEPS], PRESETS["ci"].settings[STEPS]


def load(**layers: Any) -> DeploymentConfig:
    return load_config(**{"environment": {}, **layers})


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_sets_what_it_lists_and_a_run_can_start_with_it(name: str) -> None:
    config = DeploymentConfig(preset=name)
    assert PRESETS[name].settings.keys() <= schema_of(DeploymentConfig).fields.keys()
    for key, value in PRESETS[name].settings.items():
        assert config.value(key) == value, key
        assert config.source(key) == Source(Layer.PRESET, f"preset {name} (keyword preset)")
    assert config.problems() == []


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_described_in_one_line(name: str) -> None:
    assert PRESETS[name].purpose == PRESETS[name].purpose.strip()
    assert 20 < len(PRESETS[name].purpose) < 90


# (layers, the value of max_steps, where it comes from)
CASES: list[tuple[dict[str, Any], int | None, str]] = [
    ({"cell": {"preset": "quick"}}, QUICK, "preset quick (cell preset)"),
    ({"cell": {"preset": "quick", STEPS: 9}}, 9, f"cell {STEPS}"),
    ({"cell": {"preset": "quick"}, "environment": {"TEMPER_TRAINING__MAX_STEPS": "9"}}, 9, "env"),
    ({"cell": {STEPS: 9}, "environment": {"TEMPER_PRESET": "ci"}}, CI, "preset ci (environment"),
    (
        {"environment": {"TEMPER_PRESET": "ci", "TEMPER_TRAINING__MAX_STEPS": "9"}},
        9,
        "environment TEMPER_TRAINING__MAX_STEPS",
    ),
    (
        {"environment": {"TEMPER_TRAINING__MAX_STEPS": "9"}, "flags": {"--preset": "quick"}},
        QUICK,
        "preset quick (--preset)",
    ),
    ({"flags": {"--preset": "quick", "--max-steps": "9"}}, 9, "--max-steps"),
    ({"keywords": {"preset": "quick"}, "flags": {"--max-steps": "9"}}, QUICK, "preset quick (key"),
    ({"cell": {"preset": "quick"}, "environment": {"TEMPER_PRESET": "none"}}, None, "default"),
    ({"cell": {"preset": None}}, None, "default"),
    ({"environment": {"TEMPER_PRESET": ""}}, None, "default"),
]


@pytest.mark.parametrize(("layers", "value", "place"), CASES)
def test_a_preset_lies_just_under_the_layer_that_names_it(
    layers: Mapping[str, Any], value: int | None, place: str
) -> None:
    config = load(**layers)
    assert config.training.max_steps == value
    assert config.source(STEPS).place.startswith(place)


def test_one_preset_holds_that_of_the_highest_layer() -> None:
    config = load(cell={"preset": "thorough"}, environment={"TEMPER_PRESET": "quick"})
    assert config.training.num_epochs == "auto"
    assert config.training.max_steps == QUICK


def test_a_file_may_name_a_preset(tmp_path: Any) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("preset: quick\ntraining:\n  warmup_steps: 3\n")
    config = load(yaml_path=file)
    assert config.source(STEPS).place == f"preset quick ({file}:1: preset)"
    assert config.training.warmup_steps == 3


def test_a_changed_copy_takes_a_preset_over_what_was_there() -> None:
    config = DeploymentConfig(batch_size=4)
    changed = config.changed([GivenValue("preset", "ci", Source(Layer.FORM, "form"))])
    assert changed.batch_size == PRESETS["ci"].settings["training.batch_size"]
    assert config.batch_size == 4
    assert changed.source("training.batch_size").place == "preset ci (form)"


def test_of_a_preset_only_what_contradicts_is_left_out() -> None:
    config = DeploymentConfig(preset="thorough", **{"training.strategy": "curriculum"})
    assert config.problems() == []
    assert config.training.early_stopping_patience is None
    assert config.training.num_epochs == PRESETS["thorough"].settings["training.num_epochs"]


@pytest.mark.parametrize("other", ["thorough", "none"])
def test_a_changed_copy_has_nothing_left_of_another_preset(other: str) -> None:
    config = DeploymentConfig(preset="ci", **{"training.max_steps": 9})
    changed = config.changed([GivenValue("preset", other, Source(Layer.FORM, "form"))])
    expected = DeploymentConfig(preset=other, **{"training.max_steps": 9})
    assert changed.model_dump() == expected.model_dump()


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (
            {"cell": {"preset": "quik"}},
            r"setting=cell preset, reason=.*what=preset, name=quik,.*meant=quick\)",
        ),
        (
            {"environment": {"TEMPER_PRESET": "x"}},
            r"setting=TEMPER_PRESET, .*known=ci, none, quick",
        ),
        ({"flags": {"--preset": "x"}}, r"setting=--preset, .*what=preset, name=x,"),
        ({"cell": {"preset": ["quick"]}}, r"what=preset, name=.*quick"),
    ],
)
def test_an_unknown_preset_is_refused_with_its_place(layers: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(**layers)


def test_where_each_value_came_from_is_recorded() -> None:
    config = load(environment={"TEMPER_PRESET": "ci"}, cell={"batch_size": 2})
    restored = DeploymentConfig.from_dict(config.to_dict())
    assert restored.sources() == config.sources()
    assert restored.source(STEPS).layer is Layer.PRESET


def test_ci_makes_any_notebook_small() -> None:
    cell = {
        "model_name": "someone/large",
        "model.quantization": "4bit",
        "model.lora_config.r": 64,
        "data.max_length": 4096,
        "training.gradient_accumulation": 8,
        "training.num_epochs": 3,
        "training.checkpoint_interval": 1,
    }
    config = load(cell=cell, environment={"TEMPER_PRESET": "ci"})
    assert config.problems() == []
    assert (config.model.name, config.model.quantization) == ("embedded", None)
    assert config.training.max_steps == CI
    assert config.training.checkpoint_interval is None


def test_what_a_preset_overrides_is_noted_with_its_place(tmp_path: Any) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("training:\n  max_steps: 40\n  warmup_steps: 6\n")
    config = load(yaml_path=file, flags={"--preset": "quick"})
    [note] = [note for note in config.changed([]).notes() if "preset" in note]
    about = f"preset=preset quick (--preset), others={file}:2: training.max_steps"
    assert note == f"config.preset_overrides({about})"
    kept = load(yaml_path=file, flags={"--preset": "quick", "--max-steps": "40"})
    assert not any("preset" in note for note in kept.notes())


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_a_method_of_trl_takes_of_a_preset_what_its_trainer_has(name: str, method: str) -> None:
    config = DeploymentConfig(preset=name, **{"training.method": method})
    default = DeploymentConfig(**{"training.method": method})
    for key, value in PRESETS[name].settings.items():
        values = OWN_LOOP_ONLY.get(key)
        is_own = values is not None and (not values or value in values)
        is_taken = method == "sft" or not is_own
        if is_taken and config.value(key) == value:
            assert config.source(key).layer is Layer.PRESET
        else:
            assert (config.value(key), config.source(key).layer) == (
                default.value(key),
                default.source(key).layer,
            )
            assert not is_taken or key not in OWN_LOOP_ONLY, key
    assert config.problems() == default.problems()


@pytest.mark.parametrize(
    ("key", "value", "is_own"),
    [
        ("training.validation_prompts", 64, True),
        ("training.validation_prompts", None, True),
        ("training.batch_size", "auto", True),
        ("training.batch_size", 4, False),
        ("training.max_steps", "auto", False),
    ],
)
def test_settings_that_only_the_own_loop_has(key: str, value: object, is_own: bool) -> None:
    setting = GivenValue(key, value, Source(Layer.PRESET, "preset x"))
    assert deployment_config._is_own_loops(setting) is is_own


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_what_a_person_gave_is_never_left_out(method: str) -> None:
    given = {"training.validation_prompts": 7, "training.method": method}
    config = DeploymentConfig(preset="quick", **given)
    assert config.value("training.validation_prompts") == 7
    assert config.source("training.validation_prompts").layer is not Layer.PRESET


def test_what_a_lower_layer_gave_holds_where_a_preset_does_not_apply() -> None:
    cell = {"training.validation_prompts": 7, "training.method": "dpo"}
    config = load(cell=cell, flags={"--preset": "quick"})
    assert config.value("training.validation_prompts") == 7
    assert config.value("training.max_steps") == QUICK
