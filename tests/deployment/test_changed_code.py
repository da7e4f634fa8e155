"""A run that goes on with other code of a part of one's own says so, and asks."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infrastructure.commands.main import main
from infrastructure.config.merging.own_imports import own_imports
from infrastructure.config.merging.plugin_names import code_of
from infrastructure.core.exit_codes import ExitCode
from infrastructure.models import registry
from infrastructure.models.registry import ModelEntry
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.resume.fingerprint import code_of_parts
from tests.deployment.own_parts import write_settings
from tests.deployment.runs import ROOT, runs_of, small_config, small_settings
from tests.forks import outcome_of_forked
from tests.slow import slow

TURNS = """
import os, signal
import order
from pathlib import Path

import temper


class ByTurns(temper.StandardTrainingStrategy):
    def train_step(self, *arguments, **keywords):
        if "GOES_AWAY" in os.environ and [*Path("runs").glob("*/checkpoints/versions/*.json")]:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train_step(*arguments, **keywords)
"""
ORDER = "FIRST = 0\n"
TRAIN = ("train", "--config", "temper.yaml", "--strategy", "turns:ByTurns")


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a run that was killed after its first checkpoint."""
    (tmp_path / "turns.py").write_text(TURNS)
    (tmp_path / "order.py").write_text(ORDER)
    write_settings(tmp_path, small_settings(tmp_path, max_steps=2))
    path = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GOES_AWAY": "1"}
    done = outcome_of_forked(
        [sys.executable, "-P", "-m", "infrastructure", *TRAIN],
        cwd=tmp_path,
        env={**os.environ, **path},
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("turns", "order"):
        sys.modules.pop(name, None)
    yield tmp_path
    for name in ("turns", "order"):
        sys.modules.pop(name, None)


def test_changed_code_is_refused_by_name_and_accepted(
    killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = f"{TURNS}# and more\n"
    (killed / "turns.py").write_text(changed)
    assert main([*TRAIN]) == ExitCode.WRONG_INPUT
    refusal = capsys.readouterr().err
    assert "run.code_changed(parts=turns:ByTurns (turns.py))" in refusal
    assert "accept=code" in refusal
    (killed / "turns.py").write_text(TURNS)
    (killed / "order.py").write_text("FIRST = 1\n")  # which the part imports
    assert main([*TRAIN]) == ExitCode.WRONG_INPUT
    assert "run.code_changed(parts=turns:ByTurns (order.py))" in capsys.readouterr().err
    assert main([*TRAIN, "--accept", "code"]) == ExitCode.DONE
    assert "accepted: run.code_changed(parts=turns:ByTurns (order.py))" in capsys.readouterr().out
    [run] = runs_of(killed)
    [accepted] = json.loads((run / "run.json").read_text())["history"]
    [change] = accepted["changes"]
    assert change["name"] == "code"
    assert list(change["was"]["turns:ByTurns"]) == ["order.py"]
    assert change["was"]["turns:ByTurns"] != change["is"]["turns:ByTurns"]


@slow
def test_the_same_code_goes_on(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN]) == ExitCode.DONE
    assert "run.changed_since_checkpoint" not in "".join(capsys.readouterr())


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


def test_a_sampler_of_ones_own_has_its_code_in_the_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "annealing.py").write_text("import dimod\nclass Lowest(dimod.Sampler): ...\n")
    sampler = "annealing:Lowest"
    config = small_config(tmp_path, optimization_frequency=2)
    config.quantum.solver, config.quantum.fallback = "exact", [sampler]
    assert [*code_of(config)["temper.samplers"]] == [sampler]
    config.training.optimization_frequency = None
    assert code_of(config) == {}


def test_what_a_module_imports_from_its_own_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by way of another file, in a package, and from where the import stands in a function;
    not what only has the name of a file there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, text in {
        "own_top.py": "import json, own_near\nfrom own_pack.deep import thing\nimport temper\n",
        "own_near.py": "def f():\n    import own_far as far, own_top\n",
        "own_far.py": "this is no Python",
        "own_other.py": "",
        "json.py": "",
        "temper.py": "",
        "own_pack/__init__.py": "",
        "own_pack/deep.py": "from . import beside\nfrom .. import nothing\n",
        "own_pack/beside.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    pack = {"own_pack/__init__.py", "own_pack/deep.py", "own_pack/beside.py"}
    assert own_imports("own_top", ("temper",)).keys() == {"own_near.py", "own_far.py"} | pack
    assert own_imports("own_pack.deep", ()).keys() == pack - {"own_pack/deep.py"}
    assert own_imports("own_nowhere", ()) == {}
    assert not any(name.startswith("own_") for name in sys.modules)
