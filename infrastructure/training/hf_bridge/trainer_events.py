"""The events of a Trainer as the events of a Temper training, and when its versions are written.

A Trainer tells its callbacks of the end of a step before it logs, evaluates and saves. What is due
is therefore saved at the next event after that: when the next step begins, with its data there (a
Trainer that goes on sets the random state at this very moment), when an epoch begins, or when the
training is about to end. So a version holds the evaluation of its step, and going on from it is
what would have happened.
"""

import math
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from infrastructure.core.integers import ceil_div
from infrastructure.training.checkpoints.save_schedule import (
    DEADLINE_IS_NEAR,
    REQUEST_FILE,
    SaveSchedule,
)
from infrastructure.training.checkpoints.snapshot import Snapshot
from infrastructure.training.core.state import StopReason, TrainingState
from infrastructure.training.extensions.extension_hooks import Event, Hook, HookRunner
from infrastructure.training.hf_bridge.save_timing import SaveTiming
from infrastructure.training.hf_bridge.trainer_metrics import (
    StepClock,
    evaluation_of,
    numbers_of,
)
from infrastructure.training.hf_bridge.trainer_run import TrainerRun
from infrastructure.training.hf_bridge.trainer_state import (
    ModelFiles,
    TrainerParts,
    take_snapshot,
)
from infrastructure.training.loop.loss_judge import memory_in_use_bytes
from infrastructure.training.recovery.save_retry import SaveFailures

HELD_OUT = "eval_loss"


