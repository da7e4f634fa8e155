"""Commands of another copy of the product, one after another in one new Python.

For tests of what a Python finds when it starts, such as installed features: to start one for each
command would import PyTorch each time.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAM = """
import contextlib, io, json, sys
from infrastructure.commands.main import main
for words in json.loads(sys.argv[1]):
    written = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(written[0]), contextlib.redirect_stderr(written[1]):
        try:
            code = main(words)
        except SystemExit as end:  # after the help
            code = end.code or 0
    print(json.dumps([code, *(text.getvalue() for text in written)]))
"""


@dataclass(frozen=True)
class Ended:
    """The exit code of a command, and what it printed."""

    code: int
    output: str
    errors: str


def run_commands(commands: Sequence[Sequence[str]], folder: Path, path: str) -> list[Ended]:
    """Run `temper` commands in `folder` with `path` as PYTHONPATH."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([*map(list, commands)])],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return [Ended(*json.loads(line)) for line in ended.stdout.splitlines()]
