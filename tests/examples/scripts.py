"""The examples: imported, or run as a person runs them, by a new Python, in a folder."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 30


def example(name: str) -> Any:
    """A module of `examples/`, imported and not run."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"examples/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
