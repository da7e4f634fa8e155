"""From examples to tensors: padded, or packed into one row.

Both give the same loss: packing lays the examples end to end, and attention that is isolated by
`position_ids` (or `cu_seq_lens`) keeps them apart. Labels stand under their own tokens, as in
transformers; the shift by one happens in the model. The first token of an example has no label, so
no example is ever asked to continue the one before it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from infrastructure.training.data.examples import TokenizedExample

NO_LABEL = -100

Batch = dict[str, Any]


def pad(examples: Sequence[TokenizedExample], pad_token_id: int) -> Batch:
    """Examples under each other, filled up on the right to the longest.

    Returns:
        int64 tensors (B, L): `input_ids`, `attention_mask`, `labels`.
    """
    lengths = [len(example.input_ids) for example in examples]
    shape = (len(examples), max(lengths))
    input_ids = np.full(shape, pad_token_id, dtype=np.int64)
    labels = np.full(shape, NO_LABEL, dtype=np.int64)
    for row, (example, length) in enumerate(zip(examples, lengths, strict=True)):
        input_ids[row, :length] = example.input_ids
        labels[row, :length] = _labels(example)
    mask = np.arange(shape[1]) < np.array(lengths)[:, None]
    return {
        "input_ids": torch.from_numpy(input_ids),
        "attention_mask": torch.from_numpy(mask.astype(np.int64)),
        "labels": torch.from_numpy(labels),
    }


def pack(examples: Sequence[TokenizedExample]) -> Batch:
    """Examples end to end in one row; positions begin at 0 in each.

    Returns:
        int64 tensors (1, T): `input_ids`, `position_ids`, `labels`; `cu_seq_lens`, int32 (B + 1,),
        where the examples begin and the last one ends; `max_length`, the longest one's, an int.
    """
    lengths = np.array([len(example.input_ids) for example in examples])
    ends = np.cumsum(lengths)
    positions = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
    input_ids = np.concatenate([example.input_ids for example in examples])
    labels = np.concatenate([_labels(example) for example in examples])
    return {
        "input_ids": torch.from_numpy(input_ids.astype(np.int64))[None],
        "position_ids": torch.from_numpy(positions)[None],
        "labels": torch.from_numpy(labels)[None],
        "cu_seq_lens": torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)),
        "max_length": int(lengths.max()),
    }


def _labels(example: TokenizedExample) -> np.ndarray:
    return np.where(example.supervised, example.input_ids.astype(np.int64), NO_LABEL)
