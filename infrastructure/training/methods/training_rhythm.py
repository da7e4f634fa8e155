"""A callback that makes a Trainer evaluate and save at Temper's intervals.

It must be added before `TemperCallback`, which saves the requested checkpoints.
"""

from typing import TYPE_CHECKING

from infrastructure.config.sections.training_config import TrainingConfig

if TYPE_CHECKING:
    from transformers import TrainerCallback, TrainerControl, TrainerState


def training_rhythm(training: TrainingConfig, *, holds_out: bool) -> "TrainerCallback":
    """Create the callback that requests evaluations and saves.

    Args:
        holds_out: True if there are rows to evaluate on.
    """
    from transformers import TrainerCallback

    class TrainingRhythm(TrainerCallback):
        """A callback that requests evaluations and saves at Temper's intervals."""

        def on_step_end(
            self,
            args: object,
            state: "TrainerState",
            control: "TrainerControl",
            **parts: object,
        ) -> None:
            """Request evaluations and saves that are due by steps, and an evaluation at the end."""
            step, is_last = state.global_step, state.global_step >= state.max_steps
            if holds_out and (is_last or _is_due(step, training.validation_frequency)):
                control.should_evaluate = True
            if _is_due(step, training.checkpoint_frequency):
                control.should_save = True

        def on_epoch_end(
            self,
            args: object,
            state: "TrainerState",
            control: "TrainerControl",
            **parts: object,
        ) -> None:
            """Request evaluations and saves that are due by epochs."""
            if state.global_step >= state.max_steps:
                return  # the last step has handled the end
            epoch = round(state.epoch or 0)
            if holds_out and _is_due(epoch, training.validation_interval):
                control.should_evaluate = True
            if _is_due(epoch, training.checkpoint_interval):
                control.should_save = True

    return TrainingRhythm()


def _is_due(count: int, every: int | None) -> bool:
    return every is not None and count > 0 and count % every == 0
