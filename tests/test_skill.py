"""What an agent is given: every command of its skill is executed, in their order, in one folder."""

import json
import os
import re
import shlex
import sys
from pathlib import Path

from tests.deployment.runs import ROOT, write_rows
from tests.forks import outcome_of_forked

SKILL = (ROOT / "skills/temper/SKILL.md").read_text()
COMMANDS = [
    shlex.split(line)
    for block in re.findall(r"```bash\n(.*?)```", SKILL, re.S)
    for line in block.splitlines()
]


def test_its_head_has_a_name_and_a_description() -> None:
    _, head, _ = SKILL.split("---\n", 2)
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    assert fields["name"] == "temper"
    assert 40 < len(fields["description"]) <= 1024


def test_every_command_works_as_it_stands(tmp_path: Path) -> None:
    """The model is tiny here, and what is trained beside a command is a fork of it."""
    write_rows(tmp_path / "rows.jsonl")
    variables = {
        **os.environ,
        "TEMPER_PRESET": "ci",
        "TEMPER_CACHE__DIRECTORY": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    assert len(COMMANDS) > 10
    for program, *arguments in COMMANDS:
        assert program == "temper"
        command = [sys.executable, "-m", "tests.deployment.command_process", *arguments]
        done = outcome_of_forked(command, cwd=tmp_path, env=variables, text=True)
        assert done.returncode == 0, f"{arguments}: {done.stdout} {done.stderr}"
        assert "Traceback" not in done.stderr
        if "--json" in arguments:
            json.loads(done.stdout)
    assert len(list(tmp_path.glob("runs/*/final"))) == 3  # the second command trained nothing
