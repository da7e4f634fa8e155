"""A search for the rows that cause the bad loss of a batch."""

import math
import statistics
from collections.abc import Sequence

import torch

from infrastructure.models.preserve import preserve
from infrastructure.optimization.device_errors import is_out_of_memory
from infrastructure.training.forward.one_step import one_step
from infrastructure.training.model_adapters.base_adapter import ModelAdapter
from infrastructure.training.recovery.loss_spikes import LossSpikeDetector
from infrastructure.training.strategies.base_strategy import TrainingStrategy


def find_bad_rows(
    model: torch.nn.Module,
    adapter: ModelAdapter,
    strategy: TrainingStrategy,
    optimizer: torch.optim.Optimizer,
    examples: Sequence[object],
    watch: LossSpikeDetector,
) -> list[int]:
    """Return which examples have a bad loss or gradient, by computing each one separately.

    Returns:
        The indices of the examples whose own loss or gradient is bad. Empty if there are none, or
        if even a single example does not fit into memory.
    """
    losses: list[float] = []
    try:
        with preserve(model, random=adapter.device, modes=True):
            model.eval()
            for example in examples:
                optimizer.zero_grad()
                output = one_step(model, adapter, strategy, optimizer, [example])
                loss = float(output.loss_sum) / max(1, output.num_items)
                losses.append(loss if _gradients_are_finite(model) else math.nan)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return []
    finally:
        optimizer.zero_grad()
    usual = [loss for loss in losses if math.isfinite(loss)]
    limit = watch.limit(num_items=1)  # single rows vary a lot before there is a median
    limit = max(limit, watch.factor * statistics.median(usual)) if usual else math.inf
    return [i for i, loss in enumerate(losses) if not math.isfinite(loss) or loss > limit]


def _gradients_are_finite(model: torch.nn.Module) -> bool:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return bool(torch.isfinite(torch.nn.utils.get_total_norm(gradients)))
