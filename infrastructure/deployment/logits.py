"""A language model as a function from tokens to logits."""

from typing import Any

import torch


class Logits(torch.nn.Module):
    """A language model as a plain function from tokens to logits without a cache, for export.

    Shapes: (batch, length) of int64 → (batch, length, vocabulary).
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        output: Any = self.model(input_ids=input_ids, use_cache=False)
        logits: torch.Tensor = output.logits
        return logits
