"""The training loop: the only loop, and the only caller of `fire`.

It walks phases, epochs and batches from any position, evaluates and saves when due. It knows
neither files nor models: what it needs is given to it. Everything that can be saved is saved
between two optimizer steps; a window that fails half-way is done again from its recorded random
state. The step itself is in `stepping`, the answers to errors are in `recovering`.
"""

import math
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import torch

from infrastructure.training.core.error_handlers import (
    free_memory,
    let_go,
)
from infrastructure.training.core.state import Phase, TrainingState
from infrastructure.training.extensions.extension_hooks import Event
from infrastructure.training.loop.error_recovery import Recovering
from infrastructure.training.recovery.loss_spikes import BadLossError
from infrastructure.training.recovery.safe_point import FirstStates


class TrainingLoop(Recovering):
    """Everything a training needs, and `run`."""

    def run(self, state: TrainingState) -> TrainingState:
        """Train from `state.position` to the end, or until something asks to stop.

        Raises:
            TrainingDivergedError: the loss is bad, and going back did not help.
            DeviceFailedError: the GPU failed.
            BaseException: whatever went wrong, after the ERROR and TRAIN_END events.
        """
        self.is_ending = False
        self.schedule.start(state.step)
        try:
            if self.team is not None:
                self.team.start()
                state.num_processes = self.team.size
            self.first_states = FirstStates(self.hooks)
            self.fire(Event.TRAIN_START, state)
            self._mark(state)
            if self.save is not None and not self.start_is_saved:
                self._save(
                    state, "scheduled"
                )  # there is something to go back to from the first step on
                self._tell_saved(state)
            while not self._has_trained(state):
                free_memory(self.adapter.device)
            self._finish_saving(state)
        except BaseException as raised:
            error = self._as_told(state, raised)
            state.error = error
            self._rescue(state, error)
            self.hooks.fire_to_all(Event.ERROR, state)
            if error is not raised:
                raise error from raised
            raise
        finally:
            self.hooks.fire_to_all(Event.TRAIN_END, state)
            if self.team is not None:
                self.team.close()
        return state

    def single_step(self, state: TrainingState, examples: Sequence[Any]) -> float:
        """One optimizer step outside `run`, for one's own loop; returns the mean loss.

        The position moves on in its epoch; evaluating, saving and ending epochs are the caller's.
        """
        started = time.perf_counter()
        self._step(state, examples)
        self.log.seconds += time.perf_counter() - started
        self._read_log(state)
        self.fire(Event.STEP_END, state)
        state.step_is_ending = False
        self.boundary = None  # what the caller does next is not known here
        return state.loss

    def save_is_due(self, state: TrainingState) -> bool:
        """Whether a checkpoint is due after the step that `single_step` has done: by steps, epochs,
        time, at the end, or because something was decided that depends on a clock."""
        epoch_ended = state.position.example >= self.data.num_examples
        by_clock = self.schedule.kind_due(state.step) is not None
        return self._save_is_due(state, epoch_ended) or by_clock or state.must_save

    def _has_trained(self, state: TrainingState) -> bool:
        """Train to the end; False where it went back instead, and is to go on from there."""
        try:
            if state.step_is_ending:  # a checkpoint from the middle of a step's end
                self._finish_step(state)
            while state.position.phase < len(self.phases) and not self._is_over(state):
                self._run_phase(state)
        except BadLossError as error:
            self._after_bad_loss(state, error.bad)
            let_go(error)
            return False
        except Exception as error:
            self._after_torn_step(state, error)
            return False
        return True

    def _is_over(self, state: TrainingState) -> bool:
        return state.stop_reason is not None or state.step >= self.total_steps

    def _run_phase(self, state: TrainingState) -> None:
        """One phase, from the middle of it when resumed; PHASE_START fires then too."""
        index = state.position.phase
        state.phase = self.phases[index]
        if state.phase.begins_anew and self.strategy.entered < index:
            self.watch.forget()
            state.best_evaluation_loss = math.inf
        self.strategy.enter_phase(state.model, self.optimizer, index)
        select_trainable(state.model, state.phase, self.optimizer)
        self.fire(Event.PHASE_START, state)
        while state.position.phase == index and not self._is_over(state):
            self._run_epoch(state)

    def _run_epoch(self, state: TrainingState) -> None:
        epoch, phase = state.position.epoch, state.position.phase
        self.fire(Event.EPOCH_START, state)
        if state.must_save:
            self._save_choice(state)
        batches = self.data.train_batches(epoch, state.position.example, self.batch_size)
        with closing(batches):  # a source may prepare batches in a thread
            started = time.perf_counter()
            for examples in batches:
                state.data_wait_seconds += time.perf_counter() - started
                self._step(state, examples)
                self.log.seconds += time.perf_counter() - started
                self._finish_step(state)
                started = time.perf_counter()
                if self._is_over(state) or state.position.epoch != epoch:
                    break
        if state.position.epoch == epoch and state.position.phase == phase:
            self._refuse_short_epoch(state)

    def _refuse_short_epoch(self, state: TrainingState) -> None:
        """A source that ends before its own `num_examples` would make this loop endless."""
        if not self._is_over(state):
            raise RuntimeError(
                f"the data source ended at example {state.position.example} of epoch"
                f" {state.position.epoch}, before its {self.data.num_examples} examples"
            )

    def _finish_step(self, state: TrainingState) -> None:
        """Everything between two steps. Saving comes last, so that it holds what hooks did."""
        self._look_at_clock(state)
        epoch_ended = state.position.example >= self.data.num_examples
        phase_ended = epoch_ended and self._phase_ends_with(state.position.epoch)
        will_save = self._save_is_due(state, epoch_ended)
        self._judge_step(state)
        if self._log_is_due(state, epoch_ended):
            self._read_log(state)
        else:
            state.metrics = {}
        self.fire(Event.STEP_END, state)
        if epoch_ended:
            state.position.epoch += 1
            state.position.example = 0
        if self.evaluate is not None and self._evaluation_is_due(state, epoch_ended):
            self._refuse_bad_loss(state)
            state.evaluation = self.evaluate()
            state.evaluated_step = state.step
            best, found = state.best_evaluation_loss, state.evaluation.get("eval_loss", math.inf)
            state.best_evaluation_loss = min(best, found) if math.isfinite(found) else best
            self.fire(Event.EVAL_END, state)
        if epoch_ended:
            self.fire(Event.EPOCH_END, state)
        if phase_ended:
            self.fire(Event.PHASE_END, state)
            state.position.phase += 1
        state.step_is_ending = False
        self._mark(state)
        kind = self.schedule.kind_due(state.step)
        if will_save or state.must_save or state.stop_reason is not None:
            kind = "stopped" if state.is_interrupted else kind or "scheduled"
        if self.save is not None and kind is not None:
            self._save(state, kind)
        self._tell_saved(state)

    def _phase_ends_with(self, epoch: int) -> bool:
        return epoch + 1 in phase_ends(self.phases)

    def _log_is_due(self, state: TrainingState, epoch_ended: bool) -> bool:
        """Saving is no reason: when that happens must not decide what is logged and judged."""
        by_step = state.every(self.config.log_frequency)
        return epoch_ended or by_step or state.step in (1, self.total_steps)

    def _evaluation_is_due(self, state: TrainingState, epoch_ended: bool) -> bool:
        interval = self.config.validation_interval or sys.maxsize
        by_epoch = epoch_ended and state.position.epoch % interval == 0
        by_step = state.every(self.config.validation_frequency)
        return by_epoch or by_step or state.step == self.total_steps

    def _save_is_due(self, state: TrainingState, epoch_ended: bool) -> bool:
        interval = self.config.checkpoint_interval or sys.maxsize
        by_epoch = epoch_ended and (state.position.epoch + 1) % interval == 0
        by_step = state.every(self.config.checkpoint_frequency) or self.failures.is_retry_due
        return by_epoch or by_step or state.step == self.total_steps


def phase_ends(phases: Sequence[Phase]) -> set[int]:
    """The numbers of epochs after which a phase is over."""
    ends: set[int] = set()
    done = 0
    for phase in phases:
        done += phase.num_epochs
        ends.add(done)
    return ends


def select_trainable(
    model: torch.nn.Module, phase: Phase, optimizer: torch.optim.Optimizer
) -> None:
    """Let exactly the phase's parameters collect gradients, among those the optimizer knows."""
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        if id(parameter) in known:
            parameter.requires_grad_(phase.parameters is None or name in phase.parameters)
