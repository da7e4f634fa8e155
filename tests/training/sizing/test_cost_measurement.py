"""What a training costs here, measured on a real small model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.config.sections.model_config import LoraConfig
from infrastructure.core.process_memory import resident_bytes
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.optimization.batch_size import DoesNotFitError
from infrastructure.optimization.memory_prediction import MemoryBudget, MemoryLine
from infrastructure.optimization.size_grid import SizeGrid
from infrastructure.training.sizing import cost_measurement
from infrastructure.training.sizing.batch_plan import BatchPlan
from infrastructure.training.sizing.cost_measurement import (
    LOOP_SECONDS,
    MOST_BYTES_OF_A_SIZE,
    MOST_BYTES_OF_ALL,
    SAVING_BYTES,
    CostMeasurement,
    DryRunStep,
    MicroCost,
    SpeedTrials,
    StepCosts,
    StepSample,
    allowed_seconds,
    dry_run,
    lengthened,
    num_sizes,
    sizes_of,
)
from tests.slow import slow_but
from tests.training.small_runs import small_trainer
from tests.training.toy_training import Training


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


@pytest.mark.parametrize(("total_steps", "evaluated"), [(19, 2), (20, 16)])
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
        kept_bytes=40,
    )


@pytest.mark.parametrize(
    ("limit", "size"), [(5540, 8), (5539, 2), (3540, 2), (3539, 1), (2540, 1), (2539, 0)]
)
def test_the_largest_micro_batch_fits_whatever_its_rows(limit: int, size: int) -> None:
    """None has more units than the heaviest one of the run."""
    assert costs(limit).largest_that_fits(8) == size
    assert costs(limit).peak_bytes == 5540


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
    adapter.count_computed, adapter.count_items = sum, len
    assert sizes_of(adapter, [30, 40]) == {("units", 70), ("items", 8)}


def test_a_measurement_lasts_as_long_as_the_whole_training_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """2000 steps of two micro-batches, of 0.1 seconds each once their sizes occurred: 2 seconds."""
    probe: Any = CompilingProbe()
    sample = StepSample(probe, MemoryLine(1000.0, 0.0), accumulation=2)
    clock = SimpleNamespace(perf_counter=lambda: 0.11 * len(sample.excess_bytes))
    monkeypatch.setattr(cost_measurement, "time", clock)
    sample.take([[64], [72]] * 30, num_steps=2000)
    assert len(sample.excess_bytes) == 19
    assert sample.update_seconds == [0.001] * 9
    without = StepSample(probe, MemoryLine(1000.0, 0.0), has_update=False)
    without.take([[64], [72]], num_steps=2000)
    assert (without.update_seconds, without.seconds_per_update) == ([], 0.0)


class Probe:
    """Steps that take half a second for an example and a bit, and memory for ten units of it."""

    def __init__(self, held: int = 0) -> None:
        self.tried: list[int] = []
        numbers = {"moment": torch.zeros(held, dtype=torch.int8), "step": 3}
        self.optimizer = SimpleNamespace(state={0: numbers} if held else {})

    def micro_batch(self, examples: Sequence[Any]) -> MicroCost:
        self.tried.append(len(examples))
        count = len(examples)
        return MicroCost(sum(examples), 0.25 + 0.5 * count, 1000 + 100 * 10 * count)

    def evaluation(self, examples: Sequence[Any]) -> MicroCost:
        return MicroCost(1, 1.0, 5000)

    def update(self) -> float:
        self.tried.append(0)
        return 6.0


@pytest.mark.parametrize(("has_optimizer", "seconds", "tried"), [(0, 6.0, [1, 0, 0]), (1, 0, [1])])
def test_a_second_optimizer_is_not_tried(
    has_optimizer: bool, seconds: float, tried: list[int]
) -> None:
    """If the run already has an optimizer, a second one may not fit into memory."""
    measurement, probe = measurement_of([3, 5]), Probe()
    given: Any = probe
    assert measurement._warm_up(given, has_optimizer) == seconds
    assert probe.tried == tried


def measurement_of(
    lengths: list[int], *, device: str = "cpu", packs: bool = False, **more: Any
) -> CostMeasurement:
    """A measurement of examples that are their lengths."""
    adapter = SimpleNamespace(
        device=torch.device(device),
        packs=packs,
        size_grid=SizeGrid.EIGHTHS,
        count_tokens=sum,
        count_computed=lambda examples: 10 * len(examples),
    )
    strategy = SimpleNamespace(config=SimpleNamespace(compile_mode=more.pop("compile_mode", None)))
    model: Any = torch.nn.Linear(4, 2)
    model.bias.requires_grad_(False)
    given: Any = (model, adapter, strategy, SimpleNamespace(), lambda: None, MemoryBudget())
    measurement = CostMeasurement(*given, **more)
    measurement.__dict__["usual"] = lengths
    return measurement


@pytest.mark.parametrize(
    ("packs", "size", "epochs", "units"),
    [
        (True, 2, None, 8),  # of 5 and 3, the first one again
        (False, 2, None, 2 * 8),
        (True, 3, None, 16),  # of 3, 1 and 5
        (True, 9, None, 16),  # all of them
        (False, 9, None, 5 * 8),
        (True, 2, [np.array([3, 1]), np.array([9, 9])], 24),
    ],
)
def test_the_heaviest_micro_batch_is_that_of_all_stages(
    packs: bool, size: int, epochs: list[np.ndarray] | None, units: int
) -> None:
    measurement = measurement_of([3, 1, 1, 1, 5], packs=packs, epochs=epochs)
    assert measurement.heaviest_units(size) == units


@pytest.mark.parametrize(
    ("size", "limit", "compile_mode", "tried", "line", "seconds"),
    [
        (8, 10**6, None, [1, 2, 4], (1000.0, 100.0), 2 * 2.25),
        (8, 10**6, "default", [1, 1, 2, 2, 4, 4], (1000.0, 100.0), 2 * 2.25),
        (8, 3200, None, [1, 2], (1000.0, 100.0), 4 * 1.25),
        (8, 3199, None, [1], (800.0, 120.0), 8 * 0.75),
        (2, 10**6, None, [1], (800.0, 120.0), 2 * 0.75),
    ],
)
def test_parts_of_a_micro_batch_are_tried_as_far_as_they_fit(
    size: int,
    limit: int,
    compile_mode: str | None,
    tried: list[int],
    line: tuple[float, float],
    seconds: float,
) -> None:
    """With one part alone, what is in use without any counts: here 800 bytes."""
    probe, measurement = Probe(), measurement_of([1] * 9, compile_mode=compile_mode)
    found, took = measurement._small_steps(probe, size, 800, limit)  # type: ignore[arg-type]
    assert (probe.tried, took) == (tried, seconds)
    assert (found.fixed_bytes, found.bytes_per_unit) == pytest.approx(line)


@pytest.mark.parametrize(
    ("device", "held", "copied"),
    [
        ("cpu", 68, 100 + SAVING_BYTES),  # and eight trained weights of four bytes
        ("cpu", 67, 0),  # saved without a copy
        ("cuda", 68, 0),
    ],
)
def test_the_worst_peak_includes_the_copy_that_is_saved(
    monkeypatch: pytest.MonkeyPatch, device: str, held: int, copied: int
) -> None:
    monkeypatch.setattr(cost_measurement, "BACKGROUND_BYTES", 100)
    probe, measurement = Probe(held), measurement_of([1, 2, 3], device=device)
    worst = [measurement._worst_peak(probe, size) for size in (2, 6)]  # type: ignore[arg-type]
    assert worst == [5000 + copied, 7000 + copied]
    assert probe.tried == [2, 6]
    probe = Probe()
    measurement._worst_peak(probe, 2)  # type: ignore[arg-type]
    assert probe.tried == [1, 0, 2]  # the optimizer's state comes first


@pytest.mark.parametrize(("size", "speed"), [(4, 15 / (4.5 + 4)), (10, 19 / (5.25 + 2))])
def test_a_speed_includes_its_share_of_the_optimizer_step(size: int, speed: float) -> None:
    """At least eight examples are measured; fewer are repeated."""
    trials = SpeedTrials(Probe(), [1, 2, 3], lambda size: 3)  # type: ignore[arg-type]
    assert trials.tokens_per_second(size) == pytest.approx(speed)


def test_a_search_knows_the_memory_and_what_to_prefer(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Search:
        def __init__(self, **parts: Any) -> None:
            made.append(parts)

        def run(self, *given: Any) -> Any:
            return given

    @contextmanager
    def probing(accumulates: bool) -> Iterator[Probe]:
        assert accumulates
        yield probe

    probe, measurement = Probe(), measurement_of([1, 2, 3])
    measurement.strategy.measuring = lambda model: nullcontext()  # type: ignore[method-assign]
    measurement.probing = probing  # type: ignore[assignment, method-assign]
    monkeypatch.setattr(cost_measurement, "BatchSizeSearch", Search)
    monkeypatch.setattr(measurement, "fixed_bytes", lambda: 5)
    monkeypatch.setattr(MemoryBudget, "size_bytes", lambda *_: 7)
    assert measurement.search(64, lambda size: 3, beside=8) == (64, 8)
    [parts] = made
    assert (parts["idle_bytes"], parts["budget_bytes"]) == (5, 7)
    assert parts["way_out"] == "optimization.use_larger_machine()"
    assert parts["speed_of"](4) == pytest.approx(15 / (4.5 + 4))
    assert parts["peak_of"](2) == 5000


def test_fixed_memory_is_what_is_used_and_will_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight of the ten weights are trained, of four bytes each."""
    given: list[Any] = []
    used = SimpleNamespace(now=lambda: 100)
    monkeypatch.setattr(cost_measurement, "PeakMemory", lambda device: used)
    monkeypatch.setattr(
        cost_measurement, "optimizer_state_bytes", lambda *of: (given.append(of), 7)[1]
    )
    measurement = measurement_of([1])
    measurement.strategy.create_optimizer = lambda *of: of  # type: ignore
    assert measurement.fixed_bytes() == 100 + 8 * 4 + 7
    [(create, model, device_type)] = given
    assert (model, device_type) == (measurement.model, "cpu")
    assert create("samples") == ("samples", 0.0)


