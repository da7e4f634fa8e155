"""Count sketches: short versions of long gradients that preserve their inner products.

Each entry is added, with a random sign, to one of d buckets (Charikar, Chen, Farach-Colton 2002).
Inner products keep their expectation, with a variance of about 2 / d between unit vectors. Entries
are read in pieces of d, and each piece is rotated by a random number of buckets. So a sum over
pieces needs no scatter-add, whose result would differ from call to call on a GPU.
"""

import hashlib

import torch

from infrastructure.core.integers import ceil_div

CHUNK_ENTRIES = 1 << 18  # of a matrix in memory at once, for each example


class CountSketch:
    """A count sketch of matrices, which are added in chunks of rows.

    The signs take one byte per entry of the matrices, on the device.

    Args:
        num_features: d.
        seed: seed of signs and rotations, which are the same on every device.
    """

    def __init__(self, num_features: int, seed: int, device: torch.device) -> None:
        self.num_features = num_features
        self.seed = seed
        self.device = device
        self._drawn: dict[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def rows_at_once(self, num_columns: int) -> int:
        """Return the number of rows to add at once, which depends only on the matrix."""
        return max(1, CHUNK_ENTRIES // num_columns)

    def add(self, total: torch.Tensor, chunk: torch.Tensor, matrix: int, start_row: int) -> None:
        """Add a chunk of one matrix to the sketches of B examples.

        Args:
            total: (B, d) float32, the sketches so far.
            chunk: (B, rows, columns) float32, the matrix's rows from `start_row` on.
            matrix: the number of the matrix.
        """
        entries = chunk.flatten(1)
        d = self.num_features
        signs, places = self._random(matrix, start_row, entries.shape[1])
        missing = signs.numel() - entries.shape[1]
        pieces = torch.nn.functional.pad(entries, (0, missing)).view(len(entries), -1, d)
        turned = (pieces * signs).gather(2, places.expand(len(entries), -1, -1))
        total += turned.sum(dim=1)

    def _random(
        self, matrix: int, start_row: int, length: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return random signs (pieces, d) int8, and each bucket's entry index (pieces, d) int64."""
        key = (matrix, start_row, length)
        if key not in self._drawn:
            num_pieces = ceil_div(length, self.num_features)
            generator = torch.Generator().manual_seed(_mixed(self.seed, *key))
            shape = (num_pieces, self.num_features)
            signs = 2 * torch.randint(0, 2, shape, generator=generator, dtype=torch.int8) - 1
            turns = torch.randint(0, self.num_features, (num_pieces, 1), generator=generator)
            self._drawn[key] = signs.to(self.device), turns.to(self.device)
        signs, turns = self._drawn[key]
        buckets = torch.arange(self.num_features, device=self.device)
        return signs, (buckets + turns) % self.num_features


def _mixed(*numbers: int) -> int:
    """Return a 63-bit hash of `numbers`."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
