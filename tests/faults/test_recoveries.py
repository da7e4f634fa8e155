"""G11, the short form: every recovery ends where the undisturbed training does."""

import pytest

from tests.faults.recovery_model import (
    MUTANTS,
    PLACES,
    poisoned,
    short_of_memory,
    transformer,
)
from tests.slow import slow, slow_but


def test_memory_that_runs_out_anywhere_changes_nothing() -> None:
    outcome = short_of_memory(range(6, 7))
    assert outcome.points == len(PLACES)
    assert outcome.is_right


@slow
def test_nor_does_it_on_a_real_transformer() -> None:
    outcome = transformer(range(3, 4))
    assert outcome.points == len(PLACES)
    assert outcome.is_right


@pytest.mark.parametrize("log_frequency", slow_but([3], [1, 3]))
def test_rows_that_break_the_loss_are_named_and_passed_over(log_frequency: int) -> None:
    outcome = poisoned(range(6, 7), log_frequency)
    assert outcome.resumed > 5
    assert outcome.is_right


def test_whoever_goes_on_repeats_what_was_chosen() -> None:
    outcome = poisoned(range(13, 14), 1, once=True)
    assert outcome.resumed > 2
    assert outcome.is_right


@pytest.mark.parametrize("name", slow_but(["skips forgotten after a resume"], MUTANTS))
def test_each_defect_is_found(name: str) -> None:
    mutate, is_right = MUTANTS[name]
    with mutate():
        assert not is_right()
