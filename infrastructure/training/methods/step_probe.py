"""Measurement of the time and memory of a TRL trainer's steps, before the first step.

A few of TRL's own steps run on the run's own rows: forward, backward, and the answers that are
generated and scored. Only the optimizer is replaced, by one with a learning rate of 0, so that the
measurement does not change the run's result (see `untouched`). User-defined reward functions are
really called.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from infrastructure.core.integers import ceil_div
from infrastructure.core.messages import phrase
from infrastructure.models.preserve import preserve
from infrastructure.optimization.batch_size import DoesNotFitError
from infrastructure.optimization.device_errors import free_memory, is_out_of_memory
from infrastructure.optimization.memory_prediction import MemoryPoint, fit_line
from infrastructure.optimization.optimizer_memory import CreateOptimizer
from infrastructure.optimization.peak_memory import peak_memory

# A run with fewer steps is too short for more than the minimum measurement.
STEPS_WORTH_MORE = 20
# The measurement may take this share of the run's time, and at most this many seconds.
SHARE_OF_TRAINING = 0.03
MOST_SECONDS = 6.0
# Micro-batches that are drawn to find the heaviest one.
MOST_DRAWN = 2048
# The fewest rows of a micro-batch, because KTO compares rows with each other.
FEWEST_ROWS = 2


@dataclass(frozen=True)
class ProbedCosts:
    """The measured costs of steps on this machine.

    Attributes:
        step_seconds: duration of an optimizer step.
        evaluation_seconds: duration of one pass over all held-out rows.
        peak_bytes: peak memory of the largest expected step or of an evaluation, whichever is more.
        limit_bytes: the memory that this process may use.
        writes: True if steps generate answers, which may become longer during the run.
    """

    step_seconds: float
    evaluation_seconds: float
    peak_bytes: int
    limit_bytes: int
    writes: bool


@dataclass
class StepProbe:
    """A measurement of a Trainer's steps, made just before the run starts or resumes.

    Args:
        trainer: a TRL trainer whose model, optimizer and accelerator are ready.
        writes: True if its steps generate answers.
        limit_bytes: the memory that this process may use.
    """

    trainer: Any
    writes: bool
    limit_bytes: int

    def __post_init__(self) -> None:
        self.device = torch.device(self.trainer.args.device)
        self.accumulation = int(self.trainer.args.gradient_accumulation_steps)
        self.peaks: list[int] = []
        self.update_seconds = 0.0

    def costs(self, steps_left: int) -> ProbedCosts:
        """Measure a few steps and one or two batches of held-out rows.

        Raises:
            DoesNotFitError: a step of this run needs more memory than is available.
        """
        try:
            with untouched(self.trainer), peak_memory(self.device) as idle:
                return self._costs(steps_left, idle.now())
        except DoesNotFitError:
            raise
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise DoesNotFitError(
                "methods.step_out_of_memory",
                remedies=phrase("methods.reduce_memory"),
            ) from error

    def _costs(self, steps_left: int, idle_bytes: int) -> ProbedCosts:
        loader = self.trainer.get_train_dataloader()
        self.trainer.current_gradient_accumulation_steps = self.accumulation
        if self.writes:
            seconds, points = self._whole_steps(loader, steps_left), list[MemoryPoint]()
        else:
            seconds, points = self._micro_batches(loader, steps_left, idle_bytes)
        evaluation = self._evaluation()
        heaviest = self._heaviest(loader, steps_left, points, idle_bytes) if points else 0
        return ProbedCosts(
            step_seconds=seconds + self.update_seconds,
            evaluation_seconds=evaluation,
            peak_bytes=max([*self.peaks, heaviest]),
            limit_bytes=self.limit_bytes,
            writes=self.writes,
        )

    def _whole_steps(self, loader: Any, steps_left: int) -> float:
        """Return the mean seconds of a step, including its share of the time to generate
        answers.
        """
        micro_batches = _reused_over(self.trainer, self.accumulation)
        batches = _again_and_again(loader)
        times, began = [], time.perf_counter()
        while True:
            seconds = sum(
                self._group(batches) for _ in range(ceil_div(micro_batches, self.accumulation))
            )
            times.append(seconds / ceil_div(micro_batches, self.accumulation))
            self._update()
            if self._is_enough(times, times[-1] * steps_left, steps_left, began):
                return _later_mean(times)

    def _micro_batches(
        self, loader: Any, steps_left: int, idle_bytes: int
    ) -> tuple[float, list[MemoryPoint]]:
        """Measure micro-batches; return the seconds of a step, and the memory for each micro-batch
        size.

        Half a micro-batch is measured first. A whole one is run only if it is predicted to fit.
        """
        batches = _again_and_again(loader)
        size = int(self.trainer.args.per_device_train_batch_size)
        points: list[MemoryPoint] = []
        if size // 2 >= FEWEST_ROWS:
            rows = range(min(size // 2, len(loader.dataset)))
            self._micro_batch(_collated(loader, rows), 1, points)
        self._update()
        times, began = [], time.perf_counter()
        while True:
            samples, count = self.trainer.get_batch_samples(batches, 1, self.device)
            if points:
                self._refuse_beyond(fit_line(points, idle_bytes).peak_bytes(_units(samples[0])))
            times.append(self._micro_batch(samples[0], count, points))
            num_steps = steps_left * self.accumulation
            if self._is_enough(times, times[-1] * num_steps, steps_left, began):
                return _later_mean(times) * self.accumulation, points

    def _is_enough(
        self, times: list[float], estimated: float, steps_left: int, began: float
    ) -> bool:
        """Return whether further measurements would take more time than they are worth."""
        if steps_left < STEPS_WORTH_MORE or times[-1] > MOST_SECONDS:
            return True
        allowed = min(SHARE_OF_TRAINING * estimated, MOST_SECONDS)
        return len(times) > 1 and time.perf_counter() - began > allowed

    def _group(self, batches: Iterator[Any]) -> float:
        """Return the total seconds of the micro-batches of one step."""
        samples, count = self.trainer.get_batch_samples(batches, self.accumulation, self.device)
        return sum(self._micro_batch(inputs, count) for inputs in samples)

    def _micro_batch(
        self, inputs: Any, count: Any, points: list[MemoryPoint] | None = None
    ) -> float:
        """Run a forward and a backward pass, record the peak memory, and return the seconds."""
        trainer = self.trainer
        units = _units(inputs)
        with peak_memory(self.device) as peak:
            started = self._now()
            trainer.training_step(trainer.model_wrapped, inputs, count)
            seconds = self._now() - started
            self.peaks.append(peak.read())
        if points is not None:
            points.append(MemoryPoint(units, self.peaks[-1]))
        return seconds

    def _update(self) -> None:
        """Measure gradient clipping and an optimizer step, with a separate optimizer.

        Nothing is done if the run's own optimizer already has its state.
        """
        trainer = self.trainer
        if trainer.optimizer.state:
            return  # a resumed run already has its optimizer state
        parameters = [p for p in trainer.model.parameters() if p.requires_grad]
        if not hasattr(self, "_optimizer"):
            self._optimizer = create_optimizer_of(trainer)(trainer.model)
        for group in self._optimizer.param_groups:
            group["lr"] = 0.0
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        with peak_memory(self.device) as peak:
            started = self._now()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            self._optimizer.step()
            self.update_seconds = self._now() - started
            self.peaks.append(peak.read())
        trainer.model.zero_grad()

    def _evaluation(self) -> float:
        """Return the seconds of evaluating all held-out rows, estimated from one or two batches."""
        trainer = self.trainer
        if trainer.eval_dataset is None:
            return 0.0
        trainer.model.zero_grad()
        loader = trainer.get_eval_dataloader()
        trainer.model.eval()
        times = []
        for inputs, _ in zip(loader, range(2), strict=False):
            with torch.no_grad(), peak_memory(self.device) as peak:
                started = self._now()
                trainer.prediction_step(trainer.model_wrapped, inputs, prediction_loss_only=True)
                times.append(self._now() - started)
                self.peaks.append(peak.read())
            if times[-1] > MOST_SECONDS:
                break
        trainer.model.train()
        return _later_mean(times) * len(loader)

    def _heaviest(
        self, loader: Any, steps_left: int, points: list[MemoryPoint], idle_bytes: int
    ) -> int:
        """Predict the peak memory of the micro-batch with the longest rows."""
        size = min(int(self.trainer.args.per_device_train_batch_size), len(loader.dataset))
        lengths = _lengths(loader.dataset)
        if lengths is None:
            return 0
        generator = np.random.default_rng(0)  # separate, so the run's random numbers are unchanged
        num_drawn = min(steps_left * self.accumulation, MOST_DRAWN)
        drawn = generator.integers(len(lengths), size=(max(1, num_drawn), size))
        heaviest = drawn[int(lengths[drawn].max(axis=1).argmax())]
        units = _units(_collated(loader, [int(i) for i in heaviest]))
        line = fit_line(points, idle_bytes)
        return max(line.peak_bytes(units), *(point.peak_bytes for point in points))

    def _refuse_beyond(self, peak_bytes: int) -> None:
        """Raise if a micro-batch is predicted to exceed the memory limit on a CPU.

        Otherwise the system would kill the process without an error message.
        """
        if self.device.type == "cpu" and peak_bytes > self.limit_bytes:
            needed, there = peak_bytes / 2**30, self.limit_bytes / 2**30
            raise DoesNotFitError(
                "methods.micro_batch_too_large",
                needed=needed,
                available=there,
                remedies=phrase("methods.reduce_memory"),
            )

    def _now(self) -> float:
        """Wait until the device has finished its work, and return the current time."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def create_optimizer_of(trainer: Any) -> CreateOptimizer:
    """Return a function that creates an optimizer of the Trainer's kind for a module."""
    optimizer_class, arguments = trainer.get_optimizer_cls_and_kwargs(trainer.args, trainer.model)

    def create(module: torch.nn.Module) -> torch.optim.Optimizer:
        trained = [p for _, p in module.named_parameters() if p.requires_grad]
        optimizer: torch.optim.Optimizer = optimizer_class(trained, **arguments)
        return optimizer

    return create


