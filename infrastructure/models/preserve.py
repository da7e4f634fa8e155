"""A context that restores parts of a model's state after trying something on it.

    with preserve(model, random=device, modes=True):
        model.eval()
        loss = ...

The arguments determine what is restored at the end, and so what may be changed inside the context.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from infrastructure.backup.state.random_state import capture_random, restore_random
from infrastructure.optimization.device_errors import is_device_fault

Restore = Callable[[], None]


@contextmanager
def preserve(
    model: torch.nn.Module | None = None,
    *,
    random: torch.device | None = None,
    modes: bool = False,
    requires_grad: bool = False,
    gradients: bool = False,
    buffers: bool = False,
    weights: bool = False,
    attributes: bool = False,
) -> Iterator[None]:
    """Restore the parts that the arguments name at the end of the context, bit for bit.

    After a failure of the device itself, nothing on the device is restored.

    Args:
        model: not needed if only `random` is restored.
        random: the random state of Python, NumPy and torch, and of all GPUs if this device is one.
        modes: training or evaluation mode of each module.
        requires_grad: `requires_grad` of each parameter.
        gradients: the existing gradients. Inside the context there are none at first. They are not
            copied, but keep their memory.
        buffers: values of the buffers, which are copied, and which tensor is which buffer.
        weights: values of the trained parameters, which are copied.
        attributes: the attributes of each module, including hooks.
    """
    in_memory: list[Restore] = []
    on_device: list[Restore] = []
    if random is not None:
        on_device.append(_random(random))
    if model is not None:
        if modes:
            in_memory.append(_modes(model))
        if requires_grad:
            in_memory.append(_requires_grad(model))
        if buffers:
            on_device.append(_buffers(model))
        if weights:
            on_device.append(_weights(model))
        if gradients:
            in_memory.append(_gradients(model))
        if attributes:
            in_memory.append(_attributes(model))
    device_failed = False
    try:
        yield
    except Exception as error:
        device_failed = is_device_fault(error)
        raise
    finally:
        for restore in reversed(in_memory if device_failed else on_device + in_memory):
            restore()


def _random(device: torch.device) -> Restore:
    states = capture_random(device)
    return lambda: restore_random(states, device)


def _modes(model: torch.nn.Module) -> Restore:
    modes = [(module, module.training) for module in model.modules()]

    def restore() -> None:
        for module, was_training in modes:
            module.training = was_training

    return restore


def _requires_grad(model: torch.nn.Module) -> Restore:
    trained = [(parameter, parameter.requires_grad) for parameter in model.parameters()]

    def restore() -> None:
        for parameter, trains in trained:
            parameter.requires_grad_(trains)

    return restore


def _gradients(model: torch.nn.Module) -> Restore:
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None

    def restore() -> None:
        for parameter, gradient in gradients:
            parameter.grad = gradient

    return restore


def _buffers(model: torch.nn.Module) -> Restore:
    kept = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]

    @torch.no_grad()
    def restore() -> None:
        for module, name, buffer, was in kept:
            setattr(module, name, buffer)
            buffer.copy_(was)

    return restore


def _weights(model: torch.nn.Module) -> Restore:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kept = [(parameter, parameter.detach().clone()) for parameter in trained]

    @torch.no_grad()
    def restore() -> None:
        for parameter, was in kept:
            parameter.copy_(was)

    return restore


def _attributes(model: torch.nn.Module) -> Restore:
    """Return a function that restores the attributes of all modules.

    Tables of hooks, parameters and modules stay the same objects, because others refer to them.
    """
    kept = [(vars(module), dict(vars(module))) for module in model.modules()]
    tables = [
        (value, value.copy())
        for _, attributes in kept
        for value in attributes.values()
        if isinstance(value, dict)
    ]

    def restore() -> None:
        for attributes, were in kept:
            attributes.clear()
            attributes.update(were)
        for table, was in tables:
            table.clear()
            table.update(was)

    return restore


@contextmanager
def measuring(
    model: torch.nn.Module, device: torch.device, *, parameters_have_gradients: bool = False
) -> Iterator[None]:
    """Set the model to evaluation mode with gradients enabled, while the context lasts.

    Gradient checkpointing stays on if it is on. At the end, weights, gradients, trainable
    parameters, modes and random state are restored bit for bit.
    """
    kept = preserve(model, random=device, modes=True, requires_grad=True, gradients=True)
    with kept, torch.enable_grad():
        for module in model.modules():  # a layer checkpoints only in training mode
            module.training = bool(getattr(module, "gradient_checkpointing", False))
        if not parameters_have_gradients:
            model.requires_grad_(False)
        yield
