"""How the weights of finished layers are stored: fewer bytes each, widened when they are used.

| kind | stored | bits a weight |
| --- | --- | --- |
| nf_fp8 | blocks of 64 along the input dimension: float8 (e4m3fn) and a scale in fp16 | 8.25 |
| nf4 | NF4 with double quantisation by bitsandbytes (Dettmers 2023, arXiv 2305.14314) | 4.13 |
| fp16, fp32 | plain casts | 16, 32 |

No public format is called nf_fp8; this is its definition. The scale of a block is absmax / 448, the
largest float8, rounded up to fp16: no weight of a block is ever clipped, and a block of tiny
weights gets the smallest scale that fp16 has instead of none. A block of zeros has the scale 0. A
weight is its float8 times its scale, in fp32, and then rounded to the format of the activations.

A quantised layer computes by widening its weight in the forward pass and again in the backward
pass; nothing wide is kept between them. What is stored are buffers: they travel in state_dict,
safetensors and checkpoints bit for bit, move between devices, and no `.to(dtype)` rounds them.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from infrastructure.config import registries
from infrastructure.core.errors import InputError
from infrastructure.core.optional import require
from infrastructure.core.registry import Registry

BLOCK = 64
LARGEST_FP8 = torch.finfo(torch.float8_e4m3fn).max  # 448
_TUNED = ("lora_", "modules_to_save")  # PEFT's names of what trains beside frozen layers
# Integers of the same width: nothing that changes a float's type changes them.
_SAME_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32}

Buffers = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Quantization:
    """A way to store a matrix.

    Attributes:
        store: (out, in) of any float type → buffers by name.
        restore: these, and the matrix's shape → (out, in) in fp32.
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
    """The smallest fp16 that is not less; `values` are fp32 and not negative."""
    nearest = values.to(torch.float16)
    # the bits of fp16 that are not negative count up as their values do
    next_up = (nearest.view(torch.int16) + 1).view(torch.float16)
    return torch.where(nearest.float() < values, next_up, nearest)


def _restore_fp8(stored: Mapping[str, torch.Tensor], shape: torch.Size) -> torch.Tensor:
    values = _widened(stored["payload"])
    scales = stored["scales"].float()
    if shape[-1] % BLOCK == 0:
        return values.unflatten(-1, (-1, BLOCK)).mul_(scales.unsqueeze(-1)).flatten(-2)
    return values.mul_(scales.repeat_interleave(BLOCK, dim=-1)[..., : shape[-1]])


def _widened(payload: torch.Tensor) -> torch.Tensor:
    """float8 (e4m3fn), which are all finite, in fp32.

    Torch's own cast takes seven times as long on a CPU. Sign, exponent and mantissa stand in the
    same order in fp16, whose exponent begins 8 lower.
    """
    if payload.device.type != "cpu":
        return payload.float()
    bits = payload.view(torch.int8).to(torch.int16)  # the sign in bits 15 to 7
    bits = bits.bitwise_left_shift_(7).bitwise_and_(~(1 << 14))
    return bits.view(torch.float16).float().mul_(2.0**8)


def _store_nf4(weight: torch.Tensor) -> Buffers:
    functional = require("bitsandbytes.functional", "quantization nf4")
    flat = weight.float().flatten()
    flat = F.pad(flat, (0, -len(flat) % BLOCK))
    payload, state = functional.quantize_4bit(
        flat, blocksize=BLOCK, compress_statistics=True, quant_type="nf4"
    )
    return {
        "payload": payload.flatten(),
        "scales": state.absmax,
        "scales_of_scales": state.state2.absmax,
        "mean_scale": state.offset,
    }


