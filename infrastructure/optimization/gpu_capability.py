"""The features that a GPU supports, by its compute capability, and the memory limits of a run."""

import shutil
from typing import Any

import torch

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.core.optional import is_installed, require

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
AMPERE, ADA = (8, 0), (8, 9)
TRITON = (7, 0)


def cpu_has_bf16() -> bool:
    """Return whether this CPU has bf16 matrix products in hardware (AVX512-BF16 or AMX)."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def best_precision(device: torch.device) -> str:
    """Return the fastest dtype that trains as well as fp32: "bf16", "fp16" or "fp32".

    This is bf16 on GPUs of compute capability 8 and above (Ampere, Hopper) and on CPUs with bf16
    instructions, fp16 (with a gradient scaler) on older GPUs (T4), and fp32 elsewhere. fp8 is never
    chosen automatically, because it pays off only for large matrices, and rounds coarsely.
    """
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= AMPERE else "fp16"
    return "bf16" if cpu_has_bf16() else "fp32"


def refuse_fp8(device: torch.device) -> None:
    """Raise ValueError with the reason if this device cannot compute in fp8."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < ADA:
        raise InputError("core.fp8_needs_newer_gpu")
    require("torchao", "mixed_precision='fp8'")


def train_in_fp8(model: torch.nn.Module, *, emulate: bool = False) -> torch.nn.Module:
    """Convert the linear layers of the model, in place, to multiply in fp8; weights keep their
    names.

    Every linear layer whose two widths are divisible by 16 is converted, except the output layer.
    Method: dynamic scaling per tensor (torchao).

    Args:
        emulate: compute the same numbers without fp8 instructions, which is slow; for tests.
    """
    float8: Any = require("torchao.float8", "mixed_precision='fp8'")
    config = float8.Float8LinearConfig(emulate=emulate, pad_inner_dim=True)
    head = getattr(model, "get_output_embeddings", lambda: None)()

    def is_converted(module: torch.nn.Module, _name: str) -> bool:
        if not isinstance(module, torch.nn.Linear) or module is head:
            return False
        return module.in_features % 16 == 0 and module.out_features % 16 == 0

    converted: torch.nn.Module = float8.convert_to_float8_training(
        model, module_filter_fn=is_converted, config=config
    )
    return converted


def best_attention(device: torch.device) -> str:
    """Return the fastest attention implementation on this device, by its name in transformers."""
    is_recent = device.type == "cuda" and torch.cuda.get_device_capability(device) >= AMPERE
    return "flash_attention_2" if is_recent and is_installed("flash_attn") else "sdpa"


def use_tf32(device: torch.device) -> bool:
    """Allow TF32 for fp32 matrix products if the GPU supports it; return whether it does.

    TF32 keeps fp32's range and 10 of its 23 bits of mantissa. Sums stay fp32.
    """
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < AMPERE:
        return False
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    return True


def can_compile(device: torch.device) -> str | None:
    """Return why torch.compile cannot generate code for this device; None if it can."""
    if device.type == "cuda":
        if not is_installed("triton"):
            return phrase("optimization.triton_not_installed")
        if torch.cuda.get_device_capability(device) < TRITON:
            return phrase("optimization.gpu_too_old_for_triton")
        return None
    has_compiler = any(shutil.which(name) for name in ("g++", "clang++", "c++"))
    return None if has_compiler else phrase("optimization.no_cpp_compiler")


def require_capability(device: torch.device, least: float | None) -> None:
    """Raise ValueError unless the device is a GPU of compute capability `least` (8.6) or more."""
    if least is None:
        return
    if device.type != "cuda":
        raise InputError(
            "optimization.compute_capability_without_gpu", least=least, device=device.type
        )
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < (int(least), round(least * 10) % 10):
        name = torch.cuda.get_device_name(device)
        raise InputError(
            "optimization.compute_capability_too_low",
            least=least,
            gpu=name,
            major=major,
            minor=minor,
        )


def limit_gpu_memory(device: torch.device, limit_bytes: int | None, share: float | None) -> None:
    """Limit this process's GPU memory to a size and to a share of the total, whichever is smaller.

    Beyond the limit, torch raises its out-of-memory error, to which a run responds with smaller
    micro-batches. This does nothing on a CPU.
    """
    if device.type != "cuda":
        return
    total = torch.cuda.get_device_properties(device).total_memory
    shares = [1.0 if share is None else share, 1.0 if limit_bytes is None else limit_bytes / total]
    if min(shares) < 1:
        torch.cuda.set_per_process_memory_fraction(min(shares), device)


def drop_gpu_cache_above(device: torch.device, limit_bytes: int) -> bool:
    """Free the allocator's unused blocks if they exceed this size. Return whether they did."""
    if device.type != "cuda":
        return False
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if kept > limit_bytes:
        torch.cuda.empty_cache()
    return kept > limit_bytes
