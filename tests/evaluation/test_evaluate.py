import json
from pathlib import Path
from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sources.load import load_config
from infrastructure.evaluation.evaluate import (
    evaluate_model,
    inherit_from_run,
    set_aside,
    trained_on,
)
from infrastructure.training.data.readers.sources import data_files_hash


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose data was read with rules of its own."""
    saved = DeploymentConfig(data={"max_length": 77, "train_on": "all"}).to_dict()
    (tmp_path / "run" / "final").mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text(json.dumps({"configuration": saved}))
    return tmp_path / "run"


def config_for(model: Path, **data: Any) -> DeploymentConfig:
    return DeploymentConfig(model={"name": str(model)}, data=data)


@pytest.mark.parametrize("part", ["", "final"])
def test_a_model_is_measured_by_the_rules_of_its_run(run: Path, part: str) -> None:
    config = config_for(run / part)
    assert inherit_from_run(config) == {"data.max_length": 77, "data.train_on": "all"}
    assert (config.data.max_length, config.data.train_on) == (77, "all")


def test_what_was_requested_comes_first(run: Path) -> None:
    config = config_for(run / "final", max_length=99)
    assert inherit_from_run(config) == {"data.train_on": "all"}
    assert config.data.max_length == 99


@pytest.mark.parametrize("text", ["{}", "not json", '{"configuration": {"nonsense": 1}}'])
def test_another_run_json_is_not_ours(run: Path, text: str) -> None:
    (run / "run.json").write_text(text)
    assert inherit_from_run(config_for(run / "final")) == {}


def test_a_model_of_no_run_inherits_nothing(tmp_path: Path) -> None:
    assert inherit_from_run(config_for(tmp_path)) == {}
    assert inherit_from_run(DeploymentConfig(model_name="some/hub-model")) == {}


def test_a_run_whose_data_was_masked_still_explains_how_to_make_tokens(tmp_path: Path) -> None:
    saved = DeploymentConfig(data={"max_length": 77, "path": "https://me:pw@host/rows"}).to_dict()
    (tmp_path / "run.json").write_text(json.dumps({"configuration": saved}))
    assert inherit_from_run(config_for(tmp_path)) == {"data.max_length": 77}


NO_USE = [
    "data.eval_path: held_out.jsonl",
    "data.validation_split: 0.2",
    "model.lora_config.r: 4",
    "model.embedded.num_layers: 2",
]


@pytest.mark.parametrize("setting", NO_USE)
def test_what_a_measurement_has_no_use_for_is_refused_or_reported(
    setting: str, tmp_path: Path
) -> None:
    key, _, value = setting.partition(": ")
    with pytest.raises(ValueError, match=rf"{key} \(keyword {key}\) has no effect on a measurem"):
        set_aside(DeploymentConfig(**{key: value}))
    (tmp_path / "a.yaml").write_text(f"{key}: {value}\n")
    config = load_config(tmp_path / "a.yaml", environment={})
    notes = set_aside(config)
    assert f"a.yaml:1: {key}) has no effect on a measurement" in notes[-1]
    assert set_aside(DeploymentConfig(model_name="some/model")) == []
    config.model.name = "some/model"
    config.check_supported()


def test_a_batch_that_a_training_would_measure_is_an_ordinary_one_here() -> None:
    config = DeploymentConfig(model_name="some/model", batch_size="auto")
    assert set_aside(config) == []
    assert config.training.batch_size == 32


def test_a_setting_of_a_later_part_is_refused_before_anything_is_loaded() -> None:
    config = DeploymentConfig(model_name="nowhere", data_path="nowhere.jsonl")
    config.model.adapter = "multimodal"
    with pytest.raises(ValueError, match="is not there yet"):
        evaluate_model(config)


def test_a_saved_model_is_measured_by_task(saved_llama: Path, tmp_path: Path) -> None:
    rows = [
        {"prompt": f"Reverse {n}", "completion": str(n)[::-1], "task": "odd" if n % 2 else "even"}
        for n in range(10, 18)
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    config = DeploymentConfig(
        model={"name": str(saved_llama)},
        data={"path": str(data), "max_length": 64, "num_workers": 0, "task_column": "task"},
        training={"validation_prompts": 4},
        cache={"directory": str(tmp_path / "cache")},
        output_dir=str(tmp_path / "runs"),
        device="cpu",
    )
    lines = evaluate_model(config)
    (written,) = (tmp_path / "runs" / "evaluations").iterdir()
    numbers = json.loads(written.read_text())
    assert set(numbers["exact_match"]) == {"all", "even", "odd"}
    assert numbers["num_questions"] == 4
    assert lines[-1] == f"written to {written}"
    assert "exact match even" in lines[0]


def test_rows_that_were_trained_on_are_named(run: Path, tmp_path: Path) -> None:
    rows, others, copied = (tmp_path / name for name in ("a.jsonl", "b.jsonl", "copy/a.jsonl"))
    copied.parent.mkdir()
    for path in (rows, copied):
        path.write_text('{"text": "a"}\n')
    others.write_text('{"text": "b"}\n')
    record = DeploymentConfig(data={"path": str(rows)}).to_dict()
    data = {"files_sha256": data_files_hash(DeploymentConfig(data={"path": str(rows)}).data)}
    (run / "run.json").write_text(json.dumps({"configuration": record, "data": data}))
    for model in (run, run / "final"):
        [note] = trained_on(config_for(model, path=str(rows)))
        assert f"this model was trained on rows of {rows}" in note
        assert len(trained_on(config_for(model, path=str(copied)))) == 1
        assert trained_on(config_for(model, path=str(others))) == []
    assert trained_on(config_for(tmp_path, path=str(rows))) == []
