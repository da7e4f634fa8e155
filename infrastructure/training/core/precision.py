"""Which number format the arithmetic runs in, by what the device can do.

Weights stay in their own format; autocast chooses the format of each operation.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.optimization.gpu_capability import DTYPES, best_precision, refuse_fp8
from infrastructure.optimization.kernel_caches import bound_kernel_caches


@dataclass(frozen=True)
class Precision:
    """A number format on a device: `name` is "fp32", "bf16", "fp16" or "fp8".

    With fp8 the model's large layers multiply in fp8 (`train_in_fp8`), all else computes in bf16.
    """

    name: str
    device_type: str

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES.get(self.name, torch.bfloat16)

    def autocast(self) -> AbstractContextManager[object]:
        """The context that forward passes and loss computation run in."""
        if self.name == "fp32":
            return nullcontext()
        return torch.autocast(self.device_type, dtype=self.dtype)

    def create_scaler(self) -> torch.amp.GradScaler | None:
        """A gradient scaler for fp16, whose small gradients would vanish; else None."""
        return torch.amp.GradScaler(self.device_type) if self.name == "fp16" else None


def choose_precision(mixed_precision: bool | str, device: torch.device) -> Precision:
    """The format for `mixed_precision`: a format's name, False (fp32), or True: by the device.

    True means what `best_precision` says: bf16 where the hardware has it. In half precision on a
    CPU, fewer kernels are kept from now on (`bound_kernel_caches`).

    Raises:
        ValueError: fp16 was asked for on a CPU, or fp8 where there is none.
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
            raise ValueError(phrase("core.fp16_needs_gpu"))
        if mixed_precision == "fp8":
            refuse_fp8(device)
        return Precision(str(mixed_precision), device.type)
    return Precision(best_precision(device), device.type)


def choose_device(name: str) -> torch.device:
    """The device called `name`; "auto" is the first GPU, or the CPU where there is none.

    Raises:
        ValueError: there is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(phrase("core.pytorch_sees_no_gpu", device=name))
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            "training.device_out_of_range", device=name, num_gpus=torch.cuda.device_count()
        )
    return device


def training_device(name: str) -> torch.device:
    """As `choose_device`, for a training of Temper's own.

    Raises:
        ValueError: as there, or a default of torch is in the way; says which.
    """
    check_torch_defaults()
    if (dtype := torch.get_default_dtype()) is not torch.float32:
        raise InputError("training.default_dtype_changed", dtype=dtype)
    return choose_device(name)


def check_torch_defaults() -> None:
    """Refuse what an earlier cell of a notebook may have left, and no training gets over.

    Raises:
        ValueError: says what it is, and how to undo it.
    """
    device = torch.get_default_device()
    if device.type != "cpu":
        raise InputError("training.default_device_changed", device=str(device))
    if torch.is_inference_mode_enabled() or not torch.is_grad_enabled():
        raise InputError("training.gradients_disabled")
