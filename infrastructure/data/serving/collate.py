"""Conversion of examples to a batch of tensors: padded rows, or all examples packed into one row.

Padding and packing give the same loss, because `position_ids` (or `cu_seq_lens`) keep packed
examples from attending to each other. Labels are aligned with their own tokens, as in transformers;
the shift by one happens in the model. The first token of an example has no label, so no example is
ever trained to continue the one before it.

Lengths are rounded up, so that tensor shapes repeat (`size_grid.py`). The padding is never trained
on, and no token of an example attends to it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from infrastructure.data.store.examples import TokenizedExample
from infrastructure.optimization.size_grid import SizeGrid

NO_LABEL = -100

Batch = dict[str, Any]


def padded_length(longest: int, grid: SizeGrid, most: int | None) -> int:
    """Return the row length for a batch whose longest example has `longest` tokens.

    The result exceeds `most` only if the longest example does.
    """
    return max(longest, min(grid.up(longest), most or grid.up(longest)))


def pad(
    examples: Sequence[TokenizedExample],
    pad_token_id: int,
    grid: SizeGrid = SizeGrid.EXACT,
    most: int | None = None,
) -> Batch:
    """Return examples as rows, padded on the right to the length of the longest one, rounded up.

    Args:
        most: the largest length to round up to, because the model may not have more positions.

    Returns:
        int64 tensors (B, L): `input_ids`, `attention_mask`, `labels`.
    """
    lengths = [len(example.input_ids) for example in examples]
    shape = (len(examples), padded_length(max(lengths), grid, most))
    input_ids = np.full(shape, pad_token_id, dtype=np.int64)
    labels = np.full(shape, NO_LABEL, dtype=np.int64)
    for row, example in enumerate(examples):
        input_ids[row, : lengths[row]] = example.input_ids
        labels[row, : lengths[row]] = _labels(example)
    mask = np.arange(shape[1]) < np.array(lengths)[:, None]
    return {
        "input_ids": torch.from_numpy(input_ids),
        "attention_mask": torch.from_numpy(mask.astype(np.int64)),
        "labels": torch.from_numpy(labels),
    }


def pack(examples: Sequence[TokenizedExample], grid: SizeGrid = SizeGrid.EXACT) -> Batch:
    """Return examples end to end in one row of a rounded length, each with positions from 0.

    The padding consists of further examples, none longer than the longest real one, so that it is
    isolated from the real examples.

    Returns:
        int64 tensors (1, T): `input_ids`, `position_ids`, `labels`; `cu_seq_lens`, int32 (B + 1,)
        or longer: where examples and the padding after them begin, and where the row ends;
        two ints: `max_length`, the length of the longest example, and `length_step`, the multiple
        to which attention may round lengths up.
    """
    lengths = [len(example.input_ids) for example in examples]
    longest, total = max(lengths), sum(lengths)
    missing = grid.up(total) - total
    pieces = [min(longest, missing - start) for start in range(0, missing, longest)]
    sizes = np.array([*lengths, *pieces])
    ends = np.cumsum(sizes)
    positions = np.arange(ends[-1]) - np.repeat(ends - sizes, sizes)
    fill = np.zeros(missing, dtype=np.int64)
    input_ids = np.concatenate([*(example.input_ids for example in examples), fill])
    labels = np.concatenate([*map(_labels, examples), np.full_like(fill, NO_LABEL)])
    return {
        "input_ids": torch.from_numpy(input_ids.astype(np.int64))[None],
        "position_ids": torch.from_numpy(positions)[None],
        "labels": torch.from_numpy(labels)[None],
        "cu_seq_lens": torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)),
        "max_length": longest,
        "length_step": grid.segment_step,
    }


def _labels(example: TokenizedExample) -> np.ndarray:
    return np.where(example.supervised, example.input_ids.astype(np.int64), NO_LABEL)
