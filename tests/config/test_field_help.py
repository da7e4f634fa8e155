import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import (
    allowed_values,
    as_typed,
    choices,
    format_value,
    plain,
    words_taken,
)
from infrastructure.config.schema import schema_of

FIELDS = schema_of(DeploymentConfig).fields


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("model.quantization", ["4bit", "8bit", "none"]),
        ("training.mixed_precision", ["true", "false", "bf16", "fp16", "fp32", "fp8"]),
        ("training.memory_efficient_attention", ["true", "false", "none"]),
        ("data.packing", ["true", "false"]),
        ("log_level", ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]),
    ],
)
def test_fields_that_take_nothing_but_a_few_words(key: str, words: list[str]) -> None:
    assert choices(FIELDS[key].info) == words_taken(FIELDS[key].info) == words


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("training.batch_size", ["auto"]),
        ("training.checkpoint_seconds", ["auto", "none"]),
        ("device", ["auto", "cpu", "cuda"]),
        ("model.lora_config.target_modules", ["all-linear"]),
        ("data.path", ["none"]),
        ("model.name", []),
        ("max_memory_percent", []),
        ("monitor.alert_sinks", []),
    ],
)
def test_fields_that_take_other_values_too(key: str, words: list[str]) -> None:
    assert choices(FIELDS[key].info) == []
    assert words_taken(FIELDS[key].info) == words


@pytest.mark.parametrize(
    ("value", "typed"),
    [
        (None, "none"),
        (True, "true"),
        (False, "false"),
        (32, "32"),
        (2e-05, "2e-05"),
        ("a b", "a b"),
        ([], "[]"),
        (["a", "b", 3], "a,b,3"),
        ([1.5], "[1.5]"),
        ({"a": [1]}, '{"a": [1]}'),
        ({}, "{}"),
    ],
)
def test_a_value_is_shown_as_it_is_typed(value: object, typed: str) -> None:
    assert plain(value) == as_typed(value) == typed
    assert format_value(value) == (f'"{typed}"' if isinstance(value, str) else typed)


def test_a_long_value_is_cut_and_a_secret_masked() -> None:
    for length, is_cut in ((80, False), (81, True)):
        assert as_typed("x" * length) == ("x" * 79 + "…" if is_cut else "x" * 80)
    assert format_value("x" * 78) == '"' + "x" * 78 + '"'
    assert format_value("x" * 79) == '"' + "x" * 78 + "…"
    token = "hf_" + "aB3" * 12
    assert token not in format_value(token) + as_typed([token])


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("training.batch_size", 'a whole number of at least 1, or "auto"'),
        ("training.warmup_steps", "a whole number of at least 0"),
        ("training.seed", "a whole number of at least 0 and below 4294967296"),
        ("training.weight_decay", "a number from 0 to 1"),
        ("training.max_grad_norm", "a number above 0, or none"),
        ("data.max_length", "a whole number from 2 to 1048576"),
        ("data.packing", "true or false"),
        ("data.train_on", '"answers", "last_answer" or "all"'),
        ("model.quantization", '"4bit", "8bit" or none'),
        ("data.prompt_column", "a text, or none"),
        ("memory.gpu_memory_fraction", "a number above 0 and at most 1, or none"),
        ("data.validation_split", "a number of at least 0 and below 1"),
    ],
)
def test_what_a_field_takes_is_described_with_its_bounds(key: str, words: str) -> None:
    assert allowed_values(FIELDS[key].info) == words
