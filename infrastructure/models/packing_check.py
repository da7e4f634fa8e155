"""A check whether packing is correct for a given model.

Two short rows go through the model twice, packed and one at a time. Logits and gradients must
agree, and changing the first row must not change the second one's logits. A model that leaks from
one example into the next would train without an error but learn the wrong thing.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

from infrastructure.core.error_place import named
from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.models.model_inputs import (
    PROBE_ERRORS,
    attention_implementation,
    call_model,
    compute_dtype,
    inner_model,
    language_model,
    logits_of,
    probing,
    relative_difference,
    tolerance,
)
from infrastructure.models.packed_attention import (
    model_arguments,
    use_packed_attention,
    use_plain_attention,
)

PROBE_LENGTHS = (7, 9)
MAX_PROBED_WINDOW = 64

Measure = Callable[[torch.nn.Module], tuple[float, float]]  # returns difference and leak


def prepare_packing(
    model: torch.nn.Module, max_length: int | None = None, with_pictures: Measure | None = None
) -> str:
    """Prepare the model for packed rows, with the fastest attention that passes the check.

    The first choice is `packed_attention`, the second the model's own attention with position IDs
    that restart at 0. If neither isolates the rows, the model stays unchanged, and the caller must
    pad.

    Args:
        max_length: longest example of the run, in tokens. Some models support packed rows only if
            no example is longer than their window.
        with_pictures: also checks rows with images.

    Returns:
        "", or a sentence for the user on why rows are padded.
    """
    chunk = chunk_size(model)
    if chunk is not None and max_length is not None and max_length > chunk:
        return _refused(
            model, phrase("models.examples_cross_chunks", max_length=max_length, chunk=chunk)
        )
    failures = []
    if use_packed_attention(model):
        failures.append(check_packing(model, max_length, with_pictures))
        if not failures[0]:
            return ""
        use_plain_attention(model)
    if chunk is not None:  # a short probe would not find it
        return _refused(model, phrase("models.chunks_from_row_start", chunk=chunk))
    failures.append(check_packing(model, max_length, with_pictures))
    if not failures[-1]:
        return ""
    return phrase("models.padded_not_packed") + "; ".join(dict.fromkeys(failures))


def chunk_size(model: torch.nn.Module) -> int | None:
    """Return the chunk size in tokens of a model with chunked attention (Llama 4),
    otherwise None.
    """
    config: object = getattr(inner_model(model), "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    size = getattr(config, "attention_chunk_size", None)
    return size if isinstance(size, int) else None


def _refused(model: torch.nn.Module, why: str) -> str:
    return phrase(
        "models.attends_in_chunks",
        prefix=phrase("models.padded_not_packed"),
        name=type(inner_model(model)).__name__,
        reason=why,
    )


def check_packing(
    model: torch.nn.Module, max_length: int | None = None, with_pictures: Measure | None = None
) -> str:
    """Check whether the model, in its current state, supports packed rows, without changing it.

    Returns:
        "" if packed rows give the same logits and gradients as single rows; else a sentence on what
        differs.
    """
    attention = attention_implementation(model)
    name = f"{type(inner_model(model)).__name__} with attention {attention!r}"
    dtype, rows = compute_dtype(model), "packed rows"
    try:
        difference, leak = packing_difference(model, max_length)
        if with_pictures and _keeps_apart(difference, leak, dtype):
            rows = phrase("models.packed_rows_with_images")
            difference, leak = map(max, (difference, leak), with_pictures(model))
    except PROBE_ERRORS as error:
        return f"{name} cannot read {rows} ({named(error)})"
    if _keeps_apart(difference, leak, dtype):
        return ""
    return phrase(
        "models.packed_rows_not_isolated", name=name, rows=rows, difference=max(difference, leak)
    )


def _keeps_apart(difference: float, leak: float, dtype: torch.dtype) -> bool:
    return difference <= tolerance(dtype) and leak <= leak_tolerance(dtype)


def packing_difference(
    model: torch.nn.Module, max_length: int | None = None
) -> tuple[float, float]:
    """Measure how far the results of packed rows differ from those of single rows.

    Args:
        max_length: the maximum length to declare for the rows, so that an attention that supports
            only shorter ones fails now and not in the middle of the run.

    Returns:
        The larger relative difference of logits and of gradients at the token embeddings; and the
        relative change of the second row's logits if the first row is a different one.
    """
    rows = probe_rows(model, seed=0)
    other_first = probe_rows(model, seed=1)[0]
    with probing(model):
        logits, gradients = probe(model, pack_rows(rows, max_length))
        other = pack_rows([other_first, rows[1]], max_length)
        other_logits = probe(model, other, with_gradient=False)[0]
        alone = [probe(model, {"input_ids": row.unsqueeze(0)}) for row in rows]
    expected_logits = torch.cat([row_logits for row_logits, _ in alone])
    expected_gradients = torch.cat([row_gradients for _, row_gradients in alone])
    difference = max(
        relative_difference(logits, expected_logits),
        relative_difference(gradients, expected_gradients),
    )
    second = slice(rows[0].numel(), None)
    return difference, relative_difference(other_logits[second], logits[second])


def leak_tolerance(dtype: torch.dtype) -> float:
    """Return the relative change of logits above which rows count as leaking.

    The limit is much lower than `tolerance`, because with equal shapes operations run in the same
    order.
    """
    return 1e-5 if dtype in (torch.float32, torch.float64) else 2e-3


def probe_rows(model: torch.nn.Module, seed: int) -> list[torch.Tensor]:
    """Return two test rows of token IDs. The first is longer than the model's window, if that is
    small.
    """
    embeddings = token_embeddings(model)
    config = getattr(inner_model(model), "config", None)
    window = getattr(config, "sliding_window", None) or 0
    longer = window if window <= MAX_PROBED_WINDOW else 0
    lengths = (PROBE_LENGTHS[0] + longer, PROBE_LENGTHS[1])
    generator = torch.Generator().manual_seed(seed)
    device = embeddings.weight.device
    high = embeddings.num_embeddings
    return [torch.randint(high, (n,), generator=generator).to(device) for n in lengths]


def token_embeddings(model: torch.nn.Module) -> torch.nn.Embedding:
    """Return the model's token embedding layer.

    Raises:
        ValueError: the model has none, so it does not read token sequences.
    """
    inner = inner_model(model)
    if hasattr(inner, "get_input_embeddings"):
        return language_model(model).get_input_embeddings()
    embedding = next((m for m in inner.modules() if isinstance(m, torch.nn.Embedding)), None)
    if embedding is None:
        raise InputError("models.no_token_embedding", name=type(inner).__name__)
    return embedding


def pack_rows(rows: list[torch.Tensor], max_length: int | None = None) -> dict[str, object]:
    """Join rows (n,) into a packed batch, as `model_arguments` reads it."""
    lengths = [row.numel() for row in rows]
    positions = torch.cat([torch.arange(n) for n in lengths])
    boundaries = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    device = rows[0].device
    return {
        "input_ids": torch.cat(rows).unsqueeze(0),
        "position_ids": positions.unsqueeze(0).to(device),
        "cu_seq_lens": boundaries.to(device),
        "max_length": max(*lengths, max_length or 0),
    }


def probe(
    model: torch.nn.Module, batch: Mapping[str, object], with_gradient: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits (T, V), and a gradient (T, H) at the token embeddings (zeros if not requested).

    The gradient is that of a fixed weighted sum of the logits. No parameter's `.grad` is changed.
    """
    with embeddings_cut(model) as seen, torch.enable_grad():
        logits = logits_of(call_model(model, model_arguments(model, batch)))[0]
        if not with_gradient:  # with gradients on, for the same kernels
            return logits.detach(), torch.zeros_like(seen[-1][0])
        weights = torch.linspace(-1, 1, logits.shape[-1], device=logits.device)
        (gradient,) = torch.autograd.grad((logits.float() * weights).sum(), seen[-1:])
    return logits.detach(), gradient[0]


@contextmanager
def embeddings_cut(model: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """Stop gradients at the token embeddings, while the context lasts.

    It yields a list, to which each forward pass appends its embeddings, (B, L, H).
    """
    seen: list[torch.Tensor] = []

    def cut(_module: torch.nn.Module, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        seen.append(output.detach().requires_grad_())
        return seen[-1]

    handle = token_embeddings(model).register_forward_hook(cut)
    try:
        yield seen
    finally:
        handle.remove()
