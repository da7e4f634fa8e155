"""Quantized storage of finished layers' weights, which are dequantized when they are used.

| kind | stored | bits per weight |
| --- | --- | --- |
| nf_fp8 | blocks of 64 along the input dimension: float8 (e4m3fn) and a scale in fp16 | 8.25 |
| fp16, fp32 | plain casts | 16, 32 |

nf_fp8 is not a public format; this is its definition. The scale of a block is absmax / 448 (the
largest float8), rounded up to fp16. So no weight of a block is ever clipped, and a block of tiny
weights gets the smallest fp16 scale instead of 0. A block of zeros has the scale 0. A weight is its
float8 times its scale, in fp32, and then rounded to the format of the activations.

A quantized layer dequantizes its weight in the forward pass and again in the backward pass, and
keeps no dequantized copy between them. The stored values are buffers: state_dict, safetensors and
checkpoints contain them bit for bit, they move between devices, and no `.to(dtype)` rounds them.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from infrastructure.core.errors import InputError
from infrastructure.core.optional import require
from infrastructure.core.registry import Registry
from infrastructure.features.stackwise import registries

BLOCK = 64
LARGEST_FP8 = torch.finfo(torch.float8_e4m3fn).max  # 448
_TUNED = ("lora_", "modules_to_save")  # PEFT's names of modules that train next to frozen layers
# Integers of the same width: casts of floats leave them unchanged.
_SAME_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32}

Buffers = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Quantization:
    """A method of storing a matrix in fewer bits.

    Attributes:
        store: converts (out, in) of any float type to buffers by name.
        restore: converts these buffers back to a matrix (out, in) in fp32, given its shape.
    """

    store: Callable[[torch.Tensor], Buffers]
    restore: Callable[[Mapping[str, torch.Tensor], torch.Size], torch.Tensor]


def _store_fp8(weight: torch.Tensor) -> Buffers:
    width = weight.shape[-1]
    blocks = F.pad(weight.float(), (0, -width % BLOCK)).unflatten(-1, (-1, BLOCK))
    largest = blocks.abs().amax(dim=-1)
    scales = _round_up_to_half(largest / LARGEST_FP8)
    if not scales.isfinite().all():
        raise InputError(
            "stackwise.weights_exceed_fp8_range",
            largest=largest.max(),
            limit=torch.finfo(torch.float16).max * LARGEST_FP8,
        )
    divisors = scales.float().masked_fill(scales == 0, 1.0).unsqueeze(-1)
    payload = (blocks / divisors).to(torch.float8_e4m3fn).flatten(-2)[..., :width]
    return {"payload": payload.contiguous(), "scales": scales}


def _round_up_to_half(values: torch.Tensor) -> torch.Tensor:
    """Round non-negative fp32 values up to fp16."""
    nearest = values.to(torch.float16)
    # for non-negative fp16, bits as an integer increase with the value
    next_up = (nearest.view(torch.int16) + 1).view(torch.float16)
    return torch.where(nearest.float() < values, next_up, nearest)


def _restore_fp8(stored: Mapping[str, torch.Tensor], shape: torch.Size) -> torch.Tensor:
    values = _widened(stored["payload"])
    scales = stored["scales"].float()
    if shape[-1] % BLOCK == 0:
        return values.unflatten(-1, (-1, BLOCK)).mul_(scales.unsqueeze(-1)).flatten(-2)
    return values.mul_(scales.repeat_interleave(BLOCK, dim=-1)[..., : shape[-1]])


def _widened(payload: torch.Tensor) -> torch.Tensor:
    """Convert finite values of float8 (e4m3fn) to fp32.

    Torch's own cast takes seven times as long on a CPU. Here, sign, exponent and mantissa are
    copied to fp16, which has the same order but an exponent bias that is larger by 8.
    """
    if payload.device.type != "cpu":
        return payload.float()
    bits = payload.view(torch.int8).to(torch.int16)  # the sign in bits 15 to 7
    bits = bits.bitwise_left_shift_(7).bitwise_and_(~(1 << 14))
    return bits.view(torch.float16).float().mul_(2.0**8)


def _store_fp16(weight: torch.Tensor) -> Buffers:
    payload = weight.to(torch.float16)
    if not payload.isfinite().all():
        raise InputError("stackwise.weights_exceed_fp16_range", largest=weight.abs().max())
    return {"payload": payload}


def _store_fp32(weight: torch.Tensor) -> Buffers:
    return {"payload": weight.to(torch.float32, copy=True)}


def _restore_float(stored: Mapping[str, torch.Tensor], shape: torch.Size) -> torch.Tensor:
    return stored["payload"].float().view(shape)


QUANTIZATIONS: Registry[Quantization] = registries.QUANTIZATIONS
QUANTIZATIONS.provide(
    {
        "nf_fp8": Quantization(_store_fp8, _restore_fp8),
        "fp16": Quantization(_store_fp16, _restore_float),
        "fp32": Quantization(_store_fp32, _restore_float),
    },
    Quantization,
    makes=False,
)


class QuantizedWeight(torch.nn.Module):
    """A matrix (out, in) that is stored as buffers.

    Args:
        weight: the weight to store; the tensor itself is not kept.
        kind: a name in `QUANTIZATIONS`.

    Raises:
        ValueError: the kind is unknown, or cannot store these weights.
    """

    def __init__(self, weight: torch.Tensor, kind: str) -> None:
        super().__init__()
        self._quantization = QUANTIZATIONS.get(kind)
        self.shape = weight.shape
        self.dtype = weight.dtype
        own = weight.detach()
        if not own.isfinite().all():
            raise InputError("stackwise.weights_not_finite", kind=kind)
        for name, buffer in self._quantization.store(own).items():
            self.register_buffer(name, buffer)

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the dequantized weights."""
        buffers = dict(self.named_buffers(recurse=False))
        return self._quantization.restore(buffers, self.shape).to(dtype)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> object:
        """Apply `fn` so that buffers move between devices but keep their dtype."""
        for name, buffer in list(self.named_buffers()):
            moved = fn(buffer.view(_SAME_WIDTH[buffer.itemsize]))
            self._buffers[name] = moved.view(buffer.dtype)
        return self


