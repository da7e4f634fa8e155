"""Gradient checkpointing: activations are computed again in the backward pass instead of kept.

Method: Chen et al. 2016, arXiv 1604.06174, as transformers has it. Four modes, each takes less
memory and more time than the one before: "off", "selective" (every second block), "all", "offload"
(all, and what each block begins with waits in main memory instead of the GPU's).
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
    """Whether this model can compute its activations again."""
    return bool(getattr(model, "supports_gradient_checkpointing", False))


def can_do(model: Any, mode: str) -> bool:
    """Whether a model that can checkpoint can do so in this mode: older versions of transformers,
    as a Colab runtime has them, know "all" alone."""
    known = inspect.signature(model.gradient_checkpointing_enable).parameters
    return OPTIONS[mode].keys() <= known.keys()


def checkpoint_gradients(model: Any, mode: str) -> None:
    """Put a model into a mode, in the form that works with frozen inputs.

    On a CPU "offload" is the same as "all": what it would move is in main memory already.

    Raises:
        ValueError: the model, or this version of transformers, cannot.
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
