"""Conversion of a Trainer's events to Temper's, and the choice of when to save.

A Trainer notifies its callbacks of the end of a step before it logs, evaluates and saves. So a due
checkpoint is saved at the next event after that: when the next step begins and its batch is loaded
(a resuming Trainer sets the random state at exactly this moment), when an epoch begins, or when the
training is about to end. A checkpoint therefore includes the evaluation of its step, and a run
resumed from it continues as if it had not been interrupted.
"""

import math
from collections.abc import Mapping, MutableMapping, Sized
from typing import TYPE_CHECKING

import torch

from infrastructure.backup.format.manifest import SaveKind
from infrastructure.core.integers import ceil_div
from infrastructure.core.json_text import JsonValue
from infrastructure.core.messages import phrase
from infrastructure.training.core.state import StopReason, TrainingState
from infrastructure.training.extensions.extension_hooks import Event, HookRunner
from infrastructure.training.hf_bridge.carried_state import CarriedState
from infrastructure.training.hf_bridge.evaluated_rows import EvaluatedRows
from infrastructure.training.hf_bridge.reward_watch import RewardWatch
from infrastructure.training.hf_bridge.save_timing import SaveTiming
from infrastructure.training.hf_bridge.trainer_metrics import (
    StepClock,
    evaluation_of,
    numbers_of,
    over_all_processes,
)
from infrastructure.training.hf_bridge.trainer_state import TrainerParts
from infrastructure.training.loop.loss_judge import memory_in_use_bytes

if TYPE_CHECKING:
    from transformers import TrainerControl

EVALUATED = "eval_"
HELD_OUT = f"{EVALUATED}loss"


