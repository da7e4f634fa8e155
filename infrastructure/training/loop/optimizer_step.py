"""One optimizer step on one batch, and the numbers that it leaves.

A batch is split into micro-batches; running out of memory is answered by smaller ones. Losses are
summed on the device and read when a record is due; a bad one is raised, never averaged away.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.optim.lr_scheduler import LambdaLR

from infrastructure.backup.state.random_state import capture_random, restore_random
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.checkpoints.save_schedule import SaveSchedule
from infrastructure.training.core.error_handlers import (
    can_be_halved,
    free_memory,
    let_go,
)
from infrastructure.training.core.metric_accumulator import LogWindow
from infrastructure.training.core.state import Phase, Position, StepOutput, TrainingState
from infrastructure.training.extensions.extension_hooks import Event, HookRunner
from infrastructure.training.forward.gradient_accumulation import accumulate
from infrastructure.training.model_adapters.base_adapter import DataSource, ModelAdapter
from infrastructure.training.parallel.team import Team
from infrastructure.training.recovery.loss_spikes import BadLossError, LossWatch
from infrastructure.training.recovery.recovery_log import note
from infrastructure.training.recovery.rollback import (
    LOSS_SPIKE,
    NOT_FINITE,
    OUT_OF_MEMORY,
    advance,
    bad_step,
    name_bad_rows,
    skipped_here,
)
from infrastructure.training.recovery.safe_point import Boundary, FirstStates, forget_unscaling
from infrastructure.training.recovery.save_retry import SaveFailures
from infrastructure.training.strategies.base_strategy import NOT_ENTERED, TrainingStrategy


@dataclass
class Stepping:
    """The parts of a training, and its single step.

    Attributes:
        evaluate: gives the held-out numbers, at least `eval_loss`; None when nothing is held out.
        save: begins to write a checkpoint of the given state, of a kind that the store knows.
        collect: gives the checkpoints that are committed since it was last asked; told True, it
            waits for what is being written.
        schedule: says when one is due by time, by wish, or because the deadline is near.
        go_back: restores the newest good checkpoint and gives its path.
        keep_evidence: saves a state that is not good, for people to look at.
        remember_limit: told the micro-batch that is tried after running out of memory.
        team: the other processes that compute gradients; None: this one is alone.
        start_is_saved: what the training begins with is the newest checkpoint already.
        batch_at: where the last batch of this process began; None before the first.
        last_step: its sums; None where it was passed over.
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
    go_back: Callable[[TrainingState], Path] | None = None
    keep_evidence: Callable[[TrainingState], Path] | None = None
    remember_limit: Callable[[int], None] = lambda size: None
    team: Team | None = None
    start_is_saved: bool = False
    log: LogWindow = field(default_factory=LogWindow)
    boundary: Boundary | None = None
    batch_at: Position | None = None
    last_step: LogWindow | None = None
    is_saving: bool = False
    is_ending: bool = False

    def __post_init__(self) -> None:
        recovery = self.config.recovery
        self.watch = LossWatch(recovery.loss_spike_factor)
        self.failures = SaveFailures(recovery.max_failed_saves)
        self.first_states = FirstStates(self.hooks)

    def fire(self, event: Event, state: TrainingState) -> None:
        self.hooks.fire(event, state)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds of the loop and its hooks, as JSON values."""
        return {
            "hooks": self.boundary.hooks if self.boundary else self.hooks.state_dict(),
            "log": self.log.state_dict(),
            "watch": self.watch.state_dict(),
            "entered": self.strategy.entered,
        }

    def take_form(self, model: torch.nn.Module, saved: dict[str, Any]) -> None:
        """Give the model the form that it had when `saved` was taken, before its values come."""
        self.strategy.take_form(model, self.optimizer, saved.get("entered", NOT_ENTERED))

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.hooks.load_state_dict(self.first_states.completed(saved["hooks"], self.hooks))
        self.log = LogWindow(**saved["log"])
        if "watch" in saved:
            self.watch.load_state_dict(saved["watch"])
        self.batch_at = self.last_step = None

    def _mark(self, state: TrainingState) -> None:
        """From here on, and until the weights change, the training can be saved as it is now."""
        self.boundary = Boundary.of(state, self.hooks, self.log, self.watch, self.adapter.device)

    def _step(self, state: TrainingState, examples: Sequence[Any]) -> None:
        """One optimizer step on one batch, again in smaller pieces if memory runs out."""
        state.batch, self.batch_at = examples, replace(state.position)
        self.optimizer.zero_grad(set_to_none=True)  # nothing of a step that was broken off
        self._mark(state)
        self.strategy.begin_step(state.step, examples)
        self.fire(Event.STEP_START, state)
        if skipped_here(state) is not None:
            self._pass_over(state)
            return
        random = capture_random(self.adapter.device)
        total_items = max(1, self.adapter.count_items(examples))
        while (window := self._gradients(state, examples, total_items)) is None:
            free_memory(self.adapter.device)
            self.optimizer.zero_grad(set_to_none=True)
            forget_unscaling(self.scaler, self.adapter.device)
            restore_random(random, self.adapter.device)
        self._update(state, window, self.adapter.count_tokens(examples))

    def _gradients(
        self, state: TrainingState, examples: Sequence[Any], total_items: int
    ) -> LogWindow | None:
        """Forward and backward of the whole batch; None if it is to be done in smaller pieces."""
        try:
            window = self._accumulate(state, examples, total_items)
            self.strategy.unscale_gradients(self.optimizer, self.scaler)
            self.fire(Event.AFTER_BACKWARD, state)
            return window
        except Exception as error:
            size, message = self._micro_batch_size(state), str(error)
            may_shrink = self.config.recovery.out_of_memory == "smaller"
            if not may_shrink or not can_be_halved(error, size, size):
                raise
            let_go(error)
        self._shrink(state, size // 2)
        action = f"the same batch in micro-batches of {state.micro_batch_size}"
        note(state, OUT_OF_MEMORY, action, message, step=state.step + 1)
        return None

    def _micro_batch_size(self, state: TrainingState) -> int:
        """How many examples one forward pass of this batch has at most."""
        num_examples = 0 if state.batch is None else len(state.batch)
        if self.team is not None:
            num_examples = self.team.largest_share(num_examples)
        return min(state.micro_batch_size, num_examples)

    def _shrink(self, state: TrainingState, micro_batch_size: int) -> None:
        state.micro_batch_size = micro_batch_size
        self.remember_limit(micro_batch_size)

    def _accumulate(
        self, state: TrainingState, examples: Sequence[Any], total_items: int
    ) -> LogWindow:
        def told(output: StepOutput) -> None:
            state.output = output
            self.fire(Event.AFTER_LOSS, state)

        def own(share: Sequence[Any]) -> LogWindow:
            return accumulate(
                state.model,
                self.adapter,
                self.strategy,
                self.optimizer,
                self.scaler,
                share,
                micro_batch_size=state.micro_batch_size,
                total_items=total_items,
                told=told,
            )

        if self.team is None:
            return own(examples)
        return self.team.accumulate(state, examples, total_items, self.scaler, own)

    def _update(self, state: TrainingState, window: LogWindow, num_tokens: int) -> None:
        self.boundary = None  # from here on the weights are those of neither step
        window.grad_norm = self.strategy.update_parameters(
            state.model, self.optimizer, self.scaler, self.scheduler
        )
        window.num_tokens = num_tokens
        self.log.add(window)
        self.last_step = replace(window, num_steps=1)
        state.num_tokens += num_tokens
        state.num_examples += len(state.batch)
        self._count_step(state)

    def _pass_over(self, state: TrainingState) -> None:
        """A step without an update: the schedule and all rhythms go on as if there were one."""
        self.last_step = None
        name_bad_rows(state, self.data, self.adapter, self.strategy, self.watch)
        if self.scheduler is not None:
            advance(self.scheduler)
        self._count_step(state)

    def _count_step(self, state: TrainingState) -> None:
        state.position.example += len(state.batch)
        state.step += 1
        state.step_is_ending = True
        self._mark(state)

    def _read_log(self, state: TrainingState) -> None:
        """Read the sums from the device into `state.metrics`; NaN stays NaN.

        Raises:
            TrainingDivergedError: the loss is bad (fp16 overflow is the scaler's business and
                shows in the gradient norm, not in the loss).
        """
        log, self.log = self.log, LogWindow()
        state.metrics = {}
        if log.num_steps == 0:  # all of them were passed over
            return
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
        self._judge(state, log)

    def _judge(self, state: TrainingState, log: LogWindow) -> None:
        """Refuse a loss that is bad, or take a note of it."""
        if not log.is_finite(self.scaler is not None):
            raise BadLossError(bad_step(NOT_FINITE, state, log, self.batch_at, self.data))
        if self.watch.take(log.loss):
            spike = bad_step(LOSS_SPIKE, state, log, self.batch_at, self.data)
            if self.config.recovery.loss_spike != "note":
                raise BadLossError(spike)
            note(state, LOSS_SPIKE, "nothing, as training.recovery.loss_spike says", str(spike))

    def _judge_step(self, state: TrainingState) -> None:
        """In the search for a bad loss, read each step's; what is logged stays as it is."""
        step = self.last_step
        if step is None or state.step > self.watch.until_step:
            return
        is_number = step.is_finite(self.scaler is not None)
        if not is_number or step.loss > self.watch.limit:
            kind = LOSS_SPIKE if is_number else NOT_FINITE
            raise BadLossError(bad_step(kind, state, step, self.batch_at, self.data))

    def _refuse_bad_loss(self, state: TrainingState) -> None:
        """Before evaluating or saving; where all is well, the next record covers as many steps."""
        if not self.log.is_finite(self.scaler is not None):
            self._read_log(state)


def memory_in_use_bytes(device: torch.device) -> int:
    """Peak memory of this process: on the GPU since the start, else the resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return int(psutil.Process().memory_info().rss)
