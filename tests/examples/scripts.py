"""The examples, run as a person runs them: by a new Python, in a folder of their own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_example(name: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """How it ended, and what it wrote."""
    return subprocess.run(
        [sys.executable, str(ROOT / f"examples/{name}.py")],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
