"""Choice of the precision (fp32, bf16, fp16 or fp8) that a device supports.

Weights keep their own dtype; autocast chooses the dtype of each operation.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from infrastructure.core.errors import InputError
from infrastructure.optimization.gpu_capability import DTYPES, best_precision, refuse_fp8
from infrastructure.optimization.kernel_caches import bound_kernel_caches


@dataclass(frozen=True)
class Precision:
    """A precision on a device: `name` is "fp32", "bf16", "fp16" or "fp8".

    With fp8, the model's large layers multiply in fp8 (`train_in_fp8`). Everything else computes in
    bf16.
    """

    name: str
    device_type: str

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES.get(self.name, torch.bfloat16)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the autocast context for forward passes and loss computation."""
        if self.name == "fp32":
            return nullcontext()
        return torch.autocast(self.device_type, dtype=self.dtype)

    def create_scaler(self) -> torch.amp.GradScaler | None:
        """Return a gradient scaler, which prevents underflow in fp16; None for other precisions."""
        return torch.amp.GradScaler(self.device_type) if self.name == "fp16" else None


def choose_precision(mixed_precision: bool | str, device: torch.device) -> Precision:
    """Return the precision for the setting `mixed_precision`.

    The setting is the name of a precision, False (fp32) or True (`best_precision` of the device).
    For half precision on a CPU, this also limits the number of cached kernels
    (`bound_kernel_caches`).

    Raises:
        ValueError: fp16 was requested on a CPU, or fp8 on a device that does not support it.
    """
    precision = _chosen(mixed_precision, device)
    if device.type == "cpu" and precision.name != "fp32":
        bound_kernel_caches()
    return precision


def _chosen(mixed_precision: bool | str, device: torch.device) -> Precision:
    if mixed_precision is False:
        return Precision("fp32", device.type)
    if mixed_precision is not True:
        if mixed_precision == "fp16" and device.type == "cpu":
            raise InputError("core.fp16_needs_gpu")
        if mixed_precision == "fp8":
            refuse_fp8(device)
        return Precision(str(mixed_precision), device.type)
    return Precision(best_precision(device), device.type)


def choose_device(name: str) -> torch.device:
    """Return the device called `name`; "auto" is the first GPU, or the CPU without a GPU.

    Raises:
        ValueError: this machine has no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("core.pytorch_sees_no_gpu", device=name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            "training.device_out_of_range", device=name, num_gpus=torch.cuda.device_count()
        )
    return device


def training_device(name: str) -> torch.device:
    """Return the device as `choose_device` does, after checking torch's global defaults.

    Raises:
        ValueError: as in `choose_device`, or a changed default of torch prevents training. The
            message names it.
    """
    check_torch_defaults()
    if (dtype := torch.get_default_dtype()) is not torch.float32:
        raise InputError("training.default_dtype_changed", dtype=dtype)
    return choose_device(name)


def check_torch_defaults() -> None:
    """Raise if a global default of torch that prevents training is set.

    An earlier notebook cell may have set it.

    Raises:
        ValueError: such a default is set. The message names it and says how to undo it.
    """
    device = torch.get_default_device()
    if device.type != "cpu":
        raise InputError("training.default_device_changed", device=str(device))
    if torch.is_inference_mode_enabled() or not torch.is_grad_enabled():
        raise InputError("training.gradients_disabled")
