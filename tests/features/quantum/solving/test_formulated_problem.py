"""The model of a problem, cut to a number of variables, and the answers to it."""

from collections.abc import Mapping
from typing import Any

import dimod
import pytest

from infrastructure.core.errors import SamplerError
from infrastructure.features.quantum.problems.problem import Sample
from infrastructure.features.quantum.solving.formulated_problem import FormulatedProblem
from tests.features.quantum.solving.test_quantum_step import Chosen

LINEAR = {"a": 3.0, "b": -1.0, "c": 2.0, "d": -1.0, "e": 5.0}
PAIRS = {("a", "b"): 1.0, ("b", "d"): 4.0, ("c", "d"): -2.0, ("e", "b"): 7.0}


def formulated(
    plain: Mapping[str, Sample] | None = None, num_chosen: int | None = None, **more: Any
) -> FormulatedProblem:
    model = dimod.BinaryQuadraticModel(LINEAR, PAIRS, 0.5, more.get("vartype", "BINARY"))
    problem: Any = Chosen(model, plain)
    if num_chosen is not None:
        problem.num_chosen = num_chosen
    return FormulatedProblem(problem)


def ones(*labels: str) -> dict[str, int]:
    return {label: int(label in labels) for label in LINEAR}


def test_the_lowest_linear_terms_are_kept_in_their_order() -> None:
    problem = formulated()
    wanted = dimod.BinaryQuadraticModel(
        {name: LINEAR[name] for name in "bcd"}, {"bd": 4.0, "cd": -2.0}, 0.5, "BINARY"
    )
    part = problem.cut_to(3)
    assert part.is_almost_equal(wanted)
    assert list(part.variables) == [name for name in problem.bqm.variables if name in "bcd"]
    assert list(problem.cut_to(1).variables) == ["b"]  # the first of two that are equal
    assert problem.cut_to(5) is problem.bqm
    assert problem.whole({"d": 1, "b": 0}) == ones("d")


def test_baselines_have_their_energies_by_label() -> None:
    backwards = dict(reversed(ones("b", "d").items()))
    problem = formulated({"two": backwards, "none": ones()})
    assert problem.alternatives == {"two": 0.5 - 1 - 1 + 4, "none": 0.5}
    assert problem.num_variables == 5
    assert formulated().alternatives == {}


@pytest.mark.parametrize(
    ("plain", "num_chosen", "vartype", "found"),
    [
        ({"two": ones("a", "b")}, 2, "BINARY", 2),
        ({"two": ones("a", "b"), "one": ones("a")}, 2, "BINARY", None),
        ({}, 2, "BINARY", None),
        ({"two": ones("a", "b")}, None, "BINARY", None),
        ({"two": {**dict.fromkeys(LINEAR, -1), **dict.fromkeys("ab", 1)}}, -1, "SPIN", None),
    ],
)
def test_a_number_of_ones_is_that_of_all_baselines(
    plain: dict[str, Sample], num_chosen: int | None, vartype: str, found: int | None
) -> None:
    assert formulated(plain, num_chosen, vartype=vartype).num_ones == found


def test_a_cut_leaves_a_choice() -> None:
    problem = formulated({"two": ones("a", "b")}, 2)
    assert problem.cut_to(3).num_variables == 3
    numbers = r"nothing_left_to_decide\(num_chosen=2, count=5, limit=2\)"
    with pytest.raises(SamplerError, match=numbers):
        problem.cut_to(2)
    with pytest.raises(SamplerError, match=r"too_many_variables\(count=5, limit=4\)"):
        formulated(vartype="SPIN").cut_to(4)
