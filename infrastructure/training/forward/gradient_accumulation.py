"""Gradient accumulation over the micro-batches of one process."""

from collections.abc import Callable, Iterator, Sequence

import torch

from infrastructure.core.callbacks import do_nothing
from infrastructure.training.core.metric_accumulator import MetricAccumulator
from infrastructure.training.core.precision import Precision
from infrastructure.training.core.state import StepOutput
from infrastructure.training.model_adapters.base_adapter import Batch, LossOutput, ModelAdapter
from infrastructure.training.strategies.base_strategy import TrainingStrategy


def one_step(
    model: torch.nn.Module,
    adapter: ModelAdapter,
    strategy: TrainingStrategy,
    optimizer: torch.optim.Optimizer,
    examples: Sequence[object],
    *,
    scaler: torch.amp.GradScaler | None = None,
    total_items: float | None = None,
    update_gradients: bool = False,
) -> StepOutput:
    """Run the strategy's forward and backward pass on `examples`, accumulating gradients.

    Args:
        scaler: scales the loss, and so the gradients. None: no scaling.
        total_items: supervised items of the whole optimizer batch, by which the loss is divided.
            None: `examples` are the whole batch. If it is infinite, the gradients are zero.
        update_gradients: also perform the optimizer step, without advancing the schedule.
    """
    if total_items is None:
        total_items = max(1, adapter.count_items(examples))
    batch = adapter.prepare_batch(examples)
    output = strategy.train_step(
        model,
        {**batch, "total_items": total_items},
        optimizer,
        scaler=scaler,
        scheduler=None,
        update_gradients=update_gradients,
    )
    output.batch = batch
    return output


def backward_of_sum(
    model: torch.nn.Module, adapter: ModelAdapter, precision: Precision, batch: Batch
) -> LossOutput:
    """Run a forward pass, and a backward pass of the summed loss, without a training strategy.

    Gradients accumulate. There is no backward pass if nothing in the batch is supervised.
    """
    with precision.autocast():
        output = adapter.compute_loss(model, batch)
    if output.num_items:
        output.loss_sum.backward()
    return output


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
