"""A grid of sizes to which tensor lengths are rounded up, so that tensor shapes repeat.

Packed rows have a different length at every step, and libraries prepare code for each new shape. On
a CPU with bf16, oneDNN compiles a kernel for each layer and length (`kernel_caches.py` limits how
many are kept). CUDA graphs and compiled code also work for only one shape. So lengths are rounded
up to a multiple of a sixteenth of the power of two below them. This gives at most 16 sizes between
a length and twice this length, and 2 to 3% of padding. On a CPU, where only few kernels should be
kept, the multiple is an eighth, with 8 sizes and 4 to 5% of padding. The padding is masked: it
contributes nothing to the loss, and no token attends to it.
"""

from enum import StrEnum

from infrastructure.core.integers import ceil_div

LEAST_STEP = 8  # short lengths are few anyway, and tensor cores process eight rows at a time
ROWS_STEP = 32  # for the rows of a product, if few kernels are kept
# For an example in attention, whose kernels are made for each length; the padding is never seen.
SEGMENT_STEP = 16


class SizeGrid(StrEnum):
    """The ways of rounding tensor lengths up.

    The choice is stored in checkpoints and kept for the whole run, because with other lengths, sums
    round differently and dropout draws other random numbers.
    """

    EXACT = "exact"
    EIGHTHS = "eighths"
    SIXTEENTHS = "sixteenths"

    @property
    def segment_step(self) -> int:
        """The multiple to which the lengths of examples are rounded up in attention."""
        return 1 if self is SizeGrid.EXACT else SEGMENT_STEP

    def up(self, size: int) -> int:
        """Return the smallest size of the grid that is at least `size`."""
        if self is SizeGrid.EXACT:
            return size
        parts_bits = 3 if self is SizeGrid.EIGHTHS else 4
        step = max(LEAST_STEP, 1 << max(0, size.bit_length() - 1 - parts_bits))
        return ceil_div(size, step) * step

    def rows_up(self, count: int) -> int:
        """Round up a count over a whole batch, such as the number of trained tokens.

        With `EIGHTHS`, the result is also a multiple of `ROWS_STEP`, so that small counts repeat,
        too. A few more rows cost little.
        """
        up = self.up(count)
        return ceil_div(up, ROWS_STEP) * ROWS_STEP if self is SizeGrid.EIGHTHS else up
