"""Words of other tools get what the same thing is called here, which is there."""

import pytest

from infrastructure.commands.main import create_parser
from infrastructure.commands.parser import known_flags, parse
from infrastructure.commands.unknown_words import COMMANDS_ELSEWHERE
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.elsewhere import ABSENT, SAME, as_keys
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.flags import ALIASES, as_flags, flag_names
from infrastructure.config.sources.load import load_config

FIELDS = schema_of(DeploymentConfig).fields


def refusal(*arguments: str) -> str:
    with pytest.raises(ValueError, match="unknown") as raised:
        parse(create_parser(), arguments)
    return str(raised.value)


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@pytest.mark.parametrize("name", SAME)
def test_what_is_named_is_there_and_takes_the_value(name: str) -> None:
    for setting in SAME[name]:
        key, _, value = setting.partition("=")
        assert key in FIELDS
        if value:
            load_config(environment={}, flags={flag_names(key)[0]: value})
    if flag_of(name) in known_flags(create_parser(), "train"):
        assert flag_of(name) in ALIASES[SAME[name][0]], "the flag means something else"


@pytest.mark.parametrize("name", [*SAME, *ABSENT])
def test_it_is_named_for_a_flag_a_key_and_a_field(name: str) -> None:
    expected = ABSENT.get(name) or as_flags(SAME[name])
    if not any(flag_of(name) in flags for flags in ALIASES.values()):
        assert expected in refusal("train", flag_of(name))
    for section in ("training", "model") if name != "qlora" else ("model",):
        with pytest.raises(ValueError, match=r"config\.unknown_key_2") as raised:
            load_config(environment={}, keywords={section: {name: 1}})
        assert (ABSENT.get(name) or as_keys(SAME[name])) in str(raised.value)


def test_a_command_without_the_flag_does_not_name_it() -> None:
    assert refusal("doctor", "--lr", "3").endswith("see temper doctor --help")


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("--batchsize", "did you mean --batch-size?"),
        ("--learnig-rate", "did you mean --learning-rate?"),
        ("--checkpoint-freq", "did you mean --checkpoint-frequency?"),
        ("--qlora", "it is --lora --quantization 4bit here"),
        ("--fsdp", "it is --shard yes here"),
        ("--tensor-parallel", "a layer is not cut over GPUs here"),
        ("--tp-size", "num_processes with training.shard = yes spreads"),
        ("--context-parallel", "a row is not cut over GPUs here"),
        ("--qat", "it is --quantization-aware here"),
        ("--wandb", "it is --metrics-sinks wandb here"),
        ("--mlflow", "no sink of that name is built in"),
        ("--warmup-ratio", "counted in steps, not in a share: give training.warmup_steps"),
        ("--gpu", "it is --cuda-visible-devices here"),
        ("--val-split", "it is --validation-split here"),
        ("--quantize", "it is --quantization here"),
        ("--load-in-4bit", "it is --quantization 4bit here"),
        ("--horoscope", "see temper train --help"),
        ("--beam-search", "see temper train --help"),
    ],
)
def test_a_hint_is_right_or_there_is_none(flag: str, hint: str) -> None:
    assert hint in refusal("train", flag)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search"], "commands.unknown_command"),
        (["trian"], "commands.unknown_command"),
        (["resume"], "did you mean temper resume?"),
        (["backup", "lst"], "commands.unknown_command"),
        (["ppo"], "unknown command 'ppo'; PPO is not here"),
    ],
)
def test_a_word_that_is_no_command(words: list[str], message: str) -> None:
    assert refusal(*words).startswith(message) or message in refusal(*words)
    assert "train-detached" not in refusal(*words), "it is for no person"


def test_commands_of_other_tools_stand_for_commands_of_ours() -> None:
    there = refusal("no-such-command")
    assert all(command in there for command in COMMANDS_ELSEWHERE.values())
    assert not any(f" {word}," in there for word in COMMANDS_ELSEWHERE)


def test_the_program_s_name_is_printed_once() -> None:
    with pytest.raises(ValueError, match="required") as raised:
        parse(create_parser(), ["export"])
    assert str(raised.value).startswith("commands.wrong_arguments")
