"""Settings of the quantum step that contradict others, and what it lacks on this machine."""

from collections.abc import Iterator
from typing import Any

from infrastructure.core.errors import MissingPackageError, MissingSecretError
from infrastructure.core.lookup import unknown_name
from infrastructure.core.messages import Setting, phrase
from infrastructure.core.named_object import is_address
from infrastructure.features.quantum.config import BASELINES, QUANTUM, SAMPLER, QuantumConfig
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
        "quantum.rank_budget_keeps_everything",
        "quantum_step=rank_allocation",
        "quantum.rank_budget=1.0",
    ),
    (
        "quantum.background_answer_too_late",
        "quantum_step=data_selection",
        "quantum.answer=sampler",
        "quantum.background",
        "training.num_epochs=1",
    ),
    (
        "quantum.quantum_target_not_held_out",
        "quantum_step",
        "quantum.target=validation",
        "not data.holds_out",
    ),
    (
        "quantum.rank_allocation_without_lora",
        "quantum_step=rank_allocation",
        "not model.lora_config",
    ),
    (
        "quantum.rank_allocation_with_dora",
        "quantum_step=rank_allocation",
        "model.lora_config.use_dora",
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
    """Return what the quantum step decides; None: there is no quantum step."""
    return config.quantum.problem if is_enabled(config) else None


def problems(config: Any) -> Iterator[str]:
    """Yield a message if the answer has an unknown name, and for each sampler that is missing."""
    if not is_enabled(config):
        return
    quantum: QuantumConfig = config.quantum
    answers = (SAMPLER, *BASELINES[quantum.problem])
    if quantum.answer not in answers:
        reason = unknown_name("answer", quantum.answer, answers)
        yield phrase("config.setting_says", setting=Setting("quantum.answer"), reason=reason)
    for key, name in quantum.samplers() if quantum.answer == SAMPLER else ():
        try:
            check_sampler(name)
        except (ValueError, MissingPackageError, MissingSecretError) as error:
            yield phrase("config.setting_says", setting=Setting(f"quantum.{key}"), reason=error)


def own_samplers(config: Any) -> Iterator[tuple[str, str]]:
    """Yield the addresses of user-defined samplers that the quantum step uses, with their group."""
    if is_enabled(config):
        names = (name for _, name in config.quantum.samplers())
        yield from ((SAMPLER_GROUP, name) for name in names if is_address(name))