def _restore_nf4(stored: Mapping[str, torch.Tensor], shape: torch.Size) -> torch.Tensor:
    functional = require("bitsandbytes.functional", "quantization nf4")
    payload = stored["payload"]
    levels, scale_levels = _nf4_levels(payload.device)
    state = functional.QuantState(
        absmax=stored["scales"],
        shape=torch.Size([2 * len(payload)]),
        code=levels,
        blocksize=BLOCK,
        quant_type="nf4",
        dtype=torch.float32,
        offset=stored["mean_scale"],
        state2=functional.QuantState(
            absmax=stored["scales_of_scales"],
            code=scale_levels,
            blocksize=256,  # bitsandbytes' own, of scales
            dtype=torch.float32,
        ),
    )
    flat = functional.dequantize_4bit(payload.unsqueeze(-1), state).flatten()
    return flat[: shape.numel()].view(shape)


@cache
def _nf4_levels(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    functional = require("bitsandbytes.functional", "quantization nf4")
    levels = functional.get_4bit_type("nf4", device=device)
    return levels, functional.create_dynamic_map().to(device)


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
        "nf4": Quantization(_store_nf4, _restore_nf4),
        "fp16": Quantization(_store_fp16, _restore_float),
        "fp32": Quantization(_store_fp32, _restore_float),
    },
    Quantization,
    makes=False,
)


class QuantizedWeight(torch.nn.Module):
    """A matrix (out, in), or a stack of them (experts, out, in), as buffers.

    Args:
        weight: what is stored; it is not kept.
        kind: a name in `QUANTIZATIONS`.

    Raises:
        ValueError: there is no such kind, or it cannot hold these weights.
        MissingPackageError: bitsandbytes is not installed.
    """

    def __init__(self, weight: torch.Tensor, kind: str) -> None:
        super().__init__()
        self._quantization = QUANTIZATIONS.get(kind)
        self.kind = kind
        self.shape = weight.shape
        self.dtype = weight.dtype
        own = weight.detach()
        if not own.isfinite().all():
            raise InputError("stackwise.weights_not_finite", kind=kind)
        if own.ndim == 2:
            buffers = self._quantization.store(own)
        else:
            matrices = [self._quantization.store(matrix) for matrix in own]
            buffers = {name: torch.stack([m[name] for m in matrices]) for name in matrices[0]}
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def dequantized(self, dtype: torch.dtype, index: int | None = None) -> torch.Tensor:
        """The weights as they are computed with; of a stack, all or matrix number `index`."""
        buffers = dict(self.named_buffers(recurse=False))
        if index is None and len(self.shape) == 3:
            return torch.stack([self.dequantized(dtype, i) for i in range(self.shape[0])])
        if index is not None:
            buffers = {name: buffer[index] for name, buffer in buffers.items()}
        return self._quantization.restore(buffers, self.shape[-2:]).to(dtype)

    def num_bytes(self) -> int:
        """Bytes of the buffers."""
        return sum(buffer.nbytes for buffer in self.buffers())

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> object:
        """Move what is stored, and never cast it."""
        for name, buffer in self._buffers.items():
            assert buffer is not None
            moved = fn(buffer.view(_SAME_WIDTH[buffer.itemsize]))
            self._buffers[name] = moved.view(buffer.dtype)
        return self

    def extra_repr(self) -> str:
        return f"{self.kind}, {tuple(self.shape)}"


@cache
def quantized_bytes(kind: str, rows: int, width: int) -> int:
    """Bytes that a matrix of this shape takes.

    Raises:
        ValueError, MissingPackageError: as `QuantizedWeight`.
    """
    return QuantizedWeight(torch.zeros(rows, width), kind).num_bytes()


