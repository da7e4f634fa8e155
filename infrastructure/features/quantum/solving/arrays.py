"""The type of the arrays that problems and samplers exchange."""

from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
