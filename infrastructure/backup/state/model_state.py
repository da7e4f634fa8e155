"""Conversion of any torch model and optimizer to tensors and JSON values, and back.

If a state does not fit a model, nothing of it is loaded.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.tensor_bytes import NAMES, to_bytes
from infrastructure.backup.state.optimizer_state import Tensors, merge_optimizer, split_optimizer
from infrastructure.backup.state.random_state import capture_random, restore_random
from infrastructure.core.errors import CheckpointError, InputError
from infrastructure.core.messages import phrase

WRITER = "BackupSystem"
MAX_LISTED = 10


@dataclass
class ModelState:
    """A training state: `tensors` by group ("model", "optimizer", "random") and JSON `values`."""

    tensors: dict[str, Tensors]
    values: dict[str, Any]


def capture(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, others: Mapping[str, object]
) -> ModelState:
    """Return the state of the model, the optimizer and all random generators.

    The result shares memory with the model and the optimizer.

    Args:
        others: further JSON values to include in the state.

    Raises:
        ValueError: if a part of the state is neither a tensor nor JSON.
    """
    state = model.state_dict()
    optimizer_tensors, optimizer_values = split_optimizer(optimizer.state_dict())
    tensors = {
        "model": {name: value for name, value in state.items() if isinstance(value, torch.Tensor)},
        "optimizer": optimizer_tensors,
        "random": capture_random(_device_of(model)),
    }
    values = {
        "writer": WRITER,
        "model": {n: v for n, v in state.items() if not isinstance(v, torch.Tensor)},
        "optimizer": optimizer_values,
        "optimizer_class": type(optimizer).__name__,
        **others,
    }
    try:
        return ModelState(tensors, json.loads(json.dumps(values, allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise InputError("backup.state_cannot_be_stored", error=error) from error


def stored(state: ModelState) -> dict[str, TensorBytes]:
    """Convert the tensors of a state to bytes, by full name, as a store expects them."""
    return {
        f"{group}/{name}": to_bytes(tensor)
        for group, members in state.tensors.items()
        for name, tensor in members.items()
    }


def restore(state: ModelState, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load `state` into the model, the optimizer and all random generators.

    Raises:
        CheckpointError: if the state does not fit. The message lists the mismatches, and nothing is
            changed.
    """
    if state.values.get("writer") != WRITER:
        raise CheckpointError("backup.checkpoint_of_a_run")
    merged = merge_optimizer(state.tensors.get("optimizer", {}), state.values["optimizer"])
    mismatches = [
        *_model_mismatches(state, model),
        *_optimizer_mismatches(state, merged, optimizer),
    ]
    if mismatches:
        more = (
            f"\n  … and {len(mismatches) - MAX_LISTED} more" if len(mismatches) > MAX_LISTED else ""
        )
        listed = "\n  ".join(mismatches[:MAX_LISTED])
        raise CheckpointError("backup.checkpoint_does_not_match", mismatches=listed, more=more)
    optimizer.load_state_dict(merged)
    model.load_state_dict({**state.tensors.get("model", {}), **state.values["model"]})
    restore_random(state.tensors["random"], _device_of(model))


def _model_mismatches(state: ModelState, model: torch.nn.Module) -> Iterator[str]:
    saved = {**state.tensors.get("model", {}), **state.values["model"]}
    living = model.state_dict()
    for name in sorted(saved.keys() - living.keys()):
        yield phrase("backup.only_in_checkpoint", name=name)
    for name in sorted(living.keys() - saved.keys()):
        yield phrase("backup.only_in_model", name=name)
    for name in sorted(living.keys() & saved.keys()):
        if _form(saved[name]) != _form(living[name]):
            yield phrase(
                "backup.model_tensor_differs",
                name=name,
                saved=_form(saved[name]),
                current=_form(living[name]),
            )


def _form(value: object) -> str:
    """Return a text on the type and shape of a value."""
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{NAMES.get(value.dtype, str(value.dtype))}{list(value.shape)}"


def _optimizer_mismatches(
    state: ModelState, merged: dict[str, Any], optimizer: torch.optim.Optimizer
) -> Iterator[str]:
    name = type(optimizer).__name__
    if state.values["optimizer_class"] != name:
        yield phrase(
            "backup.optimizer_class_differs", saved=state.values["optimizer_class"], current=name
        )
        return
    saved = [len(group["params"]) for group in merged["param_groups"]]
    living = [len(group["params"]) for group in optimizer.param_groups]
    if saved != living:
        yield phrase("backup.optimizer_groups_differ", saved=saved, current=living)
        return
    indices = [index for group in merged["param_groups"] for index in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, parameter in zip(indices, parameters, strict=True):
        for key, value in merged["state"].get(index, {}).items():
            if key.startswith("exp_avg") and value.shape != parameter.shape:
                yield (
                    phrase(
                        "backup.optimizer_state_shape_differs",
                        key=key,
                        index=index,
                        saved_shape=list(value.shape),
                        current_shape=list(parameter.shape),
                    )
                )


def _device_of(model: torch.nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))