def steps_per_epoch(trainer: Any, loader: Any) -> int:
    """Return the optimizer steps of an epoch, as a Trainer counts them."""
    return max(1, ceil_div(len(loader), int(trainer.args.gradient_accumulation_steps)))


def _again_and_again(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def _reused_over(trainer: Any, accumulation: int) -> int:
    """Return for how many micro-batches generated answers are reused, rounded up to whole steps."""
    args = trainer.args
    shared = int(getattr(args, "steps_per_generation", None) or 1)
    shared *= int(getattr(args, "num_iterations", None) or 1)
    return ceil_div(max(shared, accumulation), accumulation) * accumulation


def _collated(loader: Any, rows: Sequence[int] | range) -> Any:
    return loader.collate_fn([loader.dataset[i] for i in rows])


def _units(inputs: Any) -> int:
    """Return the number of tokens of a micro-batch, with padding; or of rows if they have no
    tokens.
    """
    if not isinstance(inputs, dict) and not hasattr(inputs, "items"):
        return len(inputs)
    tokens = [
        value.numel()
        for value in inputs.values()
        if isinstance(value, torch.Tensor) and value.ndim == 2 and not value.is_floating_point()
    ]
    return sum(tokens)


def _lengths(dataset: Any) -> np.ndarray | None:
    """Return the number of tokens of each row, shape (N,); None if the rows are not tokenized."""
    first = dataset[0]
    columns = [name for name, value in first.items() if _is_tokens(value)]
    if not columns:
        return None
    return np.sum([[len(ids) for ids in dataset[name]] for name in columns], axis=0)


def _is_tokens(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], int)


