"""Runs tests in a process that has allocated nothing but what it imports."""

import sys
from pathlib import Path

from tests.forks import outcome_of_forked


def run_cases(name: str) -> str:
    """What pytest says of the tests in a file beside this one; "" where all of them pass."""
    path = Path(__file__).with_name(name)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    command += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # imported before the fork
    done = outcome_of_forked(command, text=True, cwd=path.parents[2])
    return "" if done.returncode == 0 else done.stdout + done.stderr
