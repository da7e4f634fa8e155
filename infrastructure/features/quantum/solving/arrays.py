"""The type of the numeric arrays that problems and samplers exchange."""

from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
