"""`temper list`: a line for each run of a folder, for people and for programs."""

import json
import os
import re
import time
from pathlib import Path

import pytest

from infrastructure.commands.main import main
from infrastructure.core.exit_codes import ExitCode
from tests.monitoring.written_run import add, step_record, write_run


def test_the_runs_of_a_folder_are_listed_the_newest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["list"]) == ExitCode.DONE
    assert capsys.readouterr().out == "commands.no_run_to_list(folder=runs, not_a_folder=)\n"
    done = write_run(Path("runs"), "2025-a", status="finished", after={"eval_loss": 0.25})
    add(done, step_record(1040, 0.5))
    record = json.loads((done / "run.json").read_text())
    history = [{"step": step} for step in (4, 1009, 4)]
    (done / "run.json").write_text(json.dumps({**record, "history": history}))
    add(write_run(Path("runs"), "2026-b"), step_record(12, float("nan")))
    assert main(["list"]) == ExitCode.DONE
    heading, _, newer, older = capsys.readouterr().out.splitlines()
    moment = (done / "metrics.jsonl").stat().st_mtime
    written = time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))
    columns = ["run", "state", "step", "held-out loss", "last written", "trains"]
    assert re.split("  +", heading) == columns
    assert re.split("  +", newer) == ["2026-b", "training", "12", "–", written, "my-llama"]
    changed = "finishedcommands.changed_after_step(steps=4, 1,009)"
    assert re.split("  +", older) == ["2025-a", changed, "1,040", "0.2500", written, "my-llama"]
    assert main(["list", "--json"]) == ExitCode.DONE
    facts = json.loads(capsys.readouterr().out)
    assert facts["folder"] == "runs"
    assert [(run["name"], run["loss"]) for run in facts["runs"]] == [
        ("2026-b", "NaN"),
        ("2025-a", 0.5),
    ]
    assert facts["runs"][0]["written_at"] == Path("runs/2026-b/metrics.jsonl").stat().st_mtime
    os.utime(done / "summary.json", (4e9, 4e9))  # written after the last record
    assert main(["list", "--json"]) == ExitCode.DONE
    moments = {
        run["name"]: run["written_at"] for run in json.loads(capsys.readouterr().out)["runs"]
    }
    assert moments["2025-a"] == 4e9
    Path("empty").mkdir()
    for folder, words in (("elsewhere", "commands.which_is_not_a_folder()"), ("empty", "")):
        assert main(["list", "--output", folder]) == ExitCode.DONE
        nothing = f"commands.no_run_to_list(folder={folder}, not_a_folder={words})\n"
        assert capsys.readouterr().out == nothing
    Path("runs/2027-c").mkdir()
    Path("runs/2027-c/run.json").write_text("{}")
    assert main(["list"]) == ExitCode.DONE
    newest = capsys.readouterr().out.splitlines()[2]
    assert re.split("  +", newest) == ["2027-c", "preparing", *"––––"]
    assert main(["watch", "2026-b/", "--once"]) == ExitCode.DONE
    assert main(["runs"]) == ExitCode.WRONG_INPUT
    assert "unknown_command_meant(word=runs, meant=temper list)" in capsys.readouterr().err


def test_a_folder_that_may_not_be_looked_into_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a user who may do everything, as that of the tests, never meets."""
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    for command in ("list", "watch", "resume"):
        assert main([command, "--output", str(tmp_path)]) == ExitCode.FAILED
        refusal = f"temper: commands.permission_denied(path={tmp_path})"
        assert capsys.readouterr().err.startswith(refusal)
