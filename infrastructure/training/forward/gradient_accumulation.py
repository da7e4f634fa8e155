"""Gradient accumulation over the micro-batches of one process."""

from collections.abc import Callable, Iterator, Sequence

import torch

from infrastructure.core.callbacks import do_nothing
from infrastructure.training.core.metric_accumulator import MetricAccumulator
from infrastructure.training.core.state import StepOutput
from infrastructure.training.forward.one_step import one_step
from infrastructure.training.model_adapters.base_adapter import ModelAdapter
from infrastructure.training.strategies.base_strategy import TrainingStrategy


def split(examples: Sequence[object], size: int) -> Iterator[Sequence[object]]:
    """Yield consecutive slices of at most `size` examples."""
    for start in range(0, len(examples), size):
        yield examples[start : start + size]


def accumulate_gradients(
    model: torch.nn.Module,
    adapter: ModelAdapter,
    strategy: TrainingStrategy,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler | None,
    examples: Sequence[object],
    *,
    micro_batch_size: int,
    total_items: int,
    after_loss: Callable[[StepOutput], None] = do_nothing,
) -> MetricAccumulator:
    """Add the gradients of `examples` to the existing gradients, and return their loss and items.

    Args:
        total_items: supervised items of the whole optimizer batch, by which the loss is divided.
        after_loss: called with the output of each micro-batch.
    """
    window = MetricAccumulator()
    for micro in split(examples, micro_batch_size):
        output = one_step(
            model, adapter, strategy, optimizer, micro, scaler=scaler, total_items=total_items
        )
        window.loss_sum = window.loss_sum + output.loss_sum
        window.num_items += output.num_items
        after_loss(output)
    return window
