"""The choice of the blocks that train until the next decision.

The choice is made inside a training step, after the gradients of that step are computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from infrastructure.core.errors import InputError
from infrastructure.core.integers import ceil_div
from infrastructure.features.quantum.config import BLOCK_SELECTION, QuantumConfig
from infrastructure.features.quantum.problems.block_selection import BlockSelection, sampled_fisher
from infrastructure.features.quantum.problems.problem import QuantumProblem
from infrastructure.features.quantum.training.block_statistics import (
    block_statistics,
    trainable_blocks,
)
from infrastructure.features.quantum.training.decisions import Decisions
from infrastructure.features.quantum.training.overhead_budget import solver_seconds
from infrastructure.features.quantum.training.step_records import QuantumRecord
from infrastructure.training.core.precision import Precision
from infrastructure.training.forward.gradient_accumulation import split
from infrastructure.training.model_adapters.base_adapter import ModelAdapter

PASSES = 2  # forward and backward passes: with the data's labels, and with the model's own


@dataclass(kw_only=True)
class BlockSelectionStep:
    """A quantum step that is decided inside a training step.

    Attributes:
        examples: examples of the training step.
        micro_batch_size: examples in a forward pass.
        seed: seed of the run.
        number: quantum steps before this one; random baselines depend on it.
    """

    config: QuantumConfig
    model: torch.nn.Module
    adapter: ModelAdapter
    precision: Precision
    optimizer: torch.optim.Optimizer
    examples: Sequence[object]
    micro_batch_size: int
    seed: int
    number: int

    def cost_seconds(self, step_seconds: float) -> float:
        """Return the predicted seconds of the quantum step, including a sampler's answer.

        Args:
            step_seconds: time of forward and backward of this training step.
        """
        return PASSES * step_seconds + solver_seconds(len(trainable_blocks(self.model)))

    def problem(self) -> BlockSelection:
        """Measure the blocks and formulate the problem.

        Raises:
            ValueError: no numbered block is trainable, or no token is supervised.
        """
        batches = list(split(self.examples, self.micro_batch_size))
        statistics = block_statistics(
            self.model,
            self.adapter,
            batches,
            self.optimizer,
            precision=self.precision,
            seed=self.seed + self.number,
        )
        return BlockSelection(
            statistics.blocks,
            statistics.linear,
            sampled_fisher(statistics.sampled_dots, statistics.num_tokens),
            num_chosen_blocks(self.config, len(statistics.blocks)),
            gradient_norms=statistics.gradient_norms,
            seed=self.seed,
            number=self.number,
        )

    def apply(
        self, problem: QuantumProblem, decision: object, decisions: Decisions
    ) -> QuantumRecord:
        """Add a decision to the current decisions, and return a description of it for reports."""
        assert isinstance(problem, BlockSelection)
        problem.apply(decision, decisions)
        names = [str(name) for name in problem.labels]
        chosen = [name for name in names if name in (decisions.blocks or ())]
        numbers = ", ".join(name.removeprefix("block ") for name in chosen)
        return {"chosen": f"blocks {numbers} of {len(names)} train", "blocks": chosen}


def num_chosen_blocks(config: QuantumConfig, num_blocks: int) -> int:
    """Return the number of blocks that train at a time."""
    return min(num_blocks, config.num_blocks or ceil_div(num_blocks, 2))


def check_blocks(config: QuantumConfig, model: torch.nn.Module) -> None:
    """Reject a model whose blocks leave no choice, if the problem is block selection.

    Raises:
        ValueError: there are too few blocks, or the model does not number them.
    """
    if config.problem != BLOCK_SELECTION:
        return
    there = len(trainable_blocks(model))
    if there < 2:
        raise InputError("quantum.too_few_blocks_to_choose", count=there)
    if there <= (config.num_blocks or 1):
        raise InputError(
            "quantum.num_blocks_leaves_no_choice", num_blocks=config.num_blocks, total=there
        )
