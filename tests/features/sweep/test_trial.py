"""A trial tells Optuna what it measures, and is stopped where it is behind the others."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.core.errors import MissingPackageError
from infrastructure.features.sweep.study import (
    JOURNAL_NAME,
    PRUNED,
    PRUNERS,
    Goal,
    mend_journal,
    open_study,
)
from infrastructure.features.sweep.trial import TrialObserver
from infrastructure.training.core.state import TrainingState

optuna = pytest.importorskip("optuna")
GOAL = Goal()
RATE = {"training.learning_rate": optuna.distributions.FloatDistribution(1e-5, 1e-3, log=True)}


def evaluated(state: TrainingState, step: int, loss: float) -> TrainingState:
    state.step, state.total_steps, state.evaluation = step, 10, {"eval_loss": loss}
    return state


def state() -> TrainingState:
    return TrainingState(torch.nn.Linear(1, 1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five trials are done, and the sixth is being trained."""
    study = open_study(tmp_path, GOAL)
    for number in range(5):
        trial = study.ask(RATE)
        trial.report(1.0 + number / 10, 50)
        study.tell(trial, 1.0)
    study.ask(RATE)
    return tmp_path


def test_a_trial_that_is_behind_is_pruned_and_a_good_one_is_not(folder: Path) -> None:
    good, bad = state(), state()
    observer = TrialObserver(folder, 5, GOAL)
    observer.eval_end(evaluated(good, 0, 9.0))  # before the first step
    observer.eval_end(evaluated(good, 5, 1.1))
    assert not good.is_interrupted
    again = TrialObserver(folder, 5, GOAL)  # it was killed, and goes on from before that
    again.eval_end(evaluated(good, 5, 1.1))
    assert not good.is_interrupted
    study = open_study(folder, GOAL)
    assert study.trials[5].intermediate_values == {50: 1.1}
    study.tell(5, 1.1)
    study.ask(RATE)
    TrialObserver(folder, 6, GOAL).eval_end(evaluated(bad, 5, 3.0))
    assert bad.is_interrupted
    assert f"sweep.trial_pruned(metric={GOAL.title}, value=3, percent=50)" in str(bad.stop_message)
    assert open_study(folder, GOAL).trials[6].user_attrs == {PRUNED: 50}


def test_the_last_evaluation_and_another_metric_prune_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optuna.trial.Trial, "should_prune", lambda _: True)
    last, other = state(), state()
    observer = TrialObserver(folder, 5, GOAL)
    observer.load_state_dict({"newest": None})
    other.evaluation, other.step, other.total_steps = {"eval_exact_match": 0.0}, 5, 10
    observer.eval_end(other)
    assert open_study(folder, GOAL).trials[5].intermediate_values == {}
    observer.eval_end(evaluated(last, 10, 9.0))
    assert open_study(folder, GOAL).trials[5].intermediate_values == {100: 9.0}
    assert not last.is_interrupted
    assert not other.is_interrupted


def test_what_counts_at_a_share_is_known_across_a_restart(folder: Path) -> None:
    observer = TrialObserver(folder, 5, GOAL)
    observer.eval_end(evaluated(state(), 5, 1.0))
    other = TrialObserver(folder, 5, GOAL)
    other.load_state_dict(dict(observer.state_dict()))
    other.eval_end(evaluated(state(), 8, 0.9))
    assert open_study(folder, GOAL).trials[5].intermediate_values == {
        **dict.fromkeys(range(50, 80), 1.0),
        80: 0.9,
    }


