"""Each variant waits as it says, in a process of its own."""

import pytest

from benchmarks.waiting_threads import measured, variants
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
