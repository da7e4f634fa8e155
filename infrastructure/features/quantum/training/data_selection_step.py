"""The data selection step: which examples to examine, what that costs, and which to train on.

Examples that were not examined are added to the selection at random.
"""

import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import numpy.typing as npt
import torch

from infrastructure.core.errors import InputError
from infrastructure.core.messages import Setting, phrase
from infrastructure.data.data_pipeline import DataPipeline
from infrastructure.data.serving.example_order import random_selection
from infrastructure.features.quantum.config import DATA_SELECTION, QuantumConfig
from infrastructure.features.quantum.problems.data_selection import DataSelection
from infrastructure.features.quantum.problems.problem import QuantumProblem
from infrastructure.features.quantum.training.decisions import Decisions
from infrastructure.features.quantum.training.overhead_budget import solver_seconds
from infrastructure.features.quantum.training.per_example_gradients import example_gradients
from infrastructure.features.quantum.training.step_records import QuantumRecord
from infrastructure.training.core.precision import Precision
from infrastructure.training.model_adapters.base_adapter import DataSource, ModelAdapter
from infrastructure.training.sizing.cost_measurement import DryRunStep, dry_run
from infrastructure.training.strategies.base_strategy import TrainingStrategy

AUTO_SHARE = 0.9  # share of the examined examples that is chosen if no budget is set
NUM_TARGET = 256  # held-out rows whose mean gradient is the target, evenly spread
NUM_PROBED = 8  # examples with which the cost is measured
NUM_NAMED = 20  # dropped examples in a record
LEAST_CANDIDATES = 16  # fewer are not representative

Ids = npt.NDArray[np.int64]


def num_selected(num_examples: int, budget: float) -> int:
    """Return the number of examples that a budget, a share of all examples, allows."""
    return max(1, round(num_examples * budget))


def limit_data(data: DataSource, config: QuantumConfig) -> None:
    """Limit a data source to the configured budget, before its size is used.

    Raises:
        ValueError: examples cannot be selected from this source.
    """
    if config.problem != DATA_SELECTION:
        return
    if not isinstance(data, DataPipeline):
        raise InputError("quantum.data_selection_needs_data_files")
    if config.data_budget == "auto":
        data.unselect()  # raises if the source does not support selection
    else:
        data.limit_to(num_selected(data.num_candidates, config.data_budget))


def in_words(num_selected: int, num_examples: int, num_chosen: int, num_looked_at: int) -> str:
    """Describe how many examples are trained on, and how many were examined."""
    counts = f"{num_selected:,} of {num_examples:,} training examples"
    if num_looked_at == num_examples:
        return counts
    others, drawn = num_examples - num_looked_at, num_selected - num_chosen
    rest = (
        "all others"
        if drawn == others
        else phrase("quantum.others_drawn_at_random", drawn=drawn, others=others)
    )
    return phrase(
        "quantum.selected_of_examined",
        counts=counts,
        num_chosen=num_chosen,
        num_examined=num_looked_at,
        rest=rest,
    )


