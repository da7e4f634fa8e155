"""Gradient checkpointing: activations are recomputed in the backward pass instead of stored.

Method: Chen et al. 2016, arXiv 1604.06174, as implemented in transformers. There are four modes,
each of which takes less memory and more time than the one before: "off", "selective" (every second
block), "all", "offload" (all, with the inputs of each block in CPU memory instead of the GPU's).
"""

import inspect
from typing import Any

import torch

from infrastructure.core.errors import InputError

OPTIONS: dict[str, dict[str, object]] = {
    "selective": {"every_n_layers": 2},
    "all": {},
    "offload": {"offload": True},
}


def can_checkpoint(model: torch.nn.Module) -> bool:
    """Return whether this model can recompute its activations."""
    return bool(getattr(model, "supports_gradient_checkpointing", False))


def can_do(model: Any, mode: str) -> bool:
    """Return whether a model supports this mode of gradient checkpointing.

    With some versions of transformers, only "all" is supported.
    """
    known = inspect.signature(model.gradient_checkpointing_enable).parameters
    return OPTIONS[mode].keys() <= known.keys()


def checkpoint_gradients(model: Any, mode: str) -> None:
    """Set the mode of gradient checkpointing of a model, so that it works with frozen embeddings.

    On a CPU "offload" is the same as "all", because the inputs are already in CPU memory.

    Raises:
        ValueError: if the model, or this version of transformers, does not support the mode.
    """
    if mode == "off":
        model.gradient_checkpointing_disable()
        return
    if not can_checkpoint(model):
        raise InputError("optimization.no_gradient_checkpointing", model=type(model).__name__)
    if mode == "offload" and next(model.parameters()).device.type == "cpu":
        mode = "all"
    if not can_do(model, mode):
        raise InputError("optimization.checkpointing_mode_unsupported", mode=mode)
    model.gradient_checkpointing_enable(
        gradient_checkpointing_kwargs={"use_reentrant": False}, **OPTIONS[mode]
    )
