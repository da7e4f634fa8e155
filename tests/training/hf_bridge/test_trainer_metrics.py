"""Numbers out of a Trainer's logs, and the time of its steps without what lies between them."""

import math

import pytest

from infrastructure.training.hf_bridge.trainer_metrics import (
    StepClock,
    evaluation_of,
    numbers_of,
    over_all_processes,
)


def test_of_a_log_only_numbers_of_its_step_are_taken() -> None:
    logs = {"loss": 1, "grad_norm": 0.5, "epoch": 2.0, "step": 3, "total_flos": 4.0, "note": "a"}
    assert numbers_of({**logs, "none": None, "list": [1]}) == {"loss": 1.0, "grad_norm": 0.5}
    assert all(type(value) is float for value in numbers_of(logs).values())
    assert math.isnan(numbers_of({"loss": math.nan})["loss"])


def test_of_an_evaluation_only_its_quality_is_taken() -> None:
    speeds = dict.fromkeys(("eval_runtime", "eval_samples_per_second", "eval_a_runtime"), 9.0)
    speeds["eval_steps_per_second"] = 9.0
    quality = {"eval_loss": 1.0, "eval_runtime_share": 0.5, "eval_rewards/margins": 2.0}
    assert evaluation_of({**speeds, **quality, "epoch": 1.0}) == quality


@pytest.mark.parametrize(
    ("runtime", "before", "whole", "share"),
    [(4.0, 12.0, 16.0, 0.25), (4.0, 0.0, 4.0, 1.0), (0.0, 0.0, 0.0, 1.0), (0.0, 2.0, 2.0, 0.0)],
)
def test_times_add_up_and_speeds_are_shared(
    runtime: float, before: float, whole: float, share: float
) -> None:
    logs = {
        **{"train_runtime": runtime, "train_loss": 2.0, "eval_steps_per_second": 7.0},
        **{"train_steps_per_second": 2.0, "train_samples_per_second": 8.0},
    }
    assert over_all_processes(logs, before) == {
        "train_runtime": whole,
        "train_steps_per_second": 2.0 * share,
        "train_samples_per_second": 8.0 * share,
    }
    assert over_all_processes({"train_runtime": 1.23456, "train_a_per_second": 1 / 3}, 0.0) == {
        "train_runtime": 1.2346,
        "train_a_per_second": 0.333,
    }


def test_a_clock_counts_steps_and_the_wait_for_their_rows() -> None:
    readings = iter([0.0, 10.0, 13.0, 20.0, 50.0, 51.0])
    clock = StepClock(lambda: next(readings))
    clock.begin()  # 0
    clock.end(goes_on_at_once=True)  # 10
    clock.begin()  # 13: three seconds of waiting
    assert (clock.waited_seconds, clock.read()) == (3.0, 13.0)
    clock.end(goes_on_at_once=False)  # 20
    clock.begin()  # 50: something else lay between
    clock.end(goes_on_at_once=True)  # 51
    assert (clock.waited_seconds, clock.read(), clock.read()) == (3.0, 8.0, 0.0)


def test_a_step_whose_beginning_was_not_seen_takes_no_time() -> None:
    clock = StepClock(iter([5.0, 7.0]).__next__)
    clock.end(goes_on_at_once=True)
    assert clock.read() == 0.0
    clock.begin()
    assert (clock.waited_seconds, clock.read()) == (2.0, 2.0)
