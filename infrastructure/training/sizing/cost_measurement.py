"""Measurement of a run's memory and time before it starts, with its own model and rows."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import cycle, islice

import numpy as np
import torch

from infrastructure.core.integers import ceil_div
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.models.preserve import preserve
from infrastructure.monitoring.drawing.formatting import format_bytes
from infrastructure.optimization.batch_size import (
    BatchChoice,
    BatchSizeSearch,
    DoesNotFitError,
)
from infrastructure.optimization.device_errors import free_memory
from infrastructure.optimization.kernel_caches import BYTES_OF_A_KERNEL, KEPT_KERNELS
from infrastructure.optimization.memory_prediction import (
    MemoryBudget,
    MemoryLine,
    MemoryPoint,
    fit_line,
)
from infrastructure.optimization.optimizer_memory import optimizer_state_bytes
from infrastructure.optimization.peak_memory import PeakMemory, peak_memory
from infrastructure.training.checkpoints.checkpoint_manager import BACKGROUND_BYTES
from infrastructure.training.forward.gradient_accumulation import one_step
from infrastructure.training.model_adapters.base_adapter import DataSource, ModelAdapter
from infrastructure.training.sizing.batch_plan import BatchPlan
from infrastructure.training.strategies.base_strategy import TrainingStrategy
from infrastructure.training.strategies.trial import first_step

# Dry runs: real steps on real rows, for measurements that leave the run unchanged.
#
# Weights, buffers and random state are the same afterwards. Gradients are discarded, and the
# optimizer is a separate one with a learning rate of zero. So a dry run does not change the result
# of the run.


@dataclass(frozen=True)
class MicroCost:
    """The cost of the forward and backward pass of one micro-batch.

    Attributes:
        num_tokens: number of tokens as the adapter counts them, without padding.
        peak_bytes: peak memory during the pass.
    """

    num_tokens: int
    seconds: float
    peak_bytes: int


@dataclass
class DryRunStep:
    """A measurement of the parts of an optimizer step. Use it inside `dry_run`.

    Attributes:
        optimizer: a separate optimizer, because the measurement performs steps with it.
        accumulates: True if gradients accumulate over micro-batches, so they take memory.
    """

    model: torch.nn.Module
    adapter: ModelAdapter
    strategy: TrainingStrategy
    optimizer: torch.optim.Optimizer
    accumulates: bool = False

    @property
    def is_half_precision(self) -> bool:
        """True if matrix products are computed in bf16 or fp16."""
        return self.strategy.precision.name != "fp32"

    def micro_batch(self, examples: Sequence[object]) -> MicroCost:
        """Run a forward and a backward pass as in training, and return their cost."""
        device = self.adapter.device
        if not self.accumulates:
            self.optimizer.zero_grad()
        with peak_memory(device) as peak:
            started = _now(device)
            one_step(self.model, self.adapter, self.strategy, self.optimizer, examples)
            seconds = _now(device) - started
            return MicroCost(self.adapter.count_tokens(examples), seconds, peak.read())

    def update(self) -> float:
        """Return the measured seconds of gradient clipping and of the optimizer's step.

        The first call allocates the optimizer's state. The weights do not change, because gradients
        and learning rates are zero.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
            for parameter in group["params"]:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad.zero_()
        started = _now(self.adapter.device)
        self.strategy.update_parameters(self.model, self.optimizer, None, None)
        return _now(self.adapter.device) - started

    @torch.no_grad()
    def evaluation(self, examples: Sequence[object]) -> MicroCost:
        """Compute the held-out loss of one batch, and return the cost."""
        device = self.adapter.device
        self.optimizer.zero_grad()
        self.model.eval()
        with peak_memory(device) as peak:
            started = _now(device)
            batch = self.adapter.prepare_batch(examples)
            with self.strategy.precision.autocast():
                self.adapter.compute_loss(self.model, batch)
            seconds = _now(device) - started
            cost = MicroCost(self.adapter.count_tokens(examples), seconds, peak.read())
        self.model.train()
        return cost


