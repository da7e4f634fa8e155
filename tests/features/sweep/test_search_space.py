"""What is typed behind --search is what is tried, and what cannot be is refused by name."""

from typing import Any

import pytest

from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.features.sweep.search_space import (
    Dimension,
    check_comparable,
    parse_search,
    settings_of,
)

GIVEN: list[tuple[str, Dimension]] = [
    (
        "training.learning_rate=1e-5..1e-3:log",
        Dimension("training.learning_rate", low=1e-5, high=1e-3, is_log=True),
    ),
    ("lr=0.5..1", Dimension("training.learning_rate", low=0.5, high=1)),
    (
        "model.embedded.num_layers=2..8:2",
        Dimension("model.embedded.num_layers", low=2, high=8, step=2, is_whole=True),
    ),
    ("--lora-r=4,8,16", Dimension("model.lora_config.r", choices=(4, 8, 16))),
    ("lora=true,false", Dimension("model.lora_config", choices=(True, False))),
    ("batch_size=4,auto", Dimension("training.batch_size", choices=(4, "auto"))),
    (
        "settings.stages=1..3",
        Dimension("training.settings", "stages", low=1, high=3, is_whole=True),
    ),
    (
        'lora_target_modules=["all-linear", ["q_proj", "v_proj"]]',
        Dimension("model.lora_config.target_modules", choices=("all-linear", ["q_proj", "v_proj"])),
    ),
]


@pytest.mark.parametrize(("text", "meant"), GIVEN, ids=[text for text, _ in GIVEN])
def test_what_is_typed_is_what_is_tried(text: str, meant: Dimension) -> None:
    (dimension,) = parse_search([text])
    assert dimension == meant
    assert parse_search([dimension.describe()]) == [dimension]


def test_entries_of_a_mapping_are_added_to_those_that_are_given() -> None:
    dimensions = parse_search(["settings.a=4,8", "settings.b=4,8", "lr=1,2"])
    config = DeploymentConfig(training={"settings": {"c": 2, "b": 32}})
    values: dict[str, Any] = {one.name: one.choices[0] for one in dimensions}
    tried = config.changed(settings_of(dimensions, values, config))
    assert tried.training.settings == {"c": 2, "a": 4, "b": 4}
    assert tried.training.learning_rate == 1
    assert tried.source("training.learning_rate").place == "--search"


def test_a_range_has_the_values_between_its_ends() -> None:
    (whole, half) = parse_search(["num_epochs=1..7:3", "lora_dropout=0..0.5:0.1"])
    assert whole.values() == [1, 4, 7]
    assert half.values() == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])
    (endless,) = parse_search(["lr=1e-5..1e-3"])
    assert endless.values() is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train_on=answers,all", "sweep.search_changes_measured_tokens"),
        ("embedded_vocab_size=300,400", "sweep.search_changes_measured_tokens"),
        ("validation_split=0.1,0.2", "sweep.search_changes_held_out_rows"),
        ("data_path=a.jsonl,b.jsonl", "sweep.search_changes_held_out_rows"),
    ],
)
def test_losses_that_cannot_be_compared_are_not_searched(text: str, words: str) -> None:
    dimensions = parse_search([text])
    with pytest.raises(ConfigurationError, match=words):
        check_comparable(dimensions, DeploymentConfig())
    if "tokens" in words:
        check_comparable(dimensions, DeploymentConfig(training={"best_metric": "exact_match"}))
