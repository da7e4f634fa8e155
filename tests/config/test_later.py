"""Nothing that somebody set is silently without effect."""

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.later import PARTS, later_of
from infrastructure.config.schema import schema_of
from tests.config.field_values import other_value

FIELDS = schema_of(DeploymentConfig).fields
MARKS = {key: mark for key, spec in FIELDS.items() if (mark := later_of(spec))}
WHOLE = [key for key, mark in MARKS.items() if not mark.values]


def test_every_mark_names_a_part() -> None:
    assert {mark.part for mark in MARKS.values()} == set(PARTS)


@pytest.mark.parametrize("key", WHOLE)
def test_a_key_of_a_later_part_is_refused_at_the_start_of_a_run(key: str) -> None:
    config = DeploymentConfig(**{key: other_value(FIELDS[key])})
    with pytest.raises(ValueError, match="is not there yet") as raised:
        config.check_supported()
    sentence = str(raised.value)
    assert sentence.startswith(f"{key} = ")
    assert f"(keyword {key})" in sentence
    assert PARTS[MARKS[key].part] in sentence


@pytest.mark.parametrize("key", WHOLE)
def test_its_default_given_by_hand_is_told(key: str) -> None:
    config = DeploymentConfig(**{key: FIELDS[key].default})
    config.check_supported()
    assert [note.split(" = ")[0] for note in config.notes()] == [key]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.adapter", "dialogue"),
        ("model.adapter", "multimodal"),
    ],
)
def test_single_values_of_later_parts(key: str, value: str) -> None:
    with pytest.raises(ValueError, match=f'^{key} = "{value}" .*is not there yet'):
        DeploymentConfig(**{key: value}).check_supported()


def test_an_assigned_value_is_checked_too() -> None:
    config = DeploymentConfig()
    config.training.qlora_rank = 4
    with pytest.raises(ValueError, match=r"qlora_rank = 4 \(assigned in Python\)"):
        config.check_supported()
