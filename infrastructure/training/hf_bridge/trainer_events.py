"""Conversion of a Trainer's events to Temper's, and the choice of when to save.

A Trainer notifies its callbacks of the end of a step before it logs, evaluates and saves. So a due
checkpoint is saved at the next event after that: when the next step begins and its batch is loaded
(a resuming Trainer sets the random state at exactly this moment), when an epoch begins, or when the
training is about to end. A checkpoint therefore includes the evaluation of its step, and a run
resumed from it continues as if it had not been interrupted.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from infrastructure.backup.format.manifest import SaveKind
from infrastructure.core.errors import CheckpointError, TrainingDivergedError
from infrastructure.core.integers import ceil_div
from infrastructure.core.json_text import JsonValue
from infrastructure.core.messages import phrase
from infrastructure.models.preserve import preserve
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.checkpoints.save_schedule import SaveSchedule
from infrastructure.training.checkpoints.snapshot import Snapshot
from infrastructure.training.core.state import StopReason, TrainingState
from infrastructure.training.extensions.extension_hooks import Event, HookRunner
from infrastructure.training.hf_bridge.carried_state import CarriedState
from infrastructure.training.hf_bridge.reward_watch import RewardWatch
from infrastructure.training.hf_bridge.trainer_metrics import (
    StepClock,
    evaluation_of,
    numbers_of,
    over_all_processes,
)
from infrastructure.training.hf_bridge.trainer_state import TrainerParts, has_finite_weights
from infrastructure.training.loop.loss_judge import memory_in_use_bytes
from infrastructure.training.recovery.save_retry import SaveRetryPolicy

if TYPE_CHECKING:
    from transformers import TrainerControl


class SaveTiming:
    """A writer of the due checkpoints of one call of `Trainer.train`.

    A due checkpoint is written as soon as its step is completely done, including the evaluation;
    see `TrainerEvents`.

    Args:
        take: returns a snapshot that shares memory with the training; its argument is whether the
            training is finished.
        announce: called with each committed checkpoint.
        first: the checkpoint from which the run resumes.

    Attributes:
        first: the checkpoint from which the run resumed, or else the first one that it wrote.
        is_ending: the checkpoint that is due is the last one.
    """

    def __init__(
        self,
        versions: CheckpointManager,
        schedule: SaveSchedule,
        failures: SaveRetryPolicy,
        take: Callable[[bool], Snapshot],
        announce: Callable[[Path], None],
        first: Path | None = None,
    ) -> None:
        self.versions, self.schedule, self.failures = versions, schedule, failures
        self.take, self.announce, self.first = take, announce, first
        self.due: SaveKind | None = None
        self.is_ending = False
        self._newest = first

    @property
    def kept_step(self) -> int:
        """The step of the newest committed checkpoint; 0 if there is none, -1 if it is
        unreadable.
        """
        try:
            return 0 if self._newest is None else step_of(self._newest)
        except (CheckpointError, OSError):
            return -1

    def request(self, kind: SaveKind) -> None:
        """Mark a checkpoint as due. If one is already due, its kind is unchanged."""
        self.due = self.due or kind

    def request_by_clock(self, step: int) -> None:
        """Mark a checkpoint as due if the schedule requires one or if a failed save must be
        repeated.
        """
        kind = self.schedule.kind_due(step)
        if kind is not None or self.failures.is_retry_due:
            self.request(kind or SaveKind.SCHEDULED)

    def save(self, state: TrainingState) -> None:
        """Write the checkpoint that is due, if any; a large one in the background.

        Raises:
            TrainingDivergedError: the weights are no longer finite. They are saved for inspection,
                but never resumed from.
            StorageError: the disk has failed too often.
        """
        kind, self.due = self.due, None
        if kind is None:
            return
        started = time.perf_counter()
        snapshot = self.take(self.is_ending and not state.is_cut_short)
        if not has_finite_weights(snapshot):
            raise self._diverged(state, snapshot)
        with self.failures.tolerated(state):
            self.versions.begin(snapshot, kind=kind, score=state.score)
        self.schedule.note_save(state.step, time.perf_counter() - started)

    def _diverged(self, state: TrainingState, snapshot: Snapshot) -> TrainingDivergedError:
        with self.failures.tolerated(state):
            self.versions.save(snapshot, kind=SaveKind.EMERGENCY, healthy=False)
        newest = step_of(self.versions.newest())
        return TrainingDivergedError(
            phrase("trainer.weights_not_finite", step=state.step, newest=newest)
        )

    def collect(self, state: TrainingState, wait: bool = False) -> None:
        """Announce checkpoints that were committed since the last call.

        A checkpoint is not announced before it is committed, because writing it may fail.
        """
        committed: list[Path] = []
        with self.failures.tolerated(state):
            committed = self.versions.collect(wait)
        for checkpoint in committed:
            self.failures.reset()
            self.first = self.first or checkpoint
            self._newest = checkpoint
            self.announce(checkpoint)

    def finish(self, state: TrainingState) -> None:
        """Wait until the current write ends. If saving a checkpoint failed, try once more."""
        self.collect(state, wait=True)
        if self.failures.count:
            self.request(SaveKind.SCHEDULED)
            self.save(state)
            self.collect(state, wait=True)


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


BATCH_ROWS = 1000
FIRST_ROWS = 16


class EvaluatedRows:
    """A reader of hashes of evaluation datasets, which caches the hash of the latest dataset.

    Args:
        device: the device of the training, whose random state is preserved.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._dataset: object = None
        self._identity: str | None = None

    def identity_of(self, dataset: Any) -> str | None:
        """Return a hash of all rows in order.

        None if that is impossible: for a stream, or for a dataset that returns a different row each
        time.
        """
        if dataset is not None and dataset is not self._dataset:
            with preserve(random=self.device):
                self._identity = _identity_of(dataset)
            self._dataset = dataset
        return self._identity if dataset is not None else None


def _identity_of(dataset: Any) -> str | None:
    try:
        num_rows = len(dataset)
    except TypeError:
        return None
    first = [_spelt(dataset[index]) for index in range(min(FIRST_ROWS, num_rows))]
    if first != [_spelt(dataset[index]) for index in range(len(first))]:
        return None
    digest = hashlib.sha256()
    for text in _texts(dataset, num_rows):
        digest.update(text.encode())
    return digest.hexdigest()


def _texts(dataset: Any, num_rows: int) -> Iterator[str]:
    """Yield all rows as text; a `datasets` table in batches."""
    if hasattr(dataset, "iter"):
        yield from map(_spelt, dataset.iter(BATCH_ROWS))
    else:
        yield from (_spelt(dataset[index]) for index in range(num_rows))


def _spelt(value: object) -> str:
    """Return a row or a value as text. Different content gives different text."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"{value.dtype}{value.tolist()}"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key!s}:{_spelt(value[key])}' for key in sorted(value, key=str))}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_spelt, value))}]"
    return repr(value)
