"""The tokens that end an answer, in the model's generation configuration."""

from collections.abc import Collection
from typing import Any

import torch

from infrastructure.models.model_inputs import inner_model

GENERATION_FILE = "generation_config.json"  # a LoRA has one too, with its trained end tokens


def known_ends(model: torch.nn.Module) -> list[int]:
    """Return the IDs of the end tokens in the model's generation configuration."""
    config: Any = getattr(inner_model(model), "generation_config", None)
    known = getattr(config, "eos_token_id", None)
    return [] if known is None else [known] if isinstance(known, int) else [*known]


def teach_ends(model: torch.nn.Module, token_ids: Collection[int]) -> None:
    """Add the end tokens of the training data to the model's generation configuration.

    A base model may be trained to end answers with a token that is not its own end token. Other
    programs, which only read `generation_config.json`, would then never stop generating.

    Args:
        model: a transformers or PEFT model, compiled or not. Any other module stays unchanged.
        token_ids: the tokens that end an answer in the training data.
    """
    config: Any = getattr(inner_model(model), "generation_config", None)
    if config is None:
        return
    before = known_ends(model)
    if new := sorted({*token_ids} - {*before}):
        config.eos_token_id = [*before, *new]


def teach_trainer(trainer: Any, token_ids: Collection[int]) -> None:
    """Add the end tokens of the training data to a TRL trainer, so that its generated answers end
    there.
    """
    config = getattr(trainer, "generation_config", None)
    if config is None:
        return
    if hasattr(trainer, "eos_token_ids"):
        new = sorted({*token_ids} - {*trainer.eos_token_ids})
        trainer.eos_token_ids = [*trainer.eos_token_ids, *new]
        config.eos_token_id = trainer.eos_token_ids
        if isinstance(given := getattr(trainer, "generation_kwargs", None), dict):
            given["eos_token_id"] = trainer.eos_token_ids
    elif others := sorted({*token_ids} - {trainer.eos_token_id}):
        # TRL before 1.0 knows only one end token. If the chat template has its own, that one is
        # used.
        trainer.eos_token_id = config.eos_token_id = others[0]
