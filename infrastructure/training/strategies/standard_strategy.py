"""The standard strategy, which trains all trainable parameters in one phase."""

from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from infrastructure.training.core.state import StepOutput
from infrastructure.training.strategies.base_strategy import TrainingStrategy


class StandardTrainingStrategy(TrainingStrategy):
    """The standard step: forward pass, loss per supervised item, backward pass, clipped update."""

    def train_step(
        self,
        model: torch.nn.Module,
        batch: dict[str, Any],
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler | None,
        scheduler: LambdaLR | None,
        update_gradients: bool = True,
    ) -> StepOutput:
        inputs = {key: value for key, value in batch.items() if key != "total_items"}
        with self.precision.autocast():
            output = self.compute_loss(model, inputs)
        loss = output.loss_sum / batch.get("total_items", max(1, output.num_items))
        (loss if scaler is None else scaler.scale(loss)).backward()
        if update_gradients:
            self.unscale_gradients(optimizer, scaler)
            self.update_parameters(model, optimizer, scaler, scheduler)
        return StepOutput(output.loss_sum.detach(), output.num_items)
