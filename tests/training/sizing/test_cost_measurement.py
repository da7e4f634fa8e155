"""What a training costs here, measured on a real small model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infrastructure.core.process_memory import resident_bytes
from infrastructure.optimization.batch_size import DoesNotFitError
from infrastructure.optimization.memory_prediction import MemoryLine
from infrastructure.training.sizing.cost_measurement import StepCosts
from infrastructure.training.sizing.dry_run import DryRunStep, MicroCost
from tests.training.small_runs import small_trainer


def test_the_longest_rows_are_as_long_as_the_longest_that_there_is(
    saved_llama: Path, tmp_path: Path
) -> None:
    trainer = small_trainer(saved_llama, tmp_path)
    fit = trainer.cost_measurement()
    rows = fit.longest(3)
    assert [len(row.input_ids) for row in rows] == [fit.data.report.longest] * 3
    assert len(rows[0].supervised) == fit.data.report.longest


@pytest.mark.parametrize("packing", [True, False])
def test_the_heaviest_micro_batch_is_that_of_the_real_order(
    saved_llama: Path, tmp_path: Path, packing: bool
) -> None:
    trainer = small_trainer(saved_llama, tmp_path, packing=packing)
    fit, size = trainer.cost_measurement(), 4
    batches = [
        [len(example.input_ids) for example in batch]
        for batch in fit.data.train_batches(0, 0, size)
    ]
    whole = [batch for batch in batches if len(batch) == size]
    expected = max(sum(batch) if packing else size * max(batch) for batch in whole)
    costs = fit.costs(trainer.batch_plan(), total_steps=6)
    assert costs.heaviest_units >= expected
    if packing:
        assert costs.heaviest_units <= expected + fit.data.report.longest


def test_a_training_without_room_for_its_optimizer_is_refused_before_it_is_measured(
    saved_llama: Path, tmp_path: Path
) -> None:
    trainer = small_trainer(saved_llama, tmp_path)
    fit = trainer.cost_measurement()
    limit = f"{resident_bytes() // 2}"
    fit.budget = type(fit.budget)(cpu_limit=limit)
    with pytest.raises(DoesNotFitError, match=r"training\.weights_exceed_memory"):
        fit.costs(trainer.batch_plan(), total_steps=6)
    with pytest.raises(DoesNotFitError, match=r"optimization\.single_example_does_not_fit"):
        fit.search(8, lambda size: 1)


def costs(limit_bytes: int) -> StepCosts:
    return StepCosts(
        memory=MemoryLine(1000.0, 10.0),
        heaviest_units=400,
        longest_units=100,
        copy_bytes=500,
        step_seconds=1.0,
        evaluation_seconds=0.1,
        limit_bytes=limit_bytes,
    )


@pytest.mark.parametrize(("limit", "size"), [(10_000, 8), (4_000, 2), (2_600, 1), (2_000, 0)])
def test_the_largest_micro_batch_fits_whatever_its_rows(limit: int, size: int) -> None:
    assert costs(limit).largest_that_fits(8) == size


def test_lengths_come_in_the_order_of_the_first_epoch(saved_llama: Path, tmp_path: Path) -> None:
    data = small_trainer(saved_llama, tmp_path).cost_measurement().data
    (batch,) = data.train_batches(0, 0, data.num_examples)
    assert np.array_equal(data.lengths(), [len(example.input_ids) for example in batch])


COMPILING_SECONDS, KERNEL_BYTES = 50.0, 4 << 20


def test_a_size_that_comes_first_is_neither_the_usual_time_nor_all_that_is_kept(
    saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted on a real training: each size of a micro-batch compiles, and keeps its kernels."""
    real, seen = DryRunStep.micro_batch, set[int]()

    def compiling(self: DryRunStep, examples: Sequence[Any]) -> MicroCost:
        cost, size = real(self, examples), self.adapter.count_computed(examples)
        seconds = 0.01 + (0.0 if size in seen else COMPILING_SECONDS)
        seen.add(size)
        return replace(cost, seconds=seconds, peak_bytes=(1 << 30) + KERNEL_BYTES * len(seen))

    monkeypatch.setattr(DryRunStep, "micro_batch", compiling)
    trainer = small_trainer(saved_llama, tmp_path, max_steps=500, mixed_precision="bf16")
    found = trainer.cost_measurement().costs(trainer.batch_plan(), total_steps=500)
    assert found.step_seconds < COMPILING_SECONDS / 10
    fit = trainer.cost_measurement()
    assert found.kept_bytes > KERNEL_BYTES
    units, _ = fit._drawn(4, 500)
    assert found.peak_bytes > (1 << 30) + KERNEL_BYTES * len(set(units.tolist())) * 0.7
