"""The sampler `auto`, which chooses a sampler by the problem and reports its choice."""

import time
from collections.abc import Callable
from typing import ClassVar

import dimod

from infrastructure.core.messages import phrase
from infrastructure.features.quantum.sampler_needs import MOST_COUNTED
from infrastructure.features.quantum.samplers.bqm_arrays import vectors_of
from infrastructure.features.quantum.samplers.dense_problem import matrix_fits

EXACT, DENSE, TREE, ANNEALING = (
    "exact",
    "dense_annealer",
    "tree_decomposition",
    "simulated_annealing",
)
MOST_TREEWIDTH = 12
MOST_TREE_VARIABLES = 5000
INTERACTIONS_PER_VARIABLE = 4  # at most, for a model whose treewidth is worth estimating
PROCESS_SECONDS = 3.0  # upper bound on starting another process, on a slow machine
DENSE_VARIABLES = 8000  # up to this size a matrix is used at any density
LEAST_DENSITY = 0.01


class AutoSampler(dimod.Sampler):
    """A sampler that passes each problem to the sampler that fits it.

    The `info` of the answer contains the name (`sampler`) and the reason for the choice (`reason`).

    Args:
        make: creates the sampler with a given name.
    """

    parameters: ClassVar[dict[str, object]] = {
        name: [] for name in ("num_reads", "time_limit", "seed", "num_ones", "initial_states")
    }
    properties: ClassVar[dict[str, object]] = {}

    def __init__(self, make: Callable[[str], dimod.Sampler]) -> None:
        self.make = make
        self.samplers: dict[str, dimod.Sampler] = {}

    def sample(
        self,
        bqm: dimod.BinaryQuadraticModel,
        *,
        time_limit: float | None = None,
        num_ones: int | None = None,
        **parameters: object,
    ) -> dimod.SampleSet:
        """Choose a sampler and query it, without parameters that it does not support."""
        began = time.monotonic()
        name, reason = choose(bqm, time_limit, num_ones)
        if name not in self.samplers:
            self.samplers[name] = self.make(name)
        sampler = self.samplers[name]
        left = None if time_limit is None else max(0.0, time_limit - (time.monotonic() - began))
        given = {**parameters, "time_limit": left, "num_ones": num_ones}
        known = {
            key: value
            for key, value in given.items()
            if value is not None and key in sampler.parameters
        }
        sample_set = sampler.sample(bqm, **known)
        sample_set.info.update({"sampler": name, "reason": reason})
        if has_no_time_for_a_tree(bqm, time_limit, num_ones):
            sample_set.info["is_cut_off"] = True  # more time may lead to another sampler
        return sample_set


def choose(
    bqm: dimod.BinaryQuadraticModel, time_limit: float | None, num_ones: int | None
) -> tuple[str, str]:
    """Return the name of the sampler that fits a problem, and the reason for the choice."""
    n, m = bqm.num_variables, bqm.num_interactions
    density = 2 * m / max(1, n * (n - 1))
    shape = phrase("quantum.problem_density", count=n, percent=100 * density)
    if n <= MOST_COUNTED:
        return EXACT, phrase("quantum.auto_enumerates_all", count=n)
    if num_ones is not None:
        return DENSE, phrase("quantum.auto_keeps_number_of_ones", problem=shape)
    if _may_be_tree(bqm) and not has_no_time_for_a_tree(bqm, time_limit, num_ones):
        width = treewidth_at_most(bqm, MOST_TREEWIDTH)
        if width is not None:
            return TREE, phrase("quantum.auto_small_treewidth", width=width, problem=shape)
    fits = matrix_fits(n)
    if fits and (n <= DENSE_VARIABLES or density >= LEAST_DENSITY):
        return DENSE, phrase("quantum.auto_matrix_fits", problem=shape)
    why = "sparse" if fits else phrase("quantum.auto_too_large_for_matrix")
    return ANNEALING, f"{why} ({shape})"


def has_no_time_for_a_tree(
    bqm: dimod.BinaryQuadraticModel, time_limit: float | None, num_ones: int | None
) -> bool:
    """Return whether tree decomposition is ruled out only because the time limit is short."""
    is_short = time_limit is not None and time_limit <= PROCESS_SECONDS
    is_eligible = num_ones is None and bqm.num_variables > MOST_COUNTED
    return is_short and is_eligible and _may_be_tree(bqm)


def _may_be_tree(bqm: dimod.BinaryQuadraticModel) -> bool:
    n, m = bqm.num_variables, bqm.num_interactions
    return n <= MOST_TREE_VARIABLES and m <= INTERACTIONS_PER_VARIABLE * n


def treewidth_at_most(bqm: dimod.BinaryQuadraticModel, limit: int) -> int | None:
    """Return an upper bound of a model's treewidth, or None if it is above `limit`.

    The bound is found by minimum-degree elimination (Bodlaender & Koster 2010, "Treewidth
    computations I. Upper bounds").
    """
    neighbours = _neighbours(bqm)
    by_degree: list[set[int]] = [set() for _ in range(limit + 1)]
    for variable, around in enumerate(neighbours):
        if len(around) <= limit:
            by_degree[len(around)].add(variable)
    width = 0
    for _ in range(len(neighbours)):
        degree = next((d for d, variables in enumerate(by_degree) if variables), None)
        if degree is None:
            return None
        variable = min(by_degree[degree])
        by_degree[degree].discard(variable)
        width = max(width, degree)
        _eliminate(variable, neighbours, by_degree)
    return width


def _eliminate(variable: int, neighbours: list[set[int]], by_degree: list[set[int]]) -> None:
    """Remove a variable from a graph and connect its neighbors with each other."""
    around = neighbours[variable]
    for other in around:
        before = neighbours[other]
        if len(before) < len(by_degree):
            by_degree[len(before)].discard(other)
        before |= around
        before -= {variable, other}
        if len(before) < len(by_degree):
            by_degree[len(before)].add(other)


def _neighbours(bqm: dimod.BinaryQuadraticModel) -> list[set[int]]:
    vectors = vectors_of(bqm)
    neighbours: list[set[int]] = [set() for _ in range(bqm.num_variables)]
    for one, other in zip(vectors.rows.tolist(), vectors.columns.tolist(), strict=True):
        neighbours[one].add(other)
        neighbours[other].add(one)
    return neighbours
