"""The training loop: the only loop, and the only caller of `fire`.

It walks phases, epochs and batches from any position, accumulates micro-batches, evaluates and
saves when due, and turns running out of memory into a smaller micro-batch. It knows neither files
nor models: what it needs is given to it. Everything that can be saved is saved between two
optimizer steps; a window that fails half-way is done again from its recorded random state.
"""

import copy
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.optim.lr_scheduler import LambdaLR

from infrastructure.backup.random_state import capture_random, restore_random
from infrastructure.config.training_config import TrainingConfig
from infrastructure.core.errors import TrainingDivergedError
from infrastructure.training.boundary import Boundary, at_boundary, go_back
from infrastructure.training.checkpoints.save_schedule import SaveSchedule
from infrastructure.training.error_handlers import Recovery, choose_recovery
from infrastructure.training.extensions.extension_hooks import Event, HookRunner
from infrastructure.training.log_window import LogWindow
from infrastructure.training.model_adapters.base_adapter import DataSource, ModelAdapter
from infrastructure.training.state import Phase, TrainingState
from infrastructure.training.strategies.base_strategy import TrainingStrategy

DEADLINE = "the deadline is near"


@dataclass
class TrainingLoop:
    """Everything a training needs, and `run`.

    Attributes:
        evaluate: gives the held-out numbers, at least `eval_loss`; None when nothing is held out.
        save: begins to write a checkpoint of the given state, of a kind that the store knows.
        collect: gives the checkpoints that are committed since it was last asked; told True, it
            waits for what is being written.
        schedule: says when one is due by time, by wish, or because the deadline is near.
    """

    config: TrainingConfig
    adapter: ModelAdapter
    strategy: TrainingStrategy
    data: DataSource
    hooks: HookRunner
    optimizer: torch.optim.Optimizer
    scheduler: LambdaLR | None
    scaler: torch.amp.GradScaler | None
    phases: list[Phase]
    batch_size: int
    total_steps: int
    evaluate: Callable[[], dict[str, float]] | None = None
    save: Callable[[TrainingState, str], None] | None = None
    collect: Callable[[bool], list[Path]] = lambda wait: []
    schedule: SaveSchedule = field(default_factory=SaveSchedule)
    log: LogWindow = field(default_factory=LogWindow)
    boundary: Boundary | None = None
    is_saving: bool = False

    def run(self, state: TrainingState) -> TrainingState:
        """Train from `state.position` to the end, or until something asks to stop.

        Raises:
            TrainingDivergedError: the loss is no longer finite.
            BaseException: whatever went wrong, after the ERROR and TRAIN_END events.
        """
        self.schedule.start(state.step)
        try:
            self.fire(Event.TRAIN_START, state)
            if state.step_is_ending:  # a checkpoint from the middle of a step's end
                self._finish_step(state)
            while state.position.phase < len(self.phases) and not self._is_over(state):
                self._run_phase(state)
            self._tell_saved(state, wait=True)
        except BaseException as error:
            state.error = error
            self._rescue(state, error)
            self.hooks.fire_to_all(Event.ERROR, state)
            raise
        finally:
            self.hooks.fire_to_all(Event.TRAIN_END, state)
        return state

    @property
    def may_break_off(self) -> bool:
        """Whether an exception now costs no more than the step that is being done."""
        return self.boundary is not None and not self.is_saving

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

    def fire(self, event: Event, state: TrainingState) -> None:
        self.hooks.fire(event, state)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds of the loop and its hooks, as JSON values."""
        return {
            "hooks": self.boundary.hooks if self.boundary else self.hooks.state_dict(),
            "log": self.log.state_dict(),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.hooks.load_state_dict(saved["hooks"])
        self.log = LogWindow(**saved["log"])

    def _mark(self, state: TrainingState) -> None:
        """From here on, and until the weights change, the training can be saved as it is now."""
        self.boundary = Boundary(
            random=capture_random(self.adapter.device),
            hooks=copy.deepcopy(self.hooks.state_dict()),
            position=replace(state.position),
            log=replace(self.log),
            step_is_ending=state.step_is_ending,
        )

    def _rescue(self, state: TrainingState, error: BaseException) -> None:
        """Go back to the last boundary, and save it, if the weights are still those it had.

        Not after a CUDA fault (the device cannot be read any more) nor after divergence.
        """
        boundary = self.boundary
        if boundary is None or isinstance(error, torch.AcceleratorError):
            return
        self.optimizer.zero_grad(set_to_none=True)
        go_back(self, state, boundary, self.adapter.device)
        if self.save is None or state.step == 0 or isinstance(error, TrainingDivergedError):
            return
        try:
            stopped = isinstance(error, KeyboardInterrupt)
            self._save(state, "stopped" if stopped else "emergency")
            self._tell_saved(state, wait=True)
        except Exception as failure:
            error.add_note(f"saving a last checkpoint failed too: {failure}")

    def poll(self, state: TrainingState) -> None:
        """For what takes long between two steps: save if that is due, end if that is asked for.

        Raises:
            KeyboardInterrupt: the training is to end; what called this is done again on resuming.
        """
        if self.schedule.deadline_is_near:
            state.interrupt(DEADLINE)
        if state.is_interrupted:
            raise KeyboardInterrupt(state.stop_reason)
        kind = self.schedule.kind_due(state.step)
        if self.save is not None and self.boundary is not None and kind is not None:
            with at_boundary(self, state, self.boundary, self.adapter.device):
                self._save(state, kind)

    def _save(self, state: TrainingState, kind: str) -> None:
        """Write a checkpoint of finite numbers.

        Raises:
            TrainingDivergedError: they are not finite.
        """
        assert self.save is not None
        if not self.log.is_finite(self.scaler is not None):
            raise self._diverged(state, self.log)
        started, self.is_saving = time.perf_counter(), True
        try:
            self.save(state, kind)
        finally:
            self.is_saving = False
        self.schedule.note_save(state.step, time.perf_counter() - started)

    def _tell_saved(self, state: TrainingState, wait: bool = False) -> None:
        """Fire CHECKPOINT_SAVED for what is committed: the call to save it proves nothing."""
        for checkpoint in self.collect(wait):
            state.checkpoint = checkpoint
            self.fire(Event.CHECKPOINT_SAVED, state)

    def _is_over(self, state: TrainingState) -> bool:
        return state.stop_reason is not None or state.step >= self.total_steps

    def _run_phase(self, state: TrainingState) -> None:
        """One phase, from the middle of it when resumed; PHASE_START fires then too."""
        index = state.position.phase
        state.phase = self.phases[index]
        select_trainable(state.model, state.phase, self.optimizer)
        self.fire(Event.PHASE_START, state)
        while state.position.phase == index and not self._is_over(state):
            self._run_epoch(state)

    def _run_epoch(self, state: TrainingState) -> None:
        epoch, phase = state.position.epoch, state.position.phase
        self.fire(Event.EPOCH_START, state)
        batches = self.data.train_batches(epoch, state.position.example, self.batch_size)
        with closing(batches):  # a source may prepare batches in a thread
            started = time.perf_counter()
            for examples in batches:
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

    def _step(self, state: TrainingState, examples: Sequence[Any]) -> None:
        """One optimizer step on one batch, again in smaller pieces if memory runs out."""
        state.batch = examples
        self.optimizer.zero_grad(set_to_none=True)  # nothing of a step that was broken off
        self._mark(state)
        self.fire(Event.STEP_START, state)
        random = capture_random(self.adapter.device)
        total_items = max(1, self.adapter.count_items(examples))
        while True:
            try:
                window = self._accumulate(state, examples, total_items)
                break
            except Exception as error:
                recovery = choose_recovery(error, state.micro_batch_size, len(examples))
                if recovery is not Recovery.SMALLER_MICRO_BATCH:
                    raise
            state.micro_batch_size = max(1, min(state.micro_batch_size, len(examples)) // 2)
            self.optimizer.zero_grad(set_to_none=True)
            restore_random(random, self.adapter.device)
        self._update(state, window, self.adapter.count_tokens(examples))

    def _accumulate(
        self, state: TrainingState, examples: Sequence[Any], total_items: int
    ) -> LogWindow:
        window = LogWindow()
        for micro in split(examples, state.micro_batch_size):
            batch = {**self.adapter.prepare_batch(micro), "total_items": total_items}
            state.output = self.strategy.train_step(
                state.model, batch, self.optimizer, self.scaler, self.scheduler, False
            )
            window.loss_sum = window.loss_sum + state.output.loss_sum
            window.num_items += state.output.num_items
            self.fire(Event.AFTER_LOSS, state)
        return window

    def _update(self, state: TrainingState, window: LogWindow, num_tokens: int) -> None:
        self.strategy.unscale_gradients(self.optimizer, self.scaler)
        self.fire(Event.AFTER_BACKWARD, state)
        self.boundary = None  # from here on the weights are those of neither step
        window.grad_norm = self.strategy.update_parameters(
            state.model, self.optimizer, self.scaler, self.scheduler
        )
        window.num_tokens = num_tokens
        self.log.add(window)
        state.num_tokens += num_tokens
        state.num_examples += len(state.batch)
        state.position.example += len(state.batch)
        state.step += 1
        state.step_is_ending = True
        self._mark(state)

    def _finish_step(self, state: TrainingState) -> None:
        """Everything between two steps. Saving comes last, so that it holds what hooks did."""
        if self.schedule.deadline_is_near:
            state.interrupt(DEADLINE)
        epoch_ended = state.position.example >= self.data.num_examples
        phase_ended = epoch_ended and self._phase_ends_with(state.position.epoch)
        will_save = self._save_is_due(state, epoch_ended) or state.stop_reason is not None
        if will_save or epoch_ended or state.every(self.config.log_frequency) or state.step == 1:
            self._read_log(state)
        else:
            state.metrics = {}
        self.fire(Event.STEP_END, state)
        if epoch_ended:
            state.position.epoch += 1
            state.position.example = 0
        if self.evaluate is not None and self._evaluation_is_due(state, epoch_ended):
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
        if will_save or state.stop_reason is not None:
            kind = "stopped" if state.is_interrupted else kind or "scheduled"
        if self.save is not None and kind is not None:
            self._save(state, kind)
        self._tell_saved(state)

    def _phase_ends_with(self, epoch: int) -> bool:
        return epoch + 1 in phase_ends(self.phases)

    def _evaluation_is_due(self, state: TrainingState, epoch_ended: bool) -> bool:
        interval = self.config.validation_interval or sys.maxsize
        by_epoch = epoch_ended and state.position.epoch % interval == 0
        by_step = state.every(self.config.validation_frequency)
        return by_epoch or by_step or state.step == self.total_steps

    def _save_is_due(self, state: TrainingState, epoch_ended: bool) -> bool:
        interval = self.config.checkpoint_interval or sys.maxsize
        by_epoch = epoch_ended and (state.position.epoch + 1) % interval == 0
        by_step = state.every(self.config.checkpoint_frequency)
        return by_epoch or by_step or state.step == self.total_steps

    def _read_log(self, state: TrainingState) -> None:
        """Read the sums from the device into `state.metrics`; NaN stays NaN.

        Raises:
            TrainingDivergedError: the loss is not finite (fp16 overflow is the scaler's business
                and shows in the gradient norm, not in the loss).
        """
        log, self.log = self.log, LogWindow()
        state.loss = log.loss
        state.metrics = {
            "loss": state.loss,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "grad_norm": float(log.grad_norm),
            "tokens": float(state.num_tokens),
            "seconds": log.seconds,
            "tokens_per_second": log.num_tokens / max(log.seconds, 1e-9),
            "memory_bytes": float(memory_in_use_bytes(self.adapter.device)),
        }
        if not log.is_finite(self.scaler is not None):
            raise self._diverged(state, log)

    def _diverged(self, state: TrainingState, log: LogWindow) -> TrainingDivergedError:
        return TrainingDivergedError(
            f"step {state.step}: loss {log.loss}, gradient norm {float(log.grad_norm)}."
            " Nothing was saved since; go on from the last checkpoint with a lower"
            " learning_rate or a lower max_grad_norm"
        )


def split(examples: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Consecutive pieces of at most `size` examples."""
    for start in range(0, len(examples), size):
        yield examples[start : start + size]


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


def memory_in_use_bytes(device: torch.device) -> int:
    """Peak memory of this process: on the GPU since the start, else the resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return int(psutil.Process().memory_info().rss)
