"""Sizes that repeat: the lengths of a training's tensors, rounded up to few.

Packed rows have another length at every step. Libraries keep what they have made for a shape and
make it anew for the next: on a CPU with bf16, oneDNN compiles a kernel for each layer and length
(`kernel_caches.py` says how many stay); CUDA graphs and compiled code are of one shape, too. So
lengths are rounded up to a sixteenth of the power of two below them, which are at most 16 sizes
between a length and twice it, and 2 to 3 % of padding; on a CPU, where few kernels are to be kept,
to an eighth: 8 sizes, and 4 to 5 %. What is added is masked: it teaches nothing, and nothing sees
it.
"""

from enum import StrEnum

from infrastructure.core.integers import ceil_div

LEAST_STEP = 8  # short lengths are few anyway, and tensor cores take eight rows at a time
ROWS_STEP = 32  # of the rows of a product, where kernels are few
# Of an example in attention, whose kernels are made for each length; what is added is never seen.
SEGMENT_STEP = 16


class SizeGrid(StrEnum):
    """How lengths are rounded. It travels in checkpoints, since sums over another number of rows
    round otherwise and dropout draws other numbers: a run keeps the one it began with."""

    EXACT = "exact"
    EIGHTHS = "eighths"
    SIXTEENTHS = "sixteenths"

    @property
    def segment_step(self) -> int:
        """Lengths of examples in attention are multiples of it."""
        return 1 if self is SizeGrid.EXACT else SEGMENT_STEP

    def up(self, size: int) -> int:
        """The least size of the grid that is not below `size`."""
        if self is SizeGrid.EXACT:
            return size
        parts_bits = 3 if self is SizeGrid.EIGHTHS else 4
        step = max(LEAST_STEP, 1 << max(0, size.bit_length() - 1 - parts_bits))
        return ceil_div(size, step) * step

    def rows_up(self, count: int) -> int:
        """The same for what is counted over a whole batch, as the tokens that are learnt: small
        numbers are seldom the same twice, and few rows more cost little."""
        up = self.up(count)
        return ceil_div(up, ROWS_STEP) * ROWS_STEP if self is SizeGrid.EIGHTHS else up
