import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import choices, words_taken
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
