"""Isolated attention for packed rows: examples in a row do not attend to each other.

A packed row (1, T) contains several examples end to end. The attention of each example is computed
separately, so the cost is the sum of the squares of the lengths, and no (T, T) mask is built. If a
feature has added the fastest implementation for a row, that is used; otherwise one variable-length
kernel on a GPU that has it, or else one causal call per example.

The ends of the examples are passed in place of the attention mask, as a small integer tensor with
four dimensions. transformers passes it to every layer unchanged (also when a layer is recomputed
under gradient checkpointing). With an ordinary mask or none, the attention is exactly transformers'
`sdpa`, so evaluation on padded rows and generation need no switch.

Limits: causal self-attention of models on transformers' attention interface, set to `sdpa`. Score
caps, position biases and attention sinks are rejected. `packing_check.py` tests whether the result
is correct for a given model.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from infrastructure.core.errors import InputError, TemperError
from infrastructure.core.features import loaded, plugins_of
from infrastructure.core.integers import ceil_div
from infrastructure.models.model_inputs import (
    attention_implementation,
    bidirectional_mask,
    forward_parameters,
    inner_model,
    language_model,
    text_part,
)

ATTENTION_NAME = "temper_packed"
PICTURES = "pictures"  # part of a batch with the model's image inputs, by argument
HALF_PRECISION = (torch.float16, torch.bfloat16)
UNSUPPORTED_ARGUMENTS = ("softcap", "position_bias", "s_aux", "head_mask")

_known_lengths = WeakTensorKeyDictionary()  # an entry is dropped with its mask
_known_layouts = WeakTensorKeyDictionary()


class PackingUnsupportedError(TemperError):
    """An error for a model whose kind of attention is not supported with packed rows."""


class PackedWay(Protocol):
    """The interface of attention implementations that features add, group "temper.attention"."""

    def takes(
        self, value: torch.Tensor, mask: torch.Tensor, dropout: float, window: int | None
    ) -> bool:
        """Return whether this is the fastest implementation for a segment mask."""

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor,
        scaling: float | None,
    ) -> torch.Tensor:
        """Compute attention, (1, T, H, D). Key and value may have fewer heads than the query."""

    def form(self, device: torch.device, dtype: torch.dtype, length_step: int) -> str:
        """Return a text about everything that affects rounding; "" if such rows are not
        supported.
        """


@cache
def added_ways() -> tuple[PackedWay, ...]:
    """Return the attention implementations that features add."""
    return tuple(map(loaded, plugins_of("temper.attention").values()))


@dataclass(frozen=True)
class RoundedLayout:
    """A packed row with the examples' lengths rounded up, so that fewer kernels are compiled.

    Attributes:
        lengths: the lengths of the examples, rounded up.
        source: for each position of the longer row, the index of the token to copy, (R,) int64.
            Added positions come after an example's tokens and copy its first token.
        places: for each token, its position in the longer row, (T,) int64.
    """

    lengths: list[int]
    source: torch.Tensor
    places: torch.Tensor


def segment_mask(cu_seq_lens: torch.Tensor, max_length: int, length_step: int = 1) -> torch.Tensor:
    """Return example boundaries in the shape of an attention mask, for `packed_attention`.

    Args:
        cu_seq_lens: cumulative lengths from 0 to T, (B+1,) int32.
        max_length: length of the longest example, in tokens. It is encoded in the shape, so that it
            need not be read from the device.
        length_step: lengths may be rounded up to multiples of this. Also encoded in the shape.

    Returns:
        (1, length_step, max_length, B+1) int32, an expanded view.
    """
    return cu_seq_lens.to(torch.int32).view(1, 1, 1, -1).expand(1, length_step, max_length, -1)


def is_segment_mask(attention_mask: torch.Tensor | None) -> bool:
    """Return whether a mask comes from `segment_mask`. False for an ordinary mask."""
    return attention_mask is not None and attention_mask.dtype == torch.int32


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute causal attention inside each example of a packed row.

    With an ordinary mask or none, compute transformers' `sdpa`.

    Args:
        query: (1, H, T, D). Key and value may have fewer heads (grouped-query attention).
        attention_mask: from `segment_mask`, or an ordinary mask.

    Returns:
        The output (1, T, H, D), and None in place of attention weights.

    Raises:
        PackingUnsupportedError: the model needs more than causal, windowed attention.
    """
    if attention_mask is None or not is_segment_mask(attention_mask):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **kwargs
        )
    max_length = attention_mask.shape[2]
    window = sliding_window(module, max_length, kwargs)
    refuse_unsupported(module, query, key, is_causal, kwargs)
    for method in added_ways():
        if method.takes(value, attention_mask, dropout, window):
            return method.attend(query, key, value, attention_mask, scaling), None
    query, key, value = in_autocast_format(query, key, value)
    boundaries = attention_mask[0, 0, 0]
    if has_varlen_kernel(query, value, dropout):
        return varlen(query, key, value, boundaries, max_length, scaling, window), None
    lengths = segment_lengths(attention_mask)
    if attention_mask.shape[1] == 1 or not compiles_kernels(value):
        return by_segment(query, key, value, lengths, dropout, scaling, window), None
    layout = rounded_layout(attention_mask)
    query, key, value = (tensor.index_select(2, layout.source) for tensor in (query, key, value))
    output = by_segment(query, key, value, layout.lengths, dropout, scaling, window)
    return output.index_select(1, layout.places), None


