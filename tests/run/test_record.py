"""The part of run.json that every run has."""

import json
import sys
from pathlib import Path

import pytest

from infrastructure.core.checksums import read_record, write_record
from infrastructure.run.compatibility import Difference, Verdict
from infrastructure.run.directory import RunDirectory
from infrastructure.run.record import base_record, record_accepted

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


def test_what_is_accepted_is_added_and_other_data_is_described(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    write_record(run.run_file, {"data": {"fingerprint": "a"}})
    rate = Difference("learning_rate", 0.1, 0.2, Verdict.CHANGES_THE_RESULT)
    other = Difference("data", "a", "b", Verdict.CHANGES_THE_RESULT)
    same = Difference("numpy", "1.0", "1.1", Verdict.HARMLESS)

    def describe() -> dict[str, object]:
        return {"fingerprint": "b"}

    for agreed, step in (([same], 2), ([rate, same], 4), ([other], 6)):
        record_accepted(run, agreed, step, describe)
    record = read_record(run.run_file)
    assert record["data"] == {"fingerprint": "a"}  # what it began with
    first, second = record["accepted"]
    assert (first["step"], first["changes"]) == (
        4,
        [{"name": "learning_rate", "was": 0.1, "is": 0.2}],
    )
    assert "data" not in first
    assert (second["step"], second["data"]) == (6, {"fingerprint": "b"})
