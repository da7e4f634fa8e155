"""The part of run.json that every run has."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from infrastructure.core.checksums import write_record
from infrastructure.core.hardware import detect
from infrastructure.run import record as module
from infrastructure.run.directory import RunDirectory
from infrastructure.run.record import base_record, read_run_record, record_brought_back, shown

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
    assert record["command"].startswith("temper train ")
    assert len(record["created"]) == len("2026-01-02T03:04:05+0000")
    assert {*asdict(detect(tmp_path / "one"))} | {"device", "processes"} == {*record["hardware"]}
    assert record["run_id"] == "one"
    assert record["config"]["training.learning_rate"] == {"value": 0.1, "source": "a flag"}
    assert record["config"]["output_dir"] == {"value": "runs", "source": "a file"}
    assert record["versions"] == {"python": "3.12"}
    assert (record["hardware"]["device"], record["hardware"]["processes"]) == ("cpu", 2)


def test_a_restored_run_is_recorded_where_it_has_a_record(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    record_brought_back(run, "/disk", was_killed=True)
    assert read_run_record(run) == {}
    assert not run.run_file.exists()
    write_record(run.run_file, {"run_id": "one"})
    record_brought_back(run, "sftp://me:secret@host/a", was_killed=False)
    back = {"place": "sftp://***@host/a", "was_killed": False}
    assert read_run_record(run) == {"run_id": "one", "brought_back": back}
    with pytest.MonkeyPatch.context() as patch:

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(module, "write_record", fail)
        record_brought_back(run, "/other", was_killed=True)
    assert read_run_record(run) == {"run_id": "one", "brought_back": back}
    run.run_file.write_text("{")
    assert read_run_record(run) == {}


def test_a_value_is_recorded_as_json_or_as_its_text() -> None:
    values = (1, 0.5, True, None, ["a"], {"a": 1}, "text")
    assert tuple(map(shown, values)) == values
    assert (shown(Path("a/b")), shown((1, 2))) == ("a/b", "(1, 2)")
    assert shown(TOKEN) != TOKEN
