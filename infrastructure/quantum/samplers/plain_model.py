"""A binary quadratic model as arrays, variables being numbers: what another process is sent."""

from typing import Any

import dimod
import numpy as np

from infrastructure.quantum.samplers.wire import Array


def as_arrays(bqm: dimod.BinaryQuadraticModel) -> tuple[dict[str, Any], dict[str, Array]]:
    """The model without its labels, in float64: `vartype` and offset, and the coefficients.

    A plain model from it numbers the variables as `bqm.variables` are ordered.
    """
    order = list(bqm.variables)
    vectors = bqm.to_numpy_vectors(variable_order=order, dtype=np.float64)
    rows, columns, biases = vectors.quadratic
    values = {"vartype": bqm.vartype.name, "offset": float(vectors.offset)}
    arrays = {
        "linear": vectors.linear_biases,
        "rows": rows.astype(np.int32),
        "columns": columns.astype(np.int32),
        "biases": biases,
    }
    return values, arrays


def from_arrays(values: dict[str, Any], arrays: dict[str, Array]) -> dimod.BinaryQuadraticModel:
    """The model that `as_arrays` gave, with numbers from 0 as labels."""
    return dimod.BinaryQuadraticModel.from_numpy_vectors(
        arrays["linear"],
        (arrays["rows"], arrays["columns"], arrays["biases"]),
        values["offset"],
        values["vartype"],
    )
