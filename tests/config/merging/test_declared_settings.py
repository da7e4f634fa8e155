"""A part of one's own says which settings it reads: defaults, slips and types."""

from typing import Any, ClassVar

import pytest

from infrastructure.config.base import ConfigurationError
from infrastructure.config.merging.declared_settings import declare_settings
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.strategies import StandardTrainingStrategy


class InStages:
    settings: ClassVar[dict[str, object]] = {
        **{"stages": 3, "share": 0.5, "is_slow": False, "order": ["a"], "label": "x"},
        **{"depths": {}, "anything": None},
    }


class Bonus:
    settings: ClassVar[dict[str, object]] = {"factor": 2, "stages": 3}


class Silent:
    @property
    def settings(self) -> dict[str, object]:
        return {}


def declared(*parts: object, **settings: Any) -> TrainingConfig:
    training = TrainingConfig(settings=settings)
    declare_settings(training, parts)
    return training


def test_defaults_are_filled_in_and_what_is_given_goes_before_them() -> None:
    training = declared(InStages, StandardTrainingStrategy, stages=2)
    assert (training.stages, training.share, training.anything) == (2, 0.5, None)
    assert training.settings == {"stages": 2}, "a default is the code's, and not recorded"
    assert training.own_settings == {**InStages.settings, "stages": 2}
    training.own_settings["order"].append("b")
    assert InStages.settings["order"] == ["a"]
    assert declared(InStages, Bonus).factor == 2
    assert training.model_copy(deep=True).share == 0.5


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"stagse": 2}, "config.setting_not_declared"),
        ({"factor": 2}, "config.setting_not_declared"),
        (
            {"stages": "2"},
            r'settings\.stages = "?2"?: .*:InStages declares it as a whole number, .',
        ),
        ({"stages": 2.0}, "whole number"),
        ({"stages": True}, "whole number"),
        ({"share": "much"}, "as a number"),
        ({"share": False}, "as a number"),
        ({"is_slow": 1}, "true or false"),
        ({"order": "a"}, "as a list"),
        ({"label": 1}, "as a text"),
        ({"depths": [1]}, "as a mapping"),
        ({"stages": None}, "whole number"),
    ],
)
def test_what_no_part_declares_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        declared(InStages, **settings)


def test_numbers_and_what_has_no_type_are_accepted() -> None:
    assert declared(InStages, share=1, anything=[1]).share == 1


@pytest.mark.parametrize("other", [Silent, lambda trainer: None])
def test_beside_a_part_that_declares_nothing_only_a_slip_is_refused(other: object) -> None:
    assert declared(InStages, other, factor=1).factor == 1
    with pytest.raises(ConfigurationError, match="did you mean 'stages'"):
        declared(InStages, other, stagse=1)


def test_without_a_declaration_everything_is_accepted() -> None:
    assert declared(Silent, StandardTrainingStrategy, factor="x").factor == "x"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"stages": 4}, "config.setting_declared_twice"),
        ({"seed": 4}, "config.own_setting_name_taken"),
        ({"two words": 4}, "config.invalid_setting_name"),
        ({"when": object()}, "config.invalid_setting_default"),
    ],
)
def test_a_wrong_declaration_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        declared(Bonus, type("Other", (), {"settings": settings}))
