"""The observer of a sweep's trial: it reports evaluations to Optuna, and prunes the run."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infrastructure.core.messages import phrase
from infrastructure.features.sweep.study import PRUNED, Goal, open_study
from infrastructure.monitoring.drawing.formatting import format_number
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer

if TYPE_CHECKING:
    from optuna.trial import Trial


NUM_SHARES = 100


class TrialObserver(Observer):
    """An observer that reports evaluations to Optuna, and stops the run if the pruner decides so.

    Trials are compared at the same percentage of their steps, because they may have different
    numbers of steps. The value at a percentage is that of the latest evaluation up to it. A trial
    without an evaluation is not compared.

    Args:
        folder: the folder of the sweep.
        number: the number of the trial.
    """

    def __init__(self, folder: Path, number: int, goal: Goal) -> None:
        self.folder, self.number, self.goal = folder, number, goal
        self._newest: tuple[int, float] | None = None  # share and value of the last evaluation
        self._trial: Trial | None = None

    @property
    def trial(self) -> "Trial":
        """The trial in Optuna's journal."""
        if self._trial is None:
            from optuna.trial import Trial

            study = open_study(self.folder, self.goal)
            self._trial = Trial(study, study.get_trials(deepcopy=False)[self.number]._trial_id)
        return self._trial

    def eval_end(self, state: TrainingState) -> None:
        value = state.evaluation.get(self.goal.metric)
        if value is None or state.step == 0:  # measured before the first step
            return
        share = NUM_SHARES * state.step // state.total_steps
        known = self.trial.study.get_trials(deepcopy=False)[self.number].intermediate_values
        for passed in range(self._newest[0] if self._newest else share, share + 1):
            until_now = value if passed == share or self._newest is None else self._newest[1]
            if passed not in known:  # after a rollback, a run measures it again
                self.trial.report(until_now, passed)
        self._newest = (share, value)
        if state.step < state.total_steps and self.trial.should_prune():
            self.trial.set_user_attr(PRUNED, share)
            state.interrupt(
                phrase(
                    "sweep.trial_pruned",
                    metric=self.goal.title,
                    value=format_number(value),
                    percent=share,
                )
            )

    def state_dict(self) -> dict[str, object]:
        return {"newest": self._newest}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        newest = saved["newest"]
        self._newest = None if newest is None else (int(newest[0]), float(newest[1]))


def trial_observer(given: Mapping[str, Any]) -> TrialObserver:
    """Create the observer from the values that `Sweep` passes to the trial's process."""
    return TrialObserver(Path(given["folder"]), int(given["number"]), Goal(**given["goal"]))
