"""The extension `multimodal`, which trains a text model with an added vision encoder.

Method: Liu et al. 2023, arXiv 2304.08485. The model is assembled when it is loaded
(`models.vision_language`). It is an ordinary Llava model of transformers, so checkpoints, the final
folder and code that loads them do not depend on this file.

This extension defines two parts of the training. First only the new projector is trained, at its
own learning rate, because its random output would otherwise damage what the text model has learned.
Then the projector is trained together with what the configuration trains (LoRA adapters or the
whole text model). Each part has its own warm-up and schedule.
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
    """An extension that trains only the projector in the first phase.

    Args:
        trainer: provides the configuration.

    Attributes:
        num_steps: optimizer steps of the projector phase; 0 until the length of the run is known.

    Raises:
        ConfigurationError: the rows contain no images.
    """

    def __init__(self, trainer: Any) -> None:
        self.config = trainer.training_config.multimodal
        self.num_steps = 0
        data = trainer.data_config
        if data.path is not None and not pictures_in(data):
            raise ConfigurationError(no_pictures(str(data.path)))

    def first_phases(self, model: torch.nn.Module) -> list[Phase]:
        """Return the phases to train before those of the strategy."""
        trains = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        names = frozenset(name for name in trains if PROJECTOR in name.split("."))
        num_epochs = self.config.projector_epochs
        return [Phase(PHASE, num_epochs, names)] if num_epochs else []

    def check_length(self, total_steps: int) -> None:
        """Reject a run that ends during the projector phase.

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
        """Return one learning-rate scheduler for the projector phase and the later phases.

        Args:
            peak: the peak learning rate of the projector phase.
            first: the learning-rate factor at each step of the projector phase.
            later: the schedule of the later phases, counted from their own first step.
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
