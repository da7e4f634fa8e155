"""The example runs as it stands, in a folder of its own."""

import runpy
from pathlib import Path

import pytest

from tests.examples.scripts import run_example
from tests.slow import slow

ROOT = Path(__file__).resolve().parents[2]


@slow
def test_what_was_broken_off_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    names = runpy.run_path(str(ROOT / "examples/unified_trainer_example.py"))
    names["broken_off"]()
    assert "the same weights as undisturbed: True" in capsys.readouterr().out


@slow
@pytest.mark.timeout(600)
def test_it_runs(tmp_path: Path) -> None:
    done = run_example("unified_trainer_example", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "the same weights as undisturbed: True" in done.stdout
    assert "7  layers of one's own" in done.stdout
