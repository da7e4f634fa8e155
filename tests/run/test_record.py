"""The part of run.json that every run has."""

import json
import sys
from pathlib import Path

import pytest

from infrastructure.run.directory import RunDirectory
from infrastructure.run.record import base_record

TOKEN = "hf_" + "aB3" * 12


def test_it_is_json_with_the_origin_of_each_setting_and_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["temper", "train", TOKEN])
    settings = {
        "training.learning_rate": (0.1, "a flag"),
        "output_dir": (Path("runs"), "a file"),
        "model.name": (TOKEN, "the environment"),
    }
    record = base_record(RunDirectory(tmp_path / "one"), settings, {"python": "3.12"}, "cpu", 2)
    assert TOKEN not in json.dumps(record)
    assert record["run_id"] == "one"
    assert record["config"]["training.learning_rate"] == {"value": 0.1, "source": "a flag"}
    assert record["config"]["output_dir"]["value"] == "runs"
    assert (record["hardware"]["device"], record["hardware"]["processes"]) == ("cpu", 2)