def test_weights_that_exceed_the_memory_are_refused_with_both_numbers() -> None:
    measurement = measurement_of([1])
    measurement.fixed_bytes = lambda: 3 << 30  # type: ignore[method-assign]
    measurement._refuse_if_fixed_exceeds(3 << 30, has_optimizer=False)
    measurement._refuse_if_fixed_exceeds(1 << 50, has_optimizer=True)
    numbers = "needed=3.0 GiB, available=2.0 GiB, way_out=optimization.use_larger_machine()"
    with pytest.raises(DoesNotFitError) as caught:
        measurement._refuse_if_fixed_exceeds(2 << 30, has_optimizer=False)
    assert str(caught.value) == f"training.weights_exceed_memory({numbers})"
    measurement.fixed_bytes = lambda: pytest.fail("the optimizer is there")  # type: ignore
    with pytest.raises(DoesNotFitError):
        measurement._refuse_if_fixed_exceeds(1, has_optimizer=True)


def test_an_example_is_lengthened_by_itself() -> None:
    supervised = np.array([False, True, True])
    example = TokenizedExample(np.array([5, 6, 7], np.int32), supervised, task="chat")
    longer: Any = lengthened(example, 5)
    assert (longer.input_ids.tolist(), longer.input_ids.dtype) == ([5, 6, 7, 5, 6], np.int32)
    assert longer.supervised.tolist() == [False, True, True, False, True]
    assert longer.supervised.dtype == np.bool_
    assert longer.task == "chat"
    assert lengthened(example, 3) is example
    assert lengthened("picture", 9) == "picture"


