"""Arrays of numbers, of whatever kind: what the problems and the samplers exchange."""

from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
