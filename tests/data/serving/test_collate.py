"""Padded and packed batches hold the same tokens, labels and examples."""

import numpy as np
import pytest
import torch

from infrastructure.data.serving.collate import NO_LABEL, pack, pad
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.optimization.size_grid import SizeGrid


def example(*tokens: int, learnt: str) -> TokenizedExample:
    mask = np.array([character == "1" for character in learnt])
    return TokenizedExample(np.array(tokens, dtype=np.int32), mask)


EXAMPLES = [example(5, 6, 7, learnt="011"), example(8, learnt="0"), example(9, 4, learnt="01")]


def test_padded() -> None:
    batch = pad(EXAMPLES, pad_token_id=1)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 1, 1], [9, 4, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0]]
    assert batch["labels"].tolist() == [
        [NO_LABEL, 6, 7],
        [NO_LABEL, NO_LABEL, NO_LABEL],
        [NO_LABEL, 4, NO_LABEL],
    ]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_packed() -> None:
    batch = pack(EXAMPLES)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9, 4]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 0, 1]]
    assert batch["labels"].tolist() == [[NO_LABEL, 6, 7, NO_LABEL, NO_LABEL, 4]]
    assert batch["cu_seq_lens"].tolist() == [0, 3, 4, 6]
    assert batch["cu_seq_lens"].dtype == torch.int32
    assert batch["max_length"] == 3
    names = ("input_ids", "position_ids", "labels")
    assert {batch[name].dtype for name in names} == {torch.int64}


def test_a_packed_row_is_filled_up_with_pieces_that_nobody_learns() -> None:
    batch = pack(EXAMPLES, SizeGrid.SIXTEENTHS)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9, 4, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 0, 1, 0, 1]]
    assert batch["labels"].tolist() == [[NO_LABEL, 6, 7, NO_LABEL, NO_LABEL, 4, NO_LABEL, NO_LABEL]]
    assert batch["cu_seq_lens"].tolist() == [0, 3, 4, 6, 8]
    assert batch["max_length"] == 3
    many = pack([EXAMPLES[1]] * 13, SizeGrid.SIXTEENTHS)  # no piece is longer than an example
    assert many["cu_seq_lens"].tolist() == list(range(17))
    assert many["max_length"] == 1
    two = pack([example(*range(5), learnt="01111")] * 2, SizeGrid.SIXTEENTHS)
    assert two["cu_seq_lens"].tolist() == [0, 5, 10, 15, 16]


@pytest.mark.parametrize(("most", "length"), [(None, 8), (100, 8), (5, 5), (2, 3)])
def test_padded_rows_are_rounded_up_to_what_there_is_a_position_for(
    most: int | None, length: int
) -> None:
    batch = pad(EXAMPLES, 1, SizeGrid.SIXTEENTHS, most)
    assert batch["input_ids"].shape == (3, length)
    assert batch["attention_mask"].sum().item() == 6
    assert (batch["labels"] != NO_LABEL).sum().item() == 3


@pytest.mark.parametrize("seed", range(10))
def test_packing_and_padding_hold_the_same(seed: int) -> None:
    rng = np.random.RandomState(seed)
    examples = [
        TokenizedExample(
            rng.randint(1, 99, size=n).astype(np.int32),
            np.concatenate([[False], rng.rand(n - 1) < 0.5]),
        )
        for n in rng.randint(1, 20, size=rng.randint(1, 8))
    ]
    padded, packed = pad(examples, 0), pack(examples)
    real = padded["attention_mask"].bool()
    assert torch.equal(padded["input_ids"][real], packed["input_ids"][0])
    assert torch.equal(padded["labels"][real], packed["labels"][0])
    assert (padded["labels"][~real] == NO_LABEL).all()
    ends = packed["cu_seq_lens"].tolist()
    lengths = [len(one.input_ids) for one in examples]
    assert np.diff(ends).tolist() == lengths
    assert packed["max_length"] == max(lengths)
    positions = [position for length in lengths for position in range(length)]
    assert packed["position_ids"][0].tolist() == positions
    assert (packed["labels"][0, ends[:-1]] == NO_LABEL).all()  # nobody continues its neighbour