@pytest.mark.parametrize("accumulates", [False, True])
def test_a_dry_run_does_real_steps_that_change_no_weight(accumulates: bool) -> None:
    training = Training(dropout=0.0)
    model, step = training.state.model, training.step
    before = training.weights
    probe = DryRunStep(model, step.adapter, step.strategy, step.optimizer, accumulates)
    gradients = []
    for _ in range(2):
        cost = probe.micro_batch([1, 2])
        gradients.append(torch.cat([p.grad.flatten().clone() for p in model.parameters()]))
        assert (cost.num_tokens, cost.seconds > 0, cost.peak_bytes > 10**7) == (5, True, True)
    torch.testing.assert_close(gradients[1], gradients[0] * (2 if accumulates else 1))
    assert probe.update() > 0
    assert len(step.optimizer.state) == 4
    probe.micro_batch([1, 2])
    model.train()
    cost = probe.evaluation([4])
    assert (cost.num_tokens, cost.seconds > 0) == (5, True)
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(training.weights, before)


UNIT_SECONDS, UPDATE_SECONDS = 0.001, 3.0


@pytest.mark.parametrize(
    ("size", "total_steps", "has_optimizer"), [(400, 6, False), (4, 1000, True), (4, 1000, False)]
)
def test_a_step_takes_its_micro_batches_and_one_update(
    saved_llama: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    total_steps: int,
    has_optimizer: bool,
) -> None:
    """A short run by parts of a micro-batch, a longer one by its mean and with the loop's time."""

    def micro_batch(step: DryRunStep, examples: Sequence[object]) -> MicroCost:
        units = step.adapter.count_computed(examples)
        return MicroCost(units, UNIT_SECONDS * units, 1 << 20)

    monkeypatch.setattr(DryRunStep, "micro_batch", micro_batch)
    monkeypatch.setattr(DryRunStep, "update", lambda step: UPDATE_SECONDS)
    trainer = small_trainer(saved_llama, tmp_path)
    fit = trainer.cost_measurement()
    found = fit.costs(BatchPlan(size, 3), total_steps, has_optimizer)
    if total_steps < 20:
        part = fit.usual[: len(fit.usual) // 2]
        units, beside = fit.units(part) * size / len(part), 0.0
    else:
        units, beside = float(fit._drawn(size, total_steps * 3)[0].mean()), LOOP_SECONDS
    update = 0.0 if has_optimizer else UPDATE_SECONDS
    assert found.step_seconds == pytest.approx(3 * UNIT_SECONDS * units + update + beside)
    assert found.longest_units == fit.units(fit.longest(1))
    assert (found.copy_bytes, found.kept_bytes >= 0) == (0, True)


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
    {"gradient_accumulation": 2, "lora": LoraConfig(r=4, alpha=8, dropout=0.1)},
]


@pytest.mark.parametrize("settings", slow_but([SETTINGS[-1]], SETTINGS))
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
    assert not measured.prepare().loop.optimizer_step.optimizer.state
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
