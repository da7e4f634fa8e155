"""A model comes back from its arrays, and the sum of its coefficients bounds its energies."""

from typing import Any

import dimod
import numpy as np
import pytest

from infrastructure.features.quantum.samplers.bqm_arrays import (
    as_arrays,
    coefficient_sum,
    from_arrays,
    vectors_of,
)


@pytest.mark.parametrize("vartype", ["BINARY", "SPIN"])
@pytest.mark.parametrize(
    ("dtype", "kept"), [(np.float32, np.float32), (np.float64, np.float64), (object, np.float64)]
)
def test_a_model_comes_back_with_its_precision(vartype: str, dtype: Any, kept: Any) -> None:
    """Variables are numbered in their order in the model."""
    linear, quadratic = {"c": 1.5, "a": -2.0, "b": 0.0}, {("b", "c"): 4.0, ("a", "c"): -0.5}
    bqm = dimod.BinaryQuadraticModel(linear, quadratic, 3.0, vartype, dtype=dtype)
    values, arrays = as_arrays(bqm)
    assert values == {"vartype": vartype, "offset": 3.0}
    assert {name: array.dtype for name, array in arrays.items()} == {
        **{"linear": np.float64, "rows": np.int32, "columns": np.int32, "biases": kept},
    }
    numbers = {label: number for number, label in enumerate(bqm.variables)}
    wanted = bqm.relabel_variables(numbers, inplace=False)
    assert from_arrays(values, arrays).is_almost_equal(wanted)
    assert coefficient_sum(vectors_of(bqm)) == 1.5 + 2.0 + 4.0 + 0.5 + 3.0
    bqm.offset = -3.0
    assert coefficient_sum(vectors_of(bqm)) == 11.0
