"""Every field has a flag; help names each with its description and its default."""

import argparse
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.flags import (
    add_config_flags,
    as_flag,
    as_flags,
    flag_names,
    flags_given,
    key_of_keyword,
)
from infrastructure.config.sources.load import load_config
from infrastructure.core.messages import WORDS, spelled_by
from tests.config.field_values import as_text, other_value

FIELDS = schema_of(DeploymentConfig).fields


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="temper", exit_on_error=False)
    add_config_flags(parser)
    return parser.parse_args(arguments)


def load(*arguments: str) -> DeploymentConfig:
    return load_config(environment={}, flags=flags_given(parse(*arguments)))


def typed(flag: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag, as_text(value)]


def test_every_field_has_a_flag() -> None:
    for key in FIELDS:
        value = other_value(FIELDS[key])
        for flag in flag_names(key):
            arguments = typed(flag, value)
            config = load(*arguments)
            assert config.value(key) == value, key
            assert config.source(key).place == arguments[0], key


def test_flags_are_unique() -> None:
    flags = [flag for key in FIELDS for flag in flag_names(key)]
    assert len(flags) == len(set(flags))
    assert all(flag.removeprefix("--").replace("-", "").isalnum() for flag in flags)


@pytest.mark.parametrize(
    ("flag", "key"),
    [
        ("--model", "model.name"),
        ("--model-name", "model.name"),
        ("--batch-size", "training.batch_size"),
        ("--epochs", "training.num_epochs"),
        ("--num-epochs", "training.num_epochs"),
        ("--output", "output_dir"),
        ("--output-dir", "output_dir"),
        ("--eval-data", "data.eval_path"),
        ("--lora-r", "model.lora_config.r"),
        ("--cache-disk-size", "cache.disk_size"),
        ("--quantum-solver", "quantum.solver"),
        ("--backups", "enable_backups"),
    ],
)
def test_the_names_of_the_specifications(flag: str, key: str) -> None:
    assert flag in flag_names(key)


def test_only_what_was_typed_is_given() -> None:
    assert flags_given(parse()) == {}
    namespace = parse("--batch-size", "64", "--no-packing", "--config", "a.yaml")
    assert flags_given(namespace) == {"--batch-size": "64", "--no-packing": False}
    assert namespace.config == "a.yaml"


def test_the_last_of_one_flag_counts() -> None:
    assert load("--batch-size", "2", "--batch-size", "4").batch_size == 4


@pytest.mark.parametrize(
    ("words", "key", "holds"),
    [
        (["--reward=a", "--reward=b,c"], "training.rewards", ["a", "b", "c"]),
        (["--reward", '["format=a,b"]', "--reward=c"], "training.rewards", ["format=a,b", "c"]),
        (["--reward", '"format=a,b"', "--reward=c"], "training.rewards", ["format=a,b", "c"]),
        (
            ["--lora-target-modules=q_proj", "--lora-target-modules=v_proj"],
            "model.lora_config.target_modules",
            ["q_proj", "v_proj"],
        ),
        (["--time-step-bins=0", "--time-step-bins=2"], "training.time_step_bins", [0, 2]),
    ],
)
def test_a_list_gets_the_items_of_all_its_flags(words: list[str], key: str, holds: object) -> None:
    assert load(*words).value(key) == holds


def test_a_list_that_is_given_once_stays_as_it_was_typed() -> None:
    assert flags_given(parse("--reward", "a, b")) == {"--reward": "a, b"}


def test_the_words_of_a_list_set_the_same_list_again() -> None:
    flags = as_flags({"training.rewards": [r"format=\d{1,3}", "exact_answer"]})
    assert load(*shlex.split(flags)).training.rewards == [r"format=\d{1,3}", "exact_answer"]


def test_a_mapping_is_given_once() -> None:
    assert load(*['--settings={"a": 1}'] * 2).training.settings == {"a": 1}
    with pytest.raises(argparse.ArgumentError, match=r"--settings.*config\.mapping_given_twice"):
        load('--settings={"a": 1}', '--settings={"b": 2}')


@pytest.mark.parametrize("wrong", ["--batch", "--batchsize", "--no-batch-size"])
def test_abbreviated_and_unknown_flags_are_refused(wrong: str) -> None:
    parser = argparse.ArgumentParser()
    add_config_flags(parser)
    assert parser.parse_known_args([wrong])[1] == [wrong]


