"""The extension `multimodal`: training of a text model with an added vision encoder.

Method: Liu et al. 2023, arXiv 2304.08485. The model itself is assembled when it is loaded
(`models.vision_language`): an ordinary Llava of transformers, which the adapter for vision-language
models feeds and saves. So a checkpoint, the final folder and code that loads it do not need this
file, and this extension keeps no state of its own in them.

This extension defines the order: first only the new projector, at its own rate, because its random
output would spoil what the text model has learned; then what the configuration trains (LoRA
adapters or the whole text model) together with the projector. Each of the two has its own warm-up
and schedule.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from infrastructure.config.base import ConfigurationError
from infrastructure.core.errors import InputError
from infrastructure.data.preparation.plan import no_pictures, pictures_in
from infrastructure.models.model_inputs import PROJECTOR
from infrastructure.training.core.state import Phase
from infrastructure.training.extensions.extension_hooks import Extension

PHASE = "projector"
RateFactor = Callable[[int], float]


class MultimodalExtension(Extension):
    """The phase of the projector.

    Args:
        trainer: provides the configuration.

    Attributes:
        num_steps: optimizer steps of the phase; 0 until the length of the training is known.

    Raises:
        ConfigurationError: the rows hold no images.
    """

    def __init__(self, trainer: Any) -> None:
        self.config = trainer.training_config.multimodal
        self.num_steps = 0
        data = trainer.data_config
        if data.path is not None and not pictures_in(data):
            raise ConfigurationError(no_pictures(str(data.path)))

    def first_phases(self, model: torch.nn.Module) -> list[Phase]:
        """Return the phases before those of the strategy."""
        trains = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        names = frozenset(name for name in trains if PROJECTOR in name.split("."))
        num_epochs = self.config.projector_epochs
        return [Phase(PHASE, num_epochs, names)] if num_epochs else []

    def check_length(self, total_steps: int) -> None:
        """Refuse a run that ends before anything but the projector is trained.

        Raises:
            ValueError: the run is too short.
        """
        if self.num_steps and total_steps <= self.num_steps:
            raise InputError(
                "training.run_ends_in_projector_phase",
                total_steps=total_steps,
                num_steps=self.num_steps,
                projector_epochs=self.config.projector_epochs,
            )

    def scheduler(
        self, optimizer: torch.optim.Optimizer, peak: float, first: RateFactor, later: LambdaLR
    ) -> LambdaLR:
        """Return the learning-rate scheduler of both stretches.

        Args:
            peak: the peak learning rate of the first stretch.
            first: the factor at each step of the first stretch.
            later: the schedule of the second stretch, as if nothing came before it.
        """

        def of_group(rate: float, factor: RateFactor) -> RateFactor:
            def at(step: int) -> float:
                if step < self.num_steps:
                    return first(step) * peak / rate
                return factor(step - self.num_steps)

            return at

        rates = [float(group["initial_lr"]) for group in optimizer.param_groups]
        pairs = zip(rates, later.lr_lambdas, strict=True)
        return LambdaLR(optimizer, [of_group(rate, factor) for rate, factor in pairs])
