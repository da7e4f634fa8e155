"""A binary quadratic model as arrays, by its coefficient vectors; never through dict models."""

from typing import Any, NamedTuple

import dimod
import numpy as np
import numpy.typing as npt

from infrastructure.core.json_text import JsonObject, as_number, as_text
from infrastructure.quantum.arrays import Array
from infrastructure.quantum.samplers.messages import Outgoing


class Vectors(NamedTuple):
    """Coefficients, variables being numbered as `bqm.variables` are ordered.

    Attributes:
        linear: (n,), float64.
        rows, columns: the two variables of each interaction; (m,).
        biases: of the interactions, in the model's own precision; (m,).
        offset: the constant.
    """

    linear: npt.NDArray[np.float64]
    rows: npt.NDArray[np.integer[Any]]
    columns: npt.NDArray[np.integer[Any]]
    biases: npt.NDArray[np.floating[Any]]
    offset: float


def vectors_of(bqm: dimod.BinaryQuadraticModel) -> Vectors:
    """The coefficients of a model, of either vartype, as they are."""
    vectors: Any = bqm.to_numpy_vectors(variable_order=list(bqm.variables))
    linear, (rows, columns, biases), offset = vectors
    if biases.dtype not in (np.float32, np.float64):  # a model of Python objects
        biases = biases.astype(np.float64)
    return Vectors(np.array(linear, np.float64), rows, columns, biases, float(offset))


def coefficient_sum(vectors: Vectors) -> float:
    """Of the sizes of all coefficients: no energy is larger."""
    sizes = np.abs(vectors.linear).sum() + np.abs(vectors.biases).sum(dtype=np.float64)
    return float(sizes) + abs(vectors.offset)


def as_arrays(bqm: dimod.BinaryQuadraticModel) -> Outgoing:
    """What another process is sent: vartype and offset as JSON values, and the coefficients."""
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
    """The model that `as_arrays` gave, with numbers from 0 as labels."""
    return dimod.BinaryQuadraticModel.from_numpy_vectors(
        arrays["linear"],
        (arrays["rows"], arrays["columns"], arrays["biases"]),
        as_number(values["offset"]),
        dimod.Vartype[as_text(values["vartype"])],
    )
