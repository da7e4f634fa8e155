"""Which blocks train where they cost different things: within a budget, or per unit of cost.

Two exact forms. `BlockBudget`: each block has a whole cost, the chosen ones must fit into a budget.
`BlockChain`: the backward pass must reach the lowest chosen block, and each block that it reaches
costs, whether it is chosen or not. `most_gain_per_cost` turns the second into a ratio.

What was measured: asked for the best ratio, the chain chose nearly all blocks, at a cost 23 % above
training all of them without asking.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import dimod
import numpy as np
import numpy.typing as npt

from infrastructure.quantum.problems.block_selection import symmetric
from infrastructure.quantum.problems.choice import MARGIN
from infrastructure.quantum.problems.problem import QuantumProblem, Sample, Training

Array = npt.NDArray[Any]
MAX_ROUNDS = 20  # of Dinkelbach's iteration, which converges superlinearly


class _Blocks(QuantumProblem):
    """Blocks with a predicted change of the loss; see `block_selection` for the numbers."""

    def __init__(self, blocks: Sequence[str], linear: Array, curvature: Array) -> None:
        self.blocks = list(blocks)
        self.linear = np.asarray(linear, dtype=np.float64)
        self.curvature = symmetric(curvature)
        n = len(self.blocks)
        if len(set(self.blocks)) != n or n == 0:
            raise ValueError(f"{self.name}: the blocks are {self.blocks}; each needs its own name")
        if self.linear.shape != (n,) or self.curvature.shape != (n, n):
            shapes = f"{self.linear.shape} and {self.curvature.shape}"
            raise ValueError(f"{self.name}: {n} blocks, but numbers of the shapes {shapes}")
        if not (np.isfinite(self.linear).all() and np.isfinite(self.curvature).all()):
            raise ValueError(f"{self.name}: a number is not finite; nothing can be chosen by it")

    def loss_change(self, indices: Sequence[int] | Array) -> float:
        """dL of these blocks, to second order."""
        chosen = np.asarray(indices, dtype=np.int64)
        block = self.curvature[np.ix_(chosen, chosen)]
        return float(self.linear[chosen].sum() + block.sum() / 2)

    def indices(self, sample: Sample) -> Array:
        """Which blocks are ones, ascending."""
        return np.array([i for i, name in enumerate(self.blocks) if sample[name]], dtype=np.int64)

    def decode(self, sample: Sample) -> Any:
        """The names of the chosen blocks, from the input up."""
        return [self.blocks[i] for i in self.indices(self.repair(sample))]

    def apply(self, decision: Any, training: Training) -> None:
        training.train_only(decision)

    def _change(self) -> dimod.BinaryQuadraticModel:
        """dL as a model."""
        bqm = dimod.BinaryQuadraticModel("BINARY")
        for i, name in enumerate(self.blocks):
            bqm.add_variable(name, self.linear[i] + self.curvature[i, i] / 2)
            for j in range(i):
                bqm.add_quadratic(name, self.blocks[j], self.curvature[i, j])
        return bqm

    def _most_lost(self) -> float:
        """More than leaving one block out can cost, whatever else is chosen."""
        off_diagonal = self.curvature - np.diag(self.curvature.diagonal())
        own = self.linear + self.curvature.diagonal() / 2
        lost = -(own + np.minimum(off_diagonal, 0).sum(axis=1)).min()
        return MARGIN * max(float(lost), 1e-3 * float(np.abs(own).max())) or 1.0


class BlockBudget(_Blocks):
    """The blocks that lower the loss most and together cost at most `budget`.

    N variables and about log2(budget) more, which count what is left over; any overrun costs more
    than leaving a block out would.

    Args:
        blocks, linear, curvature: as in `BlockSelection`.
        costs: of each block, whole numbers of 1 or more (a million weights, say).
        budget: in the same unit.

    Raises:
        ValueError: shapes that do not fit, or costs that are not whole numbers of 1 or more.
    """

    name: ClassVar[str] = "block_budget"

    def __init__(
        self,
        blocks: Sequence[str],
        linear: Array,
        curvature: Array,
        *,
        costs: Sequence[int],
        budget: int,
    ) -> None:
        super().__init__(blocks, linear, curvature)
        self.costs = [int(cost) for cost in costs]
        self.budget = int(budget)
        are_whole = self.costs == list(costs) and self.budget == budget
        if (
            len(self.costs) != len(self.blocks)
            or min(self.costs) < 1
            or not are_whole
            or budget < 1
        ):
            raise ValueError(
                f"{self.name}: costs {list(costs)} and budget {budget}: each block needs one, and"
                " all are whole numbers of 1 or more"
            )
        self.spare = {f"spare {i}": size for i, size in enumerate(_parts(self.budget))}

    def formulate(self) -> dimod.BinaryQuadraticModel:
        bqm = self._change()
        terms = [*zip(self.blocks, self.costs, strict=True), *self.spare.items()]
        bqm.add_linear_equality_constraint(
            terms, lagrange_multiplier=self._most_lost(), constant=-self.budget
        )
        return bqm

    def repair(self, sample: Sample) -> Sample:
        """Drop what loses least per cost until the budget holds; what is over is counted anew."""
        chosen = self.indices(sample).tolist()
        while sum(self.costs[i] for i in chosen) > self.budget:
            own = self.loss_change(chosen)
            lost = {i: self.loss_change([j for j in chosen if j != i]) - own for i in chosen}
            chosen.remove(min(chosen, key=lambda i: lost[i] / self.costs[i]))
        return self.sample_of(np.array(chosen, dtype=np.int64))

    def sample_of(self, chosen: Array) -> Sample:
        """These blocks (indices, within the budget) and what is left over."""
        left = self.budget - sum(self.costs[i] for i in chosen.tolist())
        ones = {self.blocks[i] for i in chosen.tolist()}
        sample = {name: int(name in ones) for name in self.blocks}
        for name, size in reversed(self.spare.items()):
            sample[name] = int(size <= left)
            left -= size * sample[name]
        return {name: sample[name] for name in (*self.blocks, *self.spare)}

    def alternatives(self) -> dict[str, Sample]:
        """As many as fit, by first-order decrease per cost, and by decrease."""
        costs = np.array(self.costs)
        orders = {"decrease_per_cost": self.linear / costs, "first_order": self.linear}
        return {name: self.sample_of(self._filled(order)) for name, order in orders.items()}

    def _filled(self, worth: Array) -> Array:
        left, chosen = self.budget, []
        for i in np.argsort(worth, kind="stable").tolist():
            if self.costs[i] <= left and self.linear[i] < 0:
                chosen.append(i)
                left -= self.costs[i]
        return np.sort(np.array(chosen, dtype=np.int64))


class BlockChain(_Blocks):
    """The blocks for which dL + price * cost is lowest, where depth costs.

    A block costs `train_cost` if it is chosen and `reach_cost` if the backward pass reaches it,
    which it does from the top down to the lowest chosen block. 2 N variables: chosen, and reached.

    Args:
        blocks, linear, curvature: as in `BlockSelection`; from the input up.
        price: what a unit of cost is worth, in loss; 0 or more.
        reach_cost, train_cost: activation and weight gradients of a block cost about the same.

    Raises:
        ValueError: shapes that do not fit, or a price or cost below zero.
    """

    name: ClassVar[str] = "block_chain"

    def __init__(
        self,
        blocks: Sequence[str],
        linear: Array,
        curvature: Array,
        *,
        price: float,
        reach_cost: float = 1.0,
        train_cost: float = 1.0,
    ) -> None:
        super().__init__(blocks, linear, curvature)
        self.price, self.reach_cost, self.train_cost = price, reach_cost, train_cost
        if min(price, reach_cost, train_cost) < 0:
            raise ValueError(f"{self.name}: price and costs are 0 or more")
        self.reached = [f"reached {name}" for name in self.blocks]

    def at_price(self, price: float) -> "BlockChain":
        """The same question with another price."""
        costs = {"reach_cost": self.reach_cost, "train_cost": self.train_cost}
        return BlockChain(self.blocks, self.linear, self.curvature, price=price, **costs)

    def cost_of(self, chosen: Array) -> float:
        """Of these blocks (indices): the backward pass and the gradients of their weights."""
        depth = len(self.blocks) - int(min(chosen)) if len(chosen) else 0
        return self.reach_cost * depth + self.train_cost * len(chosen)

    def formulate(self) -> dimod.BinaryQuadraticModel:
        """Chosen but not reached, or reached from nowhere, costs more than reaching all blocks."""
        bqm = self._change()
        reach, n = self.price * self.reach_cost, len(self.blocks)
        strength = MARGIN * (reach * n) + 1e-3 * (float(np.abs(self.linear).max()) or 1.0)
        for block, reached in zip(self.blocks, self.reached, strict=True):
            bqm.add_linear(block, self.price * self.train_cost + strength)
            bqm.add_linear(reached, reach)
            bqm.add_quadratic(block, reached, -strength)
        for reached, above in zip(self.reached, self.reached[1:], strict=False):
            bqm.add_linear(reached, strength)
            bqm.add_quadratic(reached, above, -strength)
        return bqm

    def repair(self, sample: Sample) -> Sample:
        """Reached is what lies above the lowest chosen block."""
        return self.sample_of(self.indices(sample))

    def sample_of(self, chosen: Array) -> Sample:
        lowest = int(min(chosen)) if len(chosen) else len(self.blocks)
        ones = {self.blocks[i] for i in chosen.tolist()} | set(self.reached[lowest:])
        return {name: int(name in ones) for name in (*self.blocks, *self.reached)}

    def alternatives(self) -> dict[str, Sample]:
        """The best number of top blocks, and all of them."""
        n = len(self.blocks)
        tops = [np.arange(lowest, n) for lowest in range(n + 1)]
        best = min(tops, key=lambda top: self.loss_change(top) + self.price * self.cost_of(top))
        return {"best_top": self.sample_of(best), "all": self.sample_of(np.arange(n))}


def most_gain_per_cost(
    chain: BlockChain, base_cost: float, solve: Callable[[BlockChain], Sample]
) -> tuple[list[str], float]:
    """The blocks with the largest -dL / (base_cost + cost), by Dinkelbach's iteration (1967).

    Each round asks the chain at the price that the last answer was worth, until no answer is worth
    more. Exact where `solve` is; with another solver, never worse than the best top blocks.

    Args:
        base_cost: what a step costs whatever is chosen (the forward pass); above 0.
        solve: the sample of lowest energy of a chain.

    Returns:
        Names from the input up, and the gain per cost; nothing and 0.0 where nothing lowers dL.

    Raises:
        ValueError: `base_cost` is not above 0.
    """
    if base_cost <= 0:
        raise ValueError(f"a step costs something whatever is chosen; base_cost is {base_cost}")

    def ratio(chosen: Array) -> float:
        return -chain.loss_change(chosen) / (base_cost + chain.cost_of(chosen))

    n = len(chain.blocks)
    best = max((np.arange(lowest, n) for lowest in range(n + 1)), key=ratio)
    for _ in range(MAX_ROUNDS):
        asked = chain.at_price(ratio(best))
        found = asked.indices(asked.repair(solve(asked)))
        if ratio(found) <= ratio(best) * (1 + 1e-12):
            break
        best = found
    return [chain.blocks[i] for i in best], ratio(best)


def _parts(total: int) -> list[int]:
    """Sizes whose sums are the numbers from 0 to `total`, each of them: 1, 2, 4, ..., the rest."""
    parts, size = [], 1
    while total > 0:
        parts.append(min(size, total))
        total -= parts[-1]
        size *= 2
    return sorted(parts)
