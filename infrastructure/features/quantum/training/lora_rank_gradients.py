"""Gradients of the loss with respect to gates of value 1 on the rank-1 components of LoRA.

A component contributes B[:, i] (A x)_i to a layer's output. So the gradient of its gate is the sum
over tokens of (A x)_i times the gradient of (A x)_i: a few numbers per example.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from infrastructure.core.errors import InputError
from infrastructure.features.quantum.training.fisher_labels import SampledLabels
from infrastructure.features.quantum.training.per_example_pass import ExamplePass, Split
from infrastructure.training.core.precision import Precision
from infrastructure.training.model_adapters.base_adapter import ModelAdapter


def gated_layers(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the A matrices of the active LoRA adapter, by module name.

    Raises:
        ValueError: the model has no LoRA, or more than one adapter is active.
    """
    layers = {}
    for name, module in model.named_modules():
        matrices = getattr(module, "lora_A", None)
        if matrices is None:
            continue
        used = [key for key in getattr(module, "active_adapters", matrices) if key in matrices]
        if len(used) > 1:
            raise InputError(
                "quantum.several_loras_active", module=name, count=len(used), names=", ".join(used)
            )
        if used:
            layers[name] = matrices[used[0]]
    if not layers:
        raise InputError("quantum.no_lora_components", model=type(model).__name__)
    return layers


def num_components(model: torch.nn.Module) -> dict[str, int]:
    """Return the rank of each LoRA module, in the order of the columns of `rank_gradients`."""
    layers: dict[str, Any] = gated_layers(model)
    return {name: int(a.weight.shape[0]) for name, a in layers.items()}


def rank_gradients(
    model: torch.nn.Module,
    adapter: ModelAdapter,
    batches: Iterable[Sequence[object]],
    *,
    precision: Precision,
    labels_seed: int | None = None,
) -> npt.NDArray[np.float32]:
    """Return the gradients of each example's summed loss by the gates, (n, number of gates).

    Afterwards the model and the random state are as before, bit for bit.

    Args:
        labels_seed: seed of labels drawn from the model; None: the labels of the data.

    Raises:
        ValueError: the model has no LoRA, or the adapter does not keep examples separate.
        TemperError: the model computes LoRA in its own kernel.
    """
    ranks = num_components(model)
    ends = dict(zip(ranks, accumulate(ranks.values()), strict=True))

    def add(
        total: torch.Tensor, name: str, output: torch.Tensor, gradient: torch.Tensor, split: Split
    ) -> None:
        total[:, ends[name] - ranks[name] : ends[name]] += split.sums(output * gradient)

    relabel = None
    if labels_seed is not None:
        relabel = SampledLabels(model, adapter, precision, labels_seed)
    return ExamplePass(
        model,
        adapter,
        precision,
        gated_layers(model),
        sum(ranks.values()),
        add,
        keep_output=True,
        relabel=relabel,
    ).rows(batches)