class TrainerEvents:
    """A Trainer's training between its beginning and its end.

    Args:
        parts: what the Trainer hands over.
        loader: its data loader.
        others: hooks of the user.
        resumed: the version that the Trainer was given to go on from; None: none.
        accepted: names of what may differ although it changes the result.
    """

    def __init__(
        self,
        run: TrainerRun,
        parts: TrainerParts,
        loader: Any,
        others: Iterable[Hook],
        resumed: Path | None,
        accepted: frozenset[str],
    ) -> None:
        self.run, self.parts, self.loader = run, parts, loader
        self.others, self.accepted = list(others), accepted
        self.resumed = self.first = resumed
        self.state = TrainingState(parts.model, parts.optimizer, step=parts.state.global_step)
        self.state.total_steps = parts.state.max_steps
        self.stack = ExitStack()
        self.clock = StepClock()
        self.hooks = HookRunner([])
        self.is_finished_before = False  # and there is nothing left to train
        self.is_another_try = (
            False  # of the same call, with what the first has left in the optimizer
        )
        self.last_metrics: dict[str, Any] = {}
        self._files = ModelFiles.of(parts.model)
        self._facts: dict[str, Any] = {}
        self._tokens_before = 0
        self._is_open = False  # a step has ended, and its numbers are still to come
        self._is_ending = False
        self._started = time.monotonic()
        training = run.config.training
        request = run.versions.store.root / REQUEST_FILE
        schedule = SaveSchedule(training.checkpoint_seconds, training.deadline, request)
        if run.has_place:
            schedule.reserve = lambda: run.config.backup.emergency_seconds
        failures = SaveFailures(training.recovery.max_failed_saves)
        self.saving = SaveTiming(run.versions, schedule, failures, self._snapshot, self._is_saved)

    @property
    def needs_own_checkpoints(self) -> bool:
        """Whether the Trainer itself makes use of the folders that it saves."""
        args = self.parts.args
        best = args.load_best_model_at_end or str(args.save_strategy) == "SaveStrategy.BEST"
        return bool(best or args.push_to_hub or args.restore_callback_states_from_checkpoint)

    @property
    def global_batch_size(self) -> int:
        """Examples of one optimizer step."""
        size = self.parts.state.train_batch_size or self.parts.args.train_batch_size
        return int(size * self.parts.args.gradient_accumulation_steps)

    def epoch_begins(self) -> None:
        """The order of an epoch is not drawn yet."""
        self._save()
        state, steps = self.state, self._steps_per_epoch()
        state.position.epoch = int(self.parts.state.epoch or 0)
        done = 0 if steps is None else state.step % steps
        state.position.example = done * self.global_batch_size
        self._is_ending = False
        self._fire(Event.EPOCH_START)

    def step_begins(self) -> None:
        """The data of a step is there, and all of the step before is done."""
        self._close_step()
        self._save()
        self.state.batch = range(self.global_batch_size)  # what a Trainer shows of its rows
        self.clock.begin()
        self._fire(Event.STEP_START)

    def micro_batch_done(self) -> None:
        """Loss and gradients of a micro-batch are there."""
        self._fire(Event.AFTER_LOSS)

    def gradients_are_final(self) -> None:
        """Those of the last micro-batch too; they are clipped already."""
        self._fire(Event.AFTER_LOSS)
        self._fire(Event.AFTER_BACKWARD)

    def step_ends(self, control: Any) -> None:
        """The weights of a step are there; its log, evaluation and save are still to come."""
        state, told = self.state, self.parts.state
        self.clock.end(goes_on_at_once=not (control.should_evaluate or control.should_save))
        state.step = told.global_step
        state.num_examples += self.global_batch_size
        state.num_tokens = max(state.num_tokens, told.num_input_tokens_seen)
        state.data_wait_seconds = self.clock.waited_seconds
        state.position.example += self.global_batch_size
        if self.saving.schedule.deadline_is_near:
            state.interrupt(DEADLINE_IS_NEAR, StopReason.DEADLINE)
        state.metrics = {}
        self._is_open = True
        if not control.should_log:
            self._close_step()
        self.saving.ask_by_clock(state.step)
        self._take_over_saving(control)
        if self.saving.due is not None and self.needs_own_checkpoints:
            control.should_save = True

    def _take_over_saving(self, control: Any) -> None:
        """A version takes the place of a folder that the Trainer would write."""
        if control.should_save:
            self.saving.ask("scheduled")
            control.should_save = self.needs_own_checkpoints
        self._pass_on_stop(control)

    def _pass_on_stop(self, control: Any) -> None:
        if self.state.stop_reason is not None:
            control.should_training_stop = True

    def logged(self, logs: Mapping[str, Any], control: Any) -> None:
        """The Trainer has logged; numbers of steps have a loss among them."""
        if "train_runtime" in logs:
            self.last_metrics = dict(logs)
        if not self._is_open or "loss" not in logs:
            return
        state, numbers = self.state, numbers_of(logs)
        before, seconds = state.num_tokens, self.clock.read()
        counted = numbers.pop("num_tokens", None)  # of TRL, since this process began
        if counted is not None:
            state.num_tokens = self._tokens_before + int(counted)
        state.loss = numbers["loss"]
        state.metrics = {**numbers, "seconds": seconds}
        state.metrics["memory_bytes"] = float(memory_in_use_bytes(self.parts.device))
        if state.num_tokens:
            state.metrics["tokens"] = float(state.num_tokens)
            state.metrics["tokens_per_second"] = (state.num_tokens - before) / max(seconds, 1e-9)
        self._close_step()
        self._pass_on_stop(control)

    def _close_step(self) -> None:
        if self._is_open:
            self._is_open = False
            self._fire(Event.STEP_END)

    def evaluated(self, metrics: Mapping[str, Any], control: Any) -> None:
        """The Trainer has evaluated one of its data sets."""
        self._close_step()
        state, found = self.state, evaluation_of(metrics)
        is_more = state.evaluated_step == state.step  # of several data sets
        state.evaluation = {**state.evaluation, **found} if is_more else found
        state.evaluated_step = state.step
        loss = found.get(HELD_OUT, math.inf)
        if math.isfinite(loss):
            state.best_evaluation_loss = min(state.best_evaluation_loss, loss)
        self._fire(Event.EVAL_END)
        if self._is_ending:
            self._save()
        self._pass_on_stop(control)

    def own_checkpoint_saved(self) -> None:
        """The Trainer has written a folder of its own; a version goes with it."""
        self.saving.ask("scheduled")

    def epoch_ends(self, control: Any) -> None:
        """An epoch has ended, or the training in the middle of one."""
        self._close_step()
        self._take_over_saving(control)
        if self._is_at_end_of_epoch():
            self.state.position.epoch += 1
            self.state.position.example = 0
            self._fire(Event.EPOCH_END)
            self._pass_on_stop(control)
        if not control.should_training_stop:
            return
        self._is_ending = True
        self.saving.ask("stopped" if self.state.is_interrupted else "scheduled")
        if self.state.is_interrupted:
            control.should_evaluate = False
        if not control.should_evaluate:
            self._save()

    def _is_at_end_of_epoch(self) -> bool:
        steps = self._steps_per_epoch()
        return steps is None or self.state.step % steps == 0

    def _steps_per_epoch(self) -> int | None:
        """None: the data is a stream, whose length nobody knows."""
        try:
            num_batches = len(self.loader)
        except TypeError:
            return None
        return max(1, ceil_div(num_batches, self.parts.args.gradient_accumulation_steps))

    def _save(self) -> None:
        self.saving.save(self.state)
        self.saving.collect(self.state)

    def _is_saved(self, checkpoint: Path) -> None:
        self.first = self.first or checkpoint
        self.state.checkpoint = checkpoint
        self._fire(Event.CHECKPOINT_SAVED)

    def _snapshot(self) -> Snapshot:
        state = self.state
        best = state.best_evaluation_loss
        is_finished = self._is_ending and not state.is_interrupted
        values = {
            "facts": self._facts,
            "finished": state.total_steps if is_finished else None,
            "position": asdict(state.position),
            "num_examples": state.num_examples,
            "num_tokens": state.num_tokens,
            "best_evaluation_loss": best if math.isfinite(best) else None,
            "recoveries": list(state.recoveries),
            "hooks": self.hooks.state_dict(),
        }
        return take_snapshot(self.parts, self._files, values)

    def _fire(self, event: Event) -> None:
        self.hooks.fire(event, self.state)
