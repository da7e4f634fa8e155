import time

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.config.spellings import KEYS, PREFIXES, canonical


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


def test_loading_is_fast() -> None:
    """CPU seconds of one configuration; the command line makes a few."""
    started = time.process_time()
    DeploymentConfig(batch_size=4)
    assert time.process_time() - started < 0.2
