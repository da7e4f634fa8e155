"""A run's model is described by its record, and by its configuration where that says less."""

import json
from pathlib import Path
from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.checksums import write_record
from infrastructure.deployment.recorded_model import base_is_recorded, recorded_model
from infrastructure.run.directory import RunDirectory

SIZES = {"name": "as recorded", "num_parameters": 7}


def run_of(folder: Path, method: str, model: dict[str, Any], recorded: object) -> RunDirectory:
    run = RunDirectory(folder / "run")
    config = DeploymentConfig(training={"method": method}, model=model)
    write_record(run.run_file, {"configuration": config.to_dict(), "model": recorded})
    return run


@pytest.mark.parametrize(
    ("method", "recorded", "expected"),
    [
        ("sft", {**SIZES, "kind": "hub"}, {**SIZES, "kind": "hub"}),
        ("sft", SIZES, SIZES),  # of a model without a kind
        ("sft", None, {}),
        ("dpo", {**SIZES, "kind": "folder", "lora": {}}, {**SIZES, "kind": "folder", "lora": {}}),
        ("dpo", SIZES, {**SIZES, "name": "org/model", "kind": "hub", "lora": {"r": 4}}),
        ("dpo", None, {"name": "org/model", "kind": "hub", "lora": {"r": 4}}),
    ],
)
def test_what_a_record_lacks_is_of_the_configuration(
    method: str, recorded: dict[str, Any] | None, expected: dict[str, Any], tmp_path: Path
) -> None:
    model = {"name": "org/model", "lora_config": {"r": 4}}
    run = run_of(tmp_path, method, model, recorded)
    assert recorded_model(run) == expected
    assert base_is_recorded(run) is ("kind" in (recorded or {}))


def test_a_lora_that_goes_on_has_its_own_rank(tmp_path: Path, saved_llama: Path) -> None:
    lora = tmp_path / "lora"
    lora.mkdir()
    settings = {"r": 16, "base_model_name_or_path": str(saved_llama)}
    (lora / "adapter_config.json").write_text(json.dumps(settings))
    for name, wanted, kind, rank in (
        (str(lora), {"r": 4}, "lora folder", {"r": 16}),
        (str(saved_llama), {"r": 4}, "folder", {"r": 4}),
        (str(saved_llama), None, "folder", {}),
    ):
        run = run_of(tmp_path, "dpo", {"name": name, "lora_config": wanted}, SIZES)
        assert recorded_model(run) == {**SIZES, "name": name, "kind": kind, "lora": rank}
