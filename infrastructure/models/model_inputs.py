"""The inputs and outputs of a model's forward, for all kinds of models.

This module handles the differences between models: the arguments of `forward`, wrappers around a
model, the shape of logits, and the state of a model during a test.
"""

import inspect
import math
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import torch

from infrastructure.core.errors import InputError, TemperError
from infrastructure.models.preserve import preserve

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

IGNORED_LABEL = -100
IN_FORWARD = "in_forward"  # of a module whose weights are whole only while it computes
PROJECTOR = "multi_modal_projector"  # connects the two parts of a Llava
Result = TypeVar("Result")
# Errors that a model may raise when a probe uses it in an unsupported way.
PROBE_ERRORS = (
    AttributeError,
    IndexError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    TemperError,
    TypeError,
    ValueError,
)


def inner_model(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model without the PEFT and `torch.compile` wrappers around it."""
    inner: Any = model
    while hasattr(inner, "_orig_mod") or hasattr(inner, "get_base_model"):
        inner = inner._orig_mod if hasattr(inner, "_orig_mod") else inner.get_base_model()
    return inner


class LanguageModel(Protocol):
    """The interface of transformers models, as far as this package uses it."""

    config: "PreTrainedConfig"

    def get_input_embeddings(self) -> torch.nn.Embedding: ...

    def get_output_embeddings(self) -> torch.nn.Linear | None: ...

    def resize_token_embeddings(self, new_num_tokens: int, *, mean_resizing: bool) -> object: ...

    def set_attn_implementation(self, attn_implementation: str) -> None: ...

    def _can_set_attn_implementation(self) -> bool: ...


def language_model(model: torch.nn.Module) -> LanguageModel:
    """Return the `inner_model` of a transformers model, typed as `LanguageModel`."""
    return cast(LanguageModel, inner_model(model))


def text_part(model: torch.nn.Module) -> torch.nn.Module:
    """Return the decoder of a multimodal model, or a text model as a whole."""
    inner: Any = inner_model(model)
    has_towers = bool(getattr(getattr(inner, "config", None), "sub_configs", None))
    knows_decoder = has_towers and hasattr(inner, "get_decoder")
    part: torch.nn.Module = inner.get_decoder() if knows_decoder else inner
    return part


def language_part(model: torch.nn.Module) -> str:
    """Return the name of the decoder inside a vision-language model.

    Raises:
        ValueError: the decoder cannot be identified.
    """
    inner = cast(Any, inner_model(model))
    decoder = inner.get_decoder() if hasattr(inner, "get_decoder") else None
    name = next((name for name, module in inner.named_modules() if module is decoder), "")
    if not name:
        raise InputError("models.language_part_not_identified", name=type(inner).__name__)
    return name


def vision_tower(model: torch.nn.Module) -> torch.nn.Module | None:
    """Return the vision encoder of a vision-language model, without its projector, or None."""
    inner: Any = inner_model(model)
    tower: torch.nn.Module | None = inner.get_encoder(modality="image")
    # The model itself, or the encoder of text and images, if transformers knows no vision encoder.
    reads_text = tower is not None and inner.get_input_embeddings() in set(tower.modules())
    return None if reads_text else tower


def accepted_arguments(
    model: torch.nn.Module, arguments: Mapping[str, object]
) -> tuple[list[object], dict[str, object]]:
    """Return those of the `arguments` that the model's forward accepts, by position and by keyword.

    If the forward has no parameter `input_ids`, the IDs are its first positional argument.
    `use_cache=False` is added if it is supported: a cache costs memory in training, and turns off
    the isolation of packed rows in transformers.
    """
    names, takes_any = forward_parameters(model)
    offered = {k: v for k, v in arguments.items() if takes_any or k in names}
    if "use_cache" in names:
        offered["use_cache"] = False
    if "input_ids" in names or takes_any:
        return [], offered
    return [arguments["input_ids"]], offered


def forward_parameters(model: torch.nn.Module) -> tuple[set[str], bool]:
    """Return the names of the forward's parameters, and whether it also takes `**kwargs`."""
    parameters = inspect.signature(inner_model(model).forward).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = {parameter.name for parameter in parameters if parameter.kind in named}
    return names, any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def call_model(model: torch.nn.Module, arguments: Mapping[str, object]) -> Any:
    """Call the model with only those `arguments` that its forward accepts."""
    positional, keywords = accepted_arguments(model, arguments)
    return model(*positional, **keywords)


def within_forward(
    module: torch.nn.Module, compute: Callable[..., Result], *arguments: object
) -> Result:
    """Call `compute(*arguments)` while the weights of the module are gathered.

    Use this for computing with parts of a module without calling it. The weights of a sharded model
    are gathered only during its forward.
    """
    inside: Callable[..., Result] | None = getattr(module, IN_FORWARD, None)
    return compute(*arguments) if inside is None else inside(compute, *arguments)


def is_sharded(model: torch.nn.Module) -> bool:
    """Return whether the model is sharded over several ranks, which must compute together."""
    return hasattr(model, IN_FORWARD)


def logits_of(output: object) -> torch.Tensor:
    """Return the logits (B, L, V) in a model's output: a tensor, tuple, dict or output object.

    Raises:
        ValueError: the output contains no logits.
    """
    if isinstance(output, torch.Tensor):
        logits: object = output
    elif isinstance(output, Mapping):
        logits = output.get("logits")
    elif hasattr(output, "logits"):
        logits = output.logits
    else:
        candidates: Iterable[object] = output if isinstance(output, tuple) else ()
        logits = next((t for t in candidates if isinstance(t, torch.Tensor) and t.ndim == 3), None)
    if not isinstance(logits, torch.Tensor) or logits.ndim != 3:
        raise InputError("models.forward_returns_no_logits")
    return logits


def attention_implementation(model: torch.nn.Module) -> str | None:
    """Return transformers' name for the attention implementation of the model's text part. Return
    None if the model's configuration has no such name.
    """
    config = getattr(text_part(model), "config", None)
    return getattr(config, "_attn_implementation", None)


def bidirectional_mask(model: torch.nn.Module, is_real: torch.Tensor) -> torch.Tensor:
    """Return a mask with which every token of a padded row attends to all tokens of its row.

    transformers uses a four-dimensional mask as it is, instead of its own causal one.
    An objective checks whether a model really follows this mask (`Objective.check_model`).

    Args:
        is_real: 1 for tokens and 0 for padding, (B, L). Each row has a token.

    Returns:
        (B, 1, L, L), an expanded view: boolean, or for eager attention numbers to add to the
        scores.
    """
    rows, length = is_real.shape
    mask = is_real.bool()
    if attention_implementation(model) == "eager":
        dtype = compute_dtype(model)
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
    return mask[:, None, None, :].expand(rows, 1, length, length)


@contextmanager
def probing(model: torch.nn.Module) -> Generator[None, None, None]:
    """Disable dropout and compiled code for a probe, while the context lasts."""
    with preserve(model, modes=True), torch.compiler.set_stance("force_eager"):
        model.eval()
        yield


def relative_difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest absolute difference, relative to the largest expected magnitude.

    The result is infinite if the shapes differ or if there is a NaN.
    """
    if actual.shape != expected.shape:
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    scale = expected.float().abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    difference = float((actual.float() - expected.float()).abs().max() / scale)
    return float("inf") if math.isnan(difference) else difference


def tolerance(dtype: torch.dtype) -> float:
    """Return the relative difference that rounding may cause if operations are reordered."""
    return 1e-4 if dtype in (torch.float32, torch.float64) else 5e-2


def compute_dtype(model: torch.nn.Module) -> torch.dtype:
    """Return the dtype in which the model computes: autocast's, or that of its weights."""
    parameter = next(p for p in model.parameters() if p.is_floating_point())
    kind = parameter.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else parameter.dtype
