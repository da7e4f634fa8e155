"""Quantum steps that run inside a training step, after its gradients are computed.

They choose the blocks that train until the next decision, or the LoRA components to keep.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from infrastructure.core.errors import InputError
from infrastructure.core.integers import ceil_div
from infrastructure.core.messages import phrase
from infrastructure.data.data_pipeline import DataPipeline
from infrastructure.features.quantum.config import BLOCK_SELECTION, SAMPLER, QuantumConfig
from infrastructure.features.quantum.problems.block_selection import BlockSelection, sampled_fisher
from infrastructure.features.quantum.problems.problem import QuantumProblem
from infrastructure.features.quantum.problems.rank_allocation import RankAllocation
from infrastructure.features.quantum.training.block_statistics import (
    block_statistics,
    trainable_blocks,
)
from infrastructure.features.quantum.training.decisions import Decisions
from infrastructure.features.quantum.training.lora_rank_gradients import (
    num_components,
    rank_gradients,
)
from infrastructure.features.quantum.training.overhead_budget import solver_seconds
from infrastructure.features.quantum.training.step_records import Record
from infrastructure.training.core.precision import Precision
from infrastructure.training.forward.gradient_accumulation import split
from infrastructure.training.model_adapters.base_adapter import DataSource, ModelAdapter

NUM_GATED = 256  # examples with which components are measured, evenly spread
PASSES = 2  # forward and backward passes: with the data's labels, and with the model's own


@dataclass(kw_only=True)
class GradientStep(ABC):
    """The base class of quantum steps that run inside a training step.

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
    data: DataSource | None
    optimizer: torch.optim.Optimizer
    examples: Sequence[object]
    micro_batch_size: int
    seed: int
    number: int

    def cost_seconds(self, step_seconds: float) -> float:
        """Predict the seconds of the quantum step, including the time of a sampler.

        Args:
            step_seconds: time of forward and backward of this training step.
        """
        passes = PASSES * step_seconds * len(self.rows()) / max(1, len(self.examples))
        is_sampled = self.config.answer == SAMPLER
        return passes + (solver_seconds(self.num_variables()) if is_sampled else 0.0)

    @abstractmethod
    def num_variables(self) -> int:
        """Return the number of items to choose from.

        Raises:
            ValueError: there are no such items.
        """

    def rows(self) -> Sequence[object]:
        """Return the examples with which this step measures the model."""
        return self.examples

    @abstractmethod
    def problem(self) -> QuantumProblem:
        """Formulate the decision as an optimization problem."""

    def apply(self, problem: QuantumProblem, decision: object, decisions: Decisions) -> Record:
        """Apply a solved decision to `decisions`, and return a record of it for reports."""
        problem.apply(decision, decisions)
        return self._chosen(problem, decisions)

    @abstractmethod
    def _chosen(self, problem: QuantumProblem, decisions: Decisions) -> Record:
        """Describe the decision for reports."""


class BlockSelectionStep(GradientStep):
    """The choice of the blocks that train until the next decision."""

    def num_variables(self) -> int:
        return len(trainable_blocks(self.model))

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

    def _chosen(self, problem: QuantumProblem, decisions: Decisions) -> Record:
        assert isinstance(problem, BlockSelection)
        names = [str(name) for name in problem.labels]
        chosen = [name for name in names if name in (decisions.blocks or ())]
        numbers = ", ".join(name.removeprefix("block ") for name in chosen)
        return {
            "chosen": f"blocks {numbers} of {len(names)} train",
            "blocks": chosen,
            "all_blocks": names,
        }


class RankAllocationStep(GradientStep):
    """The choice of the LoRA components to keep."""

    def num_variables(self) -> int:
        return sum(num_components(self.model).values())

    def rows(self) -> Sequence[object]:
        if not isinstance(self.data, DataPipeline) or self.data.config.streaming:
            return self.examples
        there = self.data.num_candidates
        return self.data.examples(np.linspace(0, there - 1, min(NUM_GATED, there)).astype(int))

    def problem(self) -> RankAllocation:
        """Measure the components and formulate the problem.

        Raises:
            ValueError: the model has no LoRA, or no token is supervised.
        """
        rows = self.rows()
        num_tokens = self.adapter.count_items(rows)
        if num_tokens == 0:
            raise InputError("quantum.components_without_trained_tokens")
        batches = list(split(rows, self.micro_batch_size))
        given = (self.model, self.adapter, batches)
        gradients = rank_gradients(*given, precision=self.precision)
        drawn = rank_gradients(
            *given, precision=self.precision, labels_seed=self.seed + self.number
        )
        ranks = num_components(self.model)
        kept = max(1, round(sum(ranks.values()) * self.config.rank_budget))
        return RankAllocation(
            ranks,
            gradients.sum(axis=0, dtype=np.float64) / num_tokens,
            sampled_fisher(drawn, num_tokens),
            kept,
            seed=self.seed + self.number,
        )

    def _chosen(self, problem: QuantumProblem, decisions: Decisions) -> Record:
        assert isinstance(problem, RankAllocation)
        kept = sum(map(len, decisions.kept.values()))
        return {
            "chosen": phrase("quantum.lora_components_kept", kept=kept, total=len(problem.labels)),
            "kept_by_module": {name: len(some) for name, some in decisions.kept.items()},
        }


def num_chosen_blocks(config: QuantumConfig, num_blocks: int) -> int:
    """Return the number of blocks that train at a time."""
    return min(num_blocks, config.num_blocks or ceil_div(num_blocks, 2))


def check_blocks(config: QuantumConfig, model: torch.nn.Module) -> None:
    """Check that block selection has at least two blocks to choose from.

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