def attention_form(
    model: torch.nn.Module, device: torch.device, dtype: torch.dtype, length_step: int
) -> str:
    """Return a text about all properties of the model's attention to packed rows that affect
    rounding.

    Checkpoints contain this text.

    Args:
        dtype: the dtype of the computation.
        length_step: as in `segment_mask`.
    """
    name = attention_implementation(model) or "its own"
    ways = added_ways() if name == ATTENTION_NAME else ()
    # Checkpoints store and compare this text, so it is not a message.
    forms = (method.form(device, dtype, length_step) for method in ways)
    return ", ".join([name, *filter(None, forms)])


def compiles_kernels(value: torch.Tensor) -> bool:
    """Return whether attention by example compiles a kernel for each length.

    oneDNN does this in half precision on a CPU.
    """
    return value.device.type == "cpu" and compute_format(value) in HALF_PRECISION


def rounded_layout(mask: torch.Tensor) -> RoundedLayout:
    """Return the rounded layout of a segment mask. The layout of a mask is computed once and
    cached.
    """
    if mask not in _known_layouts:
        _known_layouts[mask] = _make_layout(segment_lengths(mask), mask.shape[1])
    return _known_layouts[mask]


def _make_layout(lengths: list[int], step: int) -> RoundedLayout:
    rounded = [ceil_div(length, step) * step for length in lengths]
    starts = torch.tensor([0, *lengths[:-1]]).cumsum(0)
    begins = torch.tensor([0, *rounded[:-1]]).cumsum(0)
    own = torch.repeat_interleave(begins - starts, torch.tensor(lengths))
    places = torch.arange(sum(lengths)) + own
    source = torch.repeat_interleave(starts, torch.tensor(rounded))
    source[places] = torch.arange(sum(lengths))
    return RoundedLayout(rounded, source, places)


def segment_lengths(mask: torch.Tensor) -> list[int]:
    """Return the lengths of the examples in a segment mask.

    They are read from the device once per batch, because all layers get the same mask, and each
    read waits for the device.
    """
    if mask not in _known_lengths:
        _known_lengths[mask] = _read_lengths(mask)
    return _known_lengths[mask]


def _read_lengths(mask: torch.Tensor) -> list[int]:
    lengths: list[int] = mask[0, 0, 0].diff().tolist()
    return lengths


