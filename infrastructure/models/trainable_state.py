"""The tensors of a model that a checkpoint must contain.

Full fine-tuning: every parameter, including parameters that the current phase freezes. LoRA or
added modules: everything that is trained, but not the frozen base model, which is loaded from its
source. Persistent buffers are always included.
"""

from collections.abc import Callable, Iterator, Mapping

import torch

from infrastructure.core.errors import CheckpointError
from infrastructure.models.added_modules import is_added

_COMPILED = "_orig_mod."
_TUNED = ("lora_", "modules_to_save")


def trainable_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors that training changes, by name, without copying them.

    Names are those of the plain model, even if it is compiled. Tied tensors appear once.
    """
    return {name: tensor.detach() for name, tensor in _state(model)}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole tensor. For a sharded tensor, all ranks must call this together."""
    put_together: Callable[[], torch.Tensor] | None = getattr(tensor, "full_tensor", None)
    return tensor if put_together is None else put_together()


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a sharded tensor, as a view of the same memory. Return other
    tensors unchanged.
    """
    part: Callable[[], torch.Tensor] | None = getattr(tensor, "to_local", None)
    return tensor if part is None else part()


def load_trainable_state(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy `tensors` into the model. Their names must be exactly those of `trainable_state`.

    Raises:
        CheckpointError: a tensor is missing, does not belong to this model, or has another shape or
            dtype. The model is then unchanged.
    """
    own = trainable_state(model)
    _check_names(own.keys() - tensors.keys(), tensors.keys() - own.keys())
    for name, tensor in own.items():
        _check_tensor(name, tensor, tensors[name])
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def _state(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    base_is_frozen = hasattr(model, "peft_config")
    for name, parameter in _named(model.named_parameters()):
        tuned = any(part in name for part in _TUNED) or is_added(name) or parameter.requires_grad
        if tuned or not base_is_frozen:
            yield name, parameter
    yield from _named(_persistent_buffers(model))


def _persistent_buffers(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}".removeprefix("."), buffer


def _named(pairs: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    return ((name.replace(_COMPILED, ""), tensor) for name, tensor in pairs)


def _check_names(missing: set[str], unexpected: set[str]) -> None:
    if missing:
        raise CheckpointError(
            "models.checkpoint_lacks_tensors", count=len(missing), name=min(missing)
        )
    if unexpected:
        raise CheckpointError(
            "models.checkpoint_has_extra_tensors",
            count=len(unexpected),
            name=min(unexpected),
        )


def _check_tensor(name: str, own: torch.Tensor, given: torch.Tensor) -> None:
    if own.shape != given.shape or own.dtype != given.dtype:
        raise CheckpointError(
            "models.checkpoint_tensor_differs",
            name=name,
            stored=_shown(given),
            own=_shown(own),
        )


def _shown(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
