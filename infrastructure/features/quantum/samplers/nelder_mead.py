"""Minimization of a function of a few variables without derivatives (Nelder & Mead 1965).

Temper implements the method itself, because it does not require SciPy.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from infrastructure.features.quantum.samplers.deadline import Deadline

Point = npt.NDArray[np.float64]


def minimize(
    function: Callable[[Point], float],
    start: Point,
    *,
    step: float,
    evaluations: int,
    deadline: Deadline,
) -> tuple[Point, float]:
    """Return the best point that was evaluated, and its value. `start` is always evaluated.

    Args:
        step: size of the first simplex along each axis.
        evaluations: approximate number of evaluations; a step that has begun is completed.
        deadline: no step begins after it.
    """
    corners = [start, *(start + step * axis for axis in np.eye(len(start)))]
    simplex: list[tuple[float, Point]] = []
    for corner in corners:
        if simplex and deadline.is_over:
            return _best(simplex)
        simplex.append((function(corner), corner))
    used = len(simplex)
    while used < evaluations and not deadline.is_over:
        simplex.sort(key=lambda entry: entry[0])
        used += _improve(function, simplex)
    return _best(simplex)


def _improve(function: Callable[[Point], float], simplex: list[tuple[float, Point]]) -> int:
    """Replace the worst corner of a sorted simplex, or shrink it; return the evaluations used."""
    worst_value, worst = simplex[-1]
    centre = np.mean([point for _, point in simplex[:-1]], axis=0)

    def along(factor: float) -> tuple[float, Point]:
        point = centre + factor * (centre - worst)
        return function(point), point

    reflected = along(1.0)
    if reflected[0] < simplex[0][0]:
        simplex[-1] = min(reflected, along(2.0), key=lambda entry: entry[0])
        return 2
    if reflected[0] < simplex[-2][0]:
        simplex[-1] = reflected
        return 1
    inside = along(0.5 if reflected[0] < worst_value else -0.5)
    if inside[0] < min(reflected[0], worst_value):
        simplex[-1] = inside
        return 2
    best = simplex[0][1]
    for k in range(1, len(simplex)):
        point = 0.5 * (best + simplex[k][1])
        simplex[k] = function(point), point
    return 1 + len(simplex)


def _best(simplex: list[tuple[float, Point]]) -> tuple[Point, float]:
    value, point = min(simplex, key=lambda entry: entry[0])
    return point, value
