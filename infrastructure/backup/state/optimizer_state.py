"""Conversion of an optimizer state to flat tensors and JSON values, and back."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]


def split_optimizer(state_dict: dict[str, Any]) -> tuple[Tensors, dict[str, object]]:
    """Split an optimizer state into flat tensors, named `index/key/…`, and all other values.

    bitsandbytes nests dictionaries in the state and shares one table of quantization levels between
    all parameters. In the checkpoint, each parameter gets its own copy of the table.
    """
    tensors: Tensors = {}
    values: dict[str, Any] = {}
    for path, value in _leaves(state_dict["state"]):
        if isinstance(value, torch.Tensor):
            tensors[path] = value
        else:
            values[path] = value
    return tensors, {"values": values, "param_groups": state_dict["param_groups"]}


def _leaves(tree: Mapping[object, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _leaves(value, f"{path}/")
        else:
            yield path, value


def merge_optimizer(tensors: Tensors, values: dict[str, Any]) -> dict[str, Any]:
    """Undo `split_optimizer`."""
    state: dict[int, dict[str, Any]] = {}
    for path, value in [*tensors.items(), *values["values"].items()]:
        index, *parents, key = path.split("/")
        entries = state.setdefault(int(index), {})
        for parent in parents:
            entries = entries.setdefault(parent, {})
        entries[key] = value
    return {"state": state, "param_groups": values["param_groups"]}
