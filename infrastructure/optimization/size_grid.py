"""Sizes that repeat: the lengths of a run's tensors, rounded up to few values.

Packed rows have another length at every step. Libraries keep what they have made for a shape and
make it again for the next: on a CPU with bf16, oneDNN compiles a kernel for each layer and length
(`kernel_caches.py` says how many are kept); CUDA graphs and compiled code also have one shape. So
lengths are rounded up to a sixteenth of the power of two below them, which gives at most 16 sizes
between a length and twice it, and 2 to 3 % of padding; on a CPU, where only few kernels should be
kept, to an eighth: 8 sizes, and 4 to 5 %. The padding is masked: it contributes nothing to the
loss, and no token attends to it.
"""

from enum import StrEnum

from infrastructure.core.integers import ceil_div

LEAST_STEP = 8  # short lengths are few anyway, and tensor cores process eight rows at a time
ROWS_STEP = 32  # for the rows of a product, if few kernels are kept
# For an example in attention, whose kernels are made for each length; the padding is never seen.
SEGMENT_STEP = 16


class SizeGrid(StrEnum):
    """How lengths are rounded.

    It is stored in checkpoints, because sums over another number of rows round differently and
    dropout draws other numbers: a run keeps the one it began with.
    """

    EXACT = "exact"
    EIGHTHS = "eighths"
    SIXTEENTHS = "sixteenths"

    @property
    def segment_step(self) -> int:
        """The number of which example lengths in attention are a multiple."""
        return 1 if self is SizeGrid.EXACT else SEGMENT_STEP

    def up(self, size: int) -> int:
        """Return the smallest size of the grid that is not below `size`."""
        if self is SizeGrid.EXACT:
            return size
        parts_bits = 3 if self is SizeGrid.EIGHTHS else 4
        step = max(LEAST_STEP, 1 << max(0, size.bit_length() - 1 - parts_bits))
        return ceil_div(size, step) * step

    def rows_up(self, count: int) -> int:
        """Return the same for counts over a whole batch, such as the trained tokens.

        Small numbers seldom repeat, and a few more rows cost little.
        """
        up = self.up(count)
        return ceil_div(up, ROWS_STEP) * ROWS_STEP if self is SizeGrid.EIGHTHS else up