def test_an_unknown_flag_in_a_mapping_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"what=flag, name=--batch-sizes,.*meant=--batch-size\)"):
        load_config(environment={}, flags={"--batch-sizes": "1"})


def test_a_wrong_value_names_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r'setting=training\.batch_size, .*value="-4"'):
        load("--batch-size", "-4")
    monkeypatch.delenv(WORDS)
    with pytest.raises(ValueError, match=r"^--batch-size\b.*-4"):
        load("--batch-size", "-4")


@pytest.fixture(scope="module")
def help_text() -> str:
    parser = argparse.ArgumentParser(
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=400)
    )
    add_config_flags(parser)
    return " ".join(parser.format_help().split())


def test_help_shows_description_and_default(help_text: str) -> None:
    for key in FIELDS:
        with spelled_by(as_flag):
            flag, description = re.escape(flag_names(key)[0]), re.escape(FIELDS[key].description)
        assert re.search(
            rf" {flag}[ ,].{{0,400}}{description}.{{0,400}}? \(default: ", help_text
        ), key


def test_the_help_of_a_list_shows_how_several_are_typed(help_text: str) -> None:
    of_rewards = help_text.partition(FIELDS["training.rewards"].description)[2]
    assert "config.list_flag_help" in of_rewards.partition("(default: [])")[0]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("training.batch_size", 8, ["--batch-size", "8"]),
        ("training.gradient_checkpointing", True, ["--gradient-checkpointing"]),
        ("data.pin_memory", False, ["--no-pin-memory"]),
    ],
)
def test_settings_are_written_as_they_are_typed(key: str, value: object, words: list[str]) -> None:
    assert as_flags({key: value}) == shlex.join(words)
    assert load(*words).value(key) == value


def test_a_command_shows_where_its_settings_come_from_by_default() -> None:
    keys = ["training.batch_size", "training.seed", "data.packing"]
    parser = argparse.ArgumentParser(
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=400)
    )
    add_config_flags(parser, keys, inherited=["training.seed"], default_of_inherited="the run's")
    text = " ".join(parser.format_help().split())
    for key, shown in zip(keys, ("default: 32", "the run's", "default: true"), strict=True):
        with spelled_by(as_flag):
            description = FIELDS[key].description
        assert f"({shown})" in text.partition(description)[2][:120], key
    assert "--learning-rate" not in text


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("max_steps", "training.max_steps"),
        ("lora", "model.lora_config"),
        ("backup_place", "backup.place"),
        ("epochs", "training.num_epochs"),
        ("lr", "training.learning_rate"),
        ("backups", "enable_backups"),
        ("no_lora", "no_lora"),  # a true value of it would switch LoRA on
        ("nothing", "nothing"),
    ],
)
def test_a_keyword_sets_what_its_flag_sets(name: str, key: str) -> None:
    assert key_of_keyword(name) == key


@pytest.mark.parametrize(
    ("cell", "key", "value", "place"),
    [
        ({"model": "a/b"}, "model.name", "a/b", "cell model"),
        ({"model": {"name": "a/b"}}, "model.name", "a/b", "cell model.name"),
        ({"data": Path("rows.jsonl")}, "data.path", "rows.jsonl", "cell data"),
        ({"data": {"path": Path("rows.jsonl")}}, "data.path", "rows.jsonl", "cell data.path"),
        ({"data_path": "rows.jsonl"}, "data.path", "rows.jsonl", "cell data_path"),
        ({"lora": True}, "model.lora_config", True, "cell lora"),
        ({"lora": {"r": 4}}, "model.lora_config.r", 4, "cell lora.r"),
        ({"lr": 0.5}, "training.learning_rate", 0.5, "cell lr"),
        ({"training": {"seed": 7}}, "training.seed", 7, "cell training.seed"),
        ({"optimization": {"seed": 7}}, "training.seed", 7, "cell optimization.seed"),
        ({"training.seed": 7}, "training.seed", 7, "cell training.seed"),
        ({"backup_place": Path("/a")}, "backup.place", "/a", "cell backup_place"),
    ],
)
def test_a_keyword_is_a_section_a_setting_or_the_argument_of_a_function(
    cell: dict[str, Any], key: str, value: object, place: str
) -> None:
    config = load_config(environment={}, cell=cell)
    assert (config.value(key), config.source(key).place) == (value, place)
    changed = {one for one in config.sources() if not config.is_default(one)}
    assert changed == {key} | ({"model.lora_config"} if "lora" in cell else set())
