"""A model is measured by the rules of the run that it lies in."""

import json
import shutil
from pathlib import Path

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.evaluation import run_settings
from infrastructure.evaluation.run_settings import (
    background_of_run,
    has_context,
    inherit_from_run,
    inherit_from_runs,
    precision_of_run,
    quantization_of_run,
)
from tests.evaluation.conftest import config_for


@pytest.mark.parametrize("part", ["", "final"])
def test_a_model_is_measured_by_the_rules_of_its_run(run: Path, part: str) -> None:
    config = config_for(run / part)
    assert inherit_from_run(config) == {"data.max_length": 77, "data.train_on": "all"}
    assert (config.data.max_length, config.data.train_on) == (77, "all")


def test_all_that_makes_tokens_of_rows_is_inherited(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages }}")
    settings = {
        "max_length": 77,
        "train_on": "all",
        "chat_template": str(template),
        "over_length": "quarantine",
        "image_background": "black",
    }
    others = {"packing": False, "validation_split": 0.3}  # these make no other tokens
    saved = DeploymentConfig(data={**settings, **others}).to_dict()
    (tmp_path / "run.json").write_text(json.dumps({"configuration": saved}))
    config = config_for(tmp_path)
    inherited = {f"data.{name}": getattr(DataConfig(**settings), name) for name in settings}
    assert inherit_from_run(config) == inherited
    assert {f"data.{name}": getattr(config.data, name) for name in settings} == inherited
    assert (config.data.packing, config.data.validation_split) != (False, 0.3)


@pytest.mark.parametrize(
    ("column", "row"),
    [
        ({"context_column": "the text"}, {"question": "q", "answer": "a", "the text": "t"}),
        ({"task_column": "the kind"}, {"question": "q", "answer": "a", "the kind": "k"}),
        ({"text_column": "the text", "shape": "text"}, {"the text": "some words"}),
    ],
)
def test_each_column_of_the_run_is_that_of_the_measured_data(
    tmp_path: Path, column: dict[str, str], row: dict[str, str]
) -> None:
    saved = DeploymentConfig(data=column).to_dict()
    (tmp_path / "run.json").write_text(json.dumps({"configuration": saved}))
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    config = config_for(tmp_path, path=str(tmp_path / "rows.jsonl"))
    assert inherit_from_run(config) == {f"data.{name}": value for name, value in column.items()}


def test_what_a_run_records_of_its_model_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert precision_of_run(tmp_path) is None
    assert quantization_of_run(tmp_path) is None
    assert background_of_run(tmp_path) == DataConfig().image_background
    assert not has_context(tmp_path)
    saved = DeploymentConfig(data={"image_background": "black"}).to_dict()
    record = {"configuration": saved, "precision": "bf16"}
    record["model"] = {"lora": {"r": 2}, "quantization": "4bit"}
    (tmp_path / "run.json").write_text(json.dumps(record))
    monkeypatch.setattr(run_settings, "is_installed", lambda package: package == "bitsandbytes")
    assert precision_of_run(tmp_path) == "bf16"
    assert quantization_of_run(tmp_path) == "4bit"
    assert background_of_run(tmp_path) == DataConfig(image_background="black").image_background
    assert background_of_run(tmp_path) != DataConfig().image_background
    monkeypatch.setattr(run_settings, "is_installed", lambda package: False)
    assert quantization_of_run(tmp_path) is None
    record["model"] = {"quantization": "4bit"}  # all of it was trained, and is saved as it is
    (tmp_path / "run.json").write_text(json.dumps(record))
    monkeypatch.undo()
    assert quantization_of_run(tmp_path) is None
    (tmp_path / "summary.json").write_text(json.dumps({"has_context": True}))
    assert has_context(tmp_path)


def test_what_was_requested_comes_first(run: Path) -> None:
    config = config_for(run / "final", max_length=99)
    assert inherit_from_run(config) == {"data.train_on": "all"}
    assert config.data.max_length == 99


def test_the_columns_of_the_run_are_those_of_data_that_has_them(tmp_path: Path) -> None:
    columns = {"prompt_column": "they ask", "answer_column": "we reply"}
    saved = DeploymentConfig(data=columns).to_dict()
    (tmp_path / "final").mkdir()
    (tmp_path / "run.json").write_text(json.dumps({"configuration": saved}))
    (tmp_path / "alike.csv").write_text("they ask,we reply\nHow late?,Nine\nWhere?,Here\n")
    (tmp_path / "usual.csv").write_text("question,answer\nHow late?,Nine\nWhere?,Here\n")
    alike = config_for(tmp_path / "final", path=str(tmp_path / "alike.csv"))
    assert inherit_from_run(alike) == {f"data.{key}": name for key, name in columns.items()}
    assert alike.data.answer_column == "we reply"
    given = {"prompt_column": "we reply", "answer_column": "they ask"}
    for path, more in (("usual.csv", {}), ("alike.csv", given)):
        config = config_for(tmp_path / "final", path=str(tmp_path / path), **more)
        assert inherit_from_run(config) == {}


@pytest.mark.parametrize("is_first", [True, False])
def test_beside_a_run_the_model_that_it_began_with_is_measured_alike(
    run: Path, tmp_path: Path, is_first: bool
) -> None:
    """Rows that were cut at other lengths could not be compared."""
    trained, base = config_for(run / "final"), config_for(tmp_path, max_length=99)
    notes = inherit_from_runs([base, trained] if is_first else [trained, base])
    assert notes == [
        "evaluation.setting_from_run(key=data.max_length, value=77)",
        "evaluation.setting_from_run(key=data.train_on, value=all)",
    ]
    assert (base.data.max_length, base.data.train_on) == (99, "all"), "what was given stays"
    plain = config_for(tmp_path)
    inherit_from_runs([trained, plain])
    assert plain.data.max_length == 77


def test_of_two_runs_each_keeps_its_own_way(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other)
    saved = DeploymentConfig(data={"max_length": 33}).to_dict()
    (other / "run.json").write_text(json.dumps({"configuration": saved}))
    configs = [config_for(run / "final"), config_for(other / "final")]
    inherit_from_runs(configs)
    assert [config.data.max_length for config in configs] == [77, 33]
    assert [config.data.train_on for config in configs] == ["all", "answers"]


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
