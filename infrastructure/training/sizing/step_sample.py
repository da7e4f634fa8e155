"""Measurement of a sample of a run's steps: their time, and the memory that they keep.

A micro-batch of a new size takes longer than later ones of that size. On a CPU in half precision it
also keeps memory: oneDNN compiles a kernel of about half a megabyte for each layer, keeps some
hundred kernels, and fragments the heap between them. So times are measured on sizes that occurred
before, and the predicted memory grows with the number of sizes still to come.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from infrastructure.optimization.kernel_caches import BYTES_OF_A_KERNEL, KEPT_KERNELS
from infrastructure.optimization.memory_prediction import MemoryLine
from infrastructure.training.model_adapters.base_adapter import ModelAdapter
from infrastructure.training.sizing.dry_run import DryRunStep

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
