"""The quantum step in a training run: measurements for its decisions, and their effects.

The extension is loaded only if a run has a quantum step, because only that step needs dimod.
"""

from infrastructure.core.lazy_exports import lazy_names

_PLACES = {"QuantumExtension": "infrastructure.features.quantum.training.quantum_extension"}

__all__ = [*_PLACES]
__getattr__ = lazy_names(__name__, _PLACES)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
