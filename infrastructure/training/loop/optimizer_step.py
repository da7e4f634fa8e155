"""One optimizer step on one batch.

The batch is divided among the ranks. Each share is divided into micro-batches, which get smaller if
memory runs out.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch.optim.lr_scheduler import LambdaLR

from infrastructure.backup.state.random_state import (
    capture_random,
    restore_random,
    seed_everything,
)
from infrastructure.config.sections.recovery_config import RecoveryConfig
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.errors import ProcessLostError
from infrastructure.core.integers import ceil_div
from infrastructure.core.messages import phrase
from infrastructure.models.model_inputs import is_sharded
from infrastructure.optimization.device_errors import (
    can_be_halved,
    free_memory,
    is_out_of_memory,
    release_traceback,
)
from infrastructure.training.core.metric_accumulator import MetricAccumulator
from infrastructure.training.core.state import (
    RecoveryKind,
    StepOutput,
    StopReason,
    TrainingState,
)
from infrastructure.training.distributed.group import ALONE, Group, JoinedGroup, Status
from infrastructure.training.distributed.replicate import (
    GroupOutOfMemoryError,
    share_seed,
    shares_of,
    sum_gradients,
)
from infrastructure.training.distributed.shard import accumulate_together
from infrastructure.training.extensions.extension_hooks import Event, HookRunner
from infrastructure.training.forward.gradient_accumulation import accumulate_gradients
from infrastructure.training.loop.loss_judge import LossJudge
from infrastructure.training.model_adapters.base_adapter import DataSource, ModelAdapter
from infrastructure.training.recovery.bad_loss import advance, name_bad_rows, skipped_here
from infrastructure.training.recovery.recovery_log import record_recovery
from infrastructure.training.recovery.safe_point import FirstStates, SafePoint, forget_unscaling
from infrastructure.training.strategies.base_strategy import NOT_ENTERED, TrainingStrategy

Result = TypeVar("Result")


@dataclass
class OptimizerStep:
    """One optimizer step, with all objects that it needs to change the weights.

    A checkpoint contains the state of these objects; see `checkpoints.snapshot`.

    Attributes:
        recovery: settings about running out of memory, and about bad losses.
        remember_limit: called with the micro-batch size that is tried after running out of memory.
        seed: seed of the run, for the random numbers of ranks other than 0.
        group: all ranks of this run.
        losses: sums and checks the losses.
        safe_point: the latest state that can be saved. None while the weights are being updated.
        first_states: the hooks' states when this process began.
    """

    adapter: ModelAdapter
    strategy: TrainingStrategy
    data: DataSource
    hooks: HookRunner
    optimizer: torch.optim.Optimizer
    scheduler: LambdaLR | None
    scaler: torch.amp.GradScaler | None
    recovery: RecoveryConfig
    remember_limit: Callable[[int], None] = do_nothing
    seed: int = 0
    group: Group = ALONE
    safe_point: SafePoint | None = field(default=None, init=False)
    losses: LossJudge = field(init=False)

    def __post_init__(self) -> None:
        has_scaler = self.scaler is not None
        self.losses = LossJudge(self.recovery, self.data, self.device, has_scaler)
        self.first_states = FirstStates(self.hooks)

    @property
    def device(self) -> torch.device:
        """The device on which the model trains."""
        return self.adapter.device

    @property
    def learning_rate(self) -> float:
        """The current learning rate of the first parameter group."""
        return float(self.optimizer.param_groups[0]["lr"])

    def state_dict(self) -> dict[str, object]:
        """Return the state of losses, hooks and phase for a checkpoint, as JSON values."""
        return {
            "hooks": self.safe_point.hooks if self.safe_point else self.hooks.state_dict(),
            **self.losses.state_dict(),
            "entered": self.strategy.entered,
        }

    def take_form(self, model: torch.nn.Module, saved: dict[str, Any]) -> None:
        """Convert the model's layers to the dtypes of a saved state, before loading it."""
        self.strategy.take_form(model, self.optimizer, saved.get("entered", NOT_ENTERED))

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.hooks.load_state_dict(self.first_states.completed(saved["hooks"], self.hooks))
        self.losses.load_state_dict(saved)

    def mark_safe(self, state: TrainingState) -> None:
        """Mark the current state as safe to save until the weights change."""
        self.safe_point = SafePoint.of(state, self.hooks, self.losses, self.device)

    def run(self, state: TrainingState, examples: Sequence[object]) -> None:
        """Perform one optimizer step on one batch; if memory runs out, use smaller
        micro-batches.
        """
        state.batch = examples
        self.losses.begin_step(state.position)
        self.optimizer.zero_grad(set_to_none=True)  # drop gradients of an aborted step
        self.mark_safe(state)
        self.strategy.begin_step(state.step, examples)
        self.hooks.fire(Event.STEP_START, state)
        if skipped_here(state) is not None:
            self._pass_over(state)
            return
        if not self.group.is_first:
            seed_everything(share_seed(self.seed, state.step, self.group.rank))
        random = capture_random(self.device)
        total_items = max(1, self.adapter.count_items(examples))
        while (window := self._gradients(state, examples, total_items)) is None:
            free_memory(self.device)
            self.hooks.gradients_forgotten()
            self.optimizer.zero_grad(set_to_none=True)
            forget_unscaling(self.scaler, self.device)
            restore_random(random, self.device)
        self._update(state, window, self.adapter.count_tokens(examples))

    def _gradients(
        self, state: TrainingState, examples: Sequence[object], total_items: int
    ) -> MetricAccumulator | None:
        """Run forward and backward passes of the whole batch, and return loss and item counts.

        None means that memory ran out, and the batch must be repeated with smaller micro-batches.
        """
        try:
            window = self._accumulate(state, examples, total_items)
            self.strategy.unscale_gradients(self.optimizer, self.scaler)
            self.hooks.fire(Event.AFTER_BACKWARD, state)
            return window
        except Exception as error:
            size, message = self.micro_batch_size(state), str(error)
            is_shared = self.group.size == 1 or isinstance(error, GroupOutOfMemoryError)
            may_shrink = is_shared and self.recovery.out_of_memory == "smaller"
            if not may_shrink or not can_be_halved(error, size, size):
                raise
            release_traceback(error)
        self.shrink(state, size // 2)
        action = phrase("training.batch_retried_smaller", micro_batch_size=state.micro_batch_size)
        record_recovery(state, RecoveryKind.OUT_OF_MEMORY, action, message, step=state.step + 1)
        return None

    def micro_batch_size(self, state: TrainingState) -> int:
        """Return the maximum number of examples in one forward pass of the current batch."""
        return min(state.micro_batch_size, ceil_div(len(state.batch), self.group.size))

    def shrink(self, state: TrainingState, micro_batch_size: int) -> None:
        """Use smaller micro-batches from now on, because larger ones do not fit into memory."""
        state.micro_batch_size = micro_batch_size
        self.remember_limit(micro_batch_size)

    def _accumulate(
        self, state: TrainingState, examples: Sequence[object], total_items: int
    ) -> MetricAccumulator:
        def after_loss(output: StepOutput) -> None:
            state.output = output
            self.group.note_progress()
            self.hooks.fire(Event.AFTER_LOSS, state)

        group = self.group
        accumulate: Callable[..., MetricAccumulator] = (
            partial(accumulate_together, group)
            if isinstance(group, JoinedGroup) and is_sharded(state.model)
            else accumulate_gradients
        )

        def gradients_of(part: Sequence[object]) -> MetricAccumulator:
            return accumulate(
                state.model,
                self.adapter,
                self.strategy,
                self.optimizer,
                self.scaler,
                part,
                micro_batch_size=state.micro_batch_size,
                total_items=total_items,
                after_loss=after_loss,
            )

        if group.size == 1:
            return gradients_of(examples)
        if is_sharded(state.model):
            with self._ended_by_errors(state):
                window = gradients_of(examples)
            self._agree(state, Status.FINE, "")
            return window
        if self.scaler is not None:  # it creates its tensors on first use: a share may be empty
            self.scaler.scale(torch.zeros((), device=self.device))
        share = shares_of(examples, group.size)[group.rank]
        window = self._agreed(state, lambda: gradients_of(share))
        sum_gradients(group, state.model, window)
        return window

    def _agreed(self, state: TrainingState, compute: Callable[[], Result]) -> Result:
        """Call `compute` and return its result if no rank ran out of memory; otherwise raise as
        `_agree`.
        """
        status, reason = Status.FINE, ""
        try:
            result = compute()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            status, reason = Status.OUT_OF_MEMORY, str(error)
            release_traceback(error)
        self._agree(state, status, reason)  # raises if there is no result
        return result

    @contextmanager
    def _ended_by_errors(self, state: TrainingState) -> Iterator[None]:
        """Return a context in which any error ends the run, for work that all ranks do together.

        A rank that fails in such work cannot notify the other ranks, which wait for it. So the run
        must end and be resumed from its last checkpoint. If memory ran out, the resumed run uses
        smaller micro-batches.
        """
        with self.group.watched():
            try:
                yield
            except Exception as error:
                self.safe_point = None  # the weights may be those of neither step
                if not is_out_of_memory(error) or self.recovery.out_of_memory != "smaller":
                    raise
                self.remember_limit(max(1, self.micro_batch_size(state) // 2))
                raise ProcessLostError(
                    "training.rank_out_of_memory", rank=self.group.rank, step=state.step + 1
                ) from error

    def _agree(self, state: TrainingState, status: Status, reason: str) -> None:
        """Wait for the status of all ranks, and raise if a rank cannot continue.

        Raises:
            GroupOutOfMemoryError: a rank ran out of memory.
            ProcessLostError: a rank failed, or is gone.
        """
        agreed = self.group.agree(status, reason)
        if agreed is Status.OUT_OF_MEMORY:
            raise GroupOutOfMemoryError(self.group.reason)
        if agreed is Status.STOP and self.group.is_first:
            state.interrupt(self.group.reason, StopReason.SIGNAL)

    def _update(self, state: TrainingState, window: MetricAccumulator, num_tokens: int) -> None:
        self.safe_point = None  # from here on the weights are those of neither step
        window.learning_rate = state.learning_rate = (
            self.learning_rate
        )  # the schedule moves on below
        window.grad_norm = state.grad_norm = self._update_parameters(state)
        self.hooks.weights_updated()
        window.num_tokens = num_tokens
        self.losses.add(window)
        state.num_tokens += num_tokens
        state.num_examples += len(state.batch)
        self._count_step(state)

    def _update_parameters(self, state: TrainingState) -> torch.Tensor:
        """Update the parameters and return the gradient norm.

        Raises:
            GroupOutOfMemoryError: a rank ran out of memory during the update, so the weights of the
                ranks differ.
        """
        parts = state.model, self.optimizer, self.scaler, self.scheduler
        if self.group.size == 1:
            return self.strategy.update_parameters(*parts)
        if is_sharded(state.model):
            with self._ended_by_errors(state):
                return self.strategy.update_parameters(*parts)
        return self._agreed(state, lambda: self.strategy.update_parameters(*parts))

    def _pass_over(self, state: TrainingState) -> None:
        """Count a skipped step, without updating weights. Schedule and intervals advance as
        usual.
        """
        self.losses.pass_over()
        state.grad_norm = None
        if self.group.is_first and not is_sharded(state.model):
            name_bad_rows(state, self.data, self.adapter, self.strategy, self.losses.watch)
        if self.scheduler is not None:
            advance(self.scheduler)
        self._count_step(state)

    def _count_step(self, state: TrainingState) -> None:
        state.position.example += len(state.batch)
        state.step += 1
        state.step_is_ending = True
        self.mark_safe(state)
