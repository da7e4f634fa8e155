"""The quantum step as plain functions, for custom training loops.

    for batch in context.pipeline:
        loss = context.trainer.train_step(batch)
        if should_optimize(context):
            quantum_optimize(context)

A custom loop has quantum steps only if it calls these functions. Their decisions take effect, are
saved and are restored on resume as in Temper's own loop.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch

from infrastructure.config.base import ConfigSection
from infrastructure.core.errors import InputError
from infrastructure.core.lookup import unknown_name
from infrastructure.features.quantum.config import (
    BLOCK_SELECTION,
    DATA_SELECTION,
    QuantumConfig,
    config_of,
)
from infrastructure.features.quantum.problems.block_selection import BlockSelection
from infrastructure.features.quantum.problems.data_selection import DataSelection
from infrastructure.features.quantum.problems.problem import QuantumProblem
from infrastructure.features.quantum.solving.quantum_step import Solution, quantum_solve
from infrastructure.features.quantum.training.block_selection_step import num_chosen_blocks
from infrastructure.features.quantum.training.freeze_blocks import block_name, phase_blocks
from infrastructure.features.quantum.training.quantum_extension import QuantumExtension
from infrastructure.training.core.own_loop import OwnLoop, own_loop
from infrastructure.training.loop.last_gradients import TrainerGradients
from infrastructure.training.loop.loop import TrainingLoop


class OwnLoopTrainer(Protocol):
    """The part of a trainer that custom loops need for quantum steps."""

    sections: Mapping[str, ConfigSection]

    @property
    def gradients(self) -> TrainerGradients: ...

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]: ...

    def prepare(self) -> TrainingLoop: ...


def formulate_quantum_problem(
    gradients: Mapping[str, torch.Tensor],
    parameters: Mapping[str, torch.nn.Parameter],
    num_blocks: int | None = None,
) -> BlockSelection:
    """Formulate the choice of blocks to train: those whose gradient step lowers the loss most.

    To first order, a step along the negative gradient -g lowers the loss by |g|^2. So the blocks
    with the largest gradient norms are chosen. In measurements, no other choice was better. The
    extension's problem also has second-order terms.

    Args:
        gradients, parameters: tensors by parameter name; the names contain the block.
        num_blocks: number of blocks that train at a time; None: `quantum.num_blocks` if the
            gradients come from a trainer, else half of the blocks.

    Raises:
        ValueError: fewer than two blocks have a gradient, or a gradient has no parameter.
    """
    strange = sorted(gradients.keys() - parameters.keys())
    if strange:
        raise InputError("quantum.gradient_of_unknown_parameter", name=strange[0])
    squares: dict[str, float] = {}
    for name, gradient in gradients.items():
        block = block_name(name)
        if block is not None:
            squares[block] = squares.get(block, 0.0) + float(gradient.double().square().sum())
    names = sorted(squares, key=lambda block: int(block.split()[1]))
    if len(names) < 2:
        raise InputError("quantum.too_few_blocks_with_gradient", count=len(names))
    decrease = np.array([squares[name] for name in names])
    given = config_of(gradients) if isinstance(gradients, TrainerGradients) else None
    counted = given if given and num_blocks is None else QuantumConfig(num_blocks=num_blocks)
    chosen = num_chosen_blocks(counted, len(names))
    nothing = np.zeros((len(names), len(names)))
    problem = BlockSelection(names, -decrease, nothing, chosen, gradient_norms=np.sqrt(decrease))
    problem.config = given
    return problem


def should_optimize(context: OwnLoop | None = None) -> bool:
    """Return whether a quantum step is due, by `training.optimization_frequency`.

    Args:
        context: None: the only context that was created in this process.
    """
    context = own_loop(context, "should_optimize")
    return context.state.every(context.trainer.training_config.optimization_frequency)


def quantum_optimize(context: OwnLoop) -> Solution:
    """Formulate, solve and apply the problem of `quantum.problem`, with the last batch.

    Blocks are chosen as in `formulate_quantum_problem`. For data selection, as many examples are
    examined as `quantum.candidates`, `max_qubits` and the solver allow. The step always runs:
    `quantum.max_overhead_percent` applies only to Temper's own loop.

    Raises:
        ValueError: the configuration has no quantum step, or there is nothing to choose from.
    """
    trainer: OwnLoopTrainer = context.trainer
    extension = _extension_of(context)
    problem = _formulated(context, extension)
    session = extension.session
    config = config_of(trainer)
    solution = quantum_solve(problem, config, seed=session.seed, chain=session.chain)
    if isinstance(problem, DataSelection):  # completed with a random draw of unexamined examples
        candidates = np.array(problem.labels, dtype=np.int64)
        chosen = np.array(solution.decision, dtype=np.int64)
        selection = extension.data_selection_step(context.state).completed(candidates, chosen)
        solution = replace(solution, decision=selection.tolist())
    apply_quantum_solution(context, solution)
    return solution


def _formulated(context: OwnLoop, extension: QuantumExtension) -> QuantumProblem:
    trainer: OwnLoopTrainer = context.trainer
    config = config_of(trainer)
    if config.problem == DATA_SELECTION:
        question = extension.data_selection_step(context.state)
        return question.problem(question.num_wanted(config.most_candidates))
    return formulate_quantum_problem(trainer.gradients, trainer.parameters)


def apply_quantum_solution(context: OwnLoop, solution: Solution) -> None:
    """Apply a solution: blocks at once, examples from the next epoch on.

    Raises:
        ValueError: this run does not support the decision, or has no quantum step to store it. Then
            nothing has changed.
    """
    extension, decision = _extension_of(context), solution.decision
    problem = _problem_of(decision)
    if problem == DATA_SELECTION:
        extension.check_selection(decision)
        extension.session.decisions.select_examples(decision)
    else:
        blocks = phase_blocks(context.state)
        for name in decision:
            if name not in blocks:
                raise InputError(unknown_name("block", name, blocks))
        extension.session.decisions.train_only(decision)
    extension.session.record_own_answer(context.state, problem, solution)
    extension.carry_out(context.state)


def _problem_of(decision: object) -> str:
    """Return the problem that a decision belongs to, by its type."""
    if isinstance(decision, list | tuple) and decision:
        kinds = {type(one) for one in decision}
        if kinds == {int}:
            return DATA_SELECTION
        if kinds == {str}:
            return BLOCK_SELECTION
    raise InputError("quantum.unknown_kind_of_decision", decision=str(decision)[:80])


def _extension_of(context: OwnLoop) -> QuantumExtension:
    hooks = context.trainer.hooks.hooks
    extension = next((hook for hook in hooks if isinstance(hook, QuantumExtension)), None)
    if extension is None:
        raise InputError("quantum.no_quantum_step_in_training")
    return extension
