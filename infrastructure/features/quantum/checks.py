"""Checks for contradictory settings of the quantum step, and for missing samplers."""

from collections.abc import Iterator
from typing import Any

from infrastructure.core.errors import MissingPackageError, MissingSecretError
from infrastructure.core.messages import Setting, phrase
from infrastructure.core.named_object import is_address
from infrastructure.features.quantum.config import QUANTUM
from infrastructure.features.quantum.sampler_needs import check_sampler

SAMPLER_GROUP = "temper.samplers"
# Rows as in `config.merging.contradictions`.
CONTRADICTIONS = (
    ("quantum.data_selection_with_streaming", "quantum_step=data_selection", "data.streaming"),
    (
        "quantum.data_budget_keeps_everything",
        "quantum_step=data_selection",
        "quantum.data_budget=1.0",
    ),
    (
        "quantum.quantum_target_not_held_out",
        "quantum_step",
        "quantum.target=validation",
        "not data.holds_out",
    ),
    (
        "quantum.curriculum_with_data_selection",
        "training.strategy=curriculum",
        "quantum_step=data_selection",
    ),
)


def is_enabled(config: Any) -> bool:
    """Return whether a run with this configuration has a quantum step."""
    return QUANTUM in config.training.extensions


def problem_of(config: Any) -> str | None:
    """Return the name of the problem that the quantum step solves, or None without such a step."""
    return config.quantum.problem if is_enabled(config) else None


def problems(config: Any) -> Iterator[str]:
    """Yield a message for each sampler that is unknown or not available."""
    for key, name in config.quantum.samplers() if is_enabled(config) else ():
        try:
            check_sampler(name)
        except (ValueError, MissingPackageError, MissingSecretError) as error:
            yield phrase("config.setting_says", setting=Setting(f"quantum.{key}"), reason=error)


def own_samplers(config: Any) -> Iterator[tuple[str, str]]:
    """Yield (plug-in group, address) of each user-defined sampler that the quantum step uses."""
    if is_enabled(config):
        names = (name for _, name in config.quantum.samplers())
        yield from ((SAMPLER_GROUP, name) for name in names if is_address(name))
