"""Fine-tuning of a trained model with layer-wise learning rates.

The loading of the model decides which parameters can be trained (full, LoRA, QLoRA). This strategy
decides how fast each of them trains. Method: Howard & Ruder 2018 (ULMFiT).
"""

import torch

from infrastructure.models.lora import layer_of
from infrastructure.training.strategies.base_strategy import ParameterGroups, decay_groups
from infrastructure.training.strategies.standard_strategy import StandardTrainingStrategy


class FinetuningStrategy(StandardTrainingStrategy):
    """The standard training step, with a separate learning rate for each layer.

    With `layerwise_lr_decay` d, the learning rate of the layer k below the top is multiplied by
    d**k.
    """

    def parameter_groups(self, model: torch.nn.Module, learning_rate: float) -> ParameterGroups:
        decay = self.config.layerwise_lr_decay
        if decay == 1.0:
            return super().parameter_groups(model, learning_rate)
        groups = []
        for below_top, layer in enumerate(trainable_layers(model)):
            rate = learning_rate * decay**below_top
            groups += decay_groups(layer, rate, self.config.weight_decay)
        return groups


def trainable_layers(
    model: torch.nn.Module,
) -> list[list[tuple[str, torch.nn.Parameter]]]:
    """Return the trainable parameters by layer, beginning with the layer nearest to the output."""
    by_layer: dict[int, list[tuple[str, torch.nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            by_layer.setdefault(layer_of(name), []).append((name, parameter))
    return [by_layer[layer] for layer in sorted(by_layer, reverse=True)]
