"""Seed 000's quantum functions in one's own loop."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from infrastructure.features.quantum.config import QuantumConfig, config_of
from infrastructure.features.quantum.solving.quantum_step import Solution
from infrastructure.features.specification.context import TrainingContext
from infrastructure.training import (
    apply_quantum_solution,
    formulate_quantum_problem,
    initialize_training,
    quantum_optimize,
    quantum_solve,
    should_optimize,
)
from tests.features.quantum.training.quantum_runs import extension_of
from tests.features.specification.test_context import configure
from tests.slow import slow_but


@pytest.fixture
def context(saved_llama: Path, tmp_path: Path) -> TrainingContext:
    config = configure(saved_llama, tmp_path, optimization_frequency=2)
    config.quantum.problem = "block_selection"
    config.quantum.num_blocks = 1
    return initialize_training(config, checkpoint_directory=tmp_path / "checkpoints")


def trained_blocks(context: TrainingContext) -> set[str]:
    names = [name for name, p in context.state.model.named_parameters() if p.requires_grad]
    return {f"block {n.split('layers.')[1][0]}" for n in names if "layers." in n}


def test_the_loop_of_the_specification(context: TrainingContext) -> None:
    solved, trained = [], []
    for _ in range(context.num_epochs):
        context.start_epoch()
        for batch in context.pipeline:
            context.trainer.train_step(batch)
            if should_optimize(context):
                solved.append(quantum_optimize(context))
            trained.append(trained_blocks(context))
        context.end_epoch()
    assert len(solved) == context.state.step // 2
    assert trained[0] == {"block 0", "block 1"}
    assert all(blocks == set(solved[i // 2].decision) for i, blocks in enumerate(trained[1:], 0))
    records = extension_of(context.trainer).session.history.records()
    assert [record["step"] for record in records] == [2, 4, 6, 8, 10]


def test_step_by_step(context: TrainingContext, tmp_path: Path) -> None:
    context.trainer.train_step(next(iter(context.pipeline)))
    before = [p.detach().clone() for p in context.state.model.parameters()]
    gradients, parameters = context.trainer.gradients, context.trainer.parameters
    assert gradients.keys() == parameters.keys()
    assert all(p.grad is None for p in context.state.model.parameters())
    assert all(map(torch.equal, before, context.state.model.parameters()))
    problem = formulate_quantum_problem(gradients, parameters, num_blocks=1)
    solution = quantum_solve(problem, seed=1)
    sizes = {
        block: sum(float(g.square().sum()) for n, g in gradients.items() if f"layers.{i}." in n)
        for i, block in enumerate(("block 0", "block 1"))
    }
    assert solution.decision == [max(sizes, key=sizes.__getitem__)]
    apply_quantum_solution(context, solution)
    assert trained_blocks(context) == set(solution.decision)
    again = initialize_training(
        configured(context, tmp_path), checkpoint_directory=tmp_path / "other"
    )
    again.trainer.restore(context.save_state())
    again.start_epoch()
    assert trained_blocks(again) == set(solution.decision)


def selecting(model: Path, folder: Path, name: str) -> TrainingContext:
    config = configure(model, folder, optimization_frequency=2)
    config.quantum.data_budget = 0.5
    config.quantum.max_qubits = 12
    return initialize_training(config, checkpoint_directory=folder / name)


def batches_of(context: TrainingContext) -> list[tuple[int, ...]]:
    return [tuple(map(int, e.input_ids)) for batch in context.pipeline for e in batch]


def test_examples_that_are_chosen_in_an_epoch_count_from_the_next_one_on(
    saved_llama: Path, tmp_path: Path
) -> None:
    """Also for who goes on from the middle of the epoch: neither chance nor the newest choice."""
    context = selecting(saved_llama, tmp_path, "one")
    first = quantum_optimize(context)
    assert len(first.decision) == context.trainer.initialize_data().num_examples == 10
    context.start_epoch()
    batches = iter(context.pipeline)
    context.trainer.train_step(next(batches))
    others = sorted(set(range(20)) - set(first.decision))
    apply_quantum_solution(context, dataclasses.replace(first, decision=others))
    saved = context.save_state()
    rest = batches_of(context)
    assert context.trainer.initialize_data().selected.tolist() == sorted(first.decision)
    again = selecting(saved_llama, tmp_path, "two")
    again.trainer.restore(saved)
    again.start_epoch()
    assert again.trainer.initialize_data().selected.tolist() == sorted(first.decision)
    assert batches_of(again) == rest
    for one in (context, again):
        one.end_epoch()
        one.start_epoch()
        assert one.trainer.initialize_data().selected.tolist() == others


def answer(decision: Any) -> Solution:
    return Solution(decision, {}, 0.0, "nobody", False, 1, 0.0, 0.0)


def test_a_decision_that_cannot_be_carried_out_changes_nothing(
    context: TrainingContext, saved_llama: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="what=block, name=block 7,"):
        apply_quantum_solution(context, answer(["block 7"]))
    with pytest.raises(
        ValueError, match=r"quantum\.problem_selects_no_examples.*problem=block_selection"
    ):
        apply_quantum_solution(context, answer([1, 2]))
    other = selecting(saved_llama, tmp_path, "other")
    with pytest.raises(ValueError, match=r"data\.invalid_selection.*wanted=10.*num_candidates=20"):
        apply_quantum_solution(other, answer([1, 2]))
    for one in (context, other):
        extension = extension_of(one.trainer)
        assert (extension.session.decisions.blocks, extension.session.decisions.selection) == (
            None,
            None,
        )
        assert len(extension.session.history) == 0


def configured(context: TrainingContext, folder: Path):  # type: ignore[no-untyped-def]
    config = configure(Path(context.trainer.model_config.name), folder, optimization_frequency=2)
    config.quantum = config_of(context.trainer)
    return config


def test_wrong_problems_are_refused(
    context: TrainingContext, saved_llama: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"training\.no_gradients_before_first_step"):
        quantum_optimize(context)
    weight = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=r"quantum\.gradient_of_unknown_parameter.*name=x"):
        formulate_quantum_problem({"x": weight}, {})
    with pytest.raises(ValueError, match=r"quantum\.too_few_blocks_with_gradient.*count=0"):
        formulate_quantum_problem({"x": weight}, {"x": weight})
    strange = Solution([1.5], {}, 0.0, "nobody", False, 1, 0.0, 0.0)
    with pytest.raises(ValueError, match=r"quantum\.unknown_kind_of_decision"):
        apply_quantum_solution(context, strange)
    plain = initialize_training(configure(saved_llama, tmp_path))
    with pytest.raises(ValueError, match=r"quantum\.no_quantum_step_in_training"):
        apply_quantum_solution(plain, strange)


def test_blocks_are_chosen_by_the_norms_of_their_gradients() -> None:
    """Of twelve blocks, whose parameters come in any order."""
    names = [f"layers.{n % 12}.{part}.weight" for n in range(5, 17) for part in ("up", "down")]
    parameters = {name: torch.nn.Parameter(torch.zeros(2)) for name in [*names, "norm.weight"]}
    gradients = {name: torch.full((2,), float(name.split(".")[1])) for name in names}
    gradients["norm.weight"] = torch.full((2,), 99.0)
    problem = formulate_quantum_problem(gradients, parameters, num_blocks=2)
    assert problem.labels == [f"block {n}" for n in range(12)]
    assert problem.linear.tolist() == [-4.0 * n**2 for n in range(12)]
    assert problem.gradient_norms.tolist() == [2.0 * n for n in range(12)]
    assert (problem.num_chosen, problem.config, problem.pairs.any()) == (2, None, False)
    assert formulate_quantum_problem(gradients, parameters).num_chosen == 6
    one = {name: gradient for name, gradient in gradients.items() if "layers.3." in name}
    with pytest.raises(ValueError, match=r"quantum\.too_few_blocks_with_gradient\(count=1"):
        formulate_quantum_problem(one, parameters)


@pytest.mark.parametrize(
    "decision", [[], [1, "block 1"], [True], "block 1", {"a": 1}, ["x" * 99, 1]]
)
def test_a_decision_of_another_kind_is_refused(decision: Any, context: TrainingContext) -> None:
    shown = re.escape(f"unknown_kind_of_decision(decision={str(decision)[:80]}")
    with pytest.raises(ValueError, match=shown):
        apply_quantum_solution(context, answer(decision))


def deep(folder: Path, name: str, saved_llama: Path, **quantum: Any) -> TrainingContext:
    """A training of a model with eight blocks; two of a name begin with the same bits."""
    config = AutoConfig.from_pretrained(saved_llama, num_hidden_layers=8)
    torch.manual_seed(0)
    model = folder / "eight_blocks"
    AutoModelForCausalLM.from_config(config).save_pretrained(model)
    AutoTokenizer.from_pretrained(saved_llama).save_pretrained(model)
    configured = configure(model, folder, optimization_frequency=2, num_epochs=4)
    configured.quantum = QuantumConfig(problem="block_selection", **quantum)
    configured.quantum.solver = "dense_annealer"
    return initialize_training(configured, checkpoint_directory=folder / name)


def own_sequence(context: TrainingContext) -> Solution:
    """As seed 000 writes it."""
    problem = formulate_quantum_problem(context.trainer.gradients, context.trainer.parameters)
    solution = quantum_solve(problem)
    apply_quantum_solution(context, solution)
    return solution


@pytest.mark.parametrize("quantum", slow_but([{}], [{}, {"num_blocks": 3}]))
def test_the_three_functions_again_and_again_are_quantum_optimize(
    saved_llama: Path, tmp_path: Path, quantum: dict[str, Any]
) -> None:
    """Each choice is one among all eight blocks, whichever train now."""
    decisions: list[list[Any]] = []
    for name, optimize in (("one", own_sequence), ("two", quantum_optimize)):
        context = deep(tmp_path, name, saved_llama, **quantum)
        decisions.append([])
        for batch in context.pipeline:
            context.trainer.train_step(batch)
            decisions[-1].append(optimize(context).decision)
            assert trained_blocks(context) == set(decisions[-1][-1])
    assert decisions[0] == decisions[1]
    assert [len(blocks) for blocks in decisions[0]] == [quantum.get("num_blocks", 4)] * 5


def test_gradients_are_those_of_all_blocks_and_leave_no_trace(
    saved_llama: Path, tmp_path: Path
) -> None:
    context = deep(tmp_path, "one", saved_llama, num_blocks=1)
    context.trainer.train_step(next(iter(context.pipeline)))
    before = context.trainer.gradients
    solution = own_sequence(context)
    chosen = solution.decision
    assert solution.answered_by == "dense_annealer", "the configuration names who answers"
    after = context.trainer.gradients
    assert before.keys() == after.keys() == context.trainer.parameters.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert trained_blocks(context) == set(chosen)
