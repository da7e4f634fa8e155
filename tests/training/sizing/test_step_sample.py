"""What a few steps beforehand say of all: the usual time, and what all sizes will leave."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.optimization.memory_prediction import MemoryLine
from infrastructure.optimization.size_grid import SizeGrid
from infrastructure.training.sizing.dry_run import MicroCost
from infrastructure.training.sizing.step_sample import (
    MOST_BYTES_OF_A_SIZE,
    MOST_BYTES_OF_ALL,
    StepSample,
    allowed_seconds,
    num_sizes,
)
from tests.training.small_runs import small_trainer

FIRST_SECONDS, USUAL_SECONDS = 5.0, 0.1
KERNEL_BYTES = 3 << 20


class CompilingProbe:
    """Of a training whose micro-batches are lists of token counts: the first of a size compiles."""

    def __init__(self, is_half_precision: bool = True) -> None:
        self.is_half_precision = is_half_precision
        self.seen: set[int] = set()
        self.adapter: Any = SimpleNamespace(
            device=torch.device("cpu"),
            size_grid=SizeGrid.SIXTEENTHS,
            count_computed=lambda examples: SizeGrid.SIXTEENTHS.up(sum(examples)),
            count_items=lambda examples: 8,
        )

    def micro_batch(self, examples: Sequence[int]) -> MicroCost:
        size = self.adapter.count_computed(examples)
        is_first = size not in self.seen
        self.seen.add(size)
        peak_bytes = 1000 + KERNEL_BYTES * len(self.seen)
        return MicroCost(sum(examples), FIRST_SECONDS if is_first else USUAL_SECONDS, peak_bytes)

    def update(self) -> float:
        return 0.001


def sampled(probe: Any, batches: list[list[int]]) -> StepSample:
    sample = StepSample(probe, MemoryLine(1000.0, 0.0))
    sample.take(batches, num_steps=10**9)
    return sample


def test_what_the_first_of_a_size_takes_is_not_taken_for_the_usual_time() -> None:
    sample = sampled(CompilingProbe(), [[64], [72], [64], [72]])
    assert sample.seconds_per_unit == pytest.approx(USUAL_SECONDS * (1 / 64 + 1 / 72) / 2)
    assert sample.seconds_per_update == pytest.approx(0.001)


def test_where_no_size_comes_twice_the_usual_time_is_that_of_new_ones() -> None:
    sample = sampled(CompilingProbe(), [[64], [72], [80]])
    assert sample.seconds_per_unit == pytest.approx(
        FIRST_SECONDS * np.mean([1 / 64, 1 / 72, 1 / 80])
    )


def test_one_hiccup_is_not_in_the_usual_time() -> None:
    sample = sampled(CompilingProbe(), [[64]] * 21)
    sample.unit_seconds[7] = 100.0
    assert sample.seconds_per_unit == pytest.approx(USUAL_SECONDS / 64)


def test_what_is_kept_for_a_size_is_counted_for_those_that_are_to_come() -> None:
    sample = sampled(CompilingProbe(), [[64], [72], [64], [80]])
    sizes_seen = 4  # three of the layers, and one of the output head
    assert sample.bytes_kept(sizes_seen) == 3 * KERNEL_BYTES
    assert sample.bytes_kept(sizes_seen + 5) == 8 * KERNEL_BYTES
    assert sample.bytes_kept(0) == 3 * KERNEL_BYTES  # never less than there was
    assert sample.bytes_kept(10**6) == 3 * KERNEL_BYTES + MOST_BYTES_OF_ALL


def test_no_leap_of_a_heap_is_taken_for_the_kernels_of_a_size() -> None:
    sample = sampled(CompilingProbe(), [[64], [72]])
    first, highest = 0, 1 << 30
    sample.excess_bytes = [(first, 2), (highest, 3)]
    assert sample.bytes_kept(3 + 2) == highest + 2 * MOST_BYTES_OF_A_SIZE


def test_in_full_precision_what_a_heap_happened_to_grow_by_is_not_counted_on() -> None:
    sample = sampled(CompilingProbe(is_half_precision=False), [[64], [72], [64]])
    assert sample.bytes_kept(100) == 2 * KERNEL_BYTES


def test_a_measurement_takes_a_small_share_of_the_training() -> None:
    probe: Any = CompilingProbe()
    sample = StepSample(probe, MemoryLine(1000.0, 0.0))
    sample.take([[64]] * 100, num_steps=0)
    assert len(sample.unit_seconds) + len(sample.first_unit_seconds) == 2


def test_sizes_are_those_that_differ_once_they_are_rounded() -> None:
    adapter: Any = SimpleNamespace(size_grid=SizeGrid.SIXTEENTHS)
    assert num_sizes(np.array([64, 64, 72]), np.array([1, 7, 8, 9]), adapter) == 2 + 2


def test_the_sizes_to_come_are_about_those_that_all_epochs_have(
    saved_llama: Path, tmp_path: Path
) -> None:
    trainer = small_trainer(saved_llama, tmp_path)
    fit, size, seen = trainer.cost_measurement(), 4, list[int]()
    trainer.prepare()
    for epoch in range(6):
        for batch in fit.data.train_batches(epoch, 0, size):
            if len(batch) == size:
                seen.append(trainer.adapter.count_computed(batch))
    units, items = fit._drawn(size, 6 * 200 // size)
    assert units.shape == items.shape == (6 * 200 // size,)
    assert len(np.unique(units)) == pytest.approx(len(set(seen)), abs=3)
    assert units.mean() == pytest.approx(np.mean(seen), rel=0.05)


@pytest.mark.parametrize(
    ("training_seconds", "allowed"),
    [
        (1.0, 0.1),  # a tenth of what is over at once
        (10.0, 0.2),
        (200.0, 1.0),  # half a hundredth
        (3600.0, 4.0),
    ],
)
def test_a_measurement_takes_little_of_its_training(
    training_seconds: float, allowed: float
) -> None:
    assert allowed_seconds(training_seconds) == pytest.approx(allowed)
