"""infrastructure/config/README.md says what the code does: every key, flag, default, spelling."""

import re
from pathlib import Path

import infrastructure
from infrastructure.config.aliases import KEYS, PREFIXES
from infrastructure.config.auto import learning_rate_for, num_epochs_for
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import plain
from infrastructure.config.merging.presets import PRESET, PRESETS
from infrastructure.config.schema import schema_of
from infrastructure.config.sections.model_config import EmbeddedModelConfig, LoraConfig, ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.config.sources.environment import (
    DISABLING,
    OTHER_VARIABLES,
    VARIABLES,
    variable_of,
)
from infrastructure.config.sources.flags import flag_names

README = Path(infrastructure.__file__).parent / "config/README.md"
FIELDS = schema_of(DeploymentConfig).fields


def rows(title: str) -> list[list[str]]:
    """The cells of the table under a heading, without its head."""
    section = README.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


KEY_ROWS = {row[0].strip("` "): row for row in rows("All keys")}


def test_every_key_is_listed_once_and_no_other() -> None:
    listed = [row[0].strip("` ") for row in rows("All keys")]
    assert listed == list(FIELDS)


def test_a_row_is_true() -> None:
    for key in FIELDS:
        _, flags, default, what, shown_by = KEY_ROWS[key]
        spec = FIELDS[key]
        assert flags.replace("`", "").split() == list(flag_names(key)), key
        assert default.strip("`") == ("off" if spec.is_switch else plain(spec.default)), key
        assert what == spec.description, key
        assert "](" in shown_by, key


def test_every_named_test_exists() -> None:
    linked = {path for row in KEY_ROWS.values() for path in re.findall(r"\]\(([^)]+)\)", row[4])}
    missing = sorted(path for path in linked if not (README.parent / path).is_file())
    assert missing == []


def auto_values(model: ModelConfig, from_scratch: bool) -> tuple[float, int]:
    training = TrainingConfig()
    rate = learning_rate_for(training, model, from_scratch)
    return rate, num_epochs_for(training, from_scratch, num_steps_per_epoch=1)


def test_what_auto_means_is_true() -> None:
    cells = {who: (rate, epochs) for who, rate, epochs in rows("What auto means")}
    documented = {who: (float(rate.split()[0]), int(n)) for who, (rate, n) in cells.items()}
    other, lora = ModelConfig(name="a/b"), ModelConfig(name="a/b", lora_config=LoraConfig())
    assert documented == {
        "the embedded model": auto_values(ModelConfig(), True),
        "any other model with new weights": auto_values(other, True),
        "LoRA": auto_values(lora, False),
        "full fine-tuning of a trained model": auto_values(other, False),
    }
    width = EmbeddedModelConfig().hidden_size
    assert f"· {width} / `model.embedded.hidden_size`" in cells["the embedded model"][0]
    wider = ModelConfig(embedded=EmbeddedModelConfig(hidden_size=2 * width))
    assert auto_values(wider, True)[0] == documented["the embedded model"][0] / 2


def test_every_spelling_is_listed() -> None:
    listed = {row[0].strip("`"): row[1].strip("`") for row in rows("Other spellings")}
    prefixes = {f"{prefix}*": f"{meant}*" for prefix, meant in PREFIXES.items()}
    assert listed == KEYS | prefixes


def test_every_variable_is_listed() -> None:
    listed = [row[0].strip("`") for row in rows("Environment")]
    assert sorted(listed) == sorted([*VARIABLES, *DISABLING, *OTHER_VARIABLES, variable_of(PRESET)])


def test_every_preset_is_listed_with_what_it_sets() -> None:
    listed = {row[0].strip("`"): (row[1], row[2]) for row in rows("Presets")}
    assert listed.keys() == PRESETS.keys()
    for name, preset in PRESETS.items():
        settings = ", ".join(f"`{key}: {plain(value)}`" for key, value in preset.settings.items())
        assert listed[name] == (preset.purpose, settings)
