"""Optimizers and learning-rate schedules, by name.

An optimizer can be added as a class like `torch.optim.Adamax`, or a function like it, by an entry
point in the group "temper.optimizers" or its address, `training.optimizer: torch.optim:Adamax`. It
is called with parameter groups and `lr`, and with `betas` if it takes them. A schedule is a
function that maps the completed share of the training (0 to 1, without warm-up) to a factor of the
learning rate.
"""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from infrastructure.config import registries
from infrastructure.core.optional import require
from infrastructure.core.registry import Registry
from infrastructure.optimization.offloaded_adamw import OffloadedAdamW

ParameterGroups = list[dict[str, Any]]
BETAS = (0.9, 0.95)  # of AdamW, and of each other optimizer that takes them
OPTIMIZERS: Registry[Callable[..., torch.optim.Optimizer]] = registries.OPTIMIZERS
SCHEDULERS: Registry[Callable[[float], float]] = registries.SCHEDULERS


def build_optimizer(
    name: str, groups: ParameterGroups, learning_rate: float
) -> torch.optim.Optimizer:
    """Create the optimizer with a name or address.

    Raises:
        ValueError: there is no such optimizer, or it cannot be created with these arguments.
    """
    takes_betas = "betas" in inspect.signature(OPTIMIZERS.get(name)).parameters
    options: dict[str, Any] = {"betas": BETAS} if takes_betas else {}
    made: torch.optim.Optimizer = OPTIMIZERS.make(name, groups, lr=learning_rate, **options)
    return made


def _from_bitsandbytes(class_name: str) -> Callable[..., torch.optim.Optimizer]:
    """Return a function that creates an 8-bit or paged optimizer.

    8-bit moments take a quarter of the memory. Paged moments move to main memory when the GPU's
    memory is full. On a CPU, paging has no effect.
    """

    def build(
        groups: ParameterGroups, lr: float, betas: tuple[float, float]
    ) -> torch.optim.Optimizer:
        optim: object = require("bitsandbytes", f"optimizer {class_name}").optim
        on_cpu = groups[0]["params"][0].device.type == "cpu"
        build_one = getattr(optim, class_name.removeprefix("Paged") if on_cpu else class_name)
        optimizer: torch.optim.Optimizer = build_one(groups, lr=lr, betas=betas)
        return optimizer

    return build


OPTIMIZERS.provide(
    {
        # fused: one pass over the parameters instead of a dozen; available on CPU and CUDA
        "adamw": partial(torch.optim.AdamW, fused=True),
        "adamw_8bit": _from_bitsandbytes("AdamW8bit"),
        "paged_adamw": _from_bitsandbytes("PagedAdamW32bit"),
        "paged_adamw_8bit": _from_bitsandbytes("PagedAdamW8bit"),
        "adamw_offload": OffloadedAdamW,
        "sgd": torch.optim.SGD,
    }
)
SCHEDULERS.provide(
    {
        "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
        "linear": lambda done: 1.0 - done,
        "constant": lambda _done: 1.0,
    }
)
