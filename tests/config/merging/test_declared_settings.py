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
        (
            {"stagse": 2},
            r"config\.setting_not_declared\(name=stagse, hint=core\.did_you_mean\(meant=stages\)",
        ),
        (
            {"factor": 2},
            r"config\.setting_not_declared\(name=factor, hint=, known=anything \(.*InStages\), d",
        ),
        (
            {"stages": "2"},
            r'setting_has_wrong_type\(name=stages, value="2", part=.*:InStages, kind=a whole'
            " number, default=3",
        ),
        ({"stages": 2.0}, "kind=a whole number"),
        ({"stages": True}, "kind=a whole number"),
        ({"share": "much"}, "kind=a number, default=0.5"),
        ({"share": False}, "kind=a number, default=0.5"),
        ({"is_slow": 1}, "kind=true or false"),
        ({"order": "a"}, "kind=a list"),
        ({"label": 1}, "kind=a text"),
        ({"depths": [1]}, "kind=a mapping"),
        ({"stages": None}, "kind=a whole number"),
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
    with pytest.raises(ConfigurationError, match=r"not_declared\(name=stagse, .*meant=stages\)"):
        declared(InStages, other, stagse=1)


def test_without_a_declaration_everything_is_accepted() -> None:
    assert declared(Silent, StandardTrainingStrategy, factor="x").factor == "x"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"stages": 4},
            r"config\.setting_declared_twice\(name=stages, first_part=.*Bonus, second_part=.*Other,"
            " first_default=3, second_default=4",
        ),
        ({"seed": 4}, r"config\.own_setting_name_taken\(name=seed\)"),
        ({"two words": 4}, r"config\.invalid_setting_name\(part=.*Other, key=two words\)"),
        ({"when": object()}, r"config\.invalid_setting_default\(.*key=when, type_name=object\)"),
    ],
)
def test_a_wrong_declaration_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        declared(Bonus, type("Other", (), {"settings": settings}))
