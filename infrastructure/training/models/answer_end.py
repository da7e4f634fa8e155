"""The tokens that end an answer, where plain `generate` looks for them."""

from collections.abc import Collection
from typing import Any

import torch

GENERATION_FILE = "generation_config.json"  # a LoRA has one, too: the ends that it was taught


def teach_ends(model: torch.nn.Module, token_ids: Collection[int]) -> None:
    """Add the ends that a training teaches to the model's generation configuration.

    A base model that ends with one token and is taught another would otherwise answer without end
    everywhere but here: readers of a saved model know only what is in `generation_config.json`.
    The configuration stays as it is where it has these ends already.

    Args:
        model: of transformers or PEFT, compiled or not; any other module is left alone.
        token_ids: what ends an answer in the training data.
    """
    plain: Any = getattr(model, "_orig_mod", model)
    base = plain.get_base_model() if hasattr(plain, "peft_config") else plain
    config = getattr(base, "generation_config", None)
    if config is None:
        return
    known = config.eos_token_id
    before = known if isinstance(known, list) else [] if known is None else [known]
    if new := sorted({*token_ids} - {*before}):
        config.eos_token_id = [*before, *new]
