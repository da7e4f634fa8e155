"""The file that `temper config init` writes is read back as it says."""

import json
from pathlib import Path

import pytest

from infrastructure.commands.main import main
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.load import load_config
from infrastructure.config.sources.yaml_template import yaml_template

FIELDS = schema_of(DeploymentConfig).fields


def settings_of(text: str) -> list[str]:
    lines = [line.removeprefix("# ") for line in text.splitlines()]
    return [line for line in lines if line.partition(": ")[0] in FIELDS]


def test_every_setting_is_there_and_none_is_set(tmp_path: Path) -> None:
    text = yaml_template(DeploymentConfig())
    assert [line.partition(": ")[0] for line in settings_of(text)] == sorted(
        FIELDS,
        key=lambda key: [*dict.fromkeys(k.rpartition(".")[0] for k in FIELDS)].index(
            key.rpartition(".")[0]
        ),
    )
    path = tmp_path / "a.yaml"
    path.write_text(text)
    assert load_config(path, environment={}).to_dict()["sources"] == {}


def test_each_commented_value_is_the_default(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    for line in settings_of(yaml_template(DeploymentConfig())):
        key = line.partition(": ")[0]
        if "lora_config." in key:
            continue  # inside a section that is off
        path.write_text(line)
        default = FIELDS[key].default
        expected = default is not None if FIELDS[key].is_switch else default
        assert line == f"{key}: {json.dumps(expected, ensure_ascii=False, default=str)}"
        config = load_config(path, environment={})
        assert config.is_default(key), line


def test_what_was_given_is_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "a.yaml"
    given = ["--lora", "--lora-r", "8", "--lr", "0.5", "--name", "a: b # c"]
    assert main(["config", "init", str(path), *given]) == 0
    config = load_config(path, environment={})
    assert config.model.lora_config is not None
    assert (config.model.lora_config.r, config.training.learning_rate) == (8, 0.5)
    assert config.run_name == "a: b # c"
    assert main(["config", "init", str(path)]) == 2
    assert "commands.config_file_exists" in capsys.readouterr().err
    assert load_config(path, environment={}).run_name == "a: b # c"


def test_a_secret_is_not_written_into_the_file() -> None:
    config = DeploymentConfig(data_path="https://me:letmein99@example.org/rows.jsonl")
    text = yaml_template(config)
    assert "letmein99" not in text
    assert 'data.path: "https://***@example.org/rows.jsonl"' in text


def test_what_is_set_to_its_default_stays_a_comment() -> None:
    given = {"training.batch_size": 32, "data.packing": False, "model.lora_config.r": 16}
    lines = yaml_template(DeploymentConfig(**given)).splitlines()
    assert "# training.batch_size: 32" in lines
    assert "data.packing: false" in lines
    assert "model.lora_config: true" in lines
    assert "# model.lora_config.r: 16" in lines
