"""The length of a run and its schedule, and what changes about them later."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.core.state import Phase
from infrastructure.training.extensions.extension_hooks import Extension
from infrastructure.training.loop.session import TrainingLength
from infrastructure.training.strategies import get_training_strategy
from infrastructure.training.strategies.base_strategy import TrainingStrategy
from tests.training.small_runs import small_trainer


class TwoEpochsFirst(Extension):
    def first_phases(self, model: torch.nn.Module) -> list[Phase]:
        return [Phase(name="first", num_epochs=2)]


def strategy_of(**settings: Any) -> TrainingStrategy:
    config = TrainingConfig(**{"num_epochs": 3, "warmup_steps": 0, **settings})
    return get_training_strategy("standard", config)


def length_of(strategy: TrainingStrategy, *extensions: Extension) -> TrainingLength:
    model = torch.nn.Linear(1, 1)
    return TrainingLength.of(strategy.config, strategy, extensions, model, 4, False)


def test_the_phases_of_extensions_come_first_and_count() -> None:
    strategy = strategy_of()
    alone, both = length_of(strategy), length_of(strategy, TwoEpochsFirst())
    assert strategy.steps_per_epoch == 4
    assert (alone.num_first, alone.total_steps, alone.num_epochs) == (0, 12, 3)
    assert (both.num_first, both.total_steps, both.num_epochs) == (8, 20, 5)
    assert [phase.name for phase in both.phases] == ["first", alone.phases[0].name]
    assert length_of(strategy_of(max_steps=9), TwoEpochsFirst()).total_steps == 9
    with pytest.raises(ValueError, match=r"training\.run_ends_in_first_phase\(total_steps=8, "):
        length_of(strategy_of(max_steps=8), TwoEpochsFirst())


def test_the_phases_of_extensions_have_a_schedule_of_their_own() -> None:
    """Four steps with the peak of added weights, in each group, and six of the strategy."""
    strategy = strategy_of(scheduler_type="linear")
    rates = (0.1, 0.2)
    optimizer = torch.optim.SGD(
        [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": rate} for rate in rates]
    )
    plain = TrainingLength([], 0, 10).create_scheduler(strategy, optimizer)
    assert [factor(5) for factor in plain.lr_lambdas] == [0.5, 0.5]
    with_first = TrainingLength([], 4, 10)
    same = with_first.create_scheduler(strategy, optimizer)
    assert [factor(1) for factor in same.lr_lambdas] == pytest.approx([0.75, 0.75])
    strategy.added_rate = 0.4
    scheduler, found = with_first.create_scheduler(strategy, optimizer), []
    for _ in range(10):
        found.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    first = [[0.4 * (1 - step / 4)] * 2 for step in range(4)]
    later = [[rate * (1 - step / 6) for rate in rates] for step in range(6)]
    np.testing.assert_allclose(found, first + later)


def test_another_number_of_steps_has_another_schedule(saved_llama: Path, tmp_path: Path) -> None:
    session = small_trainer(saved_llama, tmp_path, scheduler_type="linear").prepare()
    step, before = session.loop.optimizer_step, session.loop.optimizer_step.scheduler
    session.set_length(6)
    assert step.scheduler is before
    session.set_length(11)
    assert (session.loop.total_steps, session.state.total_steps) == (11, 11)
    assert session.planned.total_steps == 6
    assert step.scheduler is not None
    assert step.scheduler.lr_lambdas[0](6) == pytest.approx(0.5)


def test_another_optimizer_has_a_schedule_and_no_state(saved_llama: Path, tmp_path: Path) -> None:
    trainer = small_trainer(saved_llama, tmp_path)
    trainer.train()
    session, step = trainer.prepare(), trainer.prepare().loop.optimizer_step
    assert step.optimizer.state
    session.renew_optimizer()
    assert session.state.optimizer is step.optimizer
    assert not step.optimizer.state
    assert step.scheduler is not None
    assert step.scheduler.optimizer is step.optimizer


def test_a_session_without_a_folder_saves_nothing(saved_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"training\.no_checkpoint_directory"):
        small_trainer(saved_llama, tmp_path).prepare().save_checkpoint()
