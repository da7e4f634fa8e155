"""The GPU optimizer: it chooses precision, kernels and compiling by the GPU's capabilities.

    optimizer = create_gpu_optimizer(device_ids=[0], mixed_precision=True, compile_model=True)
    model = optimizer.optimize_model(model, "my_model")
    scaler = optimizer.create_scaler()

Without a GPU, the same calls adapt the model to the CPU. A run of Temper uses the same parts
automatically, and trains on several GPUs with one process for each GPU.
"""

import functools
import logging
from collections.abc import Sequence

import torch

from infrastructure.core.errors import InputError
from infrastructure.core.gpu_readings import readings_over
from infrastructure.core.hardware import GpuReading
from infrastructure.core.messages import phrase
from infrastructure.optimization.compiling import set_compiled
from infrastructure.optimization.gpu_capability import (
    DTYPES,
    best_attention,
    best_precision,
    can_compile,
    refuse_fp8,
    train_in_fp8,
    use_tf32,
)

log = logging.getLogger(__name__)


class GPUOptimizer:
    """An optimizer of models for the available GPU, created by `create_gpu_optimizer`.

    Attributes:
        device: the device on which models are placed.
        precision: "fp32", "fp16", "bf16" or "fp8".
        applied: the name of each model → descriptions of the changes that were made to it.
    """

    def __init__(
        self, devices: Sequence[torch.device], precision: str, compile_model: bool
    ) -> None:
        self.devices = list(devices)
        self.device = self.devices[0]
        self.precision = precision
        self.compile_model = compile_model
        self.applied: dict[str, list[str]] = {}

    def optimize_model(
        self,
        model: torch.nn.Module,
        name: str = "model",
    ) -> torch.nn.Module:
        """Move a model to the device, set its precision and attention, compile it, and return it.

        Weights keep their format. The forward pass runs under autocast, and returns fp32.
        """
        notes = self.applied[name] = [f"device: {self.device}", f"precision: {self.precision}"]
        if use_tf32(self.device):
            notes.append(phrase("optimization.tf32_used"))
        model = model.to(self.device)
        self._choose_attention(model, notes)
        if self.precision == "fp8":
            model = train_in_fp8(model)
        if self.precision != "fp32":
            self._autocast(model)
        if self.compile_model:
            notes.append(self._compile(model))
        for line in notes:
            log.info("%s: %s", name, line)
        if len(self.devices) > 1:
            code, count = "optimization.one_gpu_of_several_used", len(self.devices)
            log.warning(phrase(code, device=self.device, count=count))
        return model

    def create_scaler(self) -> torch.amp.GradScaler:
        """Return a gradient scaler. It has no effect unless the precision is fp16."""
        return torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")

    def monitor_gpu_utilization(self, duration: float = 60.0) -> list[GpuReading]:
        """Return what `readings_over` finds in `duration` seconds; without a GPU, an empty list."""
        return readings_over(duration)

    def _choose_attention(self, model: object, notes: list[str]) -> None:
        best, config = best_attention(self.device), getattr(model, "config", None)
        used = getattr(config, "_attn_implementation", None)
        if used is None or used == best or not hasattr(model, "set_attn_implementation"):
            return
        model.set_attn_implementation(best)
        notes.append(phrase("optimization.attention_replaced", best=best, used=used))

    def _autocast(self, model: torch.nn.Module) -> None:
        dtype = DTYPES.get(self.precision, torch.bfloat16)
        forward = model.forward

        @functools.wraps(forward)
        def in_precision(*args: object, **kwargs: object) -> object:
            with torch.autocast(self.device.type, dtype=dtype):
                output = forward(*args, **kwargs)
            return output.float() if isinstance(output, torch.Tensor) else output

        model.forward = in_precision

    def _compile(self, model: torch.nn.Module) -> str:
        if reason := can_compile(self.device):
            return phrase("optimization.compile_not_used", reason=reason)
        set_compiled(model, True)
        return phrase("optimization.compile_not_measured")


def create_gpu_optimizer(
    device_ids: Sequence[int] | None = None,
    mixed_precision: bool | str = True,
    compile_model: bool = False,
) -> GPUOptimizer:
    """Create a GPU optimizer for the available GPUs.

    Args:
        device_ids: the GPUs to use; by default, all. Missing ones are left out with a warning.
        mixed_precision: True for the best precision that the GPU supports, False for fp32, or
            "bf16", "fp16" or "fp8".
        compile_model: compile models with torch.compile.

    Raises:
        ValueError: if there is no such precision, or this device does not support it.
    """
    there = range(torch.cuda.device_count())
    wanted = list(there) if device_ids is None else list(device_ids)
    missing = [index for index in wanted if index not in there]
    if missing:
        log.warning(
            phrase("optimization.gpus_not_available", missing=missing, available=len(there))
        )
    devices = [torch.device("cuda", i) for i in wanted if i in there] or [torch.device("cpu")]
    return GPUOptimizer(devices, _precision(mixed_precision, devices[0]), compile_model)


def _precision(mixed_precision: bool | str, device: torch.device) -> str:
    if isinstance(mixed_precision, bool):
        return best_precision(device) if mixed_precision else "fp32"
    if mixed_precision not in (*DTYPES, "fp8"):
        raise InputError("optimization.invalid_mixed_precision", mixed_precision=mixed_precision)
    if mixed_precision == "fp8":
        refuse_fp8(device)
    if mixed_precision == "fp16" and device.type == "cpu":
        raise InputError("optimization.fp16_needs_gpu")
    return mixed_precision
