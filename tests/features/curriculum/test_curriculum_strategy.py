"""A phase for each stage, and what every strategy must do."""

from pathlib import Path
from typing import ClassVar

import pytest
import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.features.conformance.strategy import TrainingStrategySuite
from infrastructure.features.curriculum.curriculum_strategy import CurriculumStrategy
from infrastructure.training.strategies import get_training_strategy
from infrastructure.training.strategies.base_strategy import TrainingStrategy
from tests.slow import slow


class TestCurriculum(TrainingStrategySuite):
    settings: ClassVar = {"curriculum_stages": 2, "num_epochs": 1}

    def make(self, config: TrainingConfig) -> TrainingStrategy:
        return CurriculumStrategy(config)

    @slow  # test_curriculum_extension.py resumes in any stage
    def test_a_training_that_goes_on_gives_the_same_bits(self, tmp_path: Path) -> None:
        super().test_a_training_that_goes_on_gives_the_same_bits(tmp_path)


def test_a_phase_for_each_stage() -> None:
    strategy = get_training_strategy("curriculum", TrainingConfig(curriculum_stages=4))
    phases = strategy.phases(torch.nn.Linear(1, 1), 2)
    assert [(phase.name, phase.num_epochs) for phase in phases] == [
        (f"stage {number} of 4", 2) for number in (1, 2, 3, 4)
    ]


def test_the_last_stage_must_begin() -> None:
    strategy = get_training_strategy("curriculum", TrainingConfig(curriculum_stages=3))
    strategy.steps_per_epoch = 5
    strategy.check_length(11)
    with pytest.raises(
        ValueError,
        match=r"curriculum\.last_stage_not_reached.*total_steps=10.*num_stages=3.*earliest=10",
    ):
        strategy.check_length(10)


def test_the_stage_is_that_of_the_phase_and_the_first_one_before() -> None:
    strategy = CurriculumStrategy(TrainingConfig(curriculum_stages=3))
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    for index, stage in ((1, 1), (-1, 0), (2, 2)):
        strategy.take_form(model, optimizer, index)
        assert (strategy.entered, strategy.current_stage) == (index, stage)
