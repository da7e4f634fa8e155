"""A sweep: real commands and processes. It is killed with its trial and goes on with that very run;
a trial that is behind is pruned; the best one is what the command says that it is."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.checksums import write_record
from infrastructure.core.files import make_directory
from infrastructure.deployment import detached
from infrastructure.deployment.detached import DetachedTraining
from infrastructure.features.sweep.search_space import parse_search
from infrastructure.features.sweep.study import Goal
from infrastructure.features.sweep.sweep import OBSERVER, Sweep
from tests.deployment.command_process import HOLD_AT, kill_job
from tests.deployment.runs import small_config, start_temper, when_saved, write_settings
from tests.forks import forked_python

pytest.importorskip("optuna")
RATES = "0.01,0.011,0.012,0.013,0.014,1e-9"  # a grid, so in this order
SWEEP = ("sweep", "--search", f"learning_rate={RATES}", "--sampler", "grid", "--name", "rates")


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command in a fork, whose trials are forks."""
    command = [sys.executable, "-m", "tests.deployment.command_process", *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return forked_python(command, cwd=folder, **pipes)


def outcome(folder: Path, *arguments: str) -> tuple[int, str, str]:
    process = start(folder, *arguments)
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_settings(tmp_path, num_epochs=2)
    return tmp_path


def weights(run: Path) -> str:
    return hashlib.sha256((run / "final/model.safetensors").read_bytes()).hexdigest()


def first_run(folder: Path, process: subprocess.Popen[str]) -> Path:
    """The run of the first trial, as soon as it waits at HOLD_AT."""
    make_directory(folder / "seen")
    (folder / "seen/runs").symlink_to(folder / "runs/sweep-rates")
    return when_saved(folder / "seen", HOLD_AT, process).resolve()


def test_a_killed_sweep_goes_on_with_its_trial_and_ends_as_nobody_had_killed_it(
    folder: Path,
) -> None:
    (folder / "hold").touch()
    process = start(folder, *SWEEP)
    run = first_run(folder, process)
    code, _, error = outcome(folder, *SWEEP)
    assert code == 2
    assert "sweep.already_running(" in error
    assert f"holder=process {process.pid} on " in error
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    kill_job(run)
    (folder / "hold").unlink()

    code, output, error = outcome(folder, *SWEEP, "--json")
    assert code == 0, error
    assert f"sweep.trial_resuming(number=0, run={run})" in error
    found = json.loads(output)
    trials = found["trials"]
    assert trials[0]["run"] == str(run)
    assert [one["state"] for one in trials] == 5 * ["complete"] + ["pruned"]
    assert len(list((folder / "runs/sweep-rates").glob("*/run.json"))) == 6
    assert not (Path(trials[5]["run"]) / "final").exists()
    best = min(trials[:5], key=lambda one: one["value"])
    assert found["best"] == best
    summary = json.loads((Path(best["run"]) / "summary.json").read_text())
    assert summary["after"]["eval_loss"] == best["value"]

    words = found["command"].split()
    assert words[:3] == ["temper", "train", "--learning-rate"]
    (folder / "alone").mkdir()
    write_settings(folder / "alone", num_epochs=2)
    out, err = start_temper(
        "train", "--learning-rate", "0.01", folder=folder / "alone"
    ).communicate(timeout=120)
    (alone,) = (folder / "alone/runs").glob("*/run.json")
    assert weights(run) == weights(alone.parent), out + err

    code, output, error = outcome(folder, *SWEEP, "--trials", "40", "--json")  # all are there
    assert code == 0, error
    assert json.loads(output)["trials"] == trials


def test_the_deadline_ends_the_sweep_and_another_search_is_not_mixed_in(folder: Path) -> None:
    more = ("--epochs", "2000", "--deadline", "4s")
    words = ("sweep", "--search", "embedded_num_layers=1..2", "--name", "short", "--json")
    code, output, error = outcome(folder, *words, *more)
    assert code == 130, error
    (trial,) = json.loads(output)["trials"]
    assert trial["state"] == "running"
    assert json.loads(output)["is_over"] is False
    code, _, error = outcome(folder, *words, *more, "--batch-size", "8")
    assert code == 2
    assert "sweep.settings_differ(" in error
    assert "names=training.batch_size)" in error
    (folder / "rows.jsonl").write_text((folder / "rows.jsonl").read_text() + "\n")
    code, _, error = outcome(folder, *words, *more)
    assert code == 2
    assert "sweep.data_changed" in error


def test_values_that_do_not_go_together_fail_by_name_and_the_others_are_trained(
    folder: Path,
) -> None:
    """Width and number of heads of the embedded model: 3 heads do not divide 32."""
    search = ("--search", "embedded_num_heads=2,3", "--search", "embedded_num_layers=1,2")
    words = ("sweep", *search, "--sampler", "grid", "--epochs", "1", "--best-metric", "exact_match")
    code, output, error = outcome(folder, *words, "--validation-prompts", "2", "--json")
    assert code == 0, error
    trials = json.loads(output)["trials"]
    assert [one["state"] for one in trials] == ["complete", "complete", "fail", "fail"]
    assert "config.hidden_size_not_divisible" in trials[2]["reason"]
    assert trials[0]["value"] is not None


class Trained:
    """What a sweep has started: each process ends at once, and leaves a run with a summary."""

    def __init__(self, patch: pytest.MonkeyPatch, ends: dict[float, list[Any]]) -> None:
        self.ends = ends
        self.given: list[tuple[DeploymentConfig, Path | None, Any]] = []
        self.code = 0
        patch.setattr(detached, "start", self._start)
        patch.setattr(DetachedTraining, "exit_code", lambda _: self.code)
        patch.setattr(detached, "fate", lambda _: "killed")

    def _start(
        self,
        config: DeploymentConfig,
        accept: Any,
        folder: Path,
        run_path: Path | None,
        observer: Any,
    ) -> None:
        assert accept == ()
        made_by, trial = observer
        assert made_by == OBSERVER
        self.given.append((config, run_path, trial))
        end = self.ends[float(config.training.learning_rate)].pop(0)
        self.code = end if isinstance(end, int) else 0
        run = Path(config.output_dir) / f"run-{trial['number']}"
        run.mkdir(exist_ok=True)
        (folder / "run").write_text(str(run))
        write_record(run / "summary.json", {"status": "running"} if self.code else end)
        if end == FINISHED:
            (run / "final").mkdir()


FINISHED = {"status": "finished", "after": {"exact_match": {"all": 0.9, "a": 0.1}}}


def test_a_sweep_takes_of_each_trial_what_its_run_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exact(value: object) -> dict[str, object]:
        return {"status": "finished", "after": {"exact_match": {"all": value}}}

    ends: dict[float, list[Any]] = {
        0.1: [exact(0.5)],
        0.2: [-9, FINISHED],
        0.3: [{"status": "failed", "error": "OSError: full"}],
        0.4: [exact("NaN")],
        0.5: [{"status": "stopped", "reason": "a deadline"}, exact(0.25)],
    }
    trained = Trained(monkeypatch, ends)
    goal = Goal(metric="eval_exact_match", direction="maximize", sampler="grid")
    dimensions = parse_search(["learning_rate=0.1,0.2,0.3,0.4,0.5"])
    config = small_config(tmp_path)
    config.run_name = "rates"
    sweep = Sweep(config, dimensions, goal)
    assert not sweep.run(5, lambda line: None, deadline_seconds=100.0)
    found = [(one.state, one.value, one.reason) for one in sweep.results()]
    assert found[:3] == [
        *[("complete", 0.5, None), ("complete", 0.9, None), ("fail", None, "OSError: full")]
    ]
    assert [state for state, *_ in found] == ["complete", "complete", "fail", "fail", "running"]
    best = sweep.best()
    assert best is not None
    assert (best.number, best.run) == (1, str(sweep.folder / "run-1"))
    assert [(one.key, one.value) for one in sweep.settings_of(best)] == [
        ("training.learning_rate", 0.2)
    ]
    assert [run_path for _, run_path, _ in trained.given] == [
        *(None, None, sweep.folder / "run-1", None, None, None)
    ]
    first, _, handed_over = trained.given[0]
    assert handed_over == {"folder": str(sweep.folder), "number": 0, "goal": goal.to_dict()}
    assert (first.output_dir, first.run_name) == (str(sweep.folder), "trial-0")
    assert first.training.deadline is not None
    assert 90.0 < first.training.deadline <= 100.0
    again = Sweep(config, dimensions, goal)
    assert again.run(5, lambda line: None)
    assert trained.given[-1][1] == sweep.folder / "run-4"
    assert trained.given[-1][0].training.deadline is None
    assert again.results()[4].value == 0.25
    assert again.run(9, lambda line: None), "a grid has no more"
    assert len(trained.given) == 7


def test_the_least_is_the_best_where_less_is_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses: dict[float, list[Any]] = {
        rate: [{"status": "finished", "after": {"eval_loss": loss}}]
        for rate, loss in ((0.1, 2.0), (0.2, 0.5), (0.3, 1.0))
    }
    trained = Trained(monkeypatch, losses)
    sweep = Sweep(
        small_config(tmp_path), parse_search(["learning_rate=0.1,0.2,0.3"]), Goal(sampler="grid")
    )
    assert sweep.best() is None
    assert sweep.run(2, lambda line: None)
    assert [one.value for one in sweep.results()] == [2.0, 0.5]
    best = sweep.best()
    assert best is not None
    assert (best.value, best.number) == (0.5, 1)
    assert len(trained.given) == 2
