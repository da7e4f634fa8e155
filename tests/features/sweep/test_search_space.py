"""What is typed behind --search is what is tried, and what cannot be is refused by name."""

from typing import Any

import pytest

from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sources.load import load_config
from infrastructure.features.sweep.search_space import (
    Dimension,
    check_comparable,
    parse_search,
    settings_of,
    short_value,
)

GIVEN: list[tuple[str, Dimension]] = [
    (
        "training.learning_rate=1e-5..1e-3:log",
        Dimension("training.learning_rate", low=1e-5, high=1e-3, is_log=True),
    ),
    ("lr=0.5..1", Dimension("training.learning_rate", low=0.5, high=1)),
    ("lr=1..2", Dimension("training.learning_rate", low=1, high=2)),
    ("num_epochs=1..3:2", Dimension("training.num_epochs", low=1, high=3, step=2, is_whole=True)),
    (
        "training.settings.x.on=true,7,0.5,text",
        Dimension("training.settings", "x.on", choices=(True, 7, 0.5, "text")),
    ),
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
    (whole, tenths) = parse_search(["num_epochs=1..7:3", "lora_dropout=0..0.3:0.1"])
    assert whole.values() == [1, 4, 7]
    # 0.3 / 0.1 is less than 3 in floating point
    assert tenths.values() == pytest.approx([0, 0.1, 0.2, 0.3])
    (endless,) = parse_search(["lr=1e-5..1e-3"])
    assert endless.values() is None


def test_optuna_suggests_within_the_dimension() -> None:
    optuna = pytest.importorskip("optuna")
    distributions = optuna.distributions
    targets = 'lora_target_modules=["all-linear", ["q_proj", "v_proj"]]'
    whole = "model.embedded.num_layers"
    for text, stored, value, distribution in [
        ("lr=1e-5..1e-3:log", 1e-4, 1e-4, distributions.FloatDistribution(1e-5, 1e-3, log=True)),
        ("lr=1..2:0.5", 1.5, 1.5, distributions.FloatDistribution(1, 2, step=0.5)),
        (f"{whole}=2..8:2", 4, 4, distributions.IntDistribution(2, 8, step=2)),
        (f"{whole}=2..8", 3, 3, distributions.IntDistribution(2, 8)),
        (f"{whole}=2..8:log", 3, 3, distributions.IntDistribution(2, 8, log=True)),
        (
            *(targets, '["q_proj", "v_proj"]', ["q_proj", "v_proj"]),
            distributions.CategoricalDistribution(["all-linear", '["q_proj", "v_proj"]']),
        ),
        (  # whichever of its keys comes first: a sweep is known again by what is stored
            *('training.settings=[{"b": 1, "a": 2}, {}]', '{"a": 2, "b": 1}', {"a": 2, "b": 1}),
            distributions.CategoricalDistribution(['{"a": 2, "b": 1}', "{}"]),
        ),
    ]:
        (dimension,) = parse_search([text])
        trial = optuna.trial.FixedTrial({dimension.name: stored})
        assert dimension.suggest(trial) == value
        assert trial.distributions == {dimension.name: distribution}


def test_a_short_value_is_rounded_only_if_it_is_a_fraction() -> None:
    assert [short_value(value) for value in (0.123456789, 123456789, True, None, "a")] == [
        *("0.1235", "123456789", "true", "none", "a")
    ]


NOT_COMPARABLE = {
    "rows": [
        *("data.eval_path", "data.validation_split", "data.format", "data.encoding", "data.shape"),
        *("data.prompt_column", "data.answer_column", "data.context_column", "data.text_column"),
        *("data.streaming", "training.seed", "training.method", "training.best_metric"),
        *("training.best_metric_mode", "data.path"),
    ],
    "tokens": [
        *("model.name", "model.revision", "model.adapter", "model.embedded.vocab_size"),
        *("data.max_length", "data.over_length", "data.train_on", "data.chat_template"),
        "training.loss",
    ],
}


@pytest.mark.parametrize(
    ("key", "why"), [(key, why) for why, keys in NOT_COMPARABLE.items() for key in keys]
)
def test_losses_that_cannot_be_compared_are_not_searched(key: str, why: str) -> None:
    dimensions = [Dimension("training.learning_rate", low=1, high=2), Dimension(key, choices=(1,))]
    code = {
        "rows": rf"sweep\.search_changes_held_out_rows\(name={key}\)",
        "tokens": rf"sweep\.search_changes_measured_tokens\(name={key}, metric=loss\)",
    }[why]
    with pytest.raises(ConfigurationError, match=code):
        check_comparable(dimensions, DeploymentConfig())
    if why == "tokens":
        check_comparable(dimensions, DeploymentConfig(training={"best_metric": "exact_match"}))
    if key == "data.path":
        check_comparable(dimensions, DeploymentConfig(data={"eval_path": "held-out.jsonl"}))


def test_an_entry_may_be_searched_where_the_command_sets_others() -> None:
    config = load_config(flags={"--settings": '{"b": 1}', "--lr": 0.5})
    check_comparable([Dimension("training.settings", "a", choices=(1, 2))], config)
    with pytest.raises(ConfigurationError, match=r"conflicts_with_flag\(flag=--lr, name=.*rate"):
        check_comparable([Dimension("training.learning_rate", choices=(1, 2))], config)
