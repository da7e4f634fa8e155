"""The simplex search finds minima and keeps its bounds."""

import numpy as np
import pytest

from infrastructure.features.quantum.samplers.deadline import Deadline
from infrastructure.features.quantum.samplers.nelder_mead import Point, minimize


def rosenbrock(point: Point) -> float:
    x, y = point
    return float((1 - x) ** 2 + 100 * (y - x**2) ** 2)


def test_the_bottom_of_a_bent_valley_is_found() -> None:
    start = np.array([-1.2, 1.0])
    point, value = minimize(rosenbrock, start, step=0.5, evaluations=400, deadline=Deadline(None))
    np.testing.assert_allclose(point, [1, 1], atol=1e-3)
    assert value == rosenbrock(point)


@pytest.mark.parametrize("evaluations", [1, 10, 50])
def test_evaluations_are_bounded_and_the_best_point_kept(evaluations: int) -> None:
    evaluated: list[float] = []

    def function(point: Point) -> float:
        evaluated.append(float(np.square(point).sum()))
        return evaluated[-1]

    start = np.full(4, 3.0)
    _, value = minimize(function, start, step=0.1, evaluations=evaluations, deadline=Deadline(None))
    assert len(evaluated) <= max(5, evaluations) + 6
    assert value == min(evaluated)


def test_after_the_deadline_the_start_is_the_answer() -> None:
    start = np.array([2.0, 2.0])
    point, value = minimize(rosenbrock, start, step=0.5, evaluations=400, deadline=Deadline(0.0))
    assert (point == start).all()
    assert value == rosenbrock(start)
