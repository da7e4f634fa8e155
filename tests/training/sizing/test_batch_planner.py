"""`batch_size: auto`: decided by measurement, once in the life of a run."""

from pathlib import Path

import pytest

from infrastructure.core.errors import CheckpointError
from infrastructure.core.process_memory import resident_bytes
from infrastructure.optimization.memory_prediction import MemoryBudget
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.sizing.batch_plan import BatchPlan
from tests.slow import slow
from tests.training.small_runs import small_trainer, write_rows

NUM_ROWS = 3000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_rows(tmp_path, NUM_ROWS)
    return tmp_path


def auto(model: Path, folder: Path, **settings: object) -> EnhancedTrainer:
    return small_trainer(model, folder, batch_size="auto", **settings)


def test_auto_is_measured_and_makes_whole_steps(saved_llama: Path, folder: Path) -> None:
    trainer = auto(saved_llama, folder)
    loop = trainer.prepare()
    plan = trainer.batch_plan()
    # Which size is the fastest depends on what else the machine does: the marked one is taken.
    (chosen,) = [line for line in plan.trials if line.startswith("→")]
    assert f" {plan.micro_batch_size} example" in chosen
    assert loop.global_batch_size == plan.global_batch_size >= 32
    assert trainer.state.micro_batch_size == plan.micro_batch_size
    assert len(plan.trials) >= 3


@slow
def test_auto_trains_as_the_number_that_it_means(saved_llama: Path, folder: Path) -> None:
    measured = auto(saved_llama, folder)
    state = measured.train()
    plan = measured.batch_plan()
    plain = small_trainer(
        saved_llama,
        folder,
        batch_size=plan.micro_batch_size,
        gradient_accumulation=plan.gradient_accumulation,
    )
    assert plain.train().loss == state.loss
    again = auto(saved_llama, folder).batch_plan()  # a training like it is not measured again
    assert again.resolved() == plan.resolved()
    assert again.origin == "measured on this machine before"


@slow
def test_a_budget_that_holds_only_a_few_rows_is_kept(saved_llama: Path, folder: Path) -> None:
    fit = auto(saved_llama, folder).cost_measurement()
    limit = resident_bytes() + (40 << 20)
    fit.budget = MemoryBudget(cpu_limit=str(limit))
    choice = fit.search(256, lambda size: 1)
    assert choice.peak_bytes <= limit
    assert all(trial.peak_bytes <= limit for trial in choice.trials)


def test_a_run_goes_on_with_what_it_began_with(saved_llama: Path, folder: Path) -> None:
    first = auto(saved_llama, folder)
    first.planner._plan = BatchPlan(2, 3, "measured on another machine")
    first.save_checkpoints_to(folder / "checkpoints")
    first.training_config.max_steps = 2
    first.train()
    resumed = auto(saved_llama, folder)
    resumed.save_checkpoints_to(folder / "checkpoints")
    resumed.training_config.max_steps = 2
    assert resumed.restore(first.checkpoints.newest()) == []
    assert resumed.batch_plan().resolved() == first.batch_plan().resolved()
    assert resumed.loop.global_batch_size == 6


def test_another_batch_is_refused_where_it_was_decided_already(
    saved_llama: Path, folder: Path
) -> None:
    first = auto(saved_llama, folder)
    first.planner._plan = BatchPlan(2, 3, "measured on another machine")
    first.save_checkpoints_to(folder / "checkpoints")
    first.train()
    other = auto(saved_llama, folder)
    other.planner._plan = BatchPlan(8, 4, "measured here")
    other.prepare()
    with pytest.raises(CheckpointError, match="batch_size: was 2, is 8"):
        other.restore(first.checkpoints.newest())
