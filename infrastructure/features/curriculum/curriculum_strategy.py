"""Curriculum learning: easy examples first, harder ones from stage to stage.

The strategy yields one phase for each stage, and trains each as the standard strategy does. Its
extension selects the examples of each stage. Sources: Bengio et al. 2009; stages that keep the
easier examples are the "baby steps" of Spitkovsky, Alshawi & Jurafsky 2010.
"""

import logging
from typing import Any, ClassVar

import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.errors import InputError
from infrastructure.features.curriculum.config import CURRICULUM
from infrastructure.features.curriculum.curriculum_extension import CurriculumExtension
from infrastructure.training.core.state import Phase
from infrastructure.training.strategies.standard_strategy import StandardTrainingStrategy


class CurriculumStrategy(StandardTrainingStrategy):
    """Standard training in curriculum stages of `num_epochs` epochs each.

    Attributes:
        curriculum_stages: number of stages.
        current_stage: index of the current stage, from 0.
    """

    chosen_by: ClassVar[str | None] = CURRICULUM

    def __init__(self, config: TrainingConfig, logger: logging.Logger | None = None) -> None:
        super().__init__(config, logger)
        self.curriculum_stages = config.curriculum_stages
        self.current_stage = 0

    def extensions(self, trainer: Any) -> list[Any]:
        return [CurriculumExtension(trainer)]

    def phases(self, model: torch.nn.Module, num_epochs: int) -> list[Phase]:
        count = self.curriculum_stages
        return [Phase(f"stage {number} of {count}", num_epochs) for number in range(1, count + 1)]

    def take_form(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, index: int
    ) -> None:
        super().take_form(model, optimizer, index)
        self.current_stage = max(0, index)

    def check_length(self, total_steps: int) -> None:
        if total_steps <= self.steps_per_epoch * (self.curriculum_stages - 1):
            raise InputError(
                "curriculum.last_stage_not_reached",
                total_steps=total_steps,
                num_stages=self.curriculum_stages,
                earliest=self.steps_per_epoch * (self.curriculum_stages - 1),
            )
