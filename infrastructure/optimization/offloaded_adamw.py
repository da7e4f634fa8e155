"""AdamW that keeps its moments in CPU memory and computes its update on the CPU, for a GPU model.

This saves 8 bytes of GPU memory for each trained fp32 weight, and costs two copies per step: the
gradient to the CPU, and the weight back. Method: ZeRO-Offload (Ren et al. 2021, arXiv 2101.06840),
on one GPU. torchao's offloading optimizers copy gradients during the backward pass, before they are
clipped or unscaled; this one copies them in the optimizer step.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.adamw import adamw

MOMENTS = ("exp_avg", "exp_avg_sq")


class OffloadedAdamW(torch.optim.Optimizer):
    """AdamW on the CPU for weights on any device.

    It gives the same numbers as `torch.optim.AdamW(fused=True)` on a CPU.

    Args:
        params: parameters or parameter groups, on any device.
        lr, betas, eps, weight_decay: as in AdamW.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            for name in MOMENTS:
                state[name] = torch.zeros_like(parameter, device="cpu")
        weight = parameter.detach().cpu()  # on a CPU, the weight itself
        adamw(
            [weight],
            [parameter.grad.detach().cpu()],  # type: ignore[union-attr]
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        if weight.device != parameter.device:
            parameter.copy_(weight)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state and keep the moments on the CPU; torch itself moves them to the weights."""
        super().load_state_dict(state_dict)
        for state in self.state.values():
            for name in (*MOMENTS, "step"):
                state[name] = state[name].cpu()
