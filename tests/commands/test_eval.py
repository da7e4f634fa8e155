"""`temper eval`: what it needs, before anything is loaded."""

import json
from pathlib import Path

import pytest

from infrastructure.commands.main import main


@pytest.mark.parametrize("part", ["", "/final"])
def test_without_data_the_rows_that_the_run_has_held_out_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    run = tmp_path / "my-run"
    (run / "final").mkdir(parents=True)
    setting = {"value": "held_out.jsonl", "source": "--eval-path"}
    location = "commands.held_out_rows_location(path=held_out.jsonl)"
    for config, held_out in (({}, ""), ({"data.eval_path": setting}, location)):
        (run / "run.json").write_text(json.dumps({"config": config}))
        assert main(["eval", f"{run}{part}"]) == 2
        message = capsys.readouterr().err.strip()
        assert message == f"temper: commands.eval_data_missing(held_out={held_out})"
