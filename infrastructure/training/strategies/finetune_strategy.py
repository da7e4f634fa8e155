"""Fine-tuning with layer-wise learning rates and gradual unfreezing.

Loading the model determines which parameters can be trained (full fine-tuning, LoRA, QLoRA). This
strategy determines when each of them is trained, and at which rate. Method: Howard & Ruder 2018
(ULMFiT).
"""

import torch

from infrastructure.core.errors import InputError
from infrastructure.core.integers import ceil_div
from infrastructure.models.lora import layer_of
from infrastructure.training.core.state import Phase
from infrastructure.training.strategies.base_strategy import ParameterGroups, decay_groups
from infrastructure.training.strategies.standard_strategy import StandardTrainingStrategy


class FinetuningStrategy(StandardTrainingStrategy):
    """The standard strategy with a learning rate and a starting epoch for each layer.

    With `layerwise_lr_decay` d, the layer k below the top has d**k times the learning rate. With
    `unfreeze_interval` n, training starts with only the top layer, and every n epochs the next
    layer below is unfrozen. The last phase trains all layers for the remaining epochs.
    """

    def parameter_groups(self, model: torch.nn.Module, learning_rate: float) -> ParameterGroups:
        decay = self.config.layerwise_lr_decay
        if decay is None or decay == 1.0:
            return super().parameter_groups(model, learning_rate)
        groups = []
        for below_top, layer in enumerate(trainable_layers(model)):
            rate = learning_rate * decay**below_top
            groups += decay_groups(layer, rate, self.config.weight_decay)
        return groups

    def phases(self, model: torch.nn.Module, num_epochs: int) -> list[Phase]:
        interval = self.config.unfreeze_interval
        if not interval:
            return super().phases(model, num_epochs)
        layers = trainable_layers(model)
        num_phases = min(len(layers), ceil_div(num_epochs, interval))
        self._num_layers = len(layers)
        names: set[str] = set()
        phases = []
        for index in range(num_phases):
            names |= {name for name, _ in layers[index]}
            is_last = index == num_phases - 1
            epochs = num_epochs - interval * (num_phases - 1) if is_last else interval
            phases.append(Phase(f"top {index + 1} layers", epochs, frozenset(names)))
        return phases

    def check_length(self, total_steps: int) -> None:
        interval = self.config.unfreeze_interval
        if not interval or not self.steps_per_epoch:
            return
        num_reached = ceil_div(total_steps, interval * self.steps_per_epoch)
        if num_reached >= self._num_layers:
            return
        least = interval * (self._num_layers - 1)
        raise InputError(
            "training.layers_never_unfrozen",
            interval=interval,
            total_steps=total_steps,
            steps_per_epoch=self.steps_per_epoch,
            num_frozen=self._num_layers - num_reached,
            num_groups=self._num_layers,
            min_epochs=least,
        )


def trainable_layers(
    model: torch.nn.Module,
) -> list[list[tuple[str, torch.nn.Parameter]]]:
    """Return the trainable parameters by layer, beginning with the layer nearest to the output."""
    by_layer: dict[int, list[tuple[str, torch.nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            by_layer.setdefault(layer_of(name), []).append((name, parameter))
    return [by_layer[layer] for layer in sorted(by_layer, reverse=True)]