class _Product(torch.autograd.Function):
    """x W' + b with a W that is widened twice and kept never."""

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
    """A linear layer whose weight is stored quantised.

    It is a `Linear`, so that PEFT puts LoRA beside it.

    Args:
        weight: (out, in).
        bias: kept as it is.
        is_conv1d: it replaces a `Conv1D` of transformers, whose weight is (in, out).
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
        """Where the weight would be, for those who ask for its shape, type and device: (out, in),
        in no memory.

        It is not a number anywhere, and cannot be written: whoever computes with it, or merges LoRA
        into it, fails instead of being silently wrong (`dequantize_layers` first).
        """
        stored = self.quantized_weight
        device = next(stored.buffers()).device
        return torch.full((1, 1), torch.nan, dtype=stored.dtype, device=device).expand(stored.shape)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        x = input.to(_compute_dtype(input))
        bias = None if self.bias is None else self.bias.to(x.dtype)
        product: torch.Tensor = _Product.apply(x, bias, self.quantized_weight)
        return product

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features},"
            f" bias={self.bias is not None}"
        )


def _compute_dtype(x: torch.Tensor) -> torch.dtype:
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


class _QuantizedExperts:
    """Beside the class of a module with stacks of matrices (experts): they are there, as wide
    tensors under their own names, while it computes. What autograd saves of them is the place; a
    copy that an operation makes of its own is saved as it is."""

    quantized_names: tuple[str, ...]

    def forward(self, *args: object, **kwargs: object) -> object:
        inputs = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
        dtype = _compute_dtype(next(x for x in inputs if x.is_floating_point()))
        stored = {name: getattr(self, quantized_name(name)) for name in self.quantized_names}
        weights = {name: weight.dequantized(dtype) for name, weight in stored.items()}
        with _saved_as_places(weights, stored):
            self.__dict__.update(weights)
            try:
                return super().forward(*args, **kwargs)  # type: ignore[misc]
            finally:
                for name in weights:
                    del self.__dict__[name]


@contextmanager
def _saved_as_places(
    weights: Mapping[str, torch.Tensor], stored: Mapping[str, QuantizedWeight]
) -> Iterator[None]:
    names = {weight.untyped_storage().data_ptr(): name for name, weight in weights.items()}
    strides = {name: weight.stride(0) for name, weight in weights.items()}

    def pack(saved: torch.Tensor) -> object:
        name = names.get(saved.untyped_storage().data_ptr())
        if name is None:
            return saved.detach()  # the tensor itself would hold what holds it
        place = saved.size(), saved.stride(), saved.storage_offset()
        return name, saved.dtype, place

    def unpack(packed: Any) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        name, dtype, (size, stride, offset) = packed
        first, within = divmod(offset, strides[name])
        reach = within + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        if reach < strides[name]:  # of one expert
            return stored[name].dequantized(dtype, first).as_strided(size, stride, within)
        return stored[name].dequantized(dtype).as_strided(size, stride, offset)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


@cache
def _with_quantized_experts(plain: type[torch.nn.Module]) -> type[torch.nn.Module]:
    return type(plain.__name__, (_QuantizedExperts, plain), {"plain_class": plain})


def quantized_name(name: str) -> str:
    """Under which a module holds the quantised form of its parameter `name`."""
    return f"quantized_{name}"


def quantize_layers(modules: Iterable[torch.nn.Module], kind: str) -> int:
    """Store the weights of all linear layers inside `modules` as `kind`, in place.

    Linear layers, `Conv1D` of transformers, and the stacked matrices of experts, one matrix at a
    time. LoRA matrices, and layers that are quantised already, stay as they are; so do embeddings,
    norms and biases. A weight that is shared with something outside becomes its own.

    Returns:
        The number of weights that are stored otherwise now.

    Raises:
        ValueError: as `QuantizedWeight`, with the layer's name; those before it are quantised.
        MissingPackageError: bitsandbytes is not installed.
    """
    QUANTIZATIONS.get(kind)
    count = 0
    for module in modules:
        for name, parent in _frozen_modules(module):
            for child_name, child in _linear_children(parent):
                with _named(name, child_name):
                    setattr(parent, child_name, _quantized(child, kind))
                count += 1
            for parameter_name in _stacks(parent):
                with _named(name, parameter_name):
                    _quantize_stack(parent, parameter_name, kind)
                count += 1
    return count


def dequantize_layers(modules: Iterable[torch.nn.Module], dtype: torch.dtype | None = None) -> int:
    """Put layers of their old classes, with the weights as they are computed with, in the places of
    quantised ones: the parameters have their old names again, and are frozen.

    Args:
        dtype: of the weights; None: that which each had before.

    Returns:
        The number of weights.
    """
    count = 0
    for module in modules:
        parents: list[Any] = list(module.modules())
        for parent in parents:
            for name, child in list(parent.named_children()):
                if isinstance(child, QuantizedLinear):
                    setattr(parent, name, _dequantized(child, dtype))
                    if child.is_conv1d and hasattr(parent, "fan_in_fan_out"):
                        parent.fan_in_fan_out = True  # PEFT's word for it, when it merges
                    count += 1
            if isinstance(parent, _QuantizedExperts):
                count += _dequantize_stacks(parent, dtype)
    return count


def stored_bytes(module: torch.nn.Module) -> int:
    """Bytes of the weights of linear layers and experts inside `module`, however they are stored;
    of scales, too, and not of biases."""
    total = sum(m.num_bytes() for m in module.modules() if isinstance(m, QuantizedWeight))
    for _, parent in _frozen_modules(module):
        weights = [child.weight for _, child in _linear_children(parent)]
        stacks = [parent.get_parameter(name) for name in _stacks(parent)]
        total += sum(weight.nbytes for weight in (*weights, *stacks))
    return total


def _frozen_modules(module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """A module and those inside it, without what PEFT trains beside them."""
    return [(name, part) for name, part in module.named_modules() if not _is_tuned(name)]


def _is_tuned(name: str) -> bool:
    return any(part in name for part in _TUNED)


def _linear_children(module: torch.nn.Module) -> list[tuple[str, Any]]:
    children = module.named_children()
    return [(name, c) for name, c in children if _is_linear(c) and not _is_tuned(name)]


def _is_linear(module: torch.nn.Module) -> bool:
    """Not of a class made from these: what such a one does with its weight is its own affair."""
    return type(module) is torch.nn.Linear or is_conv1d(module)


def is_conv1d(module: torch.nn.Module) -> bool:
    """Whether it is the linear layer of GPT-2, whose weight is transposed."""
    layers = sys.modules.get("transformers.pytorch_utils")  # not loaded: there is none of it
    return layers is not None and type(module) is layers.Conv1D


def _stacks(module: torch.nn.Module) -> list[str]:
    """The parameters of a module that are stacks of matrices."""
    return [
        name
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.ndim == 3
        and parameter.is_floating_point()
        and parameter.shape[-1] >= BLOCK  # a kernel of a convolution is shorter
        and not _is_tuned(name)
    ]


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


def _dequantized(layer: QuantizedLinear, dtype: torch.dtype | None) -> torch.nn.Linear:
    stored = layer.quantized_weight
    weight = stored.dequantized(dtype or stored.dtype)
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


def _quantize_stack(module: torch.nn.Module, name: str, kind: str) -> None:
    quantized = QuantizedWeight(module.get_parameter(name), kind)
    delattr(module, name)
    module.add_module(quantized_name(name), quantized)
    if not isinstance(module, _QuantizedExperts):
        plain: object = module.__class__
        module.__class__ = _with_quantized_experts(plain)
        module.quantized_names = ()  # type: ignore[assignment]
    module.quantized_names = (*module.quantized_names, name)  # type: ignore


def _dequantize_stacks(module: Any, dtype: torch.dtype | None) -> int:
    names = module.quantized_names
    module.__class__ = module.plain_class
    del module.quantized_names
    for name in names:
        stored = getattr(module, quantized_name(name))
        delattr(module, quantized_name(name))
        weight = stored.dequantized(dtype or stored.dtype)
        module.register_parameter(name, torch.nn.Parameter(weight, requires_grad=False))
    return len(names)
