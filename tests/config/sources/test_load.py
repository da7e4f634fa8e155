"""Precedence: defaults < file < cell < environment < command line < keywords, by any spelling."""

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.model_config import LoraConfig
from infrastructure.config.sources.load import load_config
from infrastructure.core.messages import WORDS

# One key in each layer, each time under another of its spellings.
LAYERS: list[tuple[str, Any, int, str]] = [
    ("yaml_path", "data:\n  batch_size: 1\n", 1, "file.yaml:2: data.batch_size"),
    ("cell", {"training.batch_size": 5}, 5, "cell training.batch_size"),
    ("environment", {"BATCH_SIZE": "2"}, 2, "environment BATCH_SIZE"),
    ("flags", {"--batch-size": "3"}, 3, "--batch-size"),
    ("keywords", {"training": {"batch_size": 4}}, 4, "keyword training.batch_size"),
]
SUBSETS = [subset for size in range(6) for subset in combinations(LAYERS, size)]


def load(tmp_path: Path, **layers: Any) -> DeploymentConfig:
    if "yaml_path" in layers:
        (tmp_path / "file.yaml").write_text(layers["yaml_path"])
        layers["yaml_path"] = tmp_path / "file.yaml"
    return load_config(**{"environment": {}, **layers})


@pytest.mark.parametrize("subset", SUBSETS, ids=lambda subset: "+".join(n for n, *_ in subset))
def test_the_highest_layer_wins(subset: list[tuple[str, Any, int, str]], tmp_path: Path) -> None:
    config = load(tmp_path, **{name: given for name, given, _, _ in subset})
    _, _, value, place = subset[-1] if subset else ("", None, 32, "default")
    assert config.batch_size == value
    assert config.source("training.batch_size").place.endswith(place)


# (YAML, the two places that the sentence names)
DISAGREEMENTS = [
    ("batch_size: 1\ntraining:\n  batch_size: 2\n", "1: batch_size", "3: training.batch_size"),
    (
        "data:\n  batch_size: 1\ntraining:\n  batch_size: auto\n",
        "2: data.batch_size",
        "4: training.batch_size",
    ),
    (
        "training:\n  gradient_accumulation: 2\n  accumulation_steps: 4\n",
        "2: training.gradient_accumulation",
        "3: training.accumulation_steps",
    ),
    (
        "optimization:\n  learning_rate: 1e-4\ntraining:\n  learning_rate: 2e-4\n",
        "2: optimization.learning_rate",
        "4: training.learning_rate",
    ),
    (
        "processing:\n  mixed_precision: true\nenable_mixed_precision: false\n",
        "2: processing.mixed_precision",
        "3: enable_mixed_precision",
    ),
    (
        "training:\n  num_workers: 2\ndata:\n  num_workers: 4\n",
        "2: training.num_workers",
        "4: data.num_workers",
    ),
    (
        'training:\n  memory_limit: "90%"\ndata:\n  memory_limit: 2GB\n',
        "2: training.memory_limit",
        "4: data.memory_limit",
    ),
    (
        "training:\n  checkpoint_interval: 2\n  checkpoint_frequency: 100\n",
        "2: training.checkpoint_interval",
        "3: training.checkpoint_frequency",
    ),
    (
        "validation_interval: 2\ntraining:\n  validation_frequency: 100\n",
        "1: validation_interval",
        "3: training.validation_frequency",
    ),
    (
        "training:\n  qlora_rank: 8\n  qlora:\n    rank: 16\n",
        "2: training.qlora_rank",
        "4: training.qlora.rank",
    ),
    (
        "resource:\n  gpu:\n    memory_limit: 1GB\nresources:\n  gpu:\n    memory_limit: 2GB\n",
        "3: resource.gpu.memory_limit",
        "6: resources.gpu.memory_limit",
    ),
]


@pytest.mark.parametrize(("text", "one", "other"), DISAGREEMENTS)
def test_two_spellings_that_disagree_are_refused(
    text: str, one: str, other: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"config\.sources_disagree") as raised:
        load(tmp_path, yaml_path=text)
    first, _, second = str(raised.value).partition(", second_source=")
    assert f"file.yaml:{one}, first=" in first
    assert f"file.yaml:{other}, second=" in second


AGREEMENTS = [
    ("batch_size: 2\ntraining:\n  batch_size: 2\ndata:\n  batch_size: '2'\n", 2),
    ("training:\n  batch_size: 2.0\nprocessing:\n  batch_size: 2\n", 2),
]


@pytest.mark.parametrize(("text", "batch_size"), AGREEMENTS)
def test_the_same_value_twice_is_fine(text: str, batch_size: int, tmp_path: Path) -> None:
    assert load(tmp_path, yaml_path=text).batch_size == batch_size


def test_one_amount_in_two_units_is_the_same_value(tmp_path: Path) -> None:
    text = "training:\n  memory_limit: 2 GB\ndata:\n  memory_limit: 2000000000\n"
    assert load(tmp_path, yaml_path=text).data.memory_limit == "2GB"


