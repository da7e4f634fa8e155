"""The file of the quantum step in a run directory."""

from collections.abc import Mapping

QUANTUM_FILE = "quantum.json"


def baseline_is_as_good(record: Mapping[str, object]) -> bool:
    """Return whether a baseline found an energy as low as the answer of a quantum step."""
    energy, baselines = record.get("energy"), record.get("alternatives")
    energies = baselines.values() if isinstance(baselines, Mapping) else ()
    numbers = [number for number in energies if isinstance(number, int | float)]
    return (
        isinstance(energy, int | float)
        and bool(numbers)
        and min(numbers) <= energy + 1e-6 * abs(energy)
    )