@dataclass(kw_only=True)
class DataSelectionStep:
    """One selection of the examples that a run trains on.

    Attributes:
        micro_batch_size: examples in a forward pass.
        seed: seed of this problem.
    """

    config: QuantumConfig
    model: torch.nn.Module
    adapter: ModelAdapter
    strategy: TrainingStrategy
    precision: Precision
    data: DataPipeline
    optimizer: torch.optim.Optimizer
    micro_batch_size: int
    seed: int

    def least_steps(self, global_batch_size: int, *, measures_training: bool) -> float:
        """Return the lowest possible cost of this quantum step, in training steps.

        This is the cost of measuring the costs and of examining the minimum number of examples.
        """
        probed = self._probed_ids
        num_rows = len(probed) * (1 + measures_training) + min(self._num_warming, len(probed))
        num_rows += min(LEAST_CANDIDATES, self.data.num_candidates) + self._num_target
        return num_rows / global_batch_size

    def gradient_seconds(self) -> float:
        """Measure the average seconds of one example's gradient, without side effects."""
        examples = self.data.examples(self._probed_ids)
        self._gradients(examples[: self._num_warming])
        started = time.perf_counter()
        self._gradients(examples)
        return (time.perf_counter() - started) / len(examples)

    def training_seconds(self) -> float:
        """Measure the seconds of training on one example, without side effects.

        The micro-batches are those of `gradient_seconds`, so kernels for their shapes are compiled.
        """
        examples = self.data.examples(self._probed_ids)
        ordered = [examples[i] for i in self._by_length(examples)]
        with dry_run(self.model, self.adapter.device):
            probe = DryRunStep(self.model, self.adapter, self.strategy, self.optimizer)
            seconds = sum(probe.micro_batch(piece).seconds for piece in self._pieces(ordered))
        return seconds / len(examples)

    def has_choice(self, most: int) -> bool:
        """Return whether the step would exclude any example.

        Args:
            most: the largest number of variables in a problem.
        """
        wanted = self.num_wanted(most)
        return self._share(wanted) < wanted or self.data.num_examples < self.data.num_candidates

    def nothing_to_leave_out(self, most: int) -> str:
        """Return a message that says why the step would exclude no example."""
        number = self.num_wanted(most) if self._is_auto else self.data.num_candidates
        budget = Setting("quantum.data_budget", str(self.config.data_budget))
        return phrase("quantum.budget_excludes_nothing", budget=budget, count=number)

    def num_candidates(
        self,
        gradient_seconds: float,
        allowed_seconds: float,
        most: int,
        *,
        never_skips: bool = False,
    ) -> int:
        """Return the number of examples to examine.

        This is the configured number, or as many as the time allows; 0 if these are too few to be
        representative.

        Args:
            gradient_seconds: time of one example's gradient.
            allowed_seconds: time that the step may take.
            most: the largest number of variables in a problem.
            never_skips: return the fewest representative examples instead of 0.
        """
        wanted = self.num_wanted(most)
        if self.cost_seconds(gradient_seconds, wanted) <= allowed_seconds:
            return wanted
        if self.config.candidates != "auto":
            return wanted if never_skips else 0
        number = bisect_right(
            range(1, wanted + 1),
            allowed_seconds,
            key=lambda n: self.cost_seconds(gradient_seconds, n),
        )
        least = min(wanted, LEAST_CANDIDATES)
        return max(number, least) if never_skips or number >= LEAST_CANDIDATES else 0

    def num_wanted(self, most: int) -> int:
        """Return the number of examples to examine if time does not matter."""
        requested = self.config.candidates
        return min(most, self.data.num_candidates, most if requested == "auto" else requested)

    def cost_seconds(self, gradient_seconds: float, num_candidates: int) -> float:
        """Predict the seconds to examine this number of examples and to solve the problem."""
        gradients = gradient_seconds * (num_candidates + self._num_target)
        return gradients + solver_seconds(num_candidates)

    def problem(self, num_candidates: int) -> DataSelection:
        """Formulate the selection problem for `num_candidates` examples drawn at random.

        The share of candidates to choose is the budget's share of all examples, or nine tenths
        without a budget. Examples whose gradient is zero (no supervised token) or not finite count
        as not examined.

        Raises:
            ValueError, TemperError: the gradients of the examples cannot be separated, or too few
                are usable.
        """
        ids = random_selection(self.data.num_candidates, num_candidates, self.seed)
        gradients = self._gradients(self.data.examples(ids))
        is_usable = np.isfinite(gradients).all(axis=1) & (gradients != 0).any(axis=1)
        ids, gradients = ids[is_usable], gradients[is_usable]
        if len(ids) < 2:
            raise InputError(
                "quantum.too_few_usable_gradients", count=len(ids), total=num_candidates
            )
        target = None
        if self.config.target == "validation":
            target = self._gradients(list(self._held_out()))
            target = target[np.isfinite(target).all(axis=1) & (target != 0).any(axis=1)]
        return DataSelection(
            ids.tolist(), gradients, self._share(len(ids)), target=target, seed=self.seed
        )

    def apply(
        self, problem: QuantumProblem, decision: object, decisions: Decisions
    ) -> QuantumRecord:
        """Apply a solved decision to `decisions`, and return a record of it for reports."""
        assert isinstance(problem, DataSelection)
        problem.apply(decision, decisions)
        chosen = decisions.selection
        assert chosen is not None
        candidates = np.array(problem.labels, dtype=np.int64)
        selection = self.completed(candidates, chosen)
        decisions.select_examples(selection)
        dropped = np.setdiff1d(candidates, chosen)
        n = self.data.num_candidates
        return {
            "chosen": in_words(len(selection), n, len(chosen), len(candidates)),
            "num_examples": n,
            "num_selected": len(selection),
            "num_dropped": len(dropped),
            "selection": decisions.selection_hash,
            "dropped": self.data.places_of(dropped[:NUM_NAMED]),
        }

    @property
    def _probed_ids(self) -> list[int]:
        """The ids of the examples with which the costs are measured."""
        return self._spread(NUM_PROBED, self.data.num_candidates)

    @property
    def _num_warming(self) -> int:
        """The number of examples that run first as a warm-up of the measurement.

        On a CPU one example is enough: kernels for a new shape are also compiled for each
        micro-batch that is examined later.
        """
        return 1 if self.adapter.device.type == "cpu" else NUM_PROBED

    @property
    def _num_target(self) -> int:
        return NUM_TARGET if self.config.target == "validation" else 0

    @property
    def _is_auto(self) -> bool:
        return self.config.data_budget == "auto"

    def completed(self, candidates: Ids, chosen: Ids) -> Ids:
        """Return the complete selection: the chosen candidates and examples that were not examined.

        Examples that were not examined are drawn at random until the budget is used up. Without a
        budget, all of them are included.
        """
        others = np.setdiff1d(np.arange(self.data.num_candidates), candidates)
        missing = len(others) if self._is_auto else self.data.num_examples - len(chosen)
        drawn = others[random_selection(len(others), missing, self.seed + 1)]
        return np.sort(np.concatenate([chosen, drawn]))

    def _share(self, num_candidates: int) -> int:
        """Return how many candidates to choose, so that enough other examples remain to add."""
        if self._is_auto:
            return num_selected(num_candidates, AUTO_SHARE)
        n, k = self.data.num_candidates, self.data.num_examples
        least = max(1, k - (n - num_candidates))
        return min(num_candidates, k, max(least, round(k * num_candidates / n)))

    def _held_out(self) -> Iterator[object]:
        with closing(self.data.evaluation_batches(self.micro_batch_size)) as batches:
            rows = list(chain.from_iterable(batches))
        return (rows[i] for i in self._spread(NUM_TARGET, len(rows)))

    @staticmethod
    def _spread(count: int, num_rows: int) -> list[int]:
        return [int(i) for i in np.linspace(0, num_rows - 1, min(count, num_rows))]

    def _gradients(self, examples: Sequence[object]) -> npt.NDArray[np.float32]:
        """Return sketched gradients in the order of `examples`. Similar lengths are batched."""
        order = self._by_length(examples)
        batches = self._pieces([examples[i] for i in order])
        gradients = example_gradients(self.model, self.adapter, batches, precision=self.precision)
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        rows: npt.NDArray[np.float32] = gradients[back]
        return rows

    def _by_length(self, examples: Sequence[object]) -> list[int]:
        return sorted(range(len(examples)), key=lambda i: self.adapter.count_tokens([examples[i]]))

    def _pieces(self, examples: Sequence[object]) -> Iterator[list[object]]:
        """Split examples into micro-batches."""
        remaining = iter(examples)
        return iter(lambda: list(islice(remaining, self.micro_batch_size)), [])
