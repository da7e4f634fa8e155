"""What a training costs here, measured on a real small model."""

from pathlib import Path

import numpy as np
import pytest

from infrastructure.core.process_memory import resident_bytes
from infrastructure.optimization.batch_size import DoesNotFitError
from infrastructure.optimization.memory_prediction import MemoryLine
from infrastructure.training.machine_fit import StepCosts
from tests.training.small_runs import small_trainer


def test_the_longest_rows_are_as_long_as_the_longest_that_there_is(
    saved_llama: Path, tmp_path: Path
) -> None:
    trainer = small_trainer(saved_llama, tmp_path)
    fit = trainer.machine_fit()
    rows = fit.longest(3)
    assert [len(row.input_ids) for row in rows] == [fit.data.report.longest] * 3
    assert len(rows[0].supervised) == fit.data.report.longest


@pytest.mark.parametrize("packing", [True, False])
def test_the_heaviest_micro_batch_is_that_of_the_real_order(
    saved_llama: Path, tmp_path: Path, packing: bool
) -> None:
    trainer = small_trainer(saved_llama, tmp_path, packing=packing)
    fit, size = trainer.machine_fit(), 4
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
    fit = trainer.machine_fit()
    limit = f"{resident_bytes() // 2}"
    fit.budget = type(fit.budget)(cpu_limit=limit)
    with pytest.raises(DoesNotFitError, match="weights, gradients and optimizer"):
        fit.costs(trainer.batch_plan(), total_steps=6)


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
    data = small_trainer(saved_llama, tmp_path).machine_fit().data
    (batch,) = data.train_batches(0, 0, data.num_examples)
    assert np.array_equal(data.lengths(), [len(example.input_ids) for example in batch])
