"""`batch_size: auto`: decided by measurement, once in the life of a run."""

from pathlib import Path
from typing import Any

import pytest

from infrastructure.config.sections.model_config import LoraConfig
from infrastructure.core.errors import CheckpointError
from infrastructure.core.process_memory import resident_bytes
from infrastructure.optimization.batch_size import BatchChoice, Trial
from infrastructure.optimization.memory_prediction import MemoryBudget
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.sizing.batch_plan import BatchPlan
from infrastructure.training.sizing.cost_measurement import CostMeasurement
from tests.slow import slow
from tests.training.small_runs import small_trainer, write_rows

NUM_ROWS = 1000  # enough for many sizes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_rows(tmp_path, 50)
    return tmp_path


@pytest.fixture
def large_folder(tmp_path: Path) -> Path:
    write_rows(tmp_path, NUM_ROWS)
    return tmp_path


def auto(model: Path, folder: Path, **settings: Any) -> EnhancedTrainer:
    return small_trainer(model, folder, batch_size="auto", **settings)


def test_auto_is_measured_and_makes_whole_steps(saved_llama: Path, large_folder: Path) -> None:
    trainer = auto(saved_llama, large_folder)
    loop = trainer.prepare().loop
    plan = trainer.batch_plan()
    # Which size is the fastest depends on what else the machine does: the marked one is taken.
    (chosen,) = [line for line in plan.trials if "mark=→" in line]
    assert f"size={plan.micro_batch_size}, " in chosen
    assert loop.global_batch_size == plan.global_batch_size >= 32
    assert trainer.state.micro_batch_size == plan.micro_batch_size
    assert len(plan.trials) >= 3


@slow
def test_auto_trains_as_the_number_that_it_means(saved_llama: Path, large_folder: Path) -> None:
    folder = large_folder
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
    assert again.origin == "training.batch_size_measured_earlier()"


OTHERS: dict[str, dict[str, Any]] = {
    "optimizer": {"optimizer": "sgd"},
    "checkpointing": {"gradient_checkpointing": True},
    "its mode": {"gradient_checkpointing": True, "gradient_checkpointing_mode": "selective"},
    "number format": {"mixed_precision": False},
    "accumulation": {"gradient_accumulation": 3},
    "lora": {"lora": LoraConfig(r=2)},
    "its rank": {"lora": LoraConfig(r=4)},
    "rows apart": {"packing": False},
    "strategy": {"strategy": "end_to_end"},
    "a unit at a time": {"mode": "layerwise"},
    "all below with it": {"mode": "fused"},
    "larger units": {"mode": "fused", "block_size": 2},
}


def test_a_training_takes_no_size_that_was_measured_of_another(
    saved_llama: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No run finds the size of one that needs a different amount of memory; each finds its own."""
    searched: list[int] = []

    def search(*_: object) -> BatchChoice:
        searched.append(len(searched) + 1)
        return BatchChoice(searched[-1], (Trial(searched[-1], 1, 1.0),), "")

    monkeypatch.setattr(CostMeasurement, "search", search)
    usual = auto(saved_llama, folder).precision.name  # fp32 on a CPU without bf16 instructions
    monkeypatch.setitem(
        OTHERS, "number format", {"mixed_precision": "bf16" if usual == "fp32" else False}
    )
    for settings in ({}, *OTHERS.values()):
        size = auto(saved_llama, folder, **settings).batch_plan().micro_batch_size
        assert size == len(searched), settings
    found_again = [(1, {}), (1 + len(OTHERS), OTHERS["larger units"])]
    for size, settings in found_again:
        assert auto(saved_llama, folder, **settings).batch_plan().micro_batch_size == size
    assert len(searched) == 1 + len(OTHERS)


@slow
def test_a_budget_that_holds_only_a_few_rows_is_kept(saved_llama: Path, large_folder: Path) -> None:
    fit = auto(saved_llama, large_folder).cost_measurement()
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
    assert resumed.prepare().loop.global_batch_size == 6


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


def test_what_was_found_out_is_kept_for_trainings_that_are_alike_in_all_that_counts(
    saved_llama: Path, folder: Path
) -> None:
    """Another one of these measures itself: the size of one may be too large for the other."""
    trainer = auto(saved_llama, folder)
    planner = trainer.planner
    fit = trainer.cost_measurement()
    machine, tuning = planner._machine_key(), planner._tuning_key(fit)
    of_machine = {"device", "memory_bytes", "model", "max_length", "precision", "lora"}
    of_machine |= {"gradient_checkpointing"}
    assert set(machine) == of_machine
    of_training = {"what", "threads", "versions", "parameters", "trained", "optimizer"}
    of_training |= {"compile_mode", "packs", "longest", "accumulation", "strategy", "features"}
    assert set(tuning) == of_machine | of_training
    assert planner.memory_limit().key == machine
    num_weights = sum(p.numel() for p in trainer.model.parameters())
    assert (tuning["parameters"], tuning["trained"]) == (num_weights, num_weights)
    assert (machine["model"], machine["max_length"]) == (
        trainer.model_config.name,
        trainer.data_config.max_length,
    )
    next(iter(trainer.model.parameters())).requires_grad_(False)
    others = {
        "optimizer": ("optimizer", "sgd"),
        "compile_mode": ("compile_mode", "none"),
        "accumulation": ("gradient_accumulation", 7),
        "gradient_checkpointing": ("gradient_checkpointing", True),
    }
    for name, value in others.values():
        setattr(planner.config, name, value)
    planner.data_config.max_length += 1
    planner.adapter.packs = not tuning["packs"]  # type: ignore[attr-defined]
    changed = planner._tuning_key(fit)
    assert {key for key in changed if changed[key] != tuning[key]} >= {
        *("trained", "max_length", "packs", "optimizer", "accumulation", "gradient_checkpointing")
    }
