"""Data selection in a real training: what is trained on, when it is asked, what is repeated."""

import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.data.serving.example_order import random_selection, selection_hash
from infrastructure.features.quantum.config import QuantumConfig
from infrastructure.features.quantum.problems.data_selection import DataSelection
from infrastructure.features.quantum.records import baseline_is_as_good
from infrastructure.features.quantum.training import data_selection_step, quantum_extension
from infrastructure.features.quantum.training.data_selection_step import (
    LEAST_CANDIDATES,
    DataSelectionStep,
    in_words,
    num_selected,
)
from infrastructure.features.quantum.training.decisions import Decisions
from infrastructure.features.quantum.training.per_example_gradients import example_gradients
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
from tests.features.quantum.training.small_adapters import FP32, adapter_for, examples
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
    return Counter(tuple(map(int, e.input_ids)) for e in trainer.initialize_data().examples(ids))


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
    loop = trainer.prepare().loop
    half = round(trainer.initialize_data().num_candidates / 2)
    assert loop.total_steps == 2 * -(-half // 4)
    trainer.train()
    selection = extension_of(trainer).session.decisions.selection
    assert selection is not None
    assert len(selection) == half
    assert seen.epochs == {0: ids_of(trainer, selection), 1: ids_of(trainer, selection)}
    (record,) = records(trainer)
    assert (record["outcome"], record["step"]) == ("answered", 0)
    data = trainer.initialize_data()
    assert record["num_variables"] == record["num_examples"] == data.num_candidates
    assert record["energy"] < record["alternatives"]["random"]
    examining = f"quantum.examining_training_examples(count={2 * half}, total={2 * half}, limit=, "
    excluded = f"quantum.redundant_examples_excluded(excluded={half}, total={2 * half}, "
    assert examining in caplog.text
    assert excluded in caplog.text


def test_a_selection_is_made_again_at_the_first_epoch_that_is_late_enough(
    saved_llama: Path, tmp_path: Path
) -> None:
    settings = {"num_epochs": 3, "optimization_frequency": 4, "batch_size": 3}
    trainer = quantum_trainer(saved_llama, tmp_path, quantum={"data_budget": 0.5}, **settings)
    trainer.train()
    steps = -(-trainer.initialize_data().num_examples // 3)  # of an epoch: 3
    found = [(record["epoch"], record["step"]) for record in records(trainer)]
    assert found == [(0, 0), (2, 2 * steps)]


def test_some_are_looked_at_and_the_others_drawn(saved_llama: Path, tmp_path: Path) -> None:
    quantum = {"data_budget": 0.5, "candidates": 8}
    trainer = quantum_trainer(saved_llama, tmp_path, quantum=quantum, max_steps=1)
    trainer.train()
    (record,) = records(trainer)
    assert record["num_variables"] == 8
    assert record["facts"]["num_chosen"] == 4
    selection = extension_of(trainer).session.decisions.selection
    assert selection is not None
    assert len(selection) == trainer.initialize_data().num_examples


def test_without_a_budget_a_tenth_of_those_looked_at_is_left_out(
    saved_llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    seen = Seen()
    trainer = quantum_trainer(saved_llama, tmp_path, quantum={"candidates": 10}, hooks=(seen,))
    plain = quantum_trainer(saved_llama, tmp_path, enabled_extensions=[])
    assert trainer.prepare().planned.total_steps == plain.prepare().planned.total_steps
    trainer.train()
    number = trainer.initialize_data().num_candidates
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
    limit = "limit=quantum.solver_limit(solver=exact)"
    examining = f"quantum.examining_training_examples(count=20, total=31, {limit}, duration="
    assert examining in caplog.text


FURTHER_STOPS = [({"data_budget": 0.5}, (6,)), ({"candidates": 10}, (2, 6))]


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
    ("quantum", "stops"),
    slow_but([({"data_budget": 0.5}, (2,))], [({"data_budget": 0.5}, (2,)), *FURTHER_STOPS]),
)
def test_a_training_that_goes_on_trains_on_the_same(
    saved_llama: Path, tmp_path: Path, quantum: dict[str, Any], stops: tuple[int, ...]
) -> None:
    """A stop where the next choice is due is in test_quantum_extension, too."""
    settings = {"num_epochs": 3, "optimization_frequency": 4, "checkpoint_frequency": 1}
    whole = quantum_trainer(saved_llama, tmp_path, quantum=quantum, **settings)
    whole.train()
    for stop in stops:
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
    data = trainer.initialize_data()
    assert len(set(data.selected)) == data.num_examples  # by chance
    trained = f"selected={data.num_examples}, total={data.num_candidates}"
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


@pytest.mark.parametrize(
    ("candidates", "most", "allowed", "numbers"),
    [
        ("auto", 900, 100.0, (900, 900)),
        ("auto", 900, 1.5, (111, 111)),
        ("auto", 900, 0.139, (19, 19)),
        ("auto", 900, 0.1325, (16, 16)),
        ("auto", 900, 0.1315, (0, 16)),  # 15 are too few
        ("auto", 900, 0.0, (0, 16)),
        ("auto", 10, 0.13, (10, 10)),  # the solver takes no more
        ("auto", 10, 0.05, (0, 10)),
        (100, 900, 1.46, (100, 100)),
        (100, 900, 1.44, (0, 100)),  # the number that was set, or none
        (100, 30, 1.14, (30, 30)),
        (5, 900, 0.12, (5, 5)),
    ],
)
def test_as_many_are_examined_as_the_time_allows(
    candidates: Any, most: int, allowed: float, numbers: tuple[int, int]
) -> None:
    step = step_without_a_model(QuantumConfig(candidates=candidates))
    found = tuple(
        step.num_candidates(0.002, allowed, most, never_skips=always) for always in (False, True)
    )
    assert found == numbers


def test_the_rows_of_the_target_are_examined_too() -> None:
    pool, held_out = (
        step_without_a_model(QuantumConfig(target=target)) for target in ("pool", "validation")
    )
    assert pool.cost_seconds(0.5, 10) == pytest.approx(0.5 * 10 + 0.1)
    assert held_out.cost_seconds(0.5, 10) == pytest.approx(0.5 * (10 + 256) + 0.1)
    assert held_out.least_steps(4, measures_training=False) == (8 + 1 + 16 + 256) / 4
    pool.data.num_candidates = 5  # type: ignore[misc]
    assert pool.least_steps(4, measures_training=True) == (2 * 5 + 1 + 5) / 4


@pytest.mark.parametrize(
    ("budget", "num_examples", "most", "has_choice", "count"),
    [
        ("auto", 1000, 5, True, 5),
        ("auto", 1000, 4, False, 4),  # a tenth of four is none
        (0.999, 999, 10, True, 1000),  # of the others one is left out
        (1.0, 1000, 10, False, 1000),
    ],
)
def test_a_step_that_leaves_nothing_out_gives_the_reason(
    budget: Any, num_examples: int, most: int, has_choice: bool, count: int
) -> None:
    step = step_without_a_model(QuantumConfig(data_budget=budget))
    step.data.num_examples = num_examples  # type: ignore[misc]
    assert step.has_choice(most) is has_choice
    reason = f"budget=quantum.data_budget={budget}, count={count}"
    assert step.nothing_to_leave_out(most) == f"quantum.budget_excludes_nothing({reason})"


def test_numbers_of_examples_and_their_description() -> None:
    found = [num_selected(*one) for one in ((1000, 0.25), (10, 0.25), (1, 0.1), (1000, 0.9995))]
    assert found == [250, 2, 1, 1000]
    assert in_words(1250, 2500, 1250, 2500) == "1,250 of 2,500 training examples"
    counts = "counts=1,250 of 2,500 training examples, num_chosen=50, num_examined=100"
    drawn = "quantum.others_drawn_at_random(drawn=1200, others=2400)"
    found_words = [in_words(1250, 2500, 50, 100), in_words(2450, 2500, 50, 100)]
    assert found_words == [
        f"quantum.selected_of_examined({counts}, rest={drawn})",
        f"quantum.selected_of_examined({counts.replace('1,250', '2,450')}, rest=all others)",
    ]


def test_costs_are_measured_for_one_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the shortest together, after a warm-up that does not count."""
    now, measured, sizes = [0.0], list[int](), list[list[int]]()
    step = step_without_a_model(QuantumConfig())
    step.adapter.count_tokens = sum  # type: ignore[assignment, method-assign]
    step.data.examples = lambda ids: [100 - i // 10 for i in ids]  # type: ignore[method-assign, assignment]

    def gradients(rows: list[int]) -> None:
        measured.append(len(rows))
        now[0] += 0.5 * len(rows)

    class Probe:
        def __init__(self, *_: object) -> None: ...

        def micro_batch(self, rows: list[int]) -> SimpleNamespace:
            sizes.append(rows)
            return SimpleNamespace(seconds=0.25 * len(rows))

    monkeypatch.setattr(step, "_gradients", gradients)
    monkeypatch.setattr(data_selection_step.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(data_selection_step, "dry_run", lambda *_: nullcontext())
    monkeypatch.setattr(data_selection_step, "DryRunStep", Probe)
    assert (step.gradient_seconds(), measured) == (0.5, [1, 8])
    assert step.training_seconds() == 0.25
    assert sizes == [[1, 15, 29, 43], [58, 72, 86, 100]]


class Rows:
    """Examples as a data pipeline has them, of which two have nothing to train on."""

    def __init__(self) -> None:
        self.rows = examples(12)
        for i in (2, 7):
            nothing = np.zeros_like(self.rows[i].supervised)
            self.rows[i] = replace(self.rows[i], supervised=nothing)
        self.num_candidates = self.num_examples = len(self.rows)
        self.held_out, self.is_closed = examples(7, seed=1), False

    def examples(self, ids: Any) -> list[Any]:
        return [self.rows[i] for i in ids]

    def places_of(self, ids: Any) -> list[str]:
        return [f"row {i}" for i in ids]

    def evaluation_batches(self, batch_size: int) -> Iterator[list[Any]]:
        try:
            for start in range(0, 7, batch_size):
                yield self.held_out[start : start + batch_size]
        finally:
            self.is_closed = True


def alone(step: DataSelectionStep, rows: list[Any]) -> np.ndarray:
    """The gradients of examples, one after the other."""
    return np.concatenate(
        [example_gradients(step.model, step.adapter, [[row]], precision=FP32) for row in rows]
    )


@pytest.mark.parametrize("target", ["pool", "validation"])
def test_the_problem_is_that_of_the_drawn_examples(
    saved_llama: Path, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_selection_step, "NUM_TARGET", 3)
    adapter, data, sizes = adapter_for(saved_llama, packing=False), Rows(), list[list[int]]()
    step = step_without_a_model(QuantumConfig(target=target))
    step = replace(step, adapter=adapter, model=adapter.model, precision=FP32, data=data, seed=3)  # type: ignore[arg-type]
    prepare = adapter.prepare_batch

    def prepared(rows: Any) -> Any:
        sizes.append([len(row.input_ids) for row in rows])
        return prepare(rows)

    ids = [int(i) for i in random_selection(12, 10, 3)]
    usable = [i for i in ids if i not in (2, 7)]
    assert 7 in ids
    held_out = alone(step, data.held_out[::3]) if target == "validation" else None
    expected = DataSelection(
        usable, alone(step, data.examples(usable)), num_selected(len(usable), 0.9), target=held_out
    )
    monkeypatch.setattr(adapter, "prepare_batch", prepared)
    problem = step.problem(10)
    assert (problem.labels, problem.num_chosen, problem.seed) == (usable, expected.num_chosen, 3)
    np.testing.assert_allclose(problem.pairs, expected.pairs, atol=1e-5)
    np.testing.assert_allclose(problem.relevance, expected.relevance, atol=1e-5)
    assert problem.rho == pytest.approx(expected.rho, abs=1e-5)
    lengths = sorted(len(row.input_ids) for row in data.examples(ids))
    assert sizes[:3] == [lengths[:4], lengths[4:8], lengths[8:]]
    assert data.is_closed == (target == "validation")
    data.rows[1:] = [data.rows[2]] * 11
    with pytest.raises(ValueError, match=r"too_few_usable_gradients\(count=1, total=12\)"):
        step.problem(12)


def test_only_zeros_and_infinite_gradients_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the candidates and of the target."""
    step = step_without_a_model(QuantumConfig(target="validation"))
    rows = np.array([[1, 0], [0, 0], [np.nan, 1], [0, 2], [np.inf, 1], [3, 0]], dtype=np.float32)
    step.data.num_candidates = len(rows)  # type: ignore[misc]
    step.data.examples = list  # type: ignore[method-assign, assignment]
    monkeypatch.setattr(step, "_held_out", lambda: range(len(rows)))
    monkeypatch.setattr(step, "_gradients", lambda ids: rows[list(ids)])
    problem = step.problem(len(rows))
    assert problem.labels == [0, 3, 5]
    expected = DataSelection([0, 3, 5], rows[[0, 3, 5]], 3, target=rows[[0, 3, 5]])
    assert (problem.rho, problem.relevance.tolist()) == (expected.rho, expected.relevance.tolist())


def test_the_record_of_a_decision_names_what_is_left_out() -> None:
    step = step_without_a_model(QuantumConfig())
    step.data.places_of = Rows.places_of.__get__(step.data)  # type: ignore[method-assign]
    problem = DataSelection(range(2, 202, 4), np.random.default_rng(0).random((50, 3)), 25)
    decisions, chosen = Decisions(), list(range(198, 98, -4))
    kept = sorted({*range(1000)} - {*range(2, 102, 4)})
    assert step.apply(problem, chosen, decisions) == {
        "chosen": in_words(975, 1000, 25, 50),
        "num_examples": 1000,
        "num_selected": 975,
        "num_dropped": 25,
        "selection": selection_hash(kept),
        "dropped": [f"row {i}" for i in range(2, 82, 4)],
    }
    assert decisions.selection is not None
    assert decisions.selection.tolist() == kept


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
    others = np.setdiff1d(np.arange(1000), candidates)
    drawn = others[random_selection(len(others), num_examples - len(chosen), 1)]
    assert sorted(set(whole.tolist()) - set(chosen.tolist())) == drawn.tolist()


def test_without_a_budget_all_that_nobody_looked_at_trains() -> None:
    question = step_without_a_model(QuantumConfig())
    candidates = np.arange(0, 100, 2)
    assert question._share(50) == 45
    whole = question.completed(candidates, candidates[:45])
    assert whole.tolist() == sorted({*range(1000)} - {*range(90, 100, 2)})
