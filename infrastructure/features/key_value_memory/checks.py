"""Check for settings that cannot be combined with a new key-value memory."""

from collections.abc import Iterator
from typing import Any

from infrastructure.config.merging.added_weights import (
    added_weights_refusals,
    on_several_processes,
)
from infrastructure.features.key_value_memory.config import MEMORY


def problems(config: Any) -> Iterator[str]:
    """Yield a message for each setting that a new memory rejects, before the model is loaded."""
    if config.training.enables(MEMORY):
        yield from added_weights_refusals([MEMORY], config.model, config.training)
        if config.num_processes not in (1, "auto"):
            yield on_several_processes([MEMORY], config.num_processes)
