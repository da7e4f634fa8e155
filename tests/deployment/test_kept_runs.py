"""Runs, places and prepared data that an earlier Temper wrote are read and gone on with.

`kept/*.tar.xz` were written by 3823ec6, before the modules were put into folders. `interrupted`
(with quantum steps) and `stack_wise` were killed in the middle, `finished` was not.
"""

import json
import shutil
import tarfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from infrastructure.config.sources.load import load_config
from infrastructure.core.checksums import damaged_files
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.optimization.gpu_capability import cpu_has_bf16
from infrastructure.run.configuration_judge import names as compared_names
from infrastructure.training.resume.fingerprint import installed_versions
from tests.deployment.runs import losses, newest_step, runs_of
from tests.slow import slow_but

KEPT = Path(__file__).parent / "kept"
KILLED = ["interrupted", "stack_wise"]


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Any) -> Path:
    name: str = request.param
    with tarfile.open(KEPT / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path / name)
    return tmp_path / name


def again(accept: Collection[str] = (), max_steps: int | None = None) -> list[str]:
    """The same command, in this process, or one that ends earlier; what it says."""
    lines: list[str] = []
    config = load_config("temper.yaml")
    if max_steps is not None:
        config.training.max_steps, accept = max_steps, [*accept, "max_steps"]
    TrainingDeployment(config, accept=accept, say=lines.append).run()
    return lines


def other_versions(run: Path) -> list[str]:
    """Packages that the run had in another version: some, where the tests run with Colab's."""
    had = json.loads((run / "run.json").read_text())["versions"]
    here = {name: one for name, one in installed_versions().items() if name in compared_names()}
    return [name for name, one in here.items() if had.get(name, one) != one]


def differing(run: Path) -> list[str]:
    """That, and bf16, in which the run was begun, on a CPU without instructions for it."""
    return [*other_versions(run), *([] if cpu_has_bf16() else ["precision"])]


def is_whole(model: Path) -> bool:
    return (model / "model.safetensors").is_file() and not damaged_files(model)


@pytest.mark.parametrize("folder", slow_but(["interrupted"], KILLED), indirect=True)
def test_an_interrupted_run_goes_on_where_it_was(folder: Path) -> None:
    [run] = runs_of(folder)
    before, step = losses(run), newest_step(run)
    # Not accepted is `data`: prepared again, it is what it was. All steps would take ten seconds,
    # and stack-wise training has to reach its last phase.
    end = len(before) + 2 if folder.name == "interrupted" else None
    again(differing(run), max_steps=end)
    assert runs_of(folder) == [run]
    assert losses(run)[:step] == before[:step]
    assert len(losses(run)) > len(before)
    assert is_whole(run / "final")
    assert is_whole(folder / "place" / run.name / "final")


@pytest.mark.parametrize("folder", slow_but([], KILLED), indirect=True)
def test_a_run_comes_back_from_its_place_alone(folder: Path) -> None:
    [run] = runs_of(folder)
    accepted = differing(run)
    shutil.rmtree(folder / "runs")
    shutil.rmtree(folder / "cache")
    again(accepted)
    assert runs_of(folder) == [run]
    steps = [step for step, _ in losses(run)]
    assert steps == list(range(1, len(steps) + 1))
    assert is_whole(run / "final")


@pytest.mark.parametrize("folder", ["finished"], indirect=True)
def test_a_finished_run_is_known_as_finished(folder: Path) -> None:
    [run] = runs_of(folder)
    before = (run / "final/model.safetensors").read_bytes()
    lines = again()
    assert "deployment.run_finished_before" in lines[-1]
    assert (run / "final/model.safetensors").read_bytes() == before
    assert json.loads((run / "summary.json").read_text())["after"]
