"""The tokens that end an answer, where plain `generate` looks for them."""

from collections.abc import Collection
from typing import Any

import torch

from infrastructure.training.models.model_inputs import inner_model

GENERATION_FILE = "generation_config.json"  # a LoRA has one, too: the ends that it was taught


def known_ends(model: torch.nn.Module) -> list[int]:
    """Return the tokens that end an answer by the model's generation configuration."""
    config: Any = getattr(inner_model(model), "generation_config", None)
    known = getattr(config, "eos_token_id", None)
    return [] if known is None else [known] if isinstance(known, int) else [*known]


def teach_ends(model: torch.nn.Module, token_ids: Collection[int]) -> None:
    """Add the ends that a training teaches to the model's generation configuration.

    A base model that ends with one token and is taught another would otherwise answer without end
    everywhere but here: readers of a saved model know only what is in `generation_config.json`.
    The configuration stays as it is where it has these ends already.

    Args:
        model: of transformers or PEFT, compiled or not; any other module is left alone.
        token_ids: what ends an answer in the training data.
    """
    config: Any = getattr(inner_model(model), "generation_config", None)
    if config is None:
        return
    before = known_ends(model)
    if new := sorted({*token_ids} - {*before}):
        config.eos_token_id = [*before, *new]


def teach_trainer(trainer: Any, token_ids: Collection[int]) -> None:
    """Let a trainer of TRL that writes answers itself end them where `teach_ends` says."""
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
        # TRL before 1.0 knows one end: that of the chat template, where it has one of its own
        trainer.eos_token_id = config.eos_token_id = others[0]
