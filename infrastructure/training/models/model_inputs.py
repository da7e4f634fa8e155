"""What a model's forward is given, and what is read from its answer.

One place for the differences between models: which arguments a forward takes, where a wrapped
model keeps the real one, in which shape logits come back, and a model's state while it is probed.
"""

import inspect
import math
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import torch

from infrastructure.core.errors import InputError, TemperError
from infrastructure.training.core.preserve import preserve

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

IGNORED_LABEL = -100
IN_FORWARD = "in_forward"  # of a module that is put together only while it computes
PROJECTOR = "multi_modal_projector"  # what joins the two parts of a Llava
Result = TypeVar("Result")
# What a model may raise when a probe asks of it what it was not made for.
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
    """The model itself, without the PEFT and `torch.compile` wrappers around it."""
    inner: Any = model
    while hasattr(inner, "_orig_mod") or hasattr(inner, "get_base_model"):
        inner = inner._orig_mod if hasattr(inner, "_orig_mod") else inner.get_base_model()
    return inner


class LanguageModel(Protocol):
    """What is used of a model of transformers that not every module has."""

    config: "PreTrainedConfig"

    def get_input_embeddings(self) -> torch.nn.Embedding: ...

    def get_output_embeddings(self) -> torch.nn.Linear | None: ...

    def resize_token_embeddings(self, new_num_tokens: int, *, mean_resizing: bool) -> object: ...

    def set_attn_implementation(self, attn_implementation: str) -> None: ...

    def _can_set_attn_implementation(self) -> bool: ...


def language_model(model: torch.nn.Module) -> LanguageModel:
    """`inner_model`, of a model that is known to be one of transformers."""
    return cast(LanguageModel, inner_model(model))


def text_part(model: torch.nn.Module) -> torch.nn.Module:
    """What attends to text: of a model with towers its decoder, of others all of it."""
    inner: Any = inner_model(model)
    has_towers = bool(getattr(getattr(inner, "config", None), "sub_configs", None))
    knows_decoder = has_towers and hasattr(inner, "get_decoder")
    part: torch.nn.Module = inner.get_decoder() if knows_decoder else inner
    return part


def language_part(model: torch.nn.Module) -> str:
    """The name of the part of a model of image and text that reads and writes text.

    Raises:
        ValueError: it cannot be told.
    """
    inner = cast(Any, inner_model(model))
    decoder = inner.get_decoder() if hasattr(inner, "get_decoder") else None
    name = next((name for name, module in inner.named_modules() if module is decoder), "")
    if not name:
        raise InputError("models.language_part_not_identified", name=type(inner).__name__)
    return name


def vision_tower(model: torch.nn.Module) -> torch.nn.Module | None:
    """The part of a model of image and text that sees, without what joins it to the other."""
    inner: Any = inner_model(model)
    tower: torch.nn.Module | None = inner.get_encoder(modality="image")
    # the model itself, or the encoder of both, where transformers knows of none
    reads_text = tower is not None and inner.get_input_embeddings() in set(tower.modules())
    return None if reads_text else tower


def accepted_arguments(
    model: torch.nn.Module, arguments: Mapping[str, object]
) -> tuple[list[object], dict[str, object]]:
    """The positional and keyword arguments for `model(...)`, as far as its forward takes them.

    A forward that calls its first parameter otherwise than `input_ids` gets the ids in that place.
    `use_cache=False` is added where it is known: a cache during training costs memory, and turns
    off the isolation of packed rows in transformers.
    """
    names, takes_any = forward_parameters(model)
    offered = {k: v for k, v in arguments.items() if takes_any or k in names}
    if "use_cache" in names:
        offered["use_cache"] = False
    if "input_ids" in names or takes_any:
        return [], offered
    return [arguments["input_ids"]], offered


def forward_parameters(model: torch.nn.Module) -> tuple[set[str], bool]:
    """The names of the forward's parameters, and whether it takes any others (`**kwargs`)."""
    parameters = inspect.signature(inner_model(model).forward).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = {parameter.name for parameter in parameters if parameter.kind in named}
    return names, any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def call_model(model: torch.nn.Module, arguments: Mapping[str, object]) -> Any:
    """`model(...)` with those of the `arguments` that its forward takes."""
    positional, keywords = accepted_arguments(model, arguments)
    return model(*positional, **keywords)


def within_forward(
    module: torch.nn.Module, compute: Callable[..., Result], *arguments: object
) -> Result:
    """`compute(*arguments)`, in which all weights of the module are there.

    Whoever computes with parts of a module instead of calling it goes through here: where a model
    is spread over several ranks, its weights are whole only inside its forward.
    """
    inside: Callable[..., Result] | None = getattr(module, IN_FORWARD, None)
    return compute(*arguments) if inside is None else inside(compute, *arguments)


def is_sharded(model: torch.nn.Module) -> bool:
    """Whether each rank has a part of it only: then all ranks compute with it together."""
    return hasattr(model, IN_FORWARD)


def logits_of(output: object) -> torch.Tensor:
    """The logits (B, L, V) in a model's output: a tensor, a tuple, a dict or an output object.

    Raises:
        ValueError: there are none; a loss alone cannot be summed over tokens.
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
    """transformers' name for the attention that the model runs on text; None for other models."""
    config = getattr(text_part(model), "config", None)
    return getattr(config, "_attn_implementation", None)


def bidirectional_mask(model: torch.nn.Module, is_real: torch.Tensor) -> torch.Tensor:
    """A mask that lets every token of a padded row see every real one of it.

    transformers takes a mask of four dimensions as it is, in place of its own causal one. Whether a
    model really attends as it says is measured in `bidirectional.py`.

    Args:
        is_real: 1 for tokens and 0 for padding, (B, L); each row has a token.

    Returns:
        (B, 1, L, L) without memory of its own: boolean, or for eager attention numbers that it adds
        to its scores.
    """
    rows, length = is_real.shape
    mask = is_real.bool()
    if attention_implementation(model) == "eager":
        dtype = compute_dtype(model)
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
    return mask[:, None, None, :].expand(rows, 1, length, length)


@contextmanager
def probing(model: torch.nn.Module) -> Generator[None, None, None]:
    """A state to try something in: no dropout draws random numbers, nothing is compiled.

    Afterwards each module has its own mode back.
    """
    with preserve(model, modes=True), torch.compiler.set_stance("force_eager"):
        model.eval()
        yield


def relative_difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest absolute difference, in units of the largest expected magnitude (fp32).

    Infinite where the shapes differ, or where there is a NaN.
    """
    if actual.shape != expected.shape:
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    scale = expected.float().abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    difference = float((actual.float() - expected.float()).abs().max() / scale)
    return float("inf") if math.isnan(difference) else difference


def tolerance(dtype: torch.dtype) -> float:
    """What two orders of the same arithmetic may differ by, relative to the largest value."""
    return 1e-4 if dtype in (torch.float32, torch.float64) else 5e-2


def compute_dtype(model: torch.nn.Module) -> torch.dtype:
    """The format that the model computes in: autocast's, or that of its weights."""
    parameter = next(p for p in model.parameters() if p.is_floating_point())
    kind = parameter.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else parameter.dtype
