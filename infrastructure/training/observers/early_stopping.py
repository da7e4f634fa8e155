"""Early stopping of a run that no longer improves, and saving of its best step."""

import math
from typing import Any

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.formatting import format_number
from infrastructure.monitoring.drawing.quantity_names import name_of
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Hook, Observer


class EarlyStopping(Observer):
    """An observer that stops a run after `patience` evaluations in a row without improvement.

    Args:
        patience: number of evaluations without improvement after which the run stops.
        metric: the key of the metric in the evaluation.
        greater_is_better: True if a higher value is better, False if a lower one is.

    Raises:
        ValueError: `patience` is below 1.
    """

    def __init__(
        self,
        patience: int,
        metric: str = "eval_loss",
        greater_is_better: bool = False,
    ) -> None:
        if patience < 1:
            raise InputError("training.patience_too_small", patience=patience)
        self.patience = patience
        self.metric = metric
        self.greater_is_better = greater_is_better
        self.best: float | None = None
        self.num_without_improvement = 0
        self.measured_on: str | None = None

    def train_start(self, state: TrainingState) -> None:
        """Request the stop again if the run was killed after the decision to stop.

        The decision no longer holds if the held-out rows have changed.
        """
        self._measure_on(state)
        if self.num_without_improvement >= self.patience:
            state.stop(
                phrase("training.had_stopped_improving", metric=self._name, best=_shown(self.best))
            )

    def _measure_on(self, state: TrainingState) -> None:
        """Drop the best value if it was measured on other held-out rows."""
        if state.measured_on is None:
            return
        if self.measured_on not in (None, state.measured_on):
            self.best, self.num_without_improvement = None, 0
        self.measured_on = state.measured_on

    def eval_end(self, state: TrainingState) -> None:
        self._measure_on(state)
        value = state.evaluation.get(self.metric)
        if value is None:
            known = ", ".join(state.evaluation) or "nothing"
            raise InputError(
                "training.early_stopping_metric_missing", metric=self.metric, known=known
            )
        if self._is_better(value):
            self.best = value
            self.num_without_improvement = 0
            return
        self.num_without_improvement += 1
        if self.num_without_improvement >= self.patience:
            state.stop(
                phrase(
                    "training.not_improving",
                    metric=self._name,
                    count=self.num_without_improvement,
                    best=_shown(self.best),
                    value=_shown(value),
                )
            )

    def _is_better(self, value: float) -> bool:
        if not math.isfinite(value) or self.best is None:
            return math.isfinite(value)
        gain = value - self.best if self.greater_is_better else self.best - value
        return gain > 0

    @property
    def _name(self) -> str:
        return f"held-out {name_of(self.metric).title}"

    def state_dict(self) -> dict[str, object]:
        return {
            "best": self.best,
            "num_without_improvement": self.num_without_improvement,
            "measured_on": self.measured_on,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.best = saved["best"]
        self.num_without_improvement = saved["num_without_improvement"]
        self.measured_on = saved.get("measured_on")


class BestSaved(Observer):
    """An observer that requests a checkpoint of each step whose metric is better than all earlier
    ones.

    The final model comes from the last of these checkpoints.
    """

    def __init__(self) -> None:
        self.best: float | None = None
        self.measured_on: str | None = None

    def eval_end(self, state: TrainingState) -> None:
        if self.measured_on != state.measured_on:
            self.best, self.measured_on = None, state.measured_on
        score = state.score
        if score is not None and (self.best is None or score < self.best):
            self.best, state.must_save = score, True

    def state_dict(self) -> dict[str, object]:
        return {"best": self.best, "measured_on": self.measured_on}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.best, self.measured_on = saved["best"], saved["measured_on"]


def _shown(value: float | None) -> str:
    return "unknown" if value is None else format_number(value)


def early_stopping(config: TrainingConfig) -> list[Hook]:
    """Return the observers for early stopping and for saving the best step, as configured."""
    best: list[Hook] = [BestSaved()] if config.ends_with_best else []
    if config.early_stopping_patience is None:
        return best
    return [
        *best,
        EarlyStopping(
            config.early_stopping_patience,
            config.best_metric_key,
            config.best_is_greater,
        ),
    ]
