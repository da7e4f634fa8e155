"""Conversion of binary quadratic models to and from arrays, without slow Python dicts."""

from typing import Any, NamedTuple

import dimod
import numpy as np
import numpy.typing as npt

from infrastructure.core.json_text import JsonObject, as_number, as_text
from infrastructure.features.quantum.samplers.messages import Outgoing
from infrastructure.features.quantum.solving.arrays import Array


class Vectors(NamedTuple):
    """The coefficients of a binary quadratic model, with variables in the order of `bqm.variables`.

    Attributes:
        linear: (n,), float64.
        rows, columns: the two variables of each interaction; (m,).
        biases: biases of the interactions, in the model's own precision; (m,).
        offset: the constant.
    """

    linear: npt.NDArray[np.float64]
    rows: npt.NDArray[np.integer[Any]]
    columns: npt.NDArray[np.integer[Any]]
    biases: npt.NDArray[np.floating[Any]]
    offset: float


def vectors_of(bqm: dimod.BinaryQuadraticModel) -> Vectors:
    """Return the coefficients of a model in the model's own vartype."""
    vectors: Any = bqm.to_numpy_vectors(variable_order=list(bqm.variables))
    linear, (rows, columns, biases), offset = vectors
    if biases.dtype not in (np.float32, np.float64):  # a model of Python objects
        biases = biases.astype(np.float64)
    return Vectors(np.array(linear, np.float64), rows, columns, biases, float(offset))


def coefficient_sum(vectors: Vectors) -> float:
    """Return the sum of the absolute values of all coefficients, a bound on any energy."""
    sizes = np.abs(vectors.linear).sum() + np.abs(vectors.biases).sum(dtype=np.float64)
    return float(sizes) + abs(vectors.offset)


def as_arrays(bqm: dimod.BinaryQuadraticModel) -> Outgoing:
    """Convert a model to a message for another process.

    Vartype and offset are JSON values, the coefficients are arrays.
    """
    vectors = vectors_of(bqm)
    values = {"vartype": bqm.vartype.name, "offset": vectors.offset}
    arrays: dict[str, Array] = {
        "linear": vectors.linear,
        "rows": vectors.rows.astype(np.int32),
        "columns": vectors.columns.astype(np.int32),
        "biases": vectors.biases,
    }
    return values, arrays


def from_arrays(values: JsonObject, arrays: dict[str, Array]) -> dimod.BinaryQuadraticModel:
    """Rebuild a model from a message of `as_arrays`. Its variables are numbered from 0."""
    return dimod.BinaryQuadraticModel.from_numpy_vectors(
        arrays["linear"],
        (arrays["rows"], arrays["columns"], arrays["biases"]),
        as_number(values["offset"]),
        dimod.Vartype[as_text(values["vartype"])],
    )