@pytest.mark.parametrize(
    "layers",
    [
        {"flags": {"--epochs": "3", "--num-epochs": "5"}},
        {"flags": {"--packing": True, "--no-packing": False}},
        {"environment": {"BATCH_SIZE": "2", "TEMPER_TRAINING__BATCH_SIZE": "4"}},
        {"environment": {"DISABLE_GPU": "true", "TEMPER_DEVICE": "cuda"}},
        {"keywords": {"batch_size": 2, "training": {"batch_size": 4}}},
        {"cell": {"batch_size": 2, "training": {"batch_size": 4}}},
        {"keywords": {"model": {"lora_config": None}, "model.lora_config.r": 4}},
    ],
)
def test_disagreement_inside_every_layer_is_refused(layers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"config\.sources_disagree"):
        load_config(**{"environment": {}, **layers})


def test_a_rhythm_in_steps_replaces_one_in_epochs_from_below(tmp_path: Path) -> None:
    config = load(
        tmp_path, yaml_path="checkpoint_interval: 5\n", flags={"--checkpoint-frequency": "100"}
    )
    assert (config.training.checkpoint_interval, config.training.checkpoint_frequency) == (
        None,
        100,
    )
    config = load(
        tmp_path,
        yaml_path="training:\n  checkpoint_frequency: 100\n",
        keywords={"checkpoint_interval": 5},
    )
    assert (config.training.checkpoint_interval, config.training.checkpoint_frequency) == (5, None)


def test_lora_can_be_switched_off_from_above(tmp_path: Path) -> None:
    text = "model:\n  lora_config:\n    r: 8\n    alpha: 16\n"
    assert load(tmp_path, yaml_path=text, flags={"--no-lora": False}).model.lora_config is None
    on = load(tmp_path, yaml_path=text, flags={"--lora-r": "4"}).model.lora_config
    assert on is not None
    assert (on.r, on.alpha) == (4, 16)
    again = load(
        tmp_path, yaml_path=text, flags={"--no-lora": False}, keywords={"model.lora_config": True}
    ).model.lora_config
    assert again is not None
    assert again.r == 16


@pytest.mark.parametrize("text", ["true", "yes", "{}"])
def test_lora_with_its_defaults_from_the_file(text: str, tmp_path: Path) -> None:
    config = load(tmp_path, yaml_path=f"model:\n  lora_config: {text}\n")
    assert config.model.lora_config == LoraConfig()


def test_all_wrong_values_of_all_layers_are_reported_with_their_places(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.wrong_value") as raised:
        load(
            tmp_path,
            yaml_path="training:\n  warmup_steps: -1\n  batchsize: 3\n",
            environment={"LOG_LEVEL": "loud"},
            flags={"--seed": "x"},
            keywords={"data": {"validation_split": 1}},
        )
    text = str(raised.value)
    assert len(text.splitlines()) == 5
    assert re.search(r'setting=log_level, .*value="loud"', text)
    assert re.search(r'setting=training\.seed, .*below 4294967296, value="x"', text)
    assert re.search(
        r"setting=training\.warmup_steps, .*file\.yaml:2: training\.warmup_steps", text
    )
    assert re.search(
        r"unknown_key_meant\(key=training\.batchsize, .*batch_size.*file\.yaml:3:", text
    )
    assert re.search(r"setting=data\.validation_split, .*at least 0 and below 1, value=1,", text)


def test_a_wrong_value_names_its_place_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORDS)
    for layers, place in (
        ({"environment": {"LOG_LEVEL": "loud"}}, "LOG_LEVEL"),
        ({"environment": {"TEMPER_MODEL__LORA_CONFIG": "-7"}}, "TEMPER_MODEL__LORA_CONFIG"),
        ({"flags": {"--seed": "x"}}, "--seed"),
        ({"flags": {"data.path": ""}}, "DATA"),
        ({"keywords": {"data": {"validation_split": 1}}}, "data.validation_split"),
    ):
        with pytest.raises(ValueError, match=rf"^{place}\b[^(]*$"):
            load_config(**{"environment": {}, **layers})


def test_the_default_file_is_read_where_it_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config(environment={}).batch_size == 32
    (tmp_path / ".config").mkdir()
    (tmp_path / ".config/training_config.yaml").write_text("training:\n  batch_size: 7\n")
    config = load_config(environment={})
    assert config.batch_size == 7
    place = ".config/training_config.yaml:2: training.batch_size"
    assert config.source("training.batch_size").place == place
    (tmp_path / "other.yaml").write_text("")
    assert load_config("other.yaml", environment={}).batch_size == 32


def test_this_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH_SIZE", "11")
    assert load_config().batch_size == 11


def test_a_canonical_key_as_an_argument() -> None:
    config = load_config(environment={}, flags={"data.path": "rows.jsonl"})
    assert config.source("data.path").place == "argument data.path"


def test_a_file_in_the_home_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.yaml").write_text("training:\n  batch_size: 7\n")
    config = load_config("~/a.yaml", environment={})
    assert config.source("training.batch_size").place == f"{tmp_path}/a.yaml:2: training.batch_size"
