"""The benchmark of a quantum step's cost measures what it says."""

from pathlib import Path

from benchmarks.quantum_overhead import trained
from tests.slow import slow


@slow
def test_only_a_training_with_quantum_steps_pays(tmp_path: Path) -> None:
    with_steps = trained(tmp_path / "with", 2, 1, max_overhead_percent=1e6)
    assert with_steps["outcomes"] == ["answered", "answered"]
    assert 0 < with_steps["quantum_seconds"] < with_steps["seconds"]
    plain = trained(tmp_path / "without", 1, None)
    assert (plain["quantum_seconds"], plain["outcomes"]) == (0.0, [])
