"""The ablation's rows are what it says, and a loss is read off where it should be."""

from collections import Counter

import pytest

from benchmarks.quantum_step import Trained
from benchmarks.selection_pools import Row, make_rows, off_topic_rows

QUESTIONS = [Row(f"what is {i}", f"it is {i} as you know well") for i in range(400)]


@pytest.mark.parametrize("seed", range(3))
def test_a_dirty_pool_is_half_clean_and_a_third_noise(seed: int) -> None:
    rows = make_rows(QUESTIONS, off_topic_rows()[:50], size=180, is_dirty=True, seed=seed)
    kinds = Counter(row.kind for row in rows.pool)
    assert kinds == {"clean": 90, "copy": 30, "off topic": 20, "scrambled": 20, "mismatched": 20}
    clean = {row.prompt for row in rows.pool if row.kind == "clean"}
    assert all(row.prompt in clean for row in rows.pool if row.kind == "copy")
    known = {row.prompt: row.answer for row in QUESTIONS}
    for row in rows.pool:
        if row.kind == "mismatched":
            assert row.answer != known[row.prompt]
        if row.kind == "scrambled":
            assert sorted(row.answer.split()) == sorted(known[row.prompt].split())


@pytest.mark.parametrize("is_dirty", [True, False])
def test_nothing_that_is_measured_is_in_the_pool(is_dirty: bool) -> None:
    rows = make_rows(QUESTIONS, off_topic_rows()[:50], size=180, is_dirty=is_dirty, seed=0)
    prompts = [{row.prompt for row in part} for part in (rows.pool, rows.target, rows.held_out)]
    assert not prompts[0] & prompts[1]
    assert not prompts[0] & prompts[2]
    assert not prompts[1] & prompts[2]
    assert rows == make_rows(QUESTIONS, off_topic_rows()[:50], size=180, is_dirty=is_dirty, seed=0)


def test_a_loss_is_read_off_between_measurements_and_the_lowest_is_kept() -> None:
    run = Trained({0: 5.0, 20: 3.0, 40: 4.0}, step_seconds=0.1)
    assert run.after(30) == 3.5
    assert run.best(10) == 4.0
    assert run.best(40) == 3.0
    assert run.best(-5) == 5.0
