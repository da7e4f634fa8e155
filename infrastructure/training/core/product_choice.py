"""Choice between fp32 and bf16 on a CPU, by timing a matrix product.

Some CPUs have bf16 instructions but multiply more slowly with them.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from infrastructure.core.messages import Setting, phrase
from infrastructure.optimization.gpu_capability import DTYPES
from infrastructure.run.record_types import DecidedSetting

USUAL, OTHER = ("bf16", "fp32")
# A single-threaded product waits for nothing and takes a millisecond or two. Next to three busy
# programs the minimum of five was misleading in 7 of 300 measurements.
PRODUCT_ROWS, PRODUCT_WIDTH, TIMED_PRODUCTS = 256, 512, 10
LEAST_GAIN = 0.2
PRECISION = "training.mixed_precision"


@dataclass(frozen=True)
class ProductChoice:
    """The decision to use fp32, because bf16 matrix products are slower on this CPU.

    Attributes:
        seconds: precision → shortest measured time of a matrix product.
    """

    seconds: Mapping[str, float]

    def decided(self) -> dict[str, DecidedSetting]:
        """Return the decision for run.json, by key."""
        return {
            PRECISION: {
                "value": OTHER,
                "origin": f"{phrase('training.measured_here')}: {self._measured()}",
            }
        }

    def line(self) -> str:
        """Return the decision as a line of text."""
        return f"{Setting(PRECISION, OTHER)} (measured: {self._measured()})"

    def _measured(self) -> str:
        in_fp32, in_bf16 = (f"{1000 * self.seconds[name]:.2g} ms" for name in (OTHER, USUAL))
        return phrase(
            "training.matrix_product_times", fp32_time=in_fp32, bf16_time=in_bf16, precision=USUAL
        )


def measured_choice() -> ProductChoice | None:
    """Return the decision to use fp32 if bf16 is clearly slower on this CPU; otherwise None."""
    seconds = product_seconds()
    if seconds[OTHER] < (1 - LEAST_GAIN) * seconds[USUAL]:
        return ProductChoice(seconds)
    return None


def product_seconds() -> dict[str, float]:
    """Time a single-threaded matrix product in both precisions, alternating.

    Return precision → shortest time in seconds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in (USUAL, OTHER)}
    with threads_restored():
        torch.set_num_threads(1)
        for _ in range(1 + TIMED_PRODUCTS):
            for name, measured in seconds.items():
                rows = torch.ones(PRODUCT_ROWS, PRODUCT_WIDTH, dtype=DTYPES[name])
                weight = torch.ones(PRODUCT_WIDTH, PRODUCT_WIDTH, dtype=DTYPES[name])
                start = time.perf_counter()
                torch.mm(rows, weight)
                measured.append(time.perf_counter() - start)
    return {name: min(measured[1:]) for name, measured in seconds.items()}  # one loads kernels


@contextmanager
def threads_restored() -> Iterator[None]:
    """Restore torch's number of threads when the context ends."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
