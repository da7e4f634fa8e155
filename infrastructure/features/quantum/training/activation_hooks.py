"""Hooks that receive activations of chosen modules with their gradients, and leave no trace.

A hook receives a tensor of the forward pass together with the gradient of the module's output in
the backward pass. No parameter's gradient is computed, and tensors are kept only as long as
autograd keeps its own saved tensors. If activations are recomputed (checkpointing), so is the
hook's tensor.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from infrastructure.core.errors import TemperError

# called with the kept tensor and the gradient of the output
Receive = Callable[[torch.Tensor, torch.Tensor], None]


class _GradientHook(torch.autograd.Function):
    """An identity whose backward pass calls `receive` with a saved tensor and the gradient."""

    @staticmethod
    def forward(
        ctx: Any, output: torch.Tensor, kept: torch.Tensor, _anchor: torch.Tensor, receive: Receive
    ) -> torch.Tensor:
        ctx.save_for_backward(kept)
        ctx.receive = receive
        return output.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (kept,) = ctx.saved_tensors
        with torch.no_grad():
            ctx.receive(kept.detach(), gradient.detach())
        return gradient, None, None, None


@contextmanager
def gradient_hooks(
    modules: Mapping[str, torch.nn.Module],
    receive: Callable[[str, torch.Tensor, torch.Tensor], None],
) -> Iterator[set[str]]:
    """Call `receive` for each module in every backward pass in the context.

    Its arguments are name, the module's input, and the gradient of its output. Hooks do not reach
    into compiled code, so compiled modules run uncompiled here.

    Yields:
        Names of the modules whose hooks were called so far.
    """
    heard: set[str] = set()
    anchor = torch.zeros(
        (), requires_grad=True
    )  # makes the outputs of a frozen model have gradients

    def hook_for(name: str) -> Callable[..., torch.Tensor]:
        def pass_on(kept: torch.Tensor, gradient: torch.Tensor) -> None:
            heard.add(name)
            receive(name, kept, gradient)

        def hook(_module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
            hooked: torch.Tensor = _GradientHook.apply(output, inputs[0].detach(), anchor, pass_on)
            return hooked

        return hook

    handles = [module.register_forward_hook(hook_for(name)) for name, module in modules.items()]
    try:
        with torch.compiler.set_stance("force_eager"):
            yield heard
    finally:
        for handle in handles:
            handle.remove()


def check_heard(heard: set[str], wanted: Mapping[str, torch.nn.Module]) -> None:
    """Check that the hooks of all modules were called.

    Raises:
        TemperError: the forward of a module was not called, as happens with fused kernels.
    """
    silent = [name for name in wanted if name not in heard]
    if silent:
        raise TemperError(
            "quantum.layer_without_gradient",
            layer=silent[0],
            count=len(silent),
            total=len(wanted),
        )
