"""Nothing that somebody set is silently without effect."""

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.planned import PARTS, later_of
from infrastructure.config.schema import schema_of

FIELDS = schema_of(DeploymentConfig).fields
MARKS = {key: mark for key, spec in FIELDS.items() if (mark := later_of(spec))}


def test_every_mark_names_a_part() -> None:
    assert {mark.part for mark in MARKS.values()} == set(PARTS)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training.enabled_extensions", "multimodal"),
    ],
)
def test_single_values_of_later_parts(key: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"^{key} = {value} .*is not there yet"):
        DeploymentConfig(**{key: value}).check_supported()


def test_an_assigned_value_is_checked_too() -> None:
    config = DeploymentConfig()
    config.training.enabled_extensions = ["multimodal"]
    with pytest.raises(ValueError, match=r"extensions = multimodal \(assigned in Python\)"):
        config.check_supported()
