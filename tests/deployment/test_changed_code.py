"""A run that goes on with other code of a part of one's own says so, and asks."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infrastructure.commands.main import main
from infrastructure.core.exit_codes import ExitCode
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.models import registry
from infrastructure.training.models.registry import ModelEntry
from infrastructure.training.resume.fingerprint import code_of_parts
from tests.deployment.own_parts import write_settings
from tests.deployment.runs import ROOT, runs_of, small_config, small_settings

TURNS = """
import os, signal
from pathlib import Path

import temper


class ByTurns(temper.StandardTrainingStrategy):
    def train_step(self, *arguments, **keywords):
        if "GOES_AWAY" in os.environ and [*Path("runs").glob("*/checkpoints/versions/*.json")]:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train_step(*arguments, **keywords)
"""
TRAIN = ("train", "--config", "temper.yaml", "--strategy", "turns:ByTurns")


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a run that was killed after its first checkpoint."""
    (tmp_path / "turns.py").write_text(TURNS)
    write_settings(tmp_path, small_settings(tmp_path, max_steps=4))
    path = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GOES_AWAY": "1"}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "infrastructure", *TRAIN],
        cwd=tmp_path,
        env={**os.environ, **path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("turns", None)
    yield tmp_path
    sys.modules.pop("turns", None)


def test_changed_code_is_refused_by_name_and_accepted(
    killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = f"{TURNS}# and more\n"
    (killed / "turns.py").write_text(changed)
    assert main([*TRAIN]) == ExitCode.WRONG_INPUT
    refusal = capsys.readouterr().err
    assert "code of turns:ByTurns (turns.py) has changed" in refusal
    assert "--accept code" in refusal
    assert main([*TRAIN, "--accept", "code"]) == ExitCode.DONE
    assert "accepted: code of turns:ByTurns (turns.py) has changed" in capsys.readouterr().out
    [run] = runs_of(killed)
    [accepted] = json.loads((run / "run.json").read_text())["accepted"]
    [change] = accepted["changes"]
    assert change["name"] == "code"
    assert change["was"]["turns:ByTurns"] != change["is"]["turns:ByTurns"]


def test_the_same_code_goes_on(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN]) == ExitCode.DONE
    assert "code of" not in "".join(capsys.readouterr())


def test_what_only_watches_or_writes_has_no_code_in_the_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_kinds.py").write_text(
        "import torch, temper\nclass Sink(temper.Sink): ...\n"
        "def metric(logits, targets): return targets\nloss = metric\n"
        "def build(): return torch.nn.Linear(1, 1)\n"
    )
    parts = {"metrics_sinks": ["own_kinds:Sink"], "metrics": ["own_kinds:metric"]}
    config = small_config(tmp_path, loss="own_kinds:loss", **parts)
    trainer = EnhancedTrainer(config.model, config.training, config.data)
    sys.modules.pop("own_kinds", None)
    code = code_of_parts(trainer)
    assert "own_kinds" not in sys.modules, "imported only to see its source"
    assert {group: [*named] for group, named in code.items()} == {
        "temper.losses": ["own_kinds:loss"]
    }
    import own_kinds  # type: ignore[import-not-found]

    monkeypatch.setitem(registry.MODELS, "mine", ModelEntry(own_kinds.build, "standard"))
    trainer.model_config = trainer.model_config.model_copy(update={"name": "mine"})
    assert code_of_parts(trainer)["temper.models"]["mine"]["file"] == "own_kinds.py"
    sys.modules.pop("own_kinds")
