"""Saving and restoring the complete state of a run."""

from infrastructure.core.lazy_exports import lazy_names

_PLACES = {
    "CheckpointManager": "infrastructure.training.checkpoints.checkpoint_manager",
}

__all__ = [*_PLACES]
__getattr__ = lazy_names(__name__, _PLACES)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
