"""Runs tests in a process without a past."""

import subprocess
import sys
from pathlib import Path

TIMEOUT_SECONDS = 240


def run_cases(name: str) -> str:
    """What pytest says of the tests in a file beside this one; "" where all of them pass."""
    path = Path(__file__).with_name(name)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        cwd=path.parents[2],
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr
