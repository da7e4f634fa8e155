"""Layers of settings: how each is named, opened, checked, and set above the others."""

from dataclasses import dataclass
from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import (
    Layer,
    Source,
    parse_truth,
    place_of,
    spelled_as,
    spelled_as_given,
    where,
)
from infrastructure.config.sections.model_config import LoraConfig
from infrastructure.core.messages import speller


@pytest.mark.parametrize(
    ("layer", "place", "value", "spelled", "subject"),
    [
        ("flag", "--data-path", "a b", "--data-path 'a b'", "--data-path"),
        ("flag", "--data-path", "", "--data-path", "--data-path"),
        ("flag", "--packing", "true", "--packing", "--packing"),
        ("flag", "--packing", "false", "--packing", "--packing"),
        ("flag", "--no-packing", "x", "--no-packing", "--no-packing"),
        ("flag", "argument data.path", "x", "DATA", "DATA"),
        ("flag", "argument model.name", "x", "MODEL", "MODEL"),
        ("flag", "argument training.seed", "x", "data.path", "data.path"),
        ("environment", "environment SEED", "7", "SEED=7", "SEED"),
        ("environment", "environment SEED", "", "SEED", "SEED"),
        ("file", "a.yaml:2: data.path", "x", "data.path=x", "a.yaml:2: data.path"),
        ("cell", "cell data", "x", "data.path=x", "cell data"),
        ("form", "form", "x", "data.path=x", "form"),
        ("preset", "preset ci (--preset)", "x", "data.path=x", "preset ci (--preset)"),
        ("keyword", "keyword data", "x", "data.path=x", "data.path"),
        ("default", "default", "x", "data.path=x", "data.path"),
    ],
)
def test_a_setting_is_named_as_it_was_given(
    layer: str, place: str, value: str, spelled: str, subject: str
) -> None:
    source = Source(Layer(layer), place)
    assert spelled_as(source, "data.path", value) == spelled
    assert place_of(source, "data.path") == subject
    has_place = layer in ("file", "cell", "form", "preset")
    assert where(source) == (f" ({place})" if has_place else "")


def test_only_settings_are_spelled_by_their_source() -> None:
    def source_of(key: str) -> Source:
        return Source(Layer.FLAG, f"--{key}")

    door = speller()
    with spelled_as_given(source_of):
        assert speller()("data.path", "x") == "--data.path x"
        assert [speller()(key, "x") for key in ("accept", "part", "interrupt")] == [
            door(key, "x") for key in ("accept", "part", "interrupt")
        ]
    for layer in (Layer.KEYWORD, Layer.FILE):  # a file reads of its keys through any door
        shown = spelled_as(Source(layer, "x"), "a.b", "1", lambda key, value: f"<{key} {value}>")
        assert shown == ("a.b=1" if layer is Layer.FILE else "<a.b 1>")


@pytest.mark.parametrize(
    ("text", "is_true"),
    [
        *((text, True) for text in ("true", "YES", "1", " True ")),
        *((text, False) for text in ("false", "No", "0", "FALSE\n")),
    ],
)
def test_a_truth_is_read_in_any_case(text: str, is_true: bool) -> None:
    assert parse_truth(text) is is_true
    assert (
        DeploymentConfig(**{"model.lora_config": text}).model.lora_config is None
    ) is not is_true


@pytest.mark.parametrize("text", ["", "on", "2", "none"])
def test_anything_else_is_no_truth(text: str) -> None:
    with pytest.raises(ValueError, match=rf'not_a_boolean\(value="{text}"\)'):
        parse_truth(text)


@dataclass
class Shape:
    num_layers: int = 2
    num_heads: int = 2


@pytest.mark.parametrize(
    ("value", "rank"),
    [
        *((value, None) for value in (None, False, "none", " NULL ", "no")),
        *((value, 16) for value in (True, "yes", {}, LoraConfig())),
        *((value, 4) for value in ({"r": 4}, LoraConfig(r=4))),
    ],
)
def test_a_section_is_given_whole_in_parts_or_as_a_switch(value: Any, rank: int | None) -> None:
    lora = DeploymentConfig(model={"lora_config": value}).model.lora_config
    assert (None if lora is None else lora.r) == rank


def test_an_object_gives_the_fields_of_a_section() -> None:
    config = DeploymentConfig(model={"embedded": Shape(num_layers=3)})
    assert (config.model.embedded.num_layers, config.model.embedded.num_heads) == (3, 2)
    assert config.source("model.embedded.num_heads").place == "keyword model.embedded.num_heads"
    assert config.model.embedded.hidden_size == 128


@pytest.mark.parametrize(
    ("keywords", "refusals"),
    [
        (
            {"model.lora_config": "maybe"},
            ['wrong_value(setting=model.lora_config, allowed=true or false, value="maybe", hint=)'],
        ),
        ({"model": 3}, ["value_for_a_section(rstrip=model, value=3, where=, section=)"]),
        (
            {"qlora": 3},
            [
                "value_for_a_section(rstrip=training.qlora, value=3, where=, section=; "
                "config.called_here(settings=model.lora_config and model.quantization=4bit))"
            ],
        ),
        (
            {"batch_size": 0, "training": {"batch_size": 0}, "training.seed": -1},
            ["wrong_value(setting=training.batch_size, ", "wrong_value(setting=training.seed, "],
        ),
        (
            {"training.checkpoint_interval": 2, "training.checkpoint_frequency": 100},
            [
                "sources_disagree(first_source=training.checkpoint_interval, first=2, "
                "second_source=training.checkpoint_frequency, second=100, "
                "reason=config.interval_in_epochs_and_steps("
                "in_epochs=training.checkpoint_interval, in_steps=training.checkpoint_frequency))"
            ],
        ),
        (
            {"batch_size": 2, "training": {"batch_size": 4}},
            [
                "sources_disagree(first_source=training.batch_size, first=2, "
                "second_source=training.batch_size, second=4, "
                "reason=config.both_mean(setting=training.batch_size))"
            ],
        ),
        (
            {"model.lora_config": False, "model.lora_config.r": 4},
            [
                "sources_disagree(first_source=model.lora_config, first=false, "
                "second_source=model.lora_config.r, second=4, "
                "reason=config.is_off(setting=model.lora_config))"
            ],
        ),
    ],
)
def test_each_problem_is_named_once(keywords: dict[str, Any], refusals: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^config\.") as raised:
        DeploymentConfig(**keywords)
    lines = str(raised.value).split("\n")
    assert len(lines) == len(refusals)
    for line, refusal in zip(lines, refusals, strict=True):
        assert line.startswith(f"config.{refusal}")


@pytest.mark.parametrize("thing", ["checkpoint", "validation"])
def test_an_interval_that_is_off_leaves_the_other_one(thing: str) -> None:
    epochs, steps = f"training.{thing}_interval", f"training.{thing}_frequency"
    for given, expected in (
        ({epochs: None, steps: 100}, (None, 100)),
        ({epochs: 3, steps: None}, (3, None)),
        ({epochs: 3}, (3, None)),
        ({steps: 100}, (None, 100)),
    ):
        config = DeploymentConfig(**given)
        assert (config.value(epochs), config.value(steps)) == expected