def in_autocast_format(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Convert tensors to autocast's dtype.

    Rotary embeddings leave queries and keys in fp32, which the variable-length kernel does not
    support.
    """
    return [tensor.to(compute_format(tensor)) for tensor in tensors]


def compute_format(tensor: torch.Tensor) -> torch.dtype:
    """Return autocast's dtype if autocast is on, otherwise the tensor's dtype."""
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype


def refuse_unsupported(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    is_causal: bool | None,
    arguments: Mapping[str, object],
) -> None:
    """Raise `PackingUnsupportedError` for every argument that `by_segment` would ignore."""
    unsupported = [name for name in UNSUPPORTED_ARGUMENTS if arguments.get(name) is not None]
    if unsupported:
        raise PackingUnsupportedError(
            "models.packed_arguments_unsupported", arguments=", ".join(unsupported)
        )
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    if not causal or arguments.get("output_attentions"):
        raise PackingUnsupportedError("models.packed_attention_is_causal")
    if query.shape[0] != 1 or query.shape[2] != key.shape[2]:
        raise PackingUnsupportedError("models.packed_attention_one_row")


def sliding_window(
    module: torch.nn.Module, max_length: int, arguments: Mapping[str, Any]
) -> int | None:
    """Return the number of tokens that a token attends to, including itself; None: no limit.

    Raises:
        PackingUnsupportedError: the model has windows or chunks, examples are longer than these,
            and the model does not tell the attention of each layer its window (ordinarily the mask
            shows it).
    """
    if "sliding_window" in arguments:
        window = arguments["sliding_window"]
        return window if window is not None and window < max_length else None
    config = getattr(module, "config", None)
    for name in ("sliding_window", "attention_chunk_size"):
        limit = getattr(config, name, None)
        if isinstance(limit, int) and limit < max_length:
            raise PackingUnsupportedError(
                "models.example_exceeds_window", max_length=max_length, name=name, limit=limit
            )
    return None


def by_segment(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: list[int],
    dropout: float,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Compute attention with one causal call per example.

    The examples are cut by `split` and joined by one `cat`, because the backward pass of each slice
    would cost as much as a whole row.
    """
    parts = zip(*(tensor.split(lengths, dim=2) for tensor in (query, key, value)), strict=True)
    outputs = [
        F.scaled_dot_product_attention(
            part_query,
            part_key,
            part_value,
            attn_mask=window_mask(part_query, window),
            dropout_p=dropout,
            is_causal=window is None or part_query.shape[2] <= window,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        ).transpose(1, 2)
        for part_query, part_key, part_value in parts
    ]
    return torch.cat(outputs, dim=1)


def window_mask(query: torch.Tensor, window: int | None) -> torch.Tensor | None:
    """Return a mask, True for the token itself and the `window - 1` tokens before it.

    Return None if the example is not longer than the window.
    """
    length = query.shape[2]
    if window is None or length <= window:
        return None
    ones = torch.ones(length, length, dtype=torch.bool, device=query.device)
    return ones.tril().triu(1 - window)


@cache
def varlen_kernel() -> Callable[..., Any] | None:
    """Return torch's variable-length attention; None if it does not support windows or grouped
    heads.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    parameters = inspect.signature(varlen_attn).parameters
    return varlen_attn if {"window_size", "enable_gqa", "scale"} <= set(parameters) else None


def has_varlen_kernel(query: torch.Tensor, value: torch.Tensor, dropout: float) -> bool:
    """Return whether the variable-length kernel supports these tensors.

    It needs half precision and an Ampere or newer GPU.
    """
    return (
        query.is_cuda
        and dropout == 0.0
        and query.dtype in (torch.float16, torch.bfloat16)
        and query.shape[-1] == value.shape[-1] <= 256
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
        and varlen_kernel() is not None
    )


def varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    boundaries: torch.Tensor,
    max_length: int,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Compute the attention of all examples in one call of the variable-length kernel."""
    kernel = varlen_kernel()
    assert kernel is not None
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    boundaries = boundaries.contiguous()
    output = kernel(
        query,
        key,
        value,
        boundaries,
        boundaries,
        max_length,
        max_length,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output.unsqueeze(0)


def register_packed_attention() -> None:
    """Register the attention with transformers under `ATTENTION_NAME`, with sdpa's masks.

    It is excluded from `torch.compile`, which would compile a new graph for each batch, because the
    lengths differ.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION_NAME, torch.compiler.disable(packed_attention))
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)


def use_packed_attention(model: torch.nn.Module) -> bool:
    """Switch the attention of the model's text part to `packed_attention`, if possible.

    The model stays unchanged if it does not use transformers' attention interface, or if the user
    chose another attention than `sdpa`.

    Returns:
        True if the text part now uses packed attention.
    """
    part = language_model(text_part(model))
    current = attention_implementation(model)
    if current == ATTENTION_NAME:
        return True
    if current != "sdpa" or not part._can_set_attn_implementation() or part.config.sub_configs:
        return False
    register_packed_attention()
    part.set_attn_implementation(ATTENTION_NAME)
    return attention_implementation(model) == ATTENTION_NAME


def use_plain_attention(model: torch.nn.Module) -> None:
    """Undo `use_packed_attention`."""
    if attention_implementation(model) == ATTENTION_NAME:
        language_model(text_part(model)).set_attn_implementation("sdpa")


def packed_arguments(model: torch.nn.Module, batch: Mapping[str, Any]) -> dict[str, object]:
    """Return the model's arguments that mark the ends of the examples in a packed row.

    Args:
        batch: has `position_ids` (1, T), restarting at 0, or (axes, 1, T) for a model that
            positions images in several dimensions; `cu_seq_lens` (B+1,), `max_length`, and
            optionally `length_step`.

    Returns:
        `position_ids`, and the segment mask for `packed_attention` or the boundaries for flash
        attention. Other attentions find the restarts of the positions if they get no mask.

    Raises:
        ValueError: the model's forward takes no position IDs, so it cannot know where an example
            ends.
    """
    names, takes_any = forward_parameters(model)
    if "position_ids" not in names and not takes_any:
        raise InputError("models.no_position_ids")
    arguments: dict[str, object] = {"position_ids": batch["position_ids"]}
    if text_part(model) is not inner_model(model):  # a cache would disable transformers' masks
        arguments["use_cache"] = False
    boundaries, max_length = batch["cu_seq_lens"], batch["max_length"]
    implementation = attention_implementation(model) or ""
    if implementation == ATTENTION_NAME:
        step = batch.get("length_step", 1)
        arguments["attention_mask"] = segment_mask(boundaries, max_length, step)
    elif "flash" in implementation:
        arguments |= {"cu_seq_lens_q": boundaries, "cu_seq_lens_k": boundaries}
        arguments |= {"max_length_q": max_length, "max_length_k": max_length}
    return arguments


def model_arguments(model: torch.nn.Module, batch: Mapping[str, Any]) -> dict[str, object]:
    """Return the model's arguments for a padded or a packed batch, without labels.

    Args:
        batch: the batch. With the key `is_bidirectional`, each token of a padded row attends to the
            whole row.
    """
    arguments = {"input_ids": batch["input_ids"]}
    if "cu_seq_lens" in batch:
        return arguments | packed_arguments(model, batch) | batch.get(PICTURES, {})
    passed_on = ("attention_mask", "position_ids", "token_type_ids")
    arguments |= {name: batch[name] for name in passed_on if name in batch}
    arguments |= batch.get(PICTURES, {})
    if batch.get("is_bidirectional"):
        arguments["attention_mask"] = bidirectional_mask(model, batch["attention_mask"])
    return arguments
