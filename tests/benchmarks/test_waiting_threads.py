"""Each variant waits as it says, in a process of its own."""

import pytest

from benchmarks.waiting_threads import a_busy_program, measured, page, variants
from infrastructure.core.shared_cores import SPINS_BEFORE_SLEEP
from tests.slow import slow


def test_what_temper_does_is_one_of_them() -> None:
    name = f"{SPINS_BEFORE_SLEEP:,} spins, then sleep"
    assert variants()[name]["GOMP_SPINCOUNT"] == str(SPINS_BEFORE_SLEEP)
    assert variants()["as PyTorch waits"] == {}


@slow
def test_a_process_of_its_own_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "none")  # replaced: OpenMP would complain of it
    assert 1 < measured({"OMP_NUM_THREADS": "1"}, seconds=0.1) < 60_000


def test_the_other_program_ends() -> None:
    with a_busy_program() as process:
        assert process.poll() is None
    assert process.returncode is not None


def test_the_page_has_a_line_for_each_variant() -> None:
    times = {name: [40.0, 50.0, 44.4] for name in variants()}
    text = page(times, {**times, "one thread": [60.0]}, rounds=3)
    assert "| as PyTorch waits | 44 ms | 44 ms |" in text
    assert "| one thread | 44 ms | 60 ms |" in text