@contextmanager
def dry_run(model: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Put the model into training mode without gradients.

    On exit, its modes, gradients and buffers and the random state are restored, and unused memory
    is released. Weights are not restored, so the caller must not change them.
    """
    try:
        with preserve(model, random=device, modes=True, gradients=True, buffers=True):
            model.train()
            yield
    finally:
        free_memory(device)


def _now(device: torch.device) -> float:
    """Return the current time, after waiting for the device to finish its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


# Measurement of a sample of a run's steps: their time, and the memory that they keep.
#
# A micro-batch of a new size takes longer than later ones of that size. On a CPU in half precision
# it also keeps memory: oneDNN compiles a kernel of about half a megabyte for each layer, keeps some
# hundred kernels, and fragments the heap between them. So times are measured on sizes that occurred
# before, and the predicted memory grows with the number of sizes still to come.

# The share of a run that its measurement may take, and the maximum. In a short run a few
# micro-batches are a large share, and fewer of them would not be informative.
SHARE_OF_TRAINING, SHARE_OF_A_SHORT_ONE = 0.005, 0.1
SHORT_SECONDS, MOST_SECONDS = 0.2, 4.0
# Share of the times dropped at either end: a hiccup of the machine must not count for a thousand
# steps.
LEFT_OUT = 0.1
# Micro-batches whose sizes are drawn; more of them have hardly any new sizes.
MOST_DRAWN = 2048
# The maximum memory that the kernels of a size keep, fragmentation included: a layer, a LoRA next
# to it and the head have some 26 shapes (measured: 3 to 20 MB). Then the maximum of all sizes.
MOST_BYTES_OF_A_SIZE = 32 * BYTES_OF_A_KERNEL
MOST_BYTES_OF_ALL = KEPT_KERNELS * BYTES_OF_A_KERNEL

Size = tuple[str, int]


@dataclass
class StepSample:
    """A measurement of the costs of some micro-batches.

    Attributes:
        line: predicts the memory of a micro-batch from its units.
        accumulation: micro-batches per step.
        has_update: True if the temporary optimizer may perform steps.
        seen: sizes that have occurred.
        excess_bytes: for each micro-batch, the memory beyond the prediction, and the number of
            different sizes up to then.
    """

    probe: DryRunStep
    line: MemoryLine
    accumulation: int = 1
    has_update: bool = True
    seen: set[Size] = field(default_factory=set)
    excess_bytes: list[tuple[int, int]] = field(default_factory=list)
    unit_seconds: list[float] = field(default_factory=list)
    first_unit_seconds: list[float] = field(default_factory=list)
    update_seconds: list[float] = field(default_factory=list)

    def take(self, batches: Iterable[Sequence[object]], num_steps: int) -> None:
        """Run micro-batches in training order, for a small share of the run's time.

        Args:
            batches: the micro-batches; at least two are run, and more until the time is used up.
            num_steps: number of steps of the run.
        """
        began, estimated_seconds = time.perf_counter(), 0.0
        for number, examples in enumerate(batches, start=1):
            seconds = self._micro_batch(examples)
            if self.has_update and number % self.accumulation == 0:
                self.update_seconds.append(self.probe.update())
            if number > 1:
                of_training = num_steps * self.accumulation * seconds
                estimated_seconds = min(estimated_seconds or of_training, of_training)
                if time.perf_counter() - began > allowed_seconds(estimated_seconds):
                    break

    @property
    def seconds_per_unit(self) -> float:
        """The mean seconds per unit, measured on repeated sizes if there are any."""
        return _middle_mean(self.unit_seconds or self.first_unit_seconds)

    @property
    def seconds_per_update(self) -> float:
        return _middle_mean(self.update_seconds) if self.update_seconds else 0.0

    def bytes_kept(self, num_sizes: int) -> int:
        """Predict how much memory beyond `line` a run with `num_sizes` different sizes keeps."""
        first, first_sizes = self.excess_bytes[0]
        highest = max(excess for excess, _ in self.excess_bytes)
        if not self.compiles_kernels:
            return max(0, highest)
        further = max(1, len(self.seen) - first_sizes)
        by_size = min((highest - first) / further, MOST_BYTES_OF_A_SIZE)
        to_come = max(0, num_sizes - len(self.seen))
        return round(max(0, highest) + min(by_size * to_come, MOST_BYTES_OF_ALL))

    @property
    def compiles_kernels(self) -> bool:
        """True if kernels are compiled for each new size and stay in memory."""
        return self.probe.adapter.device.type == "cpu" and self.probe.is_half_precision

    def _micro_batch(self, examples: Sequence[object]) -> float:
        adapter = self.probe.adapter
        sizes = sizes_of(adapter, examples)
        units = adapter.count_computed(examples)
        cost = self.probe.micro_batch(examples)
        times = self.unit_seconds if sizes <= self.seen else self.first_unit_seconds
        times.append(cost.seconds / units)
        self.seen |= sizes
        excess = cost.peak_bytes - self.line.peak_bytes(units)
        self.excess_bytes.append((excess, len(self.seen)))
        return cost.seconds


def allowed_seconds(training_seconds: float) -> float:
    """Return how many seconds a measurement may take, given the duration of the run."""
    of_a_short_one = min(SHARE_OF_A_SHORT_ONE * training_seconds, SHORT_SECONDS)
    return min(max(SHARE_OF_TRAINING * training_seconds, of_a_short_one), MOST_SECONDS)


def sizes_of(adapter: ModelAdapter, examples: Sequence[object]) -> set[Size]:
    """Return the sizes of a micro-batch that determine the shapes of tensors in layers and head."""
    rows = adapter.size_grid.rows_up(adapter.count_items(examples))
    return {("units", adapter.count_computed(examples)), ("items", rows)}


def num_sizes(units: np.ndarray, items: np.ndarray, adapter: ModelAdapter) -> int:
    """Return the number of different sizes among micro-batches.

    Args:
        units, items: computed tokens and supervised tokens of each micro-batch, (N,).
    """
    return len(np.unique(units)) + len(
        {adapter.size_grid.rows_up(int(n)) for n in np.unique(items)}
    )


def _middle_mean(times: list[float]) -> float:
    """Return the mean without the slowest and the fastest value."""
    left_out = int(len(times) * LEFT_OUT)
    kept = sorted(times)[left_out : len(times) - left_out]
    return sum(kept) / len(kept)


SAMPLE_ROWS = 256
# Minimum number of usual rows to measure a speed with.
SPEED_ROWS = 8
# Parts of a micro-batch from which its memory is predicted; the last two that fit give the line.
# With gradient checkpointing the smallest part peaks elsewhere in a step than a whole one does.
SHARES = (8, 4, 2)
# A run of fewer steps is too short for the measurement of a whole one to pay off.
STEPS_WORTH_A_WHOLE_ONE = 20
# Work of the loop between two steps: positions, random states, hooks, records. Measured.
LOOP_SECONDS = 0.002
# Memory for saving in the background, besides the copy: measured by benchmarks/memory_prediction.
SAVING_BYTES = 64 << 20


@dataclass(frozen=True)
class StepCosts:
    """The memory and time of a run's steps on this machine.

    The *units* of a micro-batch are its tokens with padding: their total if rows are packed,
    otherwise rows times the longest row.

    Attributes:
        memory: predicts the peak memory of a step from the units of its micro-batch.
        heaviest_units: units of the largest micro-batch of the first epoch.
        longest_units: units of the longest example.
        copy_bytes: memory for copying the state during a background save; part of the peak.
        kept_bytes: memory that libraries will keep for all sizes of micro-batches; part of the
            peak.
        step_seconds: time of an optimizer step with typical rows.
        evaluation_seconds: mean time of evaluating one held-out example.
        limit_bytes: the memory available to this process.
    """

    memory: MemoryLine
    heaviest_units: int
    longest_units: int
    copy_bytes: int
    step_seconds: float
    evaluation_seconds: float
    limit_bytes: int
    kept_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        """The predicted peak memory of the run in bytes."""
        return self.memory.peak_bytes(self.heaviest_units) + self.copy_bytes + self.kept_bytes

    def largest_that_fits(self, wanted: int) -> int:
        """Return the largest micro-batch size that fits into memory whatever the rows are, by
        halving `wanted`.

        Return 0 if not even one example fits.
        """
        size = wanted
        while size and self.peak_of(size) > self.limit_bytes:
            size //= 2
        return size

    def peak_of(self, size: int) -> int:
        """Return the predicted peak memory in bytes for micro-batches of `size`, with the longest
        rows.
        """
        units = min(size * self.longest_units, self.heaviest_units)
        return self.memory.peak_bytes(units) + self.copy_bytes + self.kept_bytes


@dataclass
class CostMeasurement:
    """A measurement of the costs of a run that is prepared but not started.

    Attributes:
        create_optimizer: creates a temporary optimizer for the model.
        budget: the memory that may be used.
        epochs: for each stage of the training, the lengths of one epoch's examples in order. None:
            every epoch is like the first one.
    """

    model: torch.nn.Module
    adapter: ModelAdapter
    strategy: TrainingStrategy
    data: DataSource
    create_optimizer: Callable[[], torch.optim.Optimizer]
    budget: MemoryBudget
    epochs: Sequence[np.ndarray] | None = None

    @cached_property
    def usual(self) -> list[object]:
        """The first examples of the first epoch."""
        size = min(SAMPLE_ROWS, self.data.num_examples)
        with closing(self.data.train_batches(0, 0, size)) as batches:
            return list(next(batches, ()))

    def longest(self, count: int) -> list[object]:
        """Return `count` examples as long as the longest one, including held-out ones."""
        example = max(self.usual, key=lambda one: self.adapter.count_tokens([one]))
        report = getattr(self.data, "report", None)
        return [lengthened(example, getattr(report, "longest", 0))] * count

    def search(
        self, largest: int, accumulation_for: Callable[[int], int], beside: int | None = None
    ) -> BatchChoice:
        """Return the fastest micro-batch size that fits, up to `largest` examples.

        Args:
            beside: a size to prefer unless another size is clearly faster.

        Raises:
            DoesNotFitError: not even one example fits.
        """
        with self.strategy.measuring(self.model):
            return self._search(largest, accumulation_for, beside)

    def _search(
        self, largest: int, accumulation_for: Callable[[int], int], beside: int | None
    ) -> BatchChoice:
        device = self.adapter.device
        before = self.fixed_bytes()
        with self.probing(accumulates=True) as probe:
            speeds = SpeedTrials(probe, self.usual, accumulation_for)
            search = BatchSizeSearch(
                peak_of=lambda size: self._worst_peak(probe, size),
                speed_of=speeds.tokens_per_second,
                budget_bytes=self.budget.size_bytes(device),
                idle_bytes=before,
                free_memory=lambda: free_memory(device),
                way_out=self.budget.way_out(device),
            )
            return search.run(largest, beside)

    def costs(self, plan: BatchPlan, total_steps: int, has_optimizer: bool = False) -> StepCosts:
        """Measure a few micro-batches, and return the costs of the planned run's steps.

        Args:
            has_optimizer: the run's own optimizer already has its state, so a second one may not
                fit into memory.

        Raises:
            DoesNotFitError: not even weights, gradients and optimizer fit.
        """
        with self.strategy.measuring(self.model):
            return self._costs(plan, total_steps, has_optimizer)

    def _costs(self, plan: BatchPlan, total_steps: int, has_optimizer: bool) -> StepCosts:
        limit = self.budget.limit_bytes(self.adapter.device)
        self._refuse_if_fixed_exceeds(limit, has_optimizer)
        size, accumulation = min(plan.micro_batch_size, len(self.usual)), plan.gradient_accumulation
        units = self.heaviest_units(plan.micro_batch_size)
        with self.probing(accumulates=accumulation > 1) as probe:
            update_seconds = self._warm_up(probe, has_optimizer)
            idle = PeakMemory(self.adapter.device).now()
            copy_bytes = self._copy_bytes(probe)
            line, seconds = self._small_steps(probe, size, idle, limit - copy_bytes)
            evaluated, kept_bytes = max(1, size // SHARES[0]), 0
            fits = line.peak_bytes(units) + copy_bytes <= limit
            if fits and total_steps >= STEPS_WORTH_A_WHOLE_ONE and size > 1:
                sample = StepSample(probe, line, accumulation, has_update=not has_optimizer)
                with closing(self._epoch_again(size)) as batches:
                    sample.take(batches, total_steps)
                drawn = self._drawn(size, total_steps * accumulation)
                seconds = sample.seconds_per_unit * float(drawn[0].mean())
                update_seconds = sample.seconds_per_update + LOOP_SECONDS
                if self.adapter.device.type == "cpu":
                    kept_bytes = sample.bytes_kept(num_sizes(*drawn, self.adapter))
                evaluated = size
            evaluation = probe.evaluation(self.usual[:evaluated])
        step_seconds = accumulation * seconds * plan.micro_batch_size / size
        return StepCosts(
            memory=line,
            heaviest_units=units,
            longest_units=self.units(self.longest(1)),
            copy_bytes=copy_bytes,
            step_seconds=step_seconds + update_seconds,
            evaluation_seconds=evaluation.seconds / evaluated,
            limit_bytes=limit,
            kept_bytes=kept_bytes,
        )

    def _warm_up(self, probe: DryRunStep, has_optimizer: bool) -> float:
        """Let libraries and optimizer allocate their memory; return the seconds of an optimizer
        step.
        """
        probe.micro_batch(self.usual[:1])
        if has_optimizer:
            return 0.0
        probe.update()
        return probe.update()

    def _refuse_if_fixed_exceeds(self, limit_bytes: int, has_optimizer: bool) -> None:
        needed = PeakMemory(self.adapter.device).now() if has_optimizer else self.fixed_bytes()
        if needed > limit_bytes:
            raise DoesNotFitError(
                "training.weights_exceed_memory",
                needed=format_bytes(needed),
                available=format_bytes(limit_bytes),
                way_out=self.budget.way_out(self.adapter.device),
            )

    @contextmanager
    def probing(self, accumulates: bool) -> Iterator[DryRunStep]:
        """Yield an object for dry runs with a temporary optimizer; restore the training state on
        exit.
        """
        with dry_run(self.model, self.adapter.device):
            optimizer = self.create_optimizer()
            with first_step(self.strategy, self.model, optimizer, self.usual[:1]) as strategy:
                yield DryRunStep(self.model, self.adapter, strategy, optimizer, accumulates)
            optimizer.state.clear()

    def _small_steps(
        self, probe: DryRunStep, size: int, idle_bytes: int, limit_bytes: int
    ) -> tuple[MemoryLine, float]:
        """Predict memory and seconds of a whole micro-batch from measurements of smaller
        micro-batches.

        A size is tried only if it is predicted to fit. The seconds are predicted from the largest
        tried size.
        """
        points: list[MemoryPoint] = []
        seconds = 0.0
        for count in dict.fromkeys(max(1, size // share) for share in SHARES):
            examples = self.usual[:count]
            units = self.units(examples)
            if points and fit_line(points[-2:], idle_bytes).peak_bytes(units) > limit_bytes:
                break
            if self.strategy.config.compile_mode is not None:
                probe.micro_batch(examples)  # compiles
            cost = probe.micro_batch(examples)
            points.append(MemoryPoint(units, cost.peak_bytes))
            seconds = cost.seconds * size / count
        return fit_line(points[-2:], idle_bytes), seconds

    def _worst_peak(self, probe: DryRunStep, size: int) -> int:
        """Measure the peak memory of training and evaluating with the longest rows.

        The result includes the optimizer's state, accumulated gradients, and the copy of the state
        for saving.
        """
        if not probe.optimizer.state:
            probe.micro_batch(self.longest(1))
            probe.update()
        examples = self.longest(size)
        trained, evaluated = probe.micro_batch(examples), probe.evaluation(examples)
        return max(trained.peak_bytes, evaluated.peak_bytes) + self._copy_bytes(probe)

    def fixed_bytes(self) -> int:
        """Return the memory in use now, plus that of future gradients and optimizer state, in
        bytes.
        """
        trained = [p for p in self.model.parameters() if p.requires_grad]
        states = optimizer_state_bytes(
            lambda samples: self.strategy.create_optimizer(samples, 0.0),
            self.model,
            self.adapter.device.type,
        )
        return PeakMemory(self.adapter.device).now() + sum(map(_size_bytes, trained)) + states

    def _copy_bytes(self, probe: DryRunStep) -> int:
        """Return the bytes that a background save needs for its copy of the state.

        The number is 0 on a GPU, and for a small state, which is saved without a copy.
        """
        if self.adapter.device.type != "cpu":
            return 0
        states = [value for state in probe.optimizer.state.values() for value in state.values()]
        tensors = [value for value in states if isinstance(value, torch.Tensor)]
        trained = [p for p in self.model.parameters() if p.requires_grad]
        size_bytes = sum(map(_size_bytes, [*tensors, *trained]))
        return size_bytes + SAVING_BYTES if size_bytes >= BACKGROUND_BYTES else 0

    def units(self, examples: Sequence[object]) -> int:
        """Return the tokens (or rows) that determine a micro-batch's memory; see `StepCosts`."""
        return self.adapter.count_computed(examples)

    def heaviest_units(self, size: int) -> int:
        """Return the units of the largest micro-batch of `size` examples in any stage.

        If the examples' lengths are unknown, those of the sample are used.
        """
        return max(self._heaviest_of(lengths, size) for lengths in self._stages)

    def _heaviest_of(self, lengths: np.ndarray, size: int) -> int:
        size = min(size, len(lengths))
        lengths = np.resize(lengths, ceil_div(len(lengths), size) * size).reshape(-1, size)
        return int(self._units_of(lengths).max())

    @property
    def _stages(self) -> Sequence[np.ndarray]:
        return [self._lengths] if self.epochs is None else self.epochs

    @cached_property
    def _lengths(self) -> np.ndarray:
        """The token counts of the examples of the first epoch; of the sample if they are
        unknown.
        """
        known = getattr(self.data, "lengths", None)
        lengths = known() if known is not None else None
        if lengths is None:
            lengths = np.array([self.adapter.count_tokens([one]) for one in self.usual])
        return lengths

    def _units_of(self, lengths: np.ndarray) -> np.ndarray:
        """Return the units of micro-batches, (N,), from the lengths of their examples, (N, B)."""
        up = np.vectorize(self.adapter.size_grid.up, otypes=[np.int64])
        if getattr(self.adapter, "packs", False):
            return np.asarray(up(lengths.sum(axis=1)))
        return np.asarray(lengths.shape[1] * up(lengths.max(axis=1)))

    def _drawn(self, size: int, num_micro_batches: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw random micro-batches, and return their units and supervised items, (N,) each.

        They are drawn from several epochs, because the first epoch alone does not contain all
        combinations of lengths.
        """
        generator = np.random.default_rng(0)  # separate: keeps the training's random state
        shape = (min(num_micro_batches, MOST_DRAWN), size)
        items = np.array([self.adapter.count_items([one]) for one in self.usual])
        stages = self._stages
        parts = np.array_split(np.arange(shape[0]), len(stages))
        drawn = [
            self._units_of(generator.choice(lengths, (len(part), size)))
            for lengths, part in zip(stages, parts, strict=True)
            if len(part)
        ]
        units = np.concatenate(drawn)
        return units, generator.choice(items, shape).sum(axis=1)

    def _epoch_again(self, size: int) -> Generator[Sequence[object], None, None]:
        """Yield the micro-batches of the first epoch again and again."""
        while True:
            with closing(self.data.train_batches(0, 0, size)) as batches:
                yield from batches


@dataclass
class SpeedTrials:
    """A measurement of the tokens per second of optimizer steps, by micro-batch size."""

    probe: DryRunStep
    usual: Sequence[object]
    accumulation_for: Callable[[int], int]

    def tokens_per_second(self, size: int) -> float:
        """Measure the speed with typical rows, including a share of the optimizer step."""
        count = ceil_div(max(size, SPEED_ROWS), size)
        rows = list(islice(cycle(self.usual), count * size))
        costs = [self.probe.micro_batch(rows[i * size : (i + 1) * size]) for i in range(count)]
        num_tokens = sum(cost.num_tokens for cost in costs)
        updates = self.probe.update() * count / self.accumulation_for(size)
        return num_tokens / (sum(cost.seconds for cost in costs) + updates)


def lengthened(example: object, length: int) -> object:
    """Repeat the tokens of a text example up to `length`; return other examples unchanged."""
    if not isinstance(example, TokenizedExample) or length <= len(example.input_ids):
        return example
    return replace(
        example,
        input_ids=np.resize(example.input_ids, length).astype(np.int32),
        supervised=np.resize(example.supervised, length).astype(np.bool_),
    )


def _size_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