class TrainerEvents:
    """A handler of a Trainer's events that updates the training state and calls hooks.

    Args:
        parts: the objects that the Trainer passes to its callbacks.
        loader: its data loader, which has no length if the data is a stream.
        state: the training state that hooks see.
        saves: saves the run's checkpoints.
        carried: further state of the Trainer that checkpoints contain.
        rewards: watches the reward functions. None: there are none.

    Attributes:
        has_logged: at least one step was logged.
        is_updating: the weights of a step are changing, and the step is not counted yet.
    """

    def __init__(
        self,
        parts: TrainerParts,
        loader: Sized | None,
        state: TrainingState,
        hooks: HookRunner,
        saves: SaveTiming,
        carried: CarriedState,
        rewards: RewardWatch | None = None,
    ) -> None:
        self.parts, self.loader, self.state = parts, loader, state
        self.hooks, self.saves, self.carried, self.rewards = hooks, saves, carried, rewards
        self.clock = StepClock()
        self.has_logged = False
        self.is_updating = False
        self._has_stepped = False  # in this epoch
        self._tokens_logged = state.num_tokens
        self._is_open = False  # a step has ended, and its numbers are still to come
        self._is_over = False  # the last version is on disk
        self._logged_evaluation: dict[str, float] = {}
        self._evaluated_rows = EvaluatedRows(parts.device)

    def epoch_begins(self) -> None:
        """Handle the beginning of an epoch, before the order of its rows is drawn."""
        self.carried.epoch_begins()
        self._save()
        state, steps = self.state, self._steps_per_epoch()
        state.position.epoch = int(self.parts.state.epoch or 0)
        done = 0 if steps is None else state.step % steps
        state.position.example = done * self.parts.global_batch_size
        self.saves.is_ending = False
        self._has_stepped = False
        self._fire(Event.EPOCH_START)

    def step_begins(self) -> None:
        """Handle the beginning of a step, and save if a checkpoint is due.

        The batch is loaded, and the previous step is completely done.
        """
        self._close_step()
        self._save()
        self.state.batch = range(self.parts.global_batch_size)  # all that a Trainer shows
        if self.rewards is not None:
            self.rewards.begin_step()
        self.clock.begin()
        self._fire(Event.STEP_START)

    def micro_batch_done(self) -> None:
        """Handle a finished micro-batch, whose loss and gradients are computed."""
        self._fire(Event.AFTER_LOSS)

    def gradients_are_final(self) -> None:
        """Handle the final, clipped gradients of a step, before the optimizer step."""
        self.is_updating = True
        self.state.learning_rate = float(self.parts.optimizer.param_groups[0]["lr"])
        self.state.grad_norm = _largest_gradient(self.parts.optimizer)
        self._fire(Event.AFTER_LOSS)
        self._fire(Event.AFTER_BACKWARD)

    def step_ends(self, control: "TrainerControl") -> None:
        """Count a step whose weights are updated. Its log, evaluation and save follow later."""
        state, progress = self.state, self.parts.state
        self.is_updating, self._has_stepped = False, True  # the Trainer has counted it
        self.clock.end(goes_on_at_once=not (control.should_evaluate or control.should_save))
        state.step = progress.global_step
        state.num_examples += self.parts.global_batch_size
        state.num_tokens = max(state.num_tokens, progress.num_input_tokens_seen)
        state.data_wait_seconds = self.clock.waited_seconds
        state.position.example += self.parts.global_batch_size
        if self.saves.schedule.deadline_is_near:
            state.interrupt(phrase("run.deadline_near"), StopReason.DEADLINE)
        state.metrics = {}
        state.rewards = None if self.rewards is None else self.rewards.end_step()
        self._is_open = True
        if not control.should_log:
            self._close_step()
        self.saves.request_by_clock(state.step)
        self._take_over_saving(control)

    def _take_over_saving(self, control: "TrainerControl") -> None:
        """Request a Temper checkpoint instead of the folder that the Trainer would write."""
        if control.should_save:
            self.saves.request(SaveKind.SCHEDULED)
            control.should_save = self.parts.needs_own_checkpoints
        self._pass_on_stop(control)

    def _pass_on_stop(self, control: "TrainerControl") -> None:
        if self.state.stop_reason is not None:
            control.should_training_stop = True

    def logged(self, logs: MutableMapping[str, float], control: "TrainerControl") -> None:
        """Handle a log of the Trainer; only a log with a loss contains the metrics of a step."""
        if "train_runtime" in logs:
            self._training_is_over(logs)
        if any(name.startswith(EVALUATED) for name in logs):
            self._logged_evaluation = dict(logs)
        if not self._is_open or "loss" not in logs:
            return
        state, numbers = self.state, numbers_of(logs)
        seconds = self.clock.read()
        self._count_tokens(numbers.pop("num_tokens", None))
        self.has_logged = True
        state.loss = numbers["loss"]
        state.metrics = {**numbers, "seconds": seconds}
        if "learning_rate" in numbers:  # a Trainer logs that of the next step
            state.metrics["learning_rate"] = state.learning_rate
        state.metrics["memory_bytes"] = float(memory_in_use_bytes(self.parts.device))
        if state.num_tokens:
            state.metrics["tokens"] = float(state.num_tokens)
            since = state.num_tokens - self._tokens_logged  # some trainers count as they generate
            state.metrics["tokens_per_second"] = since / max(seconds, 1e-9)
            self._tokens_logged = state.num_tokens
        self._close_step()
        self._pass_on_stop(control)

    def _training_is_over(self, logs: MutableMapping[str, float]) -> None:
        """Correct the final metrics of a resumed run, and save the last checkpoint.

        At this moment the last step is completely done, including its evaluation, and the best
        model is chosen but not loaded yet.
        """
        of_the_run = over_all_processes(logs, self.carried.seconds_before)
        logs.update(of_the_run)
        self.parts.state.log_history[-1].update(of_the_run)
        self._count_tokens(logs.get("num_tokens"))
        self._save_last()

    def _count_tokens(self, counted: float | None) -> None:
        """Set the token count to TRL's count, if TRL counts tokens."""
        if counted is not None:
            self.state.num_tokens = int(counted)

    def _close_step(self) -> None:
        if self._is_open:
            self._is_open = False
            self._fire(Event.STEP_END)

    def evaluated(
        self,
        metrics: Mapping[str, JsonValue],
        control: "TrainerControl",
        dataset: object = None,
    ) -> None:
        """Handle an evaluation of the Trainer on one of its datasets."""
        self._close_step()
        # The Trainer logs it just before. TRL before 1.0 has its own metrics only in the log.
        logged, self._logged_evaluation = self._logged_evaluation, {}
        state, evaluation = self.state, evaluation_of({**logged, **metrics})
        if HELD_OUT in evaluation:
            state.measure_on(self._evaluated_rows.identity_of(dataset))
        is_more = state.evaluated_step == state.step  # of several datasets
        state.evaluation = {**state.evaluation, **evaluation} if is_more else evaluation
        state.evaluated_step = state.step
        loss = evaluation.get(HELD_OUT, math.inf)
        if math.isfinite(loss):
            state.best_evaluation_loss = min(state.best_evaluation_loss, loss)
        self._fire(Event.EVAL_END)
        self._pass_on_stop(control)

    def own_checkpoint_saved(self) -> None:
        """Request a Temper checkpoint after the Trainer has written a checkpoint folder."""
        self.saves.request(SaveKind.SCHEDULED)

    def epoch_ends(self, control: "TrainerControl") -> None:
        """Handle the end of an epoch, or a stop within an epoch."""
        if self.state.is_cut_short and not self._has_stepped:
            # Before a first step that the Trainer has begun to draw: the state at the start of this
            # epoch is in a version, or is the start of the training.
            control.should_evaluate = control.should_save = False
            return
        self._close_step()
        self._take_over_saving(control)
        if self._is_at_end_of_epoch():
            self.state.position.epoch += 1
            self.state.position.example = 0
            self._fire(Event.EPOCH_END)
            self._pass_on_stop(control)
        if not control.should_training_stop:
            return
        if self.state.is_cut_short and not self._is_at_end_of_epoch():
            control.should_evaluate = False  # an uninterrupted run does not, and it may draw
        self.carried.steps_end(control.should_evaluate)
        if self.state.is_interrupted:  # an interruption may not leave time to evaluate
            self.saves.is_ending = True
            self.saves.request(SaveKind.STOPPED if self.state.is_cut_short else SaveKind.SCHEDULED)
            self._save()

    def end(self) -> None:
        """Handle the end of the training, and save the last checkpoint unless already saved."""
        self._close_step()
        self._save_last()

    def _save_last(self) -> None:
        """Save the last training state, unless it is already saved, before the best model's weights
        replace it.
        """
        if self._is_over:
            return
        self._is_over = self.saves.is_ending = True
        if not self.state.is_cut_short:
            self.saves.request(SaveKind.SCHEDULED)
        elif self.carried.awaits_evaluation:  # it is done now
            self.carried.awaits_evaluation = False
            self.saves.request(SaveKind.STOPPED)
        self._save()
        self.saves.finish(self.state)

    def _is_at_end_of_epoch(self) -> bool:
        steps = self._steps_per_epoch()
        return steps is None or self.state.step % steps == 0

    def _steps_per_epoch(self) -> int | None:
        """Return the optimizer steps per epoch; None for a stream of unknown length."""
        if self.loader is None:
            return None
        try:
            num_batches = len(self.loader)
        except TypeError:
            return None
        return max(1, ceil_div(num_batches, self.parts.args.gradient_accumulation_steps))

    def _save(self) -> None:
        self.saves.save(self.state)
        self.saves.collect(self.state)

    def _fire(self, event: Event) -> None:
        self.hooks.fire(event, self.state)


def _largest_gradient(optimizer: torch.optim.Optimizer) -> torch.Tensor | None:
    """Return the largest absolute gradient of all parameters, which is 0 only if all are 0.

    Return None if the optimizer has already consumed the gradients during the backward pass.
    """
    held = (p.grad for group in optimizer.param_groups for p in group["params"])
    gradients = [gradient for gradient in held if gradient is not None]
    return torch.nn.utils.get_total_norm(gradients, math.inf) if gradients else None
