"""The mask token that replaces a hidden token: the tokenizer's own, or an added one.

The embedding grows only if it has no unused row (many models round the number of rows up). An added
row is the mean of the other rows, as in Hewitt 2021, so it does not depend on random numbers.
"""

from typing import TYPE_CHECKING

import torch

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.models.model_inputs import LanguageModel, language_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MASK_TOKEN = "<|mask|>"


def ensure_mask_token(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Add a mask token if the tokenizer has none, and return whether one was added."""
    if tokenizer.mask_token_id is not None:
        return False
    tokenizer.add_special_tokens({"mask_token": MASK_TOKEN})
    return True


def ensure_mask_row(
    model: torch.nn.Module, tokenizer: "PreTrainedTokenizerBase", name: str, *, may_grow: bool
) -> bool:
    """Add an embedding for the mask token if there is none; return whether the vocabulary grew.

    Args:
        may_grow: False for a model whose embeddings do not train and are not saved.

    Raises:
        ValueError: the vocabulary would have to grow but `may_grow` is False. The message says what
            to do.
    """
    inner = language_model(model)
    rows = inner.get_input_embeddings().weight.shape[0]
    if tokenizer.mask_token_id < rows:
        return False
    if not may_grow:
        raise InputError("models.mask_token_with_lora", name=name)
    add_row(model, tokenizer.mask_token_id)
    return True


def add_row(model: torch.nn.Module, token_id: int) -> None:
    """Grow the vocabulary up to `token_id`, unless it already has a row for that token."""
    inner = language_model(model)
    rows = inner.get_input_embeddings().weight.shape[0]
    if token_id < rows:
        return
    inner.resize_token_embeddings(token_id + 1, mean_resizing=False)
    tables = {id(t): t for t in _tables(inner)}.values()
    with torch.no_grad():
        for table in tables:
            table[rows:] = table[:rows].float().mean(dim=0).to(table.dtype)


def mask_token_note(tokenizer: "PreTrainedTokenizerBase", grew: bool) -> str:
    """Return a note for the user that a mask token was added."""
    where = phrase("models.vocabulary_extended") if grew else phrase("models.spare_embedding_row")
    return phrase(
        "models.mask_token_added",
        mask_token=tokenizer.mask_token,
        token_id=tokenizer.mask_token_id,
        where=where,
    )


def _tables(model: LanguageModel) -> list[torch.Tensor]:
    """Return the embedding, head weight and head bias: all tensors with one row per token."""
    head = model.get_output_embeddings()
    tables: list[torch.Tensor] = [model.get_input_embeddings().weight]
    if head is not None:
        tables.append(head.weight)
        if getattr(head, "bias", None) is not None:
            tables.append(head.bias)
    return tables
