"""How many examples at once and in a step: as configured, as measured, as a run began."""

from pathlib import Path

import pytest

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.optimization.batch_size import BatchChoice, Trial
from infrastructure.training.sizing.batch_plan import (
    BatchPlan,
    accumulation_for,
    configured,
    largest_size,
    measured,
    measured_before,
    repeated,
    why_largest,
)

KEY = {"device": "a machine"}
PLENTY = 1 << 40


def choice(size: int, peak_bytes: int = 1000) -> BatchChoice:
    return BatchChoice(size, (Trial(size, peak_bytes, 100.0),), "larger ones are no faster")


def test_numbers_in_the_configuration_hold() -> None:
    plan = configured(TrainingConfig(batch_size=4, gradient_accumulation=3))
    assert plan == BatchPlan(4, 3)
    assert plan.global_batch_size == 12
    assert plan.decided() == {}
    assert plan.lines() == []


@pytest.mark.parametrize(
    ("num_processes", "share"), [(1, (4, 3)), (2, (4, 2)), (3, (4, 1)), (5, (3, 1)), (20, (1, 1))]
)
def test_several_processes_do_a_share_of_each_step(
    num_processes: int, share: tuple[int, int]
) -> None:
    assert BatchPlan(4, 3).of_one_process(num_processes) == BatchPlan(*share)


def test_auto_makes_an_optimizer_step_of_the_usual_size(tmp_path: Path) -> None:
    config = TrainingConfig(batch_size="auto")
    largest: list[int] = []

    def search(most: int) -> BatchChoice:
        largest.append(most)
        return choice(8)

    plan = measured(config, 4000, search, measured_before(tmp_path), KEY, PLENTY)
    assert largest == [240]
    assert (plan.micro_batch_size, plan.gradient_accumulation) == (8, 4)
    assert plan.decided() == {
        "training.batch_size": {"value": 8, "origin": plan.origin},
        "training.gradient_accumulation": {"value": 4, "origin": plan.origin},
    }
    [line, trial] = plan.lines()
    assert line.startswith("training.batch_size_chosen(micro_batch=8, global_batch=32, origin=")
    assert "training.batch_size_measured_now(reason=larger ones are no faster)" in line
    assert trial == f"  {choice(8).lines()[0]}"
    unexplained = BatchChoice(8, choice(8).trials, "")
    plan = measured(
        config, 10_000, lambda most: unexplained, measured_before(tmp_path), {"a": "b"}, PLENTY
    )
    assert "(reason=training.largest_batch_size_tried(largest=256))" in plan.origin


def test_an_accumulation_that_was_given_holds(tmp_path: Path) -> None:
    config = TrainingConfig(batch_size="auto", gradient_accumulation=4)
    plan = measured(config, 10_000, lambda most: choice(16), measured_before(tmp_path), KEY, PLENTY)
    assert plan.global_batch_size == 64


@pytest.mark.parametrize(
    ("settings", "num_examples", "largest"),
    [
        ({}, 1_000_000, 256),
        ({}, 1000, 60),  # 3 epochs in at least 50 steps
        ({"gradient_accumulation": 4}, 1000, 15),
        ({"num_epochs": 1}, 1000, 20),
        ({"num_epochs": 1000}, 20, 20),
        ({}, 5, 1),
    ],
)
def test_small_data_keeps_enough_steps(
    settings: dict[str, int], num_examples: int, largest: int
) -> None:
    assert largest_size(TrainingConfig(batch_size="auto", **settings), num_examples) == largest


def test_the_largest_size_has_a_reason() -> None:
    config = TrainingConfig(batch_size="auto")
    few = "training.batch_size_leaves_few_steps(size=16, fewest=50)"
    assert why_largest(config, 180) == few
    assert why_largest(config, 1_000_000) == "training.largest_batch_size_tried(largest=256)"
    many_epochs = TrainingConfig(batch_size="auto", num_epochs=1000)
    assert why_largest(many_epochs, 20) == "training.largest_batch_size_tried(largest=20)"


def test_a_step_of_small_data_is_smaller_too() -> None:
    config = TrainingConfig(batch_size="auto")
    assert accumulation_for(config, size=4, largest=12) == 3
    assert accumulation_for(config, size=64, largest=256) == 1


def test_what_was_measured_before_is_not_measured_again(tmp_path: Path) -> None:
    config, cache = TrainingConfig(batch_size="auto"), measured_before(tmp_path)
    first = measured(config, 10_000, lambda most: choice(8), cache, KEY, PLENTY)
    again = measured(config, 10_000, lambda most: choice(64), cache, KEY, 1000)  # just enough
    assert again.resolved() == first.resolved()
    assert again.origin == "training.batch_size_measured_earlier()"
    fewer = measured(config, 4000, lambda most: choice(64), cache, KEY, PLENTY)
    assert fewer.micro_batch_size == 64  # up to another size


def test_one_example_at_a_time_is_a_size_like_any_other(tmp_path: Path) -> None:
    """Also of the memory: what counts is that it was measured."""
    config, cache = TrainingConfig(batch_size="auto"), measured_before(tmp_path)
    measured(config, 10_000, lambda most: choice(1, peak_bytes=1), cache, KEY, PLENTY)
    again = measured(config, 10_000, lambda most: choice(64), cache, KEY, PLENTY)
    assert again.micro_batch_size == 1


def test_it_is_measured_again_where_there_is_less_memory_now(tmp_path: Path) -> None:
    config, cache = TrainingConfig(batch_size="auto"), measured_before(tmp_path)
    measured(config, 10_000, lambda most: choice(8, peak_bytes=1000), cache, KEY, 2000)
    plan = measured(config, 10_000, lambda most: choice(4, peak_bytes=500), cache, KEY, 900)
    assert plan.micro_batch_size == 4


@pytest.mark.parametrize(
    "result",
    [{"size": 8}, {"size": "8", "peak_bytes": 10}, {"size": 0, "peak_bytes": 10}, {}, 8, None],
)
def test_what_was_remembered_in_part_is_measured_again(tmp_path: Path, result: object) -> None:
    config, cache = TrainingConfig(batch_size="auto"), measured_before(tmp_path)
    cache.put({**KEY, "largest": largest_size(config, 10_000)}, result)
    plan = measured(config, 10_000, lambda most: choice(4), cache, KEY, PLENTY)
    assert plan.micro_batch_size == 4


def test_a_run_that_goes_on_repeats_what_it_began_with() -> None:
    saved = {"training.batch_size": 16, "training.gradient_accumulation": 2}
    plan = repeated(TrainingConfig(batch_size="auto"), saved)
    assert plan is not None
    assert plan.resolved() == saved
    assert plan.origin == "training.batch_size_from_checkpoint()"
    assert repeated(TrainingConfig(batch_size=4), saved) is None
    assert repeated(TrainingConfig(batch_size="auto"), {"training.num_epochs": 3}) is None
