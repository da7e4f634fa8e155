import time

import pytest

from infrastructure.config.aliases import KEYS, PREFIXES, canonical
from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.core.messages import WORDS


def test_every_field_has_a_description_of_one_line() -> None:
    for spec in schema_of(DeploymentConfig).fields.values():
        assert spec.description.endswith("."), spec.key
        assert "\n" not in spec.description
        assert len(spec.description) <= 90, spec.key


def test_sections_know_where_they_stand() -> None:
    for path, section in schema_of(DeploymentConfig).sections.items():
        assert section.prefix == path


def test_every_spelling_means_a_field() -> None:
    schema = schema_of(DeploymentConfig)
    for key in KEYS:
        assert key not in schema.fields
        assert canonical(key) in schema.fields
    for prefix, meant in PREFIXES.items():
        assert not any(key.startswith(prefix) for key in schema.fields)
        assert any(key.startswith(meant) for key in schema.fields)


def test_an_absent_section_has_no_values() -> None:
    config = DeploymentConfig()
    assert config.value("model.lora_config") is False
    assert config.value("model.lora_config.r") is None
    assert "model.lora_config.r" not in config.sources()


def test_defaults_pass_their_own_checks() -> None:
    for spec in schema_of(DeploymentConfig).fields.values():
        if not spec.is_switch:
            assert spec.section.check_value(spec.name, spec.default) == spec.default


WEIRD = [
    "",
    " ",
    "none",
    "x" * 200,
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz",
    "1e999",
    "\x00",
    0,
    -1,
    10**30,
    1e308,
    float("nan"),
    float("-inf"),
    True,
    None,
    [],
    [None],
    [[1]],
    {},
    {"a": {"b": None}},
    {1: 2},
    (1, 2),
    b"bytes",
    object(),
    {1, 2},
]


@pytest.mark.parametrize("value", WEIRD, ids=lambda value: repr(value)[:20])
def test_whatever_is_given_is_taken_or_refused_in_a_sentence(
    value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WORDS)  # what is read is not to be long
    schema = schema_of(DeploymentConfig)
    for key in [*schema.fields, *schema.sections, *KEYS]:
        sentence = refusal(key, value)
        assert "\n" not in sentence
        assert len(sentence) < 400
        assert "hf_A" not in sentence


def refusal(key: str, value: object) -> str:
    """What the configuration says to a value; empty where it takes it. Other errors pass."""
    try:
        DeploymentConfig(**{key: value})
    except ConfigurationError as error:
        return str(error)
    return ""


def test_loading_is_fast() -> None:
    """CPU seconds of one configuration; the command line makes a few. Garbage may be collected
    meanwhile, and the processor be shared with others."""
    seconds: list[float] = []
    for _ in range(5):
        started = time.process_time()
        DeploymentConfig(batch_size=4)
        seconds.append(time.process_time() - started)
    assert min(seconds) < 0.2
