"""Data selection in a real training: what is trained on, when it is asked, what is repeated."""

import logging
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.features.quantum.config import QuantumConfig
from infrastructure.features.quantum.records import baseline_is_as_good
from infrastructure.features.quantum.training import quantum_extension
from infrastructure.features.quantum.training.data_selection_step import (
    LEAST_CANDIDATES,
    DataSelectionStep,
)
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from tests.features.quantum.training.quantum_runs import (
    StopAt,
    extension_of,
    quantum_trainer,
    records,
    same_weights,
    without_times,
)
from tests.slow import slow_but
from tests.training.small_runs import write_rows


class Seen(Observer):
    """Which examples each epoch has trained on."""

    def __init__(self) -> None:
        self.epochs: dict[int, Counter[tuple[int, ...]]] = {}

    def step_start(self, state: TrainingState) -> None:
        epoch = self.epochs.setdefault(state.position.epoch, Counter())
        epoch.update(tuple(map(int, example.input_ids)) for example in state.batch)


def ids_of(trainer: Any, ids: Any) -> Counter[tuple[int, ...]]:
    return Counter(tuple(map(int, e.input_ids)) for e in trainer.data.examples(ids))


def test_a_training_holds_what_was_chosen(
    saved_llama: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quantum_extension, "LONG_SECONDS", 0.0)
    caplog.set_level(logging.INFO)
    seen = Seen()
    trainer = quantum_trainer(saved_llama, tmp_path, quantum={"data_budget": 0.5}, hooks=(seen,))
    loop = trainer.prepare()
    half = round(trainer.data.num_candidates / 2)
    assert loop.total_steps == 2 * -(-half // 4)
    trainer.train()
    selection = extension_of(trainer).session.decisions.selection
    assert selection is not None
    assert len(selection) == half
    assert seen.epochs == {0: ids_of(trainer, selection), 1: ids_of(trainer, selection)}
    (record,) = records(trainer)
    assert (record["outcome"], record["step"]) == ("answered", 0)
    assert record["num_variables"] == record["num_examples"] == trainer.data.num_candidates
    assert record["energy"] < record["alternatives"]["random"]
    examining = f"quantum.examining_training_examples(count={2 * half}, total={2 * half}, "
    excluded = f"quantum.redundant_examples_excluded(excluded={half}, total={2 * half}, "
    assert examining in caplog.text
    assert excluded in caplog.text


def test_a_selection_is_made_again_at_the_first_epoch_that_is_late_enough(
    saved_llama: Path, tmp_path: Path
) -> None:
    settings = {"num_epochs": 5, "optimization_frequency": 4, "batch_size": 3}
    trainer = quantum_trainer(saved_llama, tmp_path, quantum={"data_budget": 0.5}, **settings)
    trainer.train()
    steps = -(-trainer.data.num_examples // 3)  # of an epoch: 3
    found = [(record["epoch"], record["step"]) for record in records(trainer)]
    assert found == [(0, 0), (2, 2 * steps), (4, 4 * steps)]


def test_some_are_looked_at_and_the_others_drawn(saved_llama: Path, tmp_path: Path) -> None:
    quantum = {"data_budget": 0.5, "candidates": 8}
    trainer = quantum_trainer(saved_llama, tmp_path, quantum=quantum, max_steps=1)
    trainer.train()
    (record,) = records(trainer)
    assert record["num_variables"] == 8
    assert record["facts"]["num_chosen"] == 4
    selection = extension_of(trainer).session.decisions.selection
    assert selection is not None
    assert len(selection) == trainer.data.num_examples


def test_without_a_budget_a_tenth_of_those_looked_at_is_left_out(
    saved_llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    seen = Seen()
    trainer = quantum_trainer(saved_llama, tmp_path, quantum={"candidates": 10}, hooks=(seen,))
    plain = quantum_trainer(saved_llama, tmp_path, enabled_extensions=[])
    assert trainer.prepare().total_steps == plain.prepare().total_steps
    trainer.train()
    number = trainer.data.num_candidates
    (record,) = records(trainer)
    assert (record["num_variables"], record["facts"]["num_chosen"]) == (10, 9)
    assert record["num_selected"] == number - 1
    selection = extension_of(trainer).session.decisions.selection
    assert selection is not None
    for epoch in (0, 1):
        assert set(seen.epochs[epoch]) == set(ids_of(trainer, selection))
        assert sum(seen.epochs[epoch].values()) == number
    excluded = f"quantum.redundant_examples_excluded(excluded=1, total={number}, "
    assert excluded in caplog.text
    assert ("quantum.simple_rule_chooses_equally_well" in caplog.text) == baseline_is_as_good(
        record
    )
    assert "quantum.selected_of_examined" in record["chosen"]


@pytest.mark.parametrize("quantum", [{"candidates": 4}, {"candidates": 1}])
def test_too_few_to_leave_one_out(
    saved_llama: Path, tmp_path: Path, quantum: dict[str, Any]
) -> None:
    trainer = quantum_trainer(saved_llama, tmp_path, quantum=quantum, max_steps=1)
    trainer.train()
    (record,) = records(trainer)
    reason = f"budget=quantum.data_budget=auto, count={quantum['candidates']}"
    excludes_nothing = f"quantum.budget_excludes_nothing({reason})"
    assert (record["outcome"], record["why"]) == ("skipped", excludes_nothing)


def test_no_more_variables_than_allowed(saved_llama: Path, tmp_path: Path) -> None:
    trainer = quantum_trainer(saved_llama, tmp_path, quantum={"max_qubits": 7}, max_steps=1)
    trainer.train()
    assert records(trainer)[0]["num_variables"] == 7


@pytest.mark.parametrize("candidates", ["auto", 25])
def test_no_more_variables_than_the_solver_takes(
    saved_llama: Path,
    tmp_path: Path,
    candidates: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quantum_extension, "LONG_SECONDS", 0.0)
    write_rows(tmp_path, 40)
    quantum = {"candidates": candidates, "solver": "exact"}
    trainer = quantum_trainer(saved_llama, tmp_path, quantum=quantum, max_steps=1)
    with caplog.at_level("INFO"):
        trainer.train()
    (record,) = records(trainer)
    assert (record["num_variables"], record["failures"]) == (20, [])
    examining = "quantum.examining_training_examples(count=20, total=31, limit="
    assert examining in caplog.text


def test_the_held_out_rows_as_target(saved_llama: Path, tmp_path: Path) -> None:
    runs = [
        quantum_trainer(
            saved_llama, tmp_path, quantum={"target": t, "data_budget": 0.5}, max_steps=1
        )
        for t in ("pool", "validation")
    ]
    for trainer in runs:
        trainer.train()
    found = [extension_of(trainer).session.decisions.selection_hash for trainer in runs]
    assert found[0] != found[1]


@pytest.mark.parametrize(
    "quantum", slow_but([{"data_budget": 0.5}], [{"data_budget": 0.5}, {"candidates": 10}])
)
def test_a_training_that_goes_on_trains_on_the_same(
    saved_llama: Path, tmp_path: Path, quantum: dict[str, Any]
) -> None:
    settings = {"num_epochs": 4, "optimization_frequency": 4, "checkpoint_frequency": 1}
    whole = quantum_trainer(saved_llama, tmp_path, quantum=quantum, **settings)
    whole.train()
    for stop in (2, 6):
        folder = tmp_path / f"checkpoints{stop}"
        first = quantum_trainer(
            saved_llama,
            tmp_path,
            quantum=quantum,
            checkpoints=folder,
            hooks=(StopAt(stop),),
            **settings,
        )
        first.train()
        assert first.state is not None
        assert first.state.step == stop
        assert first.checkpoints is not None
        again = quantum_trainer(
            saved_llama, tmp_path, quantum=quantum, checkpoints=folder, **settings
        )
        again.restore(first.checkpoints.newest())
        again.train()
        assert same_weights(whole, again)
        assert without_times(records(again)) == without_times(records(whole))


def test_a_problem_that_costs_too_much_is_not_solved(
    saved_llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    quantum = {"data_budget": 0.5, "candidates": 10, "max_overhead_percent": 1e-6}
    trainer = quantum_trainer(
        saved_llama, tmp_path, quantum=quantum, checkpoints=tmp_path / "c", max_steps=2
    )
    trainer.train()
    (record,) = records(trainer)
    assert record["outcome"] == "skipped"
    assert "quantum.step_over_work_budget" in record["why"]
    assert len(set(trainer.data.selected)) == trainer.data.num_examples  # by chance
    trained = f"selected={trainer.data.num_examples}, total={trainer.data.num_candidates}"
    by_chance = f"quantum.examples_drawn_at_random({trained}, data_budget=0.5)"
    assert f"); {by_chance}" in caplog.text
    assert record["why"].endswith(by_chance)  # the report shows it


def test_what_is_too_dear_to_measure_is_not_measured(
    saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(step: DataSelectionStep) -> float:
        raise AssertionError("measured")

    monkeypatch.setattr(DataSelectionStep, "gradient_seconds", never)
    trainer = quantum_trainer(saved_llama, tmp_path, quantum={"max_overhead_percent": 2})
    trainer.train()
    (record,) = records(trainer)
    assert record["outcome"] == "skipped"
    assert "quantum.step_over_work_budget" in record["why"]


def test_the_time_of_measuring_counts(
    saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(step: DataSelectionStep) -> float:
        time.sleep(0.3)  # all is allowed but this
        return 1e-6

    monkeypatch.setattr(DataSelectionStep, "gradient_seconds", slowly)
    monkeypatch.setattr(DataSelectionStep, "training_seconds", lambda step: 1e-6)
    trainer = quantum_trainer(saved_llama, tmp_path, quantum={"max_overhead_percent": 1e5})
    trainer.train()
    (record,) = records(trainer)
    assert record["outcome"] == "skipped"
    assert "quantum.step_over_time_budget" in record["why"]


def test_without_a_budget_a_problem_that_is_not_solved_leaves_nothing_out(
    saved_llama: Path, tmp_path: Path
) -> None:
    quantum = {"max_overhead_percent": 1e-6}
    trainer = quantum_trainer(saved_llama, tmp_path, quantum=quantum)
    plain = quantum_trainer(saved_llama, tmp_path, enabled_extensions=[])
    for one in (trainer, plain):
        one.train()
    assert records(trainer)[0]["outcome"] == "skipped"
    assert same_weights(trainer, plain)


def step_without_a_model(config: QuantumConfig, device: str = "cpu") -> DataSelectionStep:
    """What it may cost is known without one."""
    nothing: Any = None
    adapter: Any = SimpleNamespace(device=torch.device(device))
    data: Any = SimpleNamespace(num_candidates=1000)
    return DataSelectionStep(
        config=config,
        model=nothing,
        adapter=adapter,
        strategy=nothing,
        precision=nothing,
        data=data,
        optimizer=nothing,
        micro_batch_size=4,
        seed=0,
    )


@pytest.mark.parametrize("allowed", [0.13, 0.2, 0.5, 1.05, 1.1, 1.5, 3.0, 100.0])
def test_no_more_are_looked_at_than_may_be_paid_for(allowed: float) -> None:
    question = step_without_a_model(QuantumConfig())
    gradient_seconds = 0.002
    number = question.num_candidates(gradient_seconds, allowed, most=900)
    if number:
        assert question.cost_seconds(gradient_seconds, number) <= allowed
    more = max(number + 1, LEAST_CANDIDATES)
    assert number == 900 or question.cost_seconds(gradient_seconds, more) > allowed


@pytest.mark.parametrize(("device", "num_warming"), [("cpu", 1), ("cuda", 8)])
def test_a_training_that_was_forecast_is_not_measured_again(device: str, num_warming: int) -> None:
    step = step_without_a_model(QuantumConfig(), device)
    gradients = num_warming + 8 + LEAST_CANDIDATES
    assert step.least_steps(4, measures_training=False) == gradients / 4
    assert step.least_steps(4, measures_training=True) == (gradients + 8) / 4


def test_a_model_with_data_of_its_own_is_refused() -> None:
    from infrastructure.config.sections.data_config import DataConfig
    from infrastructure.config.sections.model_config import ModelConfig
    from infrastructure.config.sections.training_config import TrainingConfig
    from infrastructure.training.enhanced_trainer import EnhancedTrainer

    trainer = EnhancedTrainer(
        ModelConfig(name="tactical_mappo"),
        TrainingConfig(optimization_frequency=1),
        DataConfig(),
        device="cpu",
    )
    with pytest.raises(ValueError, match=r"quantum\.data_selection_needs_data_files"):
        trainer.prepare()


@pytest.mark.parametrize(
    ("num_examples", "num_looked_at", "num_chosen"),
    [
        (500, 100, 50),  # the same share of them as of all
        (500, 1000, 500),
        (995, 100, 99),  # or 100, rounded: the others are to give the rest
        (3, 100, 1),  # at least one
        (1000, 100, 100),
        (950, 30, 28),
    ],
)
def test_of_those_looked_at_the_share_is_chosen_that_is_of_all(
    num_examples: int, num_looked_at: int, num_chosen: int
) -> None:
    question = step_without_a_model(QuantumConfig(data_budget=num_examples / 1000))
    question.data.num_examples = num_examples
    assert abs(question._share(num_looked_at) - num_chosen) <= (num_examples == 995)
    rng = np.random.default_rng(0)
    candidates = np.sort(rng.permutation(1000)[:num_looked_at])
    chosen = candidates[: question._share(num_looked_at)]
    whole = question.completed(candidates, chosen)
    assert len(whole) == num_examples
    assert whole.tolist() == sorted(set(whole.tolist()))
    assert set(whole.tolist()) & set(candidates.tolist()) == set(chosen.tolist())
    assert question.completed(candidates, chosen).tolist() == whole.tolist()


def test_without_a_budget_all_that_nobody_looked_at_trains() -> None:
    question = step_without_a_model(QuantumConfig())
    candidates = np.arange(0, 100, 2)
    assert question._share(50) == 45
    whole = question.completed(candidates, candidates[:45])
    assert whole.tolist() == sorted({*range(1000)} - {*range(90, 100, 2)})
