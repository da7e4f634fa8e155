"""Settings without effect: which they are, and what is shown of them."""

from pathlib import Path

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.effect import (
    conditions_of,
    has_effect,
    noted_without_effect,
    refused_without_effect,
)
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.load import load_config

FIELDS = schema_of(DeploymentConfig).fields
BUFFER = "config.setting_without_effect(setting=data.buffer_size="
REASON = "otherwise=config.unused_streaming_is_off())"


@pytest.mark.parametrize(
    ("key", "codes"),
    [
        ("data.buffer_size", ["config.unused_streaming_is_off"]),
        ("backup.keep", ["config.unused_no_backup_destination"]),  # of its section
        ("training.seed", []),
    ],
)
def test_a_field_has_its_conditions_and_those_of_its_section(key: str, codes: list[str]) -> None:
    assert [one.otherwise for one in conditions_of(FIELDS[key])] == codes
    assert has_effect(DeploymentConfig(), FIELDS[key]) is (not codes)
    config = DeploymentConfig(**{"data.streaming": True, "backup.place": "/a"})
    assert has_effect(config, FIELDS[key])


def test_a_setting_without_effect_is_shown_with_its_place_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("data:\n  buffer_size: 10\nbackup:\n  keep: 3\n")
    config = load_config(path, environment={})
    [backup, buffer] = sorted(refused_without_effect(config, config.source))
    assert backup.startswith("config.setting_without_effect(setting=backup.keep=3, ")
    place = f"where= ({path}:2: data.buffer_size)"
    assert buffer == f"{BUFFER}10, {place}, {REASON}. config.unused_switch_it_on()"
    assert [*refused_without_effect(config, config.source, ["data.buffer_size"])] == [buffer]
    assert [*refused_without_effect(config, config.source, [])] == []
    assert [*noted_without_effect(config, config.source)] == []


def test_a_default_that_was_given_without_effect_is_only_noted() -> None:
    config = DeploymentConfig(**{"data.buffer_size": 1000, "backup.allow_missing_place": False})
    assert [*refused_without_effect(config, config.source)] == []
    assert [*noted_without_effect(config, config.source)] == [f"{BUFFER}1000, where=, {REASON}"]
    plain = DeploymentConfig()
    assert [*noted_without_effect(plain, plain.source)] == []