def test_a_half_line_of_a_power_cut_is_taken_away(folder: Path) -> None:
    path = folder / JOURNAL_NAME
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"op_code":7,"tri')
    for _ in range(2):
        mend_journal(folder)
        assert path.read_bytes() == whole
    assert len(open_study(folder, GOAL).trials) == 6
    path.write_bytes(whole.replace(b"{", b"[", 1))
    with pytest.raises(ValueError, match=r"sweep\.journal_unreadable"):
        open_study(folder, GOAL)


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_sweep_that_was_killed_draws_what_it_would_have_drawn(
    sampler: str, tmp_path: Path
) -> None:
    def draw(folder: Path, restarts: bool) -> list[Any]:
        folder.mkdir()
        goal = Goal(sampler=sampler)
        study = None
        drawn = []
        for number in range(14):  # TPE begins with ten at random
            study = open_study(folder, goal, 3, number) if restarts or study is None else study
            study.sampler = goal.make_sampler(3, number)
            trial = study.ask(RATE)
            drawn.append(trial.params)
            study.tell(trial, abs(trial.params["training.learning_rate"] - 1e-4))
        return drawn

    drawn = draw(tmp_path / "a", True)
    assert drawn == draw(tmp_path / "b", False)
    assert len({one["training.learning_rate"] for one in drawn}) == 14
    seeds = {Goal(sampler=sampler).make_sampler(seed, 1) for seed in (3, 2**40)}
    assert len({one._rng.rng.random() for one in seeds}) == 2  # type: ignore[attr-defined]


def test_a_study_has_the_direction_of_its_goal(tmp_path: Path) -> None:
    pruners = {
        "median": optuna.pruners.MedianPruner,
        "halving": optuna.pruners.SuccessiveHalvingPruner,
        "hyperband": optuna.pruners.HyperbandPruner,
        "none": optuna.pruners.NopPruner,
    }
    assert tuple(pruners) == PRUNERS
    samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    for direction in ("minimize", "maximize"):
        for pruner, sampler in itertools.product(pruners, samplers):
            (tmp_path / direction / pruner / sampler).mkdir(parents=True)
            goal = Goal("eval_loss", direction, sampler, pruner)
            study = open_study(tmp_path / direction / pruner / sampler, goal, 3, 0)
            assert study.direction.name == direction.upper()
            assert type(study.pruner) is pruners[pruner]
            assert type(study.sampler) is samplers[sampler]
    titles = [Goal(metric).title for metric in ("eval_loss", "eval_exact_match")]
    assert titles == ["held-out loss", "exact match"]


def test_without_optuna_the_command_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infrastructure.core.optional.is_installed", lambda package: False)
    with pytest.raises(MissingPackageError, match=r"core\.package_not_installed.*package=optuna"):
        open_study(tmp_path, GOAL)


def trained(folder: Path, number: int, num_steps: int, every: int) -> str:
    """How a trial of so many steps ends whose loss is 10 before training and falls by 1 a step."""
    trial = TrainingState(torch.nn.Linear(1, 1), total_steps=num_steps)
    observer = TrialObserver(folder, number, GOAL)
    for step in range(every, num_steps + 1, every):
        trial.step, trial.evaluation = step, {"eval_loss": 10.0 * 0.9**step}
        observer.eval_end(trial)
        if trial.is_interrupted:
            return "pruned"
    open_study(folder, GOAL).tell(number, trial.evaluation["eval_loss"])
    return "complete"


def test_a_long_trial_is_not_pruned_for_being_evaluated_early(tmp_path: Path) -> None:
    """Each is evaluated every 10 steps, that is after another share of its training."""
    study = open_study(tmp_path, GOAL)
    lengths = [10, 20, 30, 40, 50, 300]
    for _ in lengths:
        study.ask(RATE)
    ends = [trained(tmp_path, n, steps, 10) for n, steps in enumerate(lengths)]
    assert ends == ["complete"] * 6
    study = open_study(tmp_path, GOAL)
    assert study.best_trial.number == 5
    long_one = study.trials[5].intermediate_values
    assert (min(long_one), max(long_one), len(long_one)) == (3, 100, 98)
    assert long_one[9] == pytest.approx(10.0 * 0.9**20)  # the newest one up to 9%
    assert long_one[10] == pytest.approx(10.0 * 0.9**30)


def test_a_trial_that_is_behind_at_the_same_share_is_pruned(tmp_path: Path) -> None:
    study = open_study(tmp_path, GOAL)
    for _ in range(7):
        study.ask(RATE)
    ends = [trained(tmp_path, n, 40, 10) for n in range(5)]
    assert ends == ["complete"] * 5
    assert trained(tmp_path, 5, 20, 5) == "pruned"  # 10 * 0.9**10 at 50%, and they 10 * 0.9**20
    assert trained(tmp_path, 6, 80, 5) == "complete"
