"""How the loss depends on each rank-1 component of LoRA, as if it had a gate that stands at 1.

The component's share of a layer's output is B[:, i] (A x)_i; the gate's gradient is therefore the
sum over tokens of (A x)_i times the gradient that arrives there. A few numbers an example.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from infrastructure.core.errors import InputError
from infrastructure.training.core.precision import Precision
from infrastructure.training.model_adapters.base_adapter import ModelAdapter
from infrastructure.training.quantum.fisher_labels import SampledLabels
from infrastructure.training.quantum.per_example_pass import ExamplePass, Split


def gated_layers(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The A matrices of the LoRA in use, by the names of the modules that they belong to.

    Raises:
        ValueError: the model has no LoRA, or more than one in use.
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
    """The rank of each LoRA module, in the order of the columns of `rank_gradients`."""
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
    """Of the sum of each example's losses by the gates, (n, number of gates).

    The model is afterwards what it was, bit for bit; so is the random state.

    Args:
        labels_seed: None: the labels of the data; a number: labels drawn from the model.

    Raises:
        ValueError: no LoRA, or the adapter does not keep examples apart.
        TemperError: the model computes LoRA in a kernel of its own.
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
