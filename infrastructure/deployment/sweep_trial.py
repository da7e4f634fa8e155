"""What a training does that is a trial of a sweep: it reports its evaluations, and is pruned."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infrastructure.deployment.sweep_study import PRUNED, Goal, open_study
from infrastructure.monitoring.drawing.formatting import format_number
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer

if TYPE_CHECKING:
    from optuna.trial import Trial


class TrialObserver(Observer):
    """Reports each held-out number to Optuna, and stops the training where its pruner says so.

    Evaluations are counted, not steps: trials with batches of other sizes are compared after the
    same share of their training.

    Args:
        folder: of the sweep.
        number: of the trial.
    """

    def __init__(self, folder: Path, number: int, goal: Goal) -> None:
        self.folder, self.number, self.goal = folder, number, goal
        self.num_evaluations = 0
        self._trial: Trial | None = None

    @property
    def trial(self) -> "Trial":
        """As the journal has it."""
        if self._trial is None:
            from optuna.trial import Trial

            study = open_study(self.folder, self.goal)
            self._trial = Trial(study, study.get_trials(deepcopy=False)[self.number]._trial_id)
        return self._trial

    def eval_end(self, state: TrainingState) -> None:
        value = state.evaluation.get(self.goal.metric)
        if value is None or state.step == 0:  # measured before the first step
            return
        self.num_evaluations += 1
        known = self.trial.study.get_trials(deepcopy=False)[self.number].intermediate_values
        if self.num_evaluations not in known:  # a run that went back measures the same once more
            self.trial.report(value, self.num_evaluations)
        if state.step < state.total_steps and self.trial.should_prune():
            self.trial.set_user_attr(PRUNED, self.num_evaluations)
            state.interrupt(
                f"pruned: {self.goal.title} {format_number(value)} at evaluation"
                f" {self.num_evaluations} is behind the other trials"
            )

    def state_dict(self) -> dict[str, object]:
        return {"num_evaluations": self.num_evaluations}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.num_evaluations = saved["num_evaluations"]


def trial_observer(given: Mapping[str, Any]) -> TrialObserver:
    """The observer of what `Sweep` has handed over."""
    return TrialObserver(Path(given["folder"]), int(given["number"]), Goal(**given["goal"]))
