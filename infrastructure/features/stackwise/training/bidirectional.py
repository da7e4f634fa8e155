"""A check whether a decoder attends in both directions if it is given `bidirectional_mask`.

Objectives that hide tokens predict them from both sides. A model that ignores the mask would train
without an error, but use only the earlier tokens.

Limits: `sdpa` and `eager` attention. Layers with a sliding window or chunks attend to the whole
row. Parts other than attention (convolutions, states) are unchanged.
"""

import torch

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.models.model_inputs import (
    PROBE_ERRORS,
    attention_implementation,
    bidirectional_mask,
    call_model,
    compute_dtype,
    inner_model,
    logits_of,
    probing,
    relative_difference,
)
from infrastructure.models.packing_check import leak_tolerance

NUM_PROBE_TOKENS, NUM_PROBE_PADDING = 6, 2


def check_bidirectional(model: torch.nn.Module) -> None:
    """Check that every token of a row attends to every other token, and that no token attends to
    padding.

    Raises:
        ValueError: the first token does not attend to the last one, or it attends to padding, or
            the model does not accept such a mask. The message says what to do.
    """
    inner = inner_model(model)
    attention = attention_implementation(model)
    who = phrase("stackwise.masked_diffusion_model", name=type(inner).__name__, attention=attention)
    limit = leak_tolerance(compute_dtype(model))
    try:
        late, padding = late_influence(model)
    except PROBE_ERRORS as error:
        reason = " ".join(str(error).split())
        raise InputError(
            "stackwise.not_bidirectional",
            who=who,
            error_type=type(error).__name__,
            reason=reason,
            remedy=_remedy(model),
        ) from error
    if padding > limit:
        raise InputError("stackwise.attends_to_padding", who=who, remedy=_remedy(model))
    if not late > limit:
        raise InputError("stackwise.attention_stays_causal", who=who, remedy=_remedy(model))


def _remedy(model: torch.nn.Module) -> str:
    config: object = getattr(inner_model(model), "config", None)
    if getattr(config, "output_router_logits", False):
        return phrase("stackwise.balancing_loss_reads_mask")
    if attention_implementation(model) not in ("sdpa", "eager", "temper_packed", None):
        return phrase("stackwise.set_sdpa")
    return phrase("stackwise.choose_bidirectional_model")


@torch.no_grad()
def late_influence(model: torch.nn.Module) -> tuple[float, float]:
    """Measure how much the first position's logits change if the last token or the padding changes.

    Returns:
        Both changes, relative to the largest logit of the first position.
    """
    device = next(model.parameters()).device
    length = NUM_PROBE_TOKENS + NUM_PROBE_PADDING
    ids = torch.arange(1, length + 1, device=device).unsqueeze(0)
    is_real = (torch.arange(length, device=device) < NUM_PROBE_TOKENS).long().unsqueeze(0)
    mask = bidirectional_mask(model, is_real)

    def first_logits(changed: int | None) -> torch.Tensor:
        given = ids.clone()
        if changed is not None:
            given[0, changed] = 0
        return logits_of(call_model(model, {"input_ids": given, "attention_mask": mask}))[0, 0]

    with probing(model):
        plain = first_logits(None)
        late = relative_difference(first_logits(NUM_PROBE_TOKENS - 1), plain)
        padding = relative_difference(first_logits(NUM_PROBE_TOKENS), plain)
    return late, padding
