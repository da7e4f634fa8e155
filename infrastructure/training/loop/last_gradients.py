"""Trainable parameters and the last batch's gradients, for custom training loops."""

from collections.abc import Mapping

import torch

from infrastructure.config.base import ConfigSection
from infrastructure.core.errors import InputError
from infrastructure.models.preserve import measuring, preserve
from infrastructure.training.core.state import TrainingState
from infrastructure.training.forward.gradient_accumulation import backward_of_sum
from infrastructure.training.loop.loop import TrainingLoop, select_trainable


class TrainerGradients(dict[str, torch.Tensor]):
    """Gradients by parameter name, with the feature settings of the trainer that computed them.

    Functions that are called with these gradients but without a configuration use these settings.
    """

    def __init__(
        self, gradients: dict[str, torch.Tensor], sections: Mapping[str, ConfigSection]
    ) -> None:
        super().__init__(gradients)
        self.sections = sections


def trainable_parameters(loop: TrainingLoop, state: TrainingState) -> dict[str, torch.nn.Parameter]:
    """Return all parameters that can be trained in this phase, by name.

    They include blocks that are currently frozen by a strategy that chooses blocks.
    """
    with preserve(state.model, requires_grad=True):
        select_trainable(state.model, state.phase, loop.optimizer_step.optimizer)
        return {name: p for name, p in state.model.named_parameters() if p.requires_grad}


def last_gradients(loop: TrainingLoop, state: TrainingState) -> dict[str, torch.Tensor]:
    """Recompute the gradients of the last batch's mean loss at the current weights.

    They must be computed again because a training step drops its gradients. The training state does
    not change.

    Returns:
        Gradients by parameter name.

    Raises:
        ValueError: no batch was trained on yet.
    """
    if not state.batch:
        raise InputError("training.no_gradients_before_first_step")
    adapter, strategy = loop.optimizer_step.adapter, loop.optimizer_step.strategy
    parameters = trainable_parameters(loop, state)
    with measuring(state.model, adapter.device, parameters_have_gradients=True):
        select_trainable(state.model, state.phase, loop.optimizer_step.optimizer)
        size = state.micro_batch_size
        for start in range(0, len(state.batch), size):
            batch = adapter.prepare_batch(state.batch[start : start + size])
            backward_of_sum(state.model, adapter, strategy.precision, batch)
        items = max(1, adapter.count_items(state.batch))
        return {
            name: parameter.grad.detach() / items
            for name, parameter in parameters.items()
            if parameter.grad is not None
        }
