"""The page that compares two processes with plain loops of torch's DDP and FSDP2."""

from typing import Any

import pytest

from benchmarks.parallel import DDP, FSDP2, ONE, SHARDED, TWO, page, slower_than_plain, summary

SECONDS = {
    ONE: [0.2, 0.4, 0.2],
    TWO: [0.1, 0.2, 0.1],
    DDP: [0.1, 0.19, 0.12],
    SHARDED: [0.2, 0.4, 0.2],
    FSDP2: [0.2, 0.396, 0.19],
}


def results_with(**others: list[float]) -> dict[str, Any]:
    return summary(SECONDS | others, {ONE: 0, TWO: 12_345_678})


def test_each_cycle_is_compared_by_itself_and_the_page_names_the_machine() -> None:
    results = results_with()
    assert results["times_as_fast"] == {
        f"{TWO} of {ONE}": 2.0,
        f"{TWO} of {DDP}": 1.0,
        f"{SHARDED} of {FSDP2}": 0.99,
    }
    text = page(results)
    assert "3 cycles" in text
    assert "so it is" in text
    assert "1 threads on" in text
    assert "torch 2" in text
    assert f"| {TWO} of {DDP} | 1.000 | 0.950 | 1.200 |" in text
    assert f"| {TWO} | 100.0 | 12,345,678 |" in text
    assert f"| {DDP} | 120.0 | not counted |" in text


@pytest.mark.parametrize(("plain", "own"), [(DDP, TWO), (FSDP2, SHARDED)])
def test_a_plain_loop_that_is_faster_is_named(plain: str, own: str) -> None:
    results = results_with(**{plain: [0.94 * seconds for seconds in SECONDS[own]]})
    assert slower_than_plain(results) == [f"{own} of {plain}"]
    assert f"LESS for {own} of {plain}" in page(results)
