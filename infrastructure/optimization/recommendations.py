"""Recommended changes that let a run use less memory, and the memory that each saves.

Weights, gradients and the optimizer's state are counted. Activations are measured on the actual
model with the actual batch, with and without checkpointing. Nothing is estimated from a table of
models.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from infrastructure.core.hardware import MIB
from infrastructure.core.messages import Setting, phrase
from infrastructure.optimization.allocations import kept_for_backward
from infrastructure.optimization.checkpointing import can_checkpoint, can_do, checkpoint_gradients

BYTES_PER_8BIT_STATE = 2 * (1 + 4 / 256)  # two moments of one byte, and a scale per 256
LEAST_SAVING_BYTES = MIB
LORA_RANK = 16
CHECKPOINTING_SETTING = {
    "selective": "optimization.selective_checkpointing",
    "all": "optimization.checkpointing",
}

Forward = Callable[[], object]


@dataclass(frozen=True)
class MemoryUse:
    """The memory use of a run by purpose, in bytes.

    Attributes:
        activations_bytes: the memory kept for the backward pass of one micro-batch, or None if not
            measured.
        checkpointed_bytes: mode → `activations_bytes` in this mode of gradient checkpointing, for
            each mode that the model supports.
        lora_bytes: the memory for gradients and moments of LoRA matrices on the linear layers, if
            LoRA replaced full fine-tuning.
    """

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    num_trainable: int
    lora_bytes: int
    activations_bytes: int | None
    checkpointed_bytes: dict[str, int]

    @property
    def total_bytes(self) -> int:
        """The sum of all parts, which is the memory in use at the end of a forward pass."""
        fixed = self.weights_bytes + self.gradients_bytes + self.optimizer_bytes
        return fixed + (self.activations_bytes or 0)

    def of_examples(self, count: int) -> "MemoryUse":
        """Return the memory use of a micro-batch of `count` examples like the measured one."""
        if self.activations_bytes is None:
            return self
        several = {mode: count * size for mode, size in self.checkpointed_bytes.items()}
        kept = count * self.activations_bytes
        return replace(self, activations_bytes=kept, checkpointed_bytes=several)


@dataclass(frozen=True)
class Recommendation:
    """One recommended change.

    Attributes:
        change: the setting, as the user writes it.
        saves_bytes: the memory that the change saves.
        costs: a text on the disadvantage of the change.
        is_measured: True if the saving was measured on this model and batch, False if it was
            calculated.
    """

    change: str
    saves_bytes: int
    costs: str
    is_measured: bool

    def __str__(self) -> str:
        how = "measured" if self.is_measured else "counted"
        return f"{self.change} saves {self.saves_bytes / MIB:.0f} MiB ({how}); {self.costs}"


def measure_use(
    model: torch.nn.Module,
    forward: Forward | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> MemoryUse:
    """Calculate the memory use of a model, and measure its activations if `forward` is given.

    Args:
        forward: a function that computes the loss of one micro-batch with gradients enabled. It may
            change nothing but the random state. It is called once without checkpointing, and once
            for each mode of checkpointing.
        optimizer: the optimizer whose state is counted. Without one, or before its first step,
            AdamW's state is assumed.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    kept, modes = (None, {}) if forward is None else _measure_activations(model, forward)
    return MemoryUse(
        weights_bytes=_num_bytes(model.parameters()),
        gradients_bytes=_num_bytes(trainable),
        optimizer_bytes=_optimizer_bytes(optimizer) or 2 * _num_bytes(trainable),
        num_trainable=sum(p.numel() for p in trainable),
        lora_bytes=3 * 4 * _num_lora_weights(model),
        activations_bytes=kept,
        checkpointed_bytes=modes,
    )


def recommend(
    use: MemoryUse, *, micro_batch_size: int = 1, optimizer_name: str = "adamw"
) -> list[Recommendation]:
    """Return the changes that save memory, the largest saving first."""
    candidates = [
        *_about_activations(use, micro_batch_size),
        *_about_optimizer(use, optimizer_name),
    ]
    worth = [one for one in candidates if one.saves_bytes >= LEAST_SAVING_BYTES]
    return sorted(worth, key=lambda one: one.saves_bytes, reverse=True)


def _about_activations(use: MemoryUse, micro_batch_size: int) -> Iterator[Recommendation]:
    kept = use.activations_bytes
    if kept is None:
        return
    for mode, less in use.checkpointed_bytes.items():
        setting = phrase(CHECKPOINTING_SETTING[mode])
        cost = (
            phrase("optimization.costs_third_more_time")
            if mode == "all"
            else phrase("optimization.costs_sixth_more_time")
        )
        yield Recommendation(setting, kept - less, cost, True)
    if micro_batch_size > 1:
        half = micro_batch_size // 2
        yield Recommendation(
            phrase("optimization.halve_micro_batch", half=half),
            kept - kept * half // micro_batch_size,
            phrase("optimization.same_result_smaller_batches"),
            True,
        )


def _about_optimizer(use: MemoryUse, name: str) -> Iterator[Recommendation]:
    small = int(BYTES_PER_8BIT_STATE * use.num_trainable)
    if name == "adamw":
        yield Recommendation(
            format(Setting("training.optimizer", "adamw_8bit")),
            use.optimizer_bytes - small,
            phrase("optimization.moments_in_8_bits"),
            False,
        )
    moving = use.gradients_bytes + use.optimizer_bytes
    if use.lora_bytes < moving // 2:
        yield Recommendation(
            phrase("optimization.lora_of_rank", rank=LORA_RANK),
            moving - use.lora_bytes,
            phrase("optimization.trains_low_rank_matrices"),
            False,
        )


def _measure_activations(model: torch.nn.Module, forward: Forward) -> tuple[int, dict[str, int]]:
    kept = _kept(model, forward)
    modes: dict[str, int] = {}
    whole: Any = model
    base = whole.get_base_model() if hasattr(whole, "get_base_model") else whole
    if can_checkpoint(base) and not getattr(base, "is_gradient_checkpointing", False):
        try:
            for mode in filter(partial(can_do, base), CHECKPOINTING_SETTING):
                checkpoint_gradients(base, mode)
                modes[mode] = _kept(model, forward)
        finally:
            checkpoint_gradients(base, "off")
    return kept, modes


def _kept(model: torch.nn.Module, forward: Forward) -> int:
    with kept_for_backward(model) as total:
        forward()
    return total[0]


def _num_bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _optimizer_bytes(optimizer: torch.optim.Optimizer | None) -> int:
    states = optimizer.state.values() if optimizer is not None else ()
    values = (value for state in states for value in state.values())
    return _num_bytes(value for value in values if isinstance(value, torch.Tensor))


def _num_lora_weights(model: torch.nn.Module) -> int:
    linear = (module for module in model.modules() if isinstance(module, torch.nn.Linear))
    return sum(LORA_RANK * (m.in_features + m.out_features) for m in linear)
