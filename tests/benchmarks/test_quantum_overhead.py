"""The benchmark of a quantum step's cost measures what it says."""

from pathlib import Path

from benchmarks.quantum_overhead import trained


def test_only_a_training_that_asks_pays(tmp_path: Path) -> None:
    asked = trained(tmp_path / "with", 2, 1, max_overhead_percent=1e6)
    assert asked["outcomes"] == ["answered", "answered"]
    assert 0 < asked["quantum_seconds"] < asked["seconds"]
    plain = trained(tmp_path / "without", 1, None)
    assert (plain["quantum_seconds"], plain["outcomes"]) == (0.0, [])