@cache
def quantized_bytes(kind: str, rows: int, width: int) -> int:
    """Return the size in bytes of a matrix (rows, width) that is stored as `kind`.

    Raises:
        ValueError, MissingPackageError: as for `QuantizedWeight`.
    """
    return sum(
        buffer.nbytes for buffer in QuantizedWeight(torch.zeros(rows, width), kind).buffers()
    )


class _Product(torch.autograd.Function):
    """The autograd function x W' + b, which dequantizes W in each pass instead of keeping the
    result.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, bias: torch.Tensor | None, weight: QuantizedWeight
    ) -> torch.Tensor:
        ctx.weight = weight
        return F.linear(x, weight.dequantized(x.dtype), bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        wants_x, wants_bias, _ = ctx.needs_input_grad
        of_x = gradient.matmul(ctx.weight.dequantized(gradient.dtype)) if wants_x else None
        of_bias = gradient.flatten(0, -2).sum(dim=0) if wants_bias else None
        return of_x, of_bias, None


class QuantizedLinear(torch.nn.Linear):
    """A linear layer whose weight is stored quantized.

    It is a subclass of `Linear`, so that PEFT can add LoRA to it.

    Args:
        weight: (out, in).
        bias: kept unchanged.
        is_conv1d: whether this layer replaces a `Conv1D` of transformers, whose weight has the
            shape (in, out).
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.nn.Parameter | None,
        kind: str,
        is_conv1d: bool = False,
    ) -> None:
        torch.nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.is_conv1d = is_conv1d
        self.quantized_weight = QuantizedWeight(weight, kind)
        self.register_parameter("bias", bias)

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        """A placeholder with the weight's shape (out, in), type and device, which takes no memory.

        All its entries are NaN, and it cannot be written. So code that computes with it, or merges
        LoRA into it, fails instead of being silently wrong. Call `dequantize_layers` first.
        """
        stored = self.quantized_weight
        device = next(stored.buffers()).device
        return torch.full((1, 1), torch.nan, dtype=stored.dtype, device=device).expand(stored.shape)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        x = input.to(_compute_dtype(input))
        bias = None if self.bias is None else self.bias.to(x.dtype)
        product: torch.Tensor = _Product.apply(x, bias, self.quantized_weight)
        return product


