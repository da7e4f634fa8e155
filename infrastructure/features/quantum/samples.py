"""The small quantum step that a run on the sample data includes."""

from typing import Any

from infrastructure.config.merging.precedence import Layer
from infrastructure.features.quantum.config import AT_ANY_COST, DATA_SELECTION, QUANTUM

# So few can be solved exactly and instantly, and leaving out two examples of thousands is harmless.
SAMPLE_CANDIDATES = 20


def choose_among_samples(config: Any, source: str) -> None:
    """Enable a small quantum step for the sample data, but keep settings that the user has set."""

    def is_open(key: str) -> bool:
        return config.source(key).layer is Layer.DEFAULT

    def set_to(section: object, key: str, value: object) -> None:
        if is_open(key):
            setattr(section, key.rpartition(".")[2], value)
            config.came_from(key, source)

    is_about_data = config.quantum.problem == DATA_SELECTION and not config.data.streaming
    may_be = is_about_data and is_open("training.enabled_extensions")
    if may_be and QUANTUM not in config.training.extensions:
        set_to(config.training, "training.enabled_extensions", [QUANTUM])
        set_to(config.quantum, "quantum.candidates", SAMPLE_CANDIDATES)
        set_to(config.quantum, "quantum.max_overhead_percent", AT_ANY_COST)
