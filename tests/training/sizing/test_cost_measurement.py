"""What a training costs here, measured on a real small model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.config.sections.model_config import LoraConfig
from infrastructure.core.process_memory import resident_bytes
from infrastructure.optimization.batch_size import DoesNotFitError
from infrastructure.optimization.memory_prediction import MemoryLine
from infrastructure.optimization.size_grid import SizeGrid
from infrastructure.training.sizing.cost_measurement import (
    MOST_BYTES_OF_A_SIZE,
    MOST_BYTES_OF_ALL,
    DryRunStep,
    MicroCost,
    StepCosts,
    StepSample,
    allowed_seconds,
    dry_run,
    num_sizes,
)
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


@pytest.mark.parametrize(("total_steps", "evaluated"), [(6, 2), (1000, 16)])
def test_an_evaluation_is_measured_on_as_many_rows_as_its_time_is_divided_by(
    saved_llama: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    total_steps: int,
    evaluated: int,
) -> None:
    """Return the costs of a short run, measured on a part of a micro-batch."""
    sizes: list[int] = []

    def evaluation(step: DryRunStep, examples: Sequence[object]) -> MicroCost:
        sizes.append(len(examples))
        return MicroCost(1, 12.0, 1)

    monkeypatch.setattr(DryRunStep, "evaluation", evaluation)
    trainer = small_trainer(saved_llama, tmp_path, batch_size=16)
    found = trainer.cost_measurement().costs(trainer.batch_plan(), total_steps)
    assert sizes == [evaluated]
    assert found.evaluation_seconds == 12.0 / evaluated


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


FIRST_SECONDS, USUAL_SECONDS = 5.0, 0.1
BYTES_OF_EACH = 3 << 20


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
        peak_bytes = 1000 + BYTES_OF_EACH * len(self.seen)
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
    assert sample.bytes_kept(sizes_seen) == 3 * BYTES_OF_EACH
    assert sample.bytes_kept(sizes_seen + 5) == 8 * BYTES_OF_EACH
    assert sample.bytes_kept(0) == 3 * BYTES_OF_EACH  # never less than there was
    assert sample.bytes_kept(10**6) == 3 * BYTES_OF_EACH + MOST_BYTES_OF_ALL


def test_no_leap_of_a_heap_is_taken_for_the_kernels_of_a_size() -> None:
    sample = sampled(CompilingProbe(), [[64], [72]])
    first, highest = 0, 1 << 30
    sample.excess_bytes = [(first, 2), (highest, 3)]
    assert sample.bytes_kept(3 + 2) == highest + 2 * MOST_BYTES_OF_A_SIZE


def test_in_full_precision_what_a_heap_happened_to_grow_by_is_not_counted_on() -> None:
    sample = sampled(CompilingProbe(is_half_precision=False), [[64], [72], [64]])
    assert sample.bytes_kept(100) == 2 * BYTES_OF_EACH


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


SETTINGS: list[dict[str, Any]] = [
    {},
    {"gradient_accumulation": 2},
    {"lora": LoraConfig(r=4, alpha=8, dropout=0.1)},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_measuring_leaves_no_trace(saved_llama: Path, tmp_path: Path, settings: Any) -> None:
    plain = small_trainer(saved_llama, tmp_path, **settings)
    measured = small_trainer(saved_llama, tmp_path, **settings)
    measured.prepare()
    before = {name: tensor.clone() for name, tensor in measured.model.state_dict().items()}
    random_before = torch.get_rng_state()
    costs = measured.cost_measurement().costs(measured.batch_plan(), total_steps=1000)
    assert costs.step_seconds > 0
    assert torch.equal(torch.get_rng_state(), random_before)
    assert all(parameter.grad is None for parameter in measured.model.parameters())
    assert not measured.loop.optimizer_step.optimizer.state
    for name, tensor in measured.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    torch.manual_seed(0)
    trained = plain.train()
    torch.manual_seed(0)
    assert measured.train().loss == trained.loss
    for mine, other in zip(measured.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_the_model_trains_inside_and_its_gradients_are_set_aside() -> None:
    model = torch.nn.BatchNorm1d(3).eval()
    given = model.weight.grad = torch.ones(3)
    with dry_run(model, torch.device("cpu")):
        assert model.training
        assert model.weight.grad is None
        model(torch.randn(8, 3)).sum().backward()
    assert not model.training
    assert torch.equal(model.running_mean, torch.zeros(3))
    assert model.weight.grad is given
    assert torch.equal(given, torch.ones(3))