def _later_mean(times: list[float]) -> float:
    """Return the mean of all values but the first, or the only value.

    The first measurement is left out because it is the slowest.
    """
    later = times[1:] or times
    return sum(later) / max(1, len(later))


# A context in which a Trainer's steps can be tried without changing its state.
#
# Weights are not restored, because the caller does not step the run's own optimizer.

Restore = Callable[[], None]

# Modules whose objects hold a Trainer's counters: its state, its accelerator, TRL's own helpers.
COUNTING = ("transformers.trainer", "accelerate.state", "accelerate.accelerator", "trl.")


@contextmanager
def untouched(trainer: Any) -> Iterator[None]:
    """Restore the Trainer's state at the end of the context, except for its weights.

    The random state, gradients, buffers and everything that the Trainer has counted, buffered or
    logged are restored exactly.

    Args:
        trainer: a transformers or TRL trainer, with its model and optimizer.
    """
    device = torch.device(trainer.args.device)
    restore = _attributes(trainer)
    try:
        with preserve(trainer.model, random=device, modes=True, gradients=True, buffers=True):
            yield
    finally:
        restore()
        free_memory(device)


def _attributes(trainer: Any) -> Restore:
    """Return a function that restores the current attributes of the Trainer and its objects."""
    seen: set[int] = {id(trainer)}
    restores = [_contents(vars(trainer), seen)]
    for value in [*vars(trainer).values(), trainer.accelerator.gradient_state]:
        counts = type(value).__module__.startswith(COUNTING) and hasattr(value, "__dict__")
        if counts and not isinstance(value, torch.nn.Module | type) and id(value) not in seen:
            seen.add(id(value))
            restores.append(_contents(vars(value), seen))

    def restore_all() -> None:
        for restore in restores:
            restore()

    return restore_all


def _contents(container: Any, seen: set[int]) -> Restore:
    """Return a function that restores the current contents of a container and nested ones.

    The containers stay the same objects, because others hold references to them.
    """
    seen.add(id(container))
    values = list(container.values()) if isinstance(container, dict) else list(container)
    within = [
        _contents(value, seen)
        for value in values
        if isinstance(value, dict | list | set | deque) and id(value) not in seen
    ]
    was = dict(container) if isinstance(container, dict) else list(container)

    def restore() -> None:
        container.clear()
        if isinstance(container, dict | set):
            container.update(was)
        else:
            container.extend(was)
        for one in within:
            one()

    return restore