def _compute_dtype(x: torch.Tensor) -> torch.dtype:
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def quantize_layers(module: torch.nn.Module, kind: str) -> None:
    """Store the weights of all linear layers inside `module` as `kind`, in place.

    `Conv1D` layers of transformers are included. LoRA matrices, quantized layers, embeddings, norms
    and biases stay as they are. A weight that is shared with a module outside is no longer shared.

    Raises:
        ValueError: as for `QuantizedWeight`, with the layer's name. Earlier layers are already
            quantized then.
    """
    for name, parent in _frozen_modules(module):
        for child_name, child in _linear_children(parent):
            with _named(name, child_name):
                setattr(parent, child_name, _quantized(child, kind))


def dequantize_layers(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Replace quantized layers by layers of their original classes, with weights of type `dtype`.

    The parameters get their original names back, and are frozen.
    """
    parents: list[Any] = list(module.modules())
    for parent in parents:
        for name, child in list(parent.named_children()):
            if isinstance(child, QuantizedLinear):
                setattr(parent, name, _dequantized(child, dtype))
                if child.is_conv1d and hasattr(parent, "fan_in_fan_out"):
                    parent.fan_in_fan_out = True  # PEFT reads this when it merges


def _frozen_modules(module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """Return a module and the modules inside it, by name, except those that PEFT trains."""
    return [(name, part) for name, part in module.named_modules() if not _is_tuned(name)]


def _is_tuned(name: str) -> bool:
    return any(part in name for part in _TUNED)


def _linear_children(module: torch.nn.Module) -> list[tuple[str, Any]]:
    children = module.named_children()
    return [(name, c) for name, c in children if _is_linear(c) and not _is_tuned(name)]


def _is_linear(module: torch.nn.Module) -> bool:
    """Return whether `module` is a `Linear` or `Conv1D`, but not a subclass.

    A subclass may use its weight in its own way.
    """
    return type(module) is torch.nn.Linear or is_conv1d(module)


def is_conv1d(module: torch.nn.Module) -> bool:
    """Return whether `module` is the linear layer of GPT-2, whose weight is transposed."""
    layers = sys.modules.get("transformers.pytorch_utils")  # not loaded: no such layer exists
    return layers is not None and type(module) is layers.Conv1D


@contextmanager
def _named(module_name: str, name: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise InputError(
            "stackwise.weight_cannot_be_stored",
            parameter=f"{module_name}.{name}".removeprefix("."),
            error=error,
        ) from error


def _quantized(layer: Any, kind: str) -> QuantizedLinear:
    is_transposed = is_conv1d(layer)
    weight = layer.weight.t() if is_transposed else layer.weight
    quantized = QuantizedLinear(weight, layer.bias, kind, is_transposed)
    return quantized.train(layer.training)


def _dequantized(layer: QuantizedLinear, dtype: torch.dtype) -> torch.nn.Linear:
    weight = layer.quantized_weight.dequantized(dtype)
    plain: torch.nn.Linear
    with torch.device("meta"):  # no memory, no random numbers
        if layer.is_conv1d:
            plain = require("transformers", "Conv1D").pytorch_utils.Conv1D(*weight.shape)
        else:
            plain = torch.nn.Linear(layer.in_features, layer.out_features, bias=False)
    if layer.is_conv1d:
        weight = weight.t().contiguous()
    plain.weight = torch.nn.Parameter(weight, requires_grad=False)
    plain.bias = layer.bias
    plain.train(layer.training)
    return plain
