"""A sweep: real commands and processes. It is killed with its trial and goes on with that very run;
a trial that is behind is pruned; the best one is what the command says that it is."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infrastructure.commands.main import main
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.checksums import write_record
from infrastructure.core.files import make_directory
from infrastructure.deployment import detached
from infrastructure.deployment.detached import DetachedTraining
from infrastructure.features.sweep import sweep as sweep_module
from infrastructure.features.sweep.search_space import parse_search
from infrastructure.features.sweep.study import PRUNED, Goal
from infrastructure.features.sweep.sweep import OBSERVER, Sweep, TrialResult, grid
from infrastructure.features.sweep.trial import trial_observer
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

    rate = best["values"]["training.learning_rate"]
    assert found["command"] == f"temper train --learning-rate {rate}"
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
    search = ("--search", "embedded_num_layers=1,2", "--search", "embedded_num_heads=3,2")
    words = ("sweep", *search, "--sampler", "grid", "--trials", "2", "--epochs", "1")
    more = ("--best-metric", "exact_match", "--validation-prompts", "2", "--json")
    code, output, error = outcome(folder, *words, *more)
    assert code == 0, error
    trials = json.loads(output)["trials"]
    assert [one["state"] for one in trials] == ["fail", "complete"]
    assert "config.hidden_size_not_divisible" in trials[0]["reason"]
    assert trials[1]["value"] is not None


class Trained:
    """The processes of a sweep: each ends after 10 s, and leaves a run with a summary."""

    def __init__(
        self, patch: pytest.MonkeyPatch, ends: Mapping[Any, list[Any]], **other: Any
    ) -> None:
        self.ends, self.other = ends, other
        self.given: list[tuple[DeploymentConfig, Path | None, Any]] = []
        self.code, self.now = 0, 0.0
        patch.setattr(sweep_module, "time", SimpleNamespace(monotonic=lambda: self.now))
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
        self.now += 10
        end = self.ends.get(config.training.learning_rate, self.other.get("end"))
        end = end.pop(0) if isinstance(end, list) else end
        self.code = end if isinstance(end, int) else 0
        (folder / "output.txt").write_text("temper: no room\n")
        if end == 1:  # it has not begun
            return
        run = Path(config.output_dir) / f"run-{trial['number']}"
        run.mkdir(exist_ok=True)
        (folder / "run").write_text(str(run))
        if end == "pruned":
            pruned = trial_observer(trial).trial
            pruned.report(4.0, 20)
            pruned.report(3.0, 30)
            pruned.set_user_attr(PRUNED, 30)
        elif end is not None:
            write_record(run / "summary.json", {"status": "running"} if self.code else end)
        if end == FINISHED:
            (run / "final").mkdir()


FINISHED = {"status": "finished", "after": {"exact_match": {"all": 0.9, "a": 0.1}}}


def ended(**after: object) -> dict[str, object]:
    return {"status": "finished", "after": after}


def test_a_sweep_takes_of_each_trial_what_its_run_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: dict[float, list[Any]] = {
        0.1: [ended(exact_match={"all": 0.5})],
        0.2: [-9, FINISHED],
        0.3: [{"status": "failed", "error": "OSError: full"}],
        0.4: [ended(exact_match={"all": "NaN"})],
        0.5: [{"status": "stopped", "reason": "a deadline"}, ended(exact_match={"all": 0.25})],
    }
    trained = Trained(monkeypatch, ends)
    goal = Goal(metric="eval_exact_match", direction="maximize", sampler="grid")
    dimensions = parse_search(["learning_rate=0.1,0.2,0.3,0.4,0.5"])
    config = small_config(tmp_path)
    config.run_name = "rates"
    sweep = Sweep(config, dimensions, goal)
    lines: list[str] = []
    assert not sweep.run(7, lines.append, deadline_seconds=100.0)
    run = sweep.folder / "run"
    assert lines == [
        f"Sweep {sweep.folder}",
        "Trial 0: training.learning_rate=0.1000",
        f"Trial 0: {goal.title} 0.5000sweep.time_left(left=4, time=40 s)",
        "Trial 1: training.learning_rate=0.2000",
        "Trial 1: killed",
        f"sweep.trial_resuming(number=1, run={run}-1)",
        f"Trial 1: {goal.title} 0.9000sweep.time_left(left=3, time=45 s)",
        "Trial 2: training.learning_rate=0.3000",
        "Trial 2: failed: OSError: fullsweep.best_so_far(best=0.9000, number=1)"
        "sweep.time_left(left=2, time=30 s)",
        "Trial 3: training.learning_rate=0.4000",
        f"Trial 3: failed: sweep.trial_metric_not_finite(metric={goal.title})"
        "sweep.best_so_far(best=0.9000, number=1)sweep.time_left(left=1, time=15 s)",
        "Trial 4: training.learning_rate=0.5000",
        "sweep.trial_stopped(number=4, outcome=was stopped (a deadline))",
    ]
    assert [
        (one.number, one.state, one.value, one.seconds, one.run, one.reason)
        for one in sweep.results()
    ] == [
        (0, "complete", 0.5, 10, f"{run}-0", None),
        (1, "complete", 0.9, 20, f"{run}-1", None),
        (2, "fail", None, 10, f"{run}-2", "OSError: full"),
        (3, "fail", None, 10, f"{run}-3", f"sweep.trial_metric_not_finite(metric={goal.title})"),
        (4, "running", None, 10, f"{run}-4", None),
    ]
    best = sweep.best()
    assert best is not None
    assert best.number == 1
    assert [(one.key, one.value) for one in sweep.settings_of(best)] == [
        ("training.learning_rate", 0.2)
    ]
    assert [run_path for _, run_path, _ in trained.given] == [
        *(None, None, sweep.folder / "run-1", None, None, None)
    ]
    first, _, handed_over = trained.given[0]
    assert handed_over == {"folder": str(sweep.folder), "number": 0, "goal": goal.to_dict()}
    assert (first.output_dir, first.run_name) == (str(sweep.folder), "trial-0")
    deadlines = [one.training.deadline for one, *_ in trained.given]
    assert deadlines == [100.0, 90.0, 80.0, 70.0, 60.0, 50.0]
    again, lines = Sweep(config, dimensions, goal), []
    assert again.run(5, lines.append)
    assert lines == [
        f"sweep.progress(folder={sweep.folder}, count=4)",
        "Trial 4: training.learning_rate=0.5000",
        f"sweep.trial_resuming(number=4, run={run}-4)",
        f"Trial 4: {goal.title} 0.2500sweep.best_so_far(best=0.9000, number=1)",
    ]
    assert trained.given[-1][1] == sweep.folder / "run-4"
    assert trained.given[-1][0].training.deadline is None
    assert (again.results()[4].value, again.results()[4].seconds) == (0.25, 20)
    assert again.run(9, lambda line: None), "a grid has no more"
    assert len(trained.given) == 7


def test_the_least_is_the_best_and_no_trial_begins_within_the_last_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = {rate: [ended(eval_loss=loss)] for rate, loss in ((0.1, 2.0), (0.2, 0.5), (0.3, 1.0))}
    trained = Trained(monkeypatch, losses)
    sweep = Sweep(
        small_config(tmp_path), parse_search(["learning_rate=0.1,0.2,0.3"]), Goal(sampler="grid")
    )
    assert sweep.best() is None
    lines: list[str] = []
    assert not sweep.run(3, lines.append, deadline_seconds=10.9)
    assert lines[-1] == "sweep.deadline_reached()"
    assert len(trained.given) == 1
    assert sweep.run(2, lambda line: None, deadline_seconds=1.0)
    assert [one.value for one in sweep.results()] == [2.0, 0.5]
    best = sweep.best()
    assert best is not None
    assert (best.value, best.number) == (0.5, 1)
    assert len(trained.given) == 2


def test_a_sweep_whose_first_trials_all_fail_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Trained(monkeypatch, {0.1: 4 * [-9], 0.2: [1], 0.3: [None], 0.4: [FINISHED]})
    dimensions = parse_search(["learning_rate=0.1,0.2,0.3,0.4"])
    sweep = Sweep(small_config(tmp_path), dimensions, Goal(sampler="grid"))
    with pytest.raises(ValueError, match=r"sweep\.first_trials_failed\(count=3, reason=no room\)"):
        sweep.run(9, lambda line: None)
    assert [(one.state, one.reason) for one in sweep.results()] == [
        ("fail", "sweep.trial_killed_repeatedly(count=3, fate=killed)"),
        ("fail", "no room"),
        ("fail", "no room"),
    ]
    assert len(trained.given) == 5


def test_values_that_were_tried_are_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Trained(
        monkeypatch, {0.1: [ended(loss=1.0)], 0.2: ["pruned"], 0.3: [ended(loss=2.0)]}
    )
    sweep = Sweep(
        small_config(tmp_path, seed=3),
        parse_search(["learning_rate=0.1,0.2,0.3"]),
        Goal(sampler="random"),
    )
    lines: list[str] = []
    assert sweep.run(50, lines.append)
    assert len(trained.given) == 3
    results = sweep.results()
    repeated = set()
    for one in results:
        first = next(other for other in results if other.values == one.values)
        assert (one.state, one.run) == (first.state, first.run)
        if one is not first:
            repeated.add(one.state)
            assert one.same_as == first.number
            repeats = f"sweep.trial_repeats_earlier(number={one.number}, earlier={first.number})"
            assert repeats in lines
        if one is first or one.state == "complete":
            rate = one.values["training.learning_rate"]
            assert one.value == {0.1: 1.0, 0.2: 3.0, 0.3: 2.0}[rate]
    assert repeated == {"complete", "pruned"}
    assert results[-1].same_as is None, "the last values were new, and none were left"
    drawn = []
    for seed in (3, 3, 4):  # each trial by its number, whichever process draws it
        Trained(monkeypatch, {}, end=ended(loss=1.0))
        config = small_config(tmp_path, seed=seed)
        config.output_dir = str(tmp_path / f"other {len(drawn)}")
        other = Sweep(config, parse_search(["learning_rate=0.1..0.9"]), Goal(sampler="random"))
        other.run(2, lambda line: None)
        other.run(4, lambda line: None)
        drawn.append([one.values["training.learning_rate"] for one in other.results()])
    assert drawn[0] == drawn[1]
    assert len({*drawn[0], *drawn[2]}) == 8


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_trial_that_outlived_its_sweep_is_waited_for(
    is_interrupted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Trained(monkeypatch, {0.1: [{"status": "stopped"}]})
    sweep = Sweep(
        small_config(tmp_path), parse_search(["learning_rate=0.1,0.2"]), Goal(sampler="grid")
    )
    sweep.run(1, lambda line: None)
    alive, ended_by_sweep = [True], []

    def wait(place: DetachedTraining) -> None:
        trained.now += 5
        if is_interrupted:
            raise KeyboardInterrupt
        alive.clear()
        write_record(sweep.folder / "run-0/summary.json", ended(loss=0.5))
        (sweep.folder / "run-0/final").mkdir()

    monkeypatch.setattr(DetachedTraining, "is_alive", property(lambda _: bool(alive)))
    monkeypatch.setattr(detached, "wait", wait)
    monkeypatch.setattr(detached, "end", lambda place: ended_by_sweep.append(place.folder))
    lines: list[str] = []
    with pytest.raises(KeyboardInterrupt) if is_interrupted else nullcontext():
        sweep.run(1, lines.append)
    assert lines[1:3] == [
        "Trial 0: training.learning_rate=0.1000",
        "sweep.trial_still_training(number=0, trainer=None)",
    ]
    (result,) = sweep.results()
    if is_interrupted:
        assert lines[3:] == ["sweep.trial_saving(number=0)"]
        assert ended_by_sweep == [sweep.folder / ".trials/0"]
    assert (result.state, result.value, result.seconds) == (
        ("running", None, 15) if is_interrupted else ("complete", 0.5, 15)
    )
    assert len(trained.given) == 1


def test_a_sweep_is_known_by_what_it_searches_and_not_by_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Trained(monkeypatch, {}, end=ended(loss=1.0))
    config = small_config(tmp_path)
    searched = parse_search(["learning_rate=0.1,0.2", "lora_r=4,8"])
    sweep = Sweep(config, searched, Goal())
    name = sweep.folder.name
    assert (len(name), Sweep(config, searched[:1], Goal()).folder.name != name) == (14, True)
    sweep.run(1, lambda line: None)
    other_rate = small_config(tmp_path, learning_rate=0.5, seed=0)
    assert Sweep(other_rate, searched[::-1], Goal()).results() == sweep.results() != []
    config.run_name = name.removeprefix("sweep-")
    with pytest.raises(ValueError, match=r"sweep\.settings_differ\(.*names=search, goal\)"):
        Sweep(config, searched[:1], Goal(pruner="none"))
    record = sweep.folder / "sweep.json"
    record.write_text(record.read_text().replace("median", "none"))
    with pytest.raises(ValueError, match=r"sweep\.record_damaged"):
        Sweep(config, searched, Goal())


def test_how_a_trial_ended_is_one_phrase() -> None:
    one, goal = TrialResult(3, "pruned", 0.25, {}), Goal(metric="eval_loss")
    assert [
        sweep_module.outcome(replace(one, state=state, value=value, reason="full"), goal)
        for state, value in [
            *(("complete", 0.25), ("pruned", 0.25), ("pruned", None)),
            *(("fail", None), ("running", None)),
        ]
    ] == [
        f"{goal.title} 0.2500",
        f"pruned at {goal.title} 0.2500",
        "pruned",
        "failed: full",
        "sweep.trial_unfinished()",
    ]


def test_a_grid_is_every_combination_up_to_a_thousand() -> None:
    targets = 'lora_target_modules=["all-linear", ["q_proj"]]'
    assert grid(parse_search(["num_epochs=1..3:2", targets])) == [
        {"training.num_epochs": epochs, "model.lora_config.target_modules": target}
        for epochs in (1, 3)
        for target in ("all-linear", '["q_proj"]')
    ]
    assert len(grid(parse_search(["lora_r=1..500", "num_epochs=1,2"]))) == 1000
    with pytest.raises(ValueError, match=r"sweep\.grid_too_large\(limit=1000\)"):
        grid(parse_search(["lora_r=1..1001"]))


def test_the_command_shows_the_trials_and_how_to_train_the_best_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Trained(monkeypatch, {0.1: [ended(loss=1.5)], 0.2: [1], 0.3: [ended(loss=0.5)]})
    search = ["sweep", "rows.jsonl", "--search", "learning_rate=0.1,0.2,0.3", "--name", "a"]
    shared = ["--sampler", "grid", "--epochs", "3", "--deadline", "100s", "--trials", "3"]
    assert main([*search, *shared]) == 0
    shown = capsys.readouterr().out.splitlines()
    run = folder / "runs/sweep-a/run-2"
    headings, _, *rows = (line.split() for line in shown[-7:-2])
    assert [headings, *rows] == [
        ["trial", "learning-rate", *Goal().title.split(), "time"],
        ["0", "0.1000", "1.500", "10", "s"],
        ["1", "0.2000", "failed", "10", "s"],
        ["2", "*", "0.3000", "0.5000", "10", "s"],
    ]
    again = "temper train rows.jsonl --epochs 3 --learning-rate 0.3"
    assert shown[-2:] == [
        f"sweep.best_trial(run={run})",
        f"sweep.train_best_again(command={again})",
    ]


def test_the_command_has_defaults_and_fails_without_a_good_trial(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Trained(monkeypatch, {}, end=ended(loss=1.0))
    assert main(["sweep", "--search", "warmup_steps=1..1000", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert len(facts["trials"]) == 20
    goal = {"metric": "eval_loss", "direction": "minimize", "sampler": "tpe", "pruner": "median"}
    assert {name: facts[name] for name in goal} == goal
    Trained(monkeypatch, {}, end=1)
    words = ["--trials", "2", "--sampler", "random", "--pruner", "none", "--name", "b", "--json"]
    best = ["--best-metric", "exact_match", "--validation-prompts", "2"]
    assert main(["sweep", "--search", "warmup_steps=1..1000", *words, *best]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert [one.pop("reason") for one in facts["trials"]] == ["no room", "no room"]
    del facts["trials"]
    assert facts == {
        "sweep": str(folder / "runs/sweep-b"),
        **Goal("eval_exact_match", "maximize", "random", "none").to_dict(),
        **{"is_over": True, "best": None, "command": None},
    }
