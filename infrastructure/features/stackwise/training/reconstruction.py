"""Feature reconstruction: the training objective of all units of layers except the top one.

A small decoder reconstructs a unit's input from its output. So the output keeps the information of
the input, and stays useful for the unit above. Method: LoPT (2605.04913). The decoder is a
normalization and two matrices through a quarter of the width. It is dropped after training.
"""

import torch
import torch.nn.functional as F

from infrastructure.models.saving import TRAINING_ONLY as TRAINING_ONLY


class FeatureDecoders(torch.nn.ModuleList):
    """The feature decoders of all units except the top one."""

    def __init__(self, hidden_size: int, count: int) -> None:
        super().__init__(_decoder(hidden_size) for _ in range(count))

    def attach_to(self, model: torch.nn.Module) -> None:
        """Register the decoders in the model, so that optimizer and checkpoints include them."""
        parameter = next(p for p in model.parameters() if p.is_floating_point())
        self.to(parameter.device)
        setattr(model, TRAINING_ONLY, self)


def _decoder(hidden_size: int) -> torch.nn.Sequential:
    width = max(1, hidden_size // 4)
    decoder = torch.nn.Sequential(
        torch.nn.LayerNorm(hidden_size),
        torch.nn.Linear(hidden_size, width),
        torch.nn.GELU(),
        torch.nn.Linear(width, hidden_size),
    )
    for layer in decoder:
        if isinstance(layer, torch.nn.Linear):
            torch.nn.init.xavier_uniform_(layer.weight, gain=0.1)
            torch.nn.init.zeros_(layer.bias)
    return decoder


def reconstruction_loss(
    decoder: torch.nn.Module,
    output: torch.Tensor,
    given: torch.Tensor,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the mean squared error between a unit's input and its reconstruction from the output.

    Args:
        output, given: the unit's output and input, (B, L, d); `given` gets no gradient.
        positions: positions of trained tokens in the flattened (B * L), (N,), so that padding does
            not count, and the sum over a batch is the same however it is split. None: all.
    """
    if positions is not None:
        output, given = output.flatten(0, 1)[positions], given.flatten(0, 1)[positions]
    return F.mse_loss(decoder(output.float()).float(), given.detach().float())
