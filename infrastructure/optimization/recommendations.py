"""Recommended changes that let a run use less memory, and the memory that each saves.

Weights, gradients and the optimizer's state are counted. The size of activations depends on the
batch, so for changes that affect only these, no number is given.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from infrastructure.core.hardware import MIB
from infrastructure.core.messages import Setting, phrase
from infrastructure.optimization.checkpointing import can_checkpoint

BYTES_PER_8BIT_STATE = 2 * (1 + 4 / 256)  # two moments of one byte, and a scale per 256
LEAST_SAVING_BYTES = MIB
LORA_RANK = 16


@dataclass(frozen=True)
class Recommendation:
    """One recommended change.

    Attributes:
        change: the setting, as the user writes it.
        costs: a text on the disadvantage of the change.
        saves_bytes: the memory that the change saves; None if it saves activations.
    """

    change: str
    costs: str
    saves_bytes: int | None = None

    def __str__(self) -> str:
        if self.saves_bytes is None:
            saved = phrase("optimization.activations")
        else:
            saved = f"{self.saves_bytes / MIB:.0f} MiB"
        about = {"change": self.change, "saved": saved, "costs": self.costs}
        return phrase("optimization.change_saves", **about)


def fixed_bytes(model: torch.nn.Module) -> int:
    """Return the memory of weights, and of gradients and AdamW's moments of what trains."""
    trainable = _num_bytes(p for p in model.parameters() if p.requires_grad)
    return _num_bytes(model.parameters()) + 3 * trainable


def recommend(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    micro_batch_size: int = 1,
    optimizer_name: str = "adamw",
) -> list[Recommendation]:
    """Return the changes that save memory, the largest counted saving first.

    Args:
        optimizer: the optimizer whose state is counted. Without one, or before its first step,
            AdamW's state is assumed.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    gradients = _num_bytes(trainable)
    state = _optimizer_bytes(optimizer) or 2 * gradients
    counted = []
    if optimizer_name == "adamw":
        saves = state - int(BYTES_PER_8BIT_STATE * sum(p.numel() for p in trainable))
        change = format(Setting("training.optimizer", "adamw_8bit"))
        counted.append(Recommendation(change, phrase("optimization.moments_in_8_bits"), saves))
    lora = 3 * 4 * _num_lora_weights(model)  # gradients and moments in fp32
    if lora < (gradients + state) // 2:
        change = phrase("optimization.lora_of_rank", rank=LORA_RANK)
        cost = phrase("optimization.trains_low_rank_matrices")
        counted.append(Recommendation(change, cost, gradients + state - lora))
    worth = [one for one in counted if (one.saves_bytes or 0) >= LEAST_SAVING_BYTES]
    worth.sort(key=lambda one: one.saves_bytes or 0, reverse=True)
    return [*worth, *_about_activations(model, micro_batch_size)]


def _about_activations(model: Any, micro_batch_size: int) -> Iterator[Recommendation]:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if can_checkpoint(base) and not getattr(base, "is_gradient_checkpointing", False):
        cost = phrase("optimization.costs_third_more_time")
        yield Recommendation(phrase("optimization.checkpointing"), cost)
    if micro_batch_size > 1:
        half = phrase("optimization.halve_micro_batch", half=micro_batch_size // 2)
        yield Recommendation(half, phrase("optimization.same_result_smaller_batches"))


def _num_bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _optimizer_bytes(optimizer: torch.optim.Optimizer | None) -> int:
    states = optimizer.state.values() if optimizer is not None else ()
    values = (value for state in states for value in state.values())
    return _num_bytes(value for value in values if isinstance(value, torch.Tensor))


def _num_lora_weights(model: torch.nn.Module) -> int:
    linear = (module for module in model.modules() if isinstance(module, torch.nn.Linear))
    return sum(LORA_RANK * (m.in_features + m.out_features) for m in linear)
