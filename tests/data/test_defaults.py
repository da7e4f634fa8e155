"""What a configuration becomes before a training, the same at every door; and the quantum step that
comes with the sample data, and with nothing else."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from colab.form_state import FormState
from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import Layer
from infrastructure.config.sources.load import load_config
from infrastructure.core.errors import RunFailedError
from infrastructure.data import defaults as module
from infrastructure.data.defaults import fit_lengths, make_ready, num_positions, problems_of
from infrastructure.data.samples import SAMPLE_EPOCHS
from infrastructure.deployment import detached
from infrastructure.training.trainer_factory import TrainerFactory
from tests.deployment.runs import detached_trainings_are_forks, write_rows
from tests.features.quantum.training.quantum_runs import records

TINY = {
    "model": {
        "embedded": {
            **{"hidden_size": 16, "num_layers": 1, "num_heads": 2},
            "intermediate_size": 16,
        }
    },
    "device": "cpu",
}


def ready(**settings: Any) -> DeploymentConfig:
    config = DeploymentConfig(**settings)
    make_ready(config)
    return config


def test_the_sample_data_comes_with_a_small_quantum_step() -> None:
    config = ready()
    assert config.training.extensions == ["quantum"]
    assert config.quantum.candidates == 20
    before = config.to_dict()
    make_ready(config)
    assert config.to_dict() == before


@pytest.mark.parametrize(
    "settings",
    [
        {"training.enabled_extensions": []},
        {"data.path": "my.jsonl"},
        {"model.name": "someone/model", "data.path": "my.jsonl"},
    ],
    ids=str,
)
def test_nobody_else_gets_one(settings: dict[str, Any]) -> None:
    config = ready(**settings)
    assert config.training.extensions == []
    assert config.quantum == DeploymentConfig().quantum


@pytest.mark.parametrize(
    ("settings", "num_epochs"),
    [
        ({}, SAMPLE_EPOCHS),
        ({"training.num_epochs": 5}, 5),
        ({"training.max_steps": 60}, "auto"),  # which takes as many as it needs
        ({"data.path": "my.jsonl"}, "auto"),
    ],
    ids=str,
)
def test_the_sample_data_has_a_number_of_epochs_unless_one_is_given(
    settings: dict[str, Any], num_epochs: object
) -> None:
    assert ready(**settings).training.num_epochs == num_epochs


def test_a_quantum_step_of_ones_own_is_left_as_it_is() -> None:
    assert ready(**{"training.enabled_extensions": ["quantum"]}).quantum.candidates == "auto"
    assert ready(**{"quantum.candidates": 30}).quantum.candidates == 30
    assert ready(**{"quantum.max_overhead_percent": 7.0}).quantum.max_overhead_percent == 7.0


def test_the_flag_that_names_no_extension_switches_it_off(tmp_path: Path) -> None:
    no_file = tmp_path / "c.yaml"
    no_file.write_text("{}")
    config = load_config(no_file, environment={}, flags={"training.enabled_extensions": ""})
    make_ready(config)
    assert config.training.extensions == []


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"quantum.data_budget": 0.5},
        {"quantum.data_budget": 0.5, "training.enabled_extensions": []},
        {"quantum.data_budget": 0.5, "data.path": __file__},
        {"quantum.solver": "exakt"},
    ],
    ids=str,
)
def test_what_is_wrong_is_reported_alike_by_forms_and_trainings(settings: dict[str, Any]) -> None:
    config = DeploymentConfig(**settings)
    before = config.to_dict()
    problems = problems_of(config)
    assert config.to_dict() == before
    state = FormState(DeploymentConfig())
    state.update(settings)
    assert len(state.problems()) == len(problems)
    if not problems:
        make_ready(config)
        return
    with pytest.raises(ConfigurationError) as raised:
        make_ready(config)
    assert str(raised.value) == "; ".join(problems)


def test_examples_are_as_long_as_the_model_sees_unless_a_length_is_given(
    tmp_path: Path,
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"text_config": {"max_position_embeddings": 128}}')
    lora = tmp_path / "run" / "final"
    lora.mkdir(parents=True)
    (lora / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(model)}))
    rows = {"data.path": "my.jsonl"}
    for name in (model, lora, lora.parent):
        config = ready(**{"model.name": str(name)}, **rows)
        assert config.data.max_length == 128
        assert config.source("data.max_length").place == "data.from_model_positions()"
        [note] = config.notes()
        assert re.match(
            r"data\.max_length_lowered\(.*128.*512|data\.max_length_lowered\(.*512.*128", note
        )
        make_ready(config)
        assert (config.data.max_length, config.notes()) == (128, [note])
    given = ready(**{"model.name": str(model), "data.max_length": 500}, **rows)
    assert given.data.max_length == 500  # which is refused where the model is loaded
    assert ready(**{"model.embedded.max_positions": 64}).data.max_length == 64
    with pytest.raises(ConfigurationError, match=r"config\.max_length_exceeds_model"):
        ready(**{"model.embedded.max_positions": 64, "data.max_length": 100})


def test_answers_in_training_leave_half_of_the_length_to_the_prompt() -> None:
    few = {"model.embedded.max_positions": 64, "data.path": "my.jsonl"}
    grpo = {"training.method": "grpo", "training.rewards": ["exact_answer"]}
    config = DeploymentConfig(**few, **grpo)
    fit_lengths(config, may_fetch=False)
    assert (config.data.max_length, config.training.max_completion_length) == (64, 32)
    numbers = "half=32, max_completion_length=256, longest=64"
    assert config.notes()[-1] == f"data.completion_length_lowered({numbers})"
    place = config.source("training.max_completion_length").place
    assert place == "data.half_of_max_length()"
    fit_lengths(config, may_fetch=False)
    assert config.training.max_completion_length == 32
    given = DeploymentConfig(**few, **grpo, **{"training.max_completion_length": 200})
    short = DeploymentConfig(**grpo, **{"data.max_length": 200, "data.path": "my.jsonl"})
    roomy = DeploymentConfig(**grpo, **{"data.path": "my.jsonl"})
    dpo = DeploymentConfig(**few, **{"training.method": "dpo"})
    exact, more = (
        DeploymentConfig(**grpo, **{"data.max_length": n, "data.path": "my.jsonl"})
        for n in (256, 257)
    )
    lengths = []
    for one in (given, short, roomy, dpo, exact, more):
        fit_lengths(one, may_fetch=False)
        lengths.append(one.training.max_completion_length)
    assert lengths == [
        200,
        100,
        256,
        256,
        128,
        256,
    ]  # the first is refused before the model is loaded


def test_a_detached_training_takes_what_one_in_the_foreground_takes(tmp_path: Path) -> None:
    """It begins, and ends at the first thing that no configuration can know."""
    place = {"output_dir": str(tmp_path), "device": "cuda:77"}
    with detached_trainings_are_forks():
        training = detached.start(DeploymentConfig(**{**place, "quantum.data_budget": 0.5}))
    with pytest.raises(RunFailedError, match="cuda:77"):
        detached.follow(training, lambda line: None)
    own = {"quantum.data_budget": 0.5, "data.path": "my.jsonl"}
    refused = DeploymentConfig(**{**place, **own})
    with pytest.raises(
        ConfigurationError,
        match=r"setting=quantum\.data_budget=0\.5.*quantum\.unused_no_quantum_step",
    ):
        detached.start(refused)


def test_a_training_that_names_no_data_makes_one_quantum_step(tmp_path: Path) -> None:
    once = {"training.max_steps": 1, "cache.directory": str(tmp_path), "data.num_workers": 0}
    trainer = TrainerFactory().for_run(DeploymentConfig(**TINY, **once))
    trainer.train()
    (record,) = records(trainer)
    assert (record["outcome"], record["num_variables"]) == ("answered", 20)
    assert record["num_selected"] == record["num_examples"] - 2
    assert "quantum.selected_of_examined" in record["chosen"]
    none = {**once, "training.enabled_extensions": []}
    trainer = TrainerFactory().for_run(DeploymentConfig(**TINY, **none))
    assert not [hook for hook in trainer.hooks.hooks if hook.name == "quantum"]
    own = {**once, "data.path": str(write_rows(tmp_path / "rows.jsonl"))}
    trainer = TrainerFactory().for_run(DeploymentConfig(**TINY, **own))
    assert not [hook for hook in trainer.hooks.hooks if hook.name == "quantum"]


def test_a_run_that_is_named_by_its_id_means_its_model(tmp_path: Path) -> None:
    named, unfinished = "20260101-000000-mine-abcd", "20260102-000000-other-abcd"
    (tmp_path / named / "final").mkdir(parents=True)
    (tmp_path / unfinished).mkdir()
    (tmp_path / "gpt2").mkdir()  # of a Trainer with TemperCallback, say
    for run in (named, unfinished, "gpt2"):
        (tmp_path / run / "run.json").write_text("{}")

    short = {"data.max_length": 64}  # nobody asks the hub for positions

    def ready(model: str) -> DeploymentConfig:
        config = DeploymentConfig(model_name=model, output_dir=str(tmp_path), **short)
        make_ready(config)
        return config

    assert ready(named).model.name == str(tmp_path / named / "final")
    assert ready(unfinished).model.name == str(tmp_path / unfinished), "told that it has none"
    assert ready("gpt2").model.name == "gpt2"
    assert ready(named).source("model.name").layer is Layer.KEYWORD
    by_teacher = DeploymentConfig(
        training={"method": "distillation", "teacher": named}, output_dir=str(tmp_path)
    )
    make_ready(by_teacher)
    assert by_teacher.training.teacher == str(tmp_path / named / "final")


@pytest.mark.parametrize(
    ("content", "positions"),
    [
        ({"max_position_embeddings": 128}, 128),
        ({"max_position_embeddings": 2}, 2),
        ({"max_position_embeddings": 1}, None),
        ({"max_position_embeddings": "many"}, None),
        ({"text_config": {"max_position_embeddings": 64}, "max_position_embeddings": 9}, 64),
        ({"text_config": "none", "max_position_embeddings": 9}, 9),
        ({}, None),
    ],
)
def test_the_positions_of_a_model_are_those_of_its_file(
    content: dict[str, Any], positions: int | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(content))
    for name in (str(tmp_path), "gone/model", "./gone"):
        config = DeploymentConfig(model_name=name, **{"data.path": "my.jsonl"})
        with_it = positions if name == str(tmp_path) else None
        assert num_positions(config, may_fetch=False) == with_it
    for most, length in ((None, 512), (128, 128), (9, 9)):
        if most == positions:
            fit_lengths(config := DeploymentConfig(model_name=str(tmp_path)), may_fetch=False)
            assert config.data.max_length == length


@pytest.mark.parametrize("may_fetch", [True, False])
def test_the_hub_gives_the_revision_if_that_is_allowed(
    may_fetch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 77}')
    calls: list[tuple[object, ...]] = []

    def found(which: str) -> Any:
        def find(*about: object) -> Path:
            calls.append((which, *about))
            return tmp_path / "config.json"

        return find

    monkeypatch.setattr(module, "hub_file", found("hub"))
    monkeypatch.setattr(module, "cached_file", found("cache"))
    config = DeploymentConfig(model={"name": "someone/model", "revision": "v2"})
    assert num_positions(config, may_fetch=may_fetch) == 77
    assert calls == [("hub" if may_fetch else "cache", "someone/model", "config.json", "v2")]
    lora = tmp_path / "lora"
    lora.mkdir()
    (lora / "adapter_config.json").write_text('{"base_model_name_or_path": "their/base"}')
    adapted = DeploymentConfig(model={"name": str(lora), "revision": "v2"})
    assert num_positions(adapted, may_fetch=may_fetch) == 77
    assert calls[1][1:] == ("their/base", "config.json", None)


def test_a_length_of_a_preset_is_limited_and_one_of_a_person_is_not(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 128}')
    for given, max_length in (({}, 128), ({"data.max_length": 500}, 500)):
        config = DeploymentConfig(preset="ci", **{"model.name": str(tmp_path)}, **given)
        fit_lengths(config, may_fetch=False)
        assert config.data.max_length == max_length
        lowered = "data.max_length_lowered(positions=128, max_length=512)"
        assert (lowered in config.notes()) is not bool(given)
