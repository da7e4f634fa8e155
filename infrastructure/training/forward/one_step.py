"""One micro-batch, forward and backward: for the loop, and for whoever measures or checks it."""

from collections.abc import Sequence

import torch

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
    """Forward and backward of `examples` by the training's strategy; gradients add up.

    Args:
        scaler: scales the loss, so the gradients stay scaled; None: nothing does.
        total_items: supervised items of the whole optimizer batch, which the loss is divided by;
            None: those of `examples`, which are all of it then. With infinitely
            many the gradients are zeros.
        update_gradients: the optimizer steps, too, and no schedule does.
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
    """Forward, and backward of the summed loss, whatever the strategy; gradients add up.

    There is no backward pass where nothing in the batch is supervised.
    """
    with precision.autocast():
        output = adapter.compute_loss(model, batch)
    if output.num_items:
        output.loss_sum.backward()
    return output
