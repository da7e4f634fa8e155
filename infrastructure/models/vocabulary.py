"""Growth of a model's vocabulary by tokens that its tokenizer did not have.

The embedding grows only if it has no unused row (many models round the number of rows up). An added
row is the mean of the other rows, as in Hewitt 2021, so it does not depend on random numbers.
"""

import torch

from infrastructure.models.model_inputs import LanguageModel, language_model


def has_row(model: torch.nn.Module, token_id: int) -> bool:
    """Return whether the model has an embedding for a token."""
    rows: int = language_model(model).get_input_embeddings().weight.shape[0]
    return token_id < rows


def add_row(model: torch.nn.Module, token_id: int) -> None:
    """Grow the vocabulary up to `token_id`, unless it already has a row for that token."""
    if has_row(model, token_id):
        return
    inner = language_model(model)
    rows = inner.get_input_embeddings().weight.shape[0]
    inner.resize_token_embeddings(token_id + 1, mean_resizing=False)
    tables = {id(t): t for t in _tables(inner)}.values()
    with torch.no_grad():
        for table in tables:
            table[rows:] = table[:rows].float().mean(dim=0).to(table.dtype)


def _tables(model: LanguageModel) -> list[torch.Tensor]:
    """Return the embedding, head weight and head bias: all tensors with one row per token."""
    head = model.get_output_embeddings()
    tables: list[torch.Tensor] = [model.get_input_embeddings().weight]
    if head is not None:
        tables.append(head.weight)
        if getattr(head, "bias", None) is not None:
            tables.append(head.bias)
    return tables
