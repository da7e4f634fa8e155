"""The training loop.

The loop goes through phases, epochs and batches from any position, and evaluates and saves when
due. It knows neither files nor models; everything that it needs is passed to it. Everything is
saved between two optimizer steps. A step that fails halfway is repeated from its recorded random
state. With several processes, each rank runs the loop over the same data, and rank 0 makes all
decisions that depend on a clock, a signal, a file or an observer. The step itself is in
`optimizer_step`, recovery from errors is in `error_recovery`, and saving and restoring are in
`checkpointer`.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import torch

from infrastructure.backup.format.manifest import SaveKind
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.error_place import described
from infrastructure.core.errors import NothingLearnedError, ProcessLostError
from infrastructure.core.messages import phrase
from infrastructure.models.model_inputs import is_sharded
from infrastructure.optimization.compiling import is_compiled
from infrastructure.optimization.device_errors import free_memory, release_traceback
from infrastructure.training.core.state import Phase, StopReason, TrainingState
from infrastructure.training.distributed.group import ALONE, Group, Status
from infrastructure.training.distributed.replicate import checksum, mirror
from infrastructure.training.extensions.extension_hooks import Event, HookRunner
from infrastructure.training.loop.checkpointer import Checkpointer
from infrastructure.training.loop.error_recovery import ErrorRecovery
from infrastructure.training.loop.optimizer_step import OptimizerStep
from infrastructure.training.model_adapters.base_adapter import DataSource
from infrastructure.training.recovery.loss_spikes import BadLossError
from infrastructure.training.recovery.safe_point import FirstStates, at_safe_point


@dataclass
class TrainingLoop:
    """The loop over phases, epochs and batches.

    Attributes:
        config: has the intervals of logging, evaluating and saving.
        phases: the phases of the training, in order.
        global_batch_size: examples per optimizer step, over all processes.
        total_steps: optimizer steps of the whole training.
        evaluate: returns the held-out metrics, at least `eval_loss`. None: nothing is held out.
        join: waits for all ranks and returns their group.
        leave: leaves the group. Its argument is why the training fails, or None.
        is_ending: the last step is done, and the loop waits for pending writes.
    """

    optimizer_step: OptimizerStep
    error_recovery: ErrorRecovery
    checkpointer: Checkpointer
    config: TrainingConfig
    phases: list[Phase]
    global_batch_size: int
    total_steps: int
    evaluate: Callable[[], dict[str, float]] | None = None
    join: Callable[[], Group] = lambda: ALONE
    leave: Callable[[str | None], None] = do_nothing
    is_ending: bool = field(default=False, init=False)
    _is_stopped: bool = field(default=False, init=False)
    _is_joining: bool = field(default=False, init=False)

    def run(self, state: TrainingState) -> TrainingState:
        """Train from `state.position` to the end, or until a stop is requested.

        Raises:
            TrainingDivergedError: the loss is bad, and rolling back did not help.
            DeviceFailedError: the GPU failed.
            NothingLearnedError: steps no longer change any weight; the last of them is saved.
            BaseException: any other error, after the ERROR and TRAIN_END events.
        """
        step, hooks = self.optimizer_step, self.hooks
        self.is_ending, self._is_stopped = False, False
        self.checkpointer.schedule.start(state.step)
        try:
            step.group = self._joined()
            state.num_processes = step.group.size
            step.first_states = FirstStates(hooks)
            hooks.fire(Event.TRAIN_START, state)
            self._take_state_of_first(state)
            step.mark_safe(state)
            is_saved = self.checkpointer.start_is_saved
            if is_sharded(state.model):
                is_saved = step.group.decide(lambda: is_saved)
            if not is_saved:
                # There is something to roll back to from the first step on.
                self.checkpointer.save(state, SaveKind.SCHEDULED)
                self.checkpointer.announce(state)
            while not self._has_trained(state):
                free_memory(step.device)
            self.is_ending = True
            self.checkpointer.finish(state)
            if state.stop_reason is StopReason.NOTHING_LEARNED and step.group.is_first:
                step.safe_point = None  # it is saved
                raise NothingLearnedError(str(state.stop_message))
        except BaseException as raised:
            error = self.error_recovery.readable(state, raised)
            state.error = error
            self.is_ending = True
            self.error_recovery.rescue(state, error)
            hooks.fire_to_all(Event.ERROR, state)
            if error is not raised:
                raise error from raised
            raise
        finally:
            hooks.fire_to_all(Event.TRAIN_END, state)
            self.leave(None if state.error is None else described(state.error))
            step.group = ALONE
        return state

    def _joined(self) -> Group:
        """Wait until all ranks have joined, and return their group."""
        self._is_joining = True
        try:
            return self.join()
        finally:
            self._is_joining = False

    def _take_state_of_first(self, state: TrainingState) -> None:
        """Copy rank 0's state, and compile the model if and only if rank 0 has compiled it."""
        step = self.optimizer_step
        mirror(step.group, state, step)
        is_on = step.group.decide(lambda: is_compiled(state.model))
        if not step.group.is_first and is_on != is_compiled(state.model):
            step.adapter.set_compiled(is_on)

    def single_step(self, state: TrainingState, examples: Sequence[object]) -> float:
        """Perform one optimizer step for a custom training loop, and return the mean loss.

        The position advances within its epoch. The caller evaluates, saves and ends epochs.
        """
        self._timed_step(state, examples)
        self._read_losses(state)
        self.hooks.fire(Event.STEP_END, state)
        state.step_is_ending = False
        self.optimizer_step.safe_point = None  # the caller may change the state next
        return state.loss

    def save_is_due(self, state: TrainingState) -> bool:
        """Return whether a custom training loop should save a checkpoint after this step.

        A checkpoint is due by steps, epochs or time, at the end, or after a decision that depends
        on a clock.
        """
        epoch_ended = state.position.example >= self.data.num_examples
        by_clock = self.checkpointer.schedule.kind_due(state.step) is not None
        return self._save_is_due(state, epoch_ended) or by_clock or state.must_save

    @property
    def may_break_off(self) -> bool:
        """True if raising an exception now would lose no more than the current step."""
        is_safe = self._is_joining or self.optimizer_step.safe_point is not None
        return is_safe and not (self.checkpointer.is_saving or self.is_ending)

    def poll(self, state: TrainingState) -> None:
        """Save if due, and stop if requested; called regularly during long work between two steps.

        Raises:
            KeyboardInterrupt: the training is to stop. The caller's work is repeated on resume.
        """
        self.optimizer_step.group.note_progress()
        if is_sharded(state.model):  # the ranks work together, and save afterwards
            return
        self._check_deadline(state)
        if state.is_interrupted:
            raise KeyboardInterrupt(state.stop_message)
        step, point = self.optimizer_step, self.optimizer_step.safe_point
        kind = self.checkpointer.schedule.kind_due(state.step)
        if point is not None and kind is not None:
            with at_safe_point(point, state, step.losses, step.device):
                self.checkpointer.save(state, kind)

    @property
    def hooks(self) -> HookRunner:
        """The observers and extensions; only the loop and its parts call `fire`."""
        return self.optimizer_step.hooks

    @property
    def data(self) -> DataSource:
        """The source of training data."""
        return self.optimizer_step.data

    def _has_trained(self, state: TrainingState) -> bool:
        """Train and return True at the end of the training, or return False after a rollback."""
        try:
            if state.step_is_ending:  # a checkpoint from the middle of a step's end
                self._finish_step(state)
            while state.position.phase < len(self.phases) and not self._is_over(state):
                self._run_phase(state)
        except BadLossError as error:
            self.error_recovery.after_bad_loss(state, error.bad)
            release_traceback(error)
            return False
        except Exception as error:
            self.error_recovery.after_torn_step(state, error)
            return False
        return True

    def _is_over(self, state: TrainingState) -> bool:
        is_alone = self.optimizer_step.group.size == 1
        is_stopped = state.stop_reason is not None if is_alone else self._is_stopped
        return is_stopped or state.step >= self.total_steps

    def _run_phase(self, state: TrainingState) -> None:
        """Run one phase, or the rest of it after a resume; PHASE_START fires in either case."""
        index, step = state.position.phase, self.optimizer_step
        state.phase = self.phases[index]
        if state.phase.begins_anew and step.strategy.entered < index:
            step.losses.watch.forget()
            state.best_evaluation_loss = math.inf
        step.strategy.enter_phase(state.model, step.optimizer, index)
        select_trainable(state.model, state.phase, step.optimizer)
        self.hooks.fire(Event.PHASE_START, state)
        if len(self.phases) > 1:  # the start of a phase may be random
            mirror(step.group, state, step)
        while state.position.phase == index and not self._is_over(state):
            self._run_epoch(state)

    def _run_epoch(self, state: TrainingState) -> None:
        epoch, phase = state.position.epoch, state.position.phase
        self.hooks.fire(Event.EPOCH_START, state)
        if state.must_save:
            self.checkpointer.save_decision(state)
        batches = self.data.train_batches(epoch, state.position.example, self.global_batch_size)
        with closing(batches):  # a source may prepare batches in a thread
            started = time.perf_counter()
            for examples in batches:
                state.data_wait_seconds += time.perf_counter() - started
                self._timed_step(state, examples)
                self._finish_step(state)
                started = time.perf_counter()
                if self._is_over(state) or state.position.epoch != epoch:
                    break
        if state.position.epoch == epoch and state.position.phase == phase:
            self._refuse_short_epoch(state)

    def _timed_step(self, state: TrainingState, examples: Sequence[object]) -> None:
        started = time.perf_counter()
        self.optimizer_step.run(state, examples)
        self.optimizer_step.losses.sums.seconds += time.perf_counter() - started

    def _refuse_short_epoch(self, state: TrainingState) -> None:
        """Raise if the data source has yielded fewer than `num_examples` examples in an epoch.
        Otherwise the loop would never end.
        """
        if not self._is_over(state):
            raise RuntimeError(
                f"the data source ended at example {state.position.example} of epoch"
                f" {state.position.epoch}, before its {self.data.num_examples} examples"
            )

    def _finish_step(self, state: TrainingState) -> None:
        """Log, evaluate, fire events and save after a step, in a fixed order.

        The comments explain the order. A resumed run repeats it.
        """
        self.checkpointer.others_wait = True
        # Before anything that takes time: a step that ends at the deadline is saved, and no other
        # begins.
        self._check_deadline(state)
        # Both refer to the epoch of this step, whose number changes below.
        epoch_ended = state.position.example >= self.data.num_examples
        phase_ended = epoch_ended and self._phase_ends_with(state.position.epoch)
        will_save = self._save_is_due(state, epoch_ended)
        # A bad loss is raised before it is logged, seen by a hook, or saved: a rollback forgets it.
        self.optimizer_step.losses.check_last_step(state)
        if self._log_is_due(state, epoch_ended):
            self._read_losses(state)
        else:
            state.metrics = {}
        self.hooks.fire(Event.STEP_END, state)
        # From here on the position is that of the next batch, as a checkpoint needs it: a save from
        # now on (after a signal or an error in an evaluation) resumes after this step.
        if epoch_ended:
            state.position.epoch += 1
            state.position.example = 0
        if self.evaluate is not None and self._evaluation_is_due(state, epoch_ended):
            self._evaluate(state, self.evaluate)
        # An epoch ends with its evaluation: hooks at its end use it (early stopping, best
        # checkpoint).
        if epoch_ended:
            self.hooks.fire(Event.EPOCH_END, state)
        if phase_ended:
            self.hooks.fire(Event.PHASE_END, state)
            state.position.phase += 1
        state.step_is_ending = False
        # Saving comes last, so that a checkpoint holds what all hooks did. A hook may also have
        # just asked for a save, or for the end.
        self.optimizer_step.mark_safe(state)
        kind = self._agreed_kind(state, will_save)
        if kind is not None:
            self.checkpointer.save(state, kind)
        # Of this checkpoint or an earlier one: another process writes them, with a delay.
        self.checkpointer.announce(state)

    def _evaluate(self, state: TrainingState, evaluate: Callable[[], dict[str, float]]) -> None:
        self.optimizer_step.losses.check_sums(state)
        state.evaluation = self._evaluation_of_first(state, evaluate)
        state.evaluated_step = state.step
        loss = state.evaluation.get("eval_loss", math.inf)
        if math.isfinite(loss):
            state.best_evaluation_loss = min(state.best_evaluation_loss, loss)
        self.hooks.fire(Event.EVAL_END, state)

    def _evaluation_of_first(
        self, state: TrainingState, evaluate: Callable[[], dict[str, float]]
    ) -> dict[str, float]:
        group = self.optimizer_step.group
        if not is_sharded(state.model):
            return group.decide(evaluate)
        self.checkpointer.others_wait = False
        with group.watched():
            numbers = evaluate()
        decided = group.decide(lambda: numbers)
        self.checkpointer.others_wait = True
        return decided

    def _agreed_kind(self, state: TrainingState, will_save: bool) -> SaveKind | None:
        """Send rank 0's decisions to every rank, and return the kind of checkpoint to save now, or
        None.

        Raises:
            BadLossError: rank 0 does not save because of a bad loss, so this rank does not save
                either.
            ProcessLostError: the weights of a rank differ from rank 0's.
        """
        step = self.optimizer_step
        group = step.group
        if group.size == 1:
            return self._kind_to_save(state, will_save)
        kind: SaveKind | None = None

        def decide() -> dict[str, Any]:
            nonlocal kind
            kind = self._kind_to_save(state, will_save)
            is_spread = is_sharded(state.model)
            saves = kind is not None and self.checkpointer.manager is not None and not is_spread
            return {
                "is_stopped": state.stop_reason is not None,
                "micro_batch_size": state.micro_batch_size,
                "weights": None
                if is_spread or not (saves or state.step == 1)
                else checksum(state.model),
                "saves": saves,
                "kind": kind.value if is_spread and kind is not None else None,
            }

        decided = group.decide(decide)
        self.checkpointer.others_wait = False
        self.checkpointer.rescue_with_first(state, decided)
        self._is_stopped = decided["is_stopped"]
        state.micro_batch_size = decided["micro_batch_size"]
        if decided["weights"] is not None:
            self._compare(state, decided["weights"])
        if decided["kind"] is not None:  # each rank saves its part of a sharded model
            return SaveKind(decided["kind"])
        if decided["saves"] and not group.is_first:
            step.losses.check_sums(state)
        return kind

    def _compare(self, state: TrainingState, weights: str) -> None:
        """Raise if the weights of the ranks differ."""
        group = self.optimizer_step.group
        differs = checksum(state.model) != weights
        reason = f"rank {group.rank}" if differs else ""
        if group.agree(Status.FAILED if differs else Status.FINE, reason) is Status.FAILED:
            self.optimizer_step.safe_point = None
            raise ProcessLostError(
                "training.weights_differ_between_ranks", step=state.step, rank=group.reason
            )

    def _kind_to_save(self, state: TrainingState, will_save: bool) -> SaveKind | None:
        kind = self.checkpointer.schedule.kind_due(state.step)
        if will_save or state.must_save or state.stop_reason is not None:
            return SaveKind.STOPPED if state.is_interrupted else kind or SaveKind.SCHEDULED
        return kind

    def _read_losses(self, state: TrainingState) -> None:
        self.optimizer_step.losses.read(state)

    def _check_deadline(self, state: TrainingState) -> None:
        if self.optimizer_step.group.is_first and self.checkpointer.schedule.deadline_is_near:
            state.interrupt(phrase("run.deadline_near"), StopReason.DEADLINE)

    def _phase_ends_with(self, epoch: int) -> bool:
        return epoch + 1 in phase_ends(self.phases)

    def _log_is_due(self, state: TrainingState, epoch_ended: bool) -> bool:
        """Return whether to log this step.

        The result does not depend on when checkpoints are saved.
        """
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
        is_retry = self.checkpointer.failures.is_retry_due
        by_step = state.every(self.config.checkpoint_frequency) or is_retry
        return by_epoch or by_step or state.step == self.total_steps


def phase_ends(phases: Sequence[Phase]) -> set[int]:
    """Return, for each phase, the total number of finished epochs when it ends."""
    ends: set[int] = set()
    done = 0
    for phase in phases:
        done += phase.num_epochs
        ends.add(done)
    return ends


def select_trainable(
    model: torch.nn.Module, phase: Phase, optimizer: torch.optim.Optimizer
) -> None:
    """Set `requires_grad` of the optimizer's parameters to whether the phase trains them."""
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        if id(parameter) in known:
            parameter.requires_grad_(phase.parameters is None or name in phase.parameters)
