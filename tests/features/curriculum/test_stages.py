"""The stage of each example, from numbers and from names."""

import numpy as np
import pytest

from infrastructure.features.curriculum.stages import by_rank, ids_of, packed, unpacked


def test_equal_parts_by_rank_and_what_is_no_number_last() -> None:
    stages = by_rank(np.array([5.0, 1.0, np.nan, 3.0, 3.0, 0.0, 9.0]), 3)
    assert stages.tolist() == [1, 0, 2, 0, 1, 0, 2]
    with pytest.raises(
        ValueError, match=r"curriculum\.too_few_examples_for_stages.*num_examples=2.*num_stages=3"
    ):
        by_rank(np.zeros(2), 3)


def test_a_stage_keeps_the_easier_ones() -> None:
    stages = by_rank(np.arange(6), 3)
    assert ids_of(stages, 1).tolist() == [0, 1, 2, 3]


def test_stages_are_a_short_text() -> None:
    stages = by_rank(np.random.RandomState(0).rand(10_000), 4)
    text = packed(stages)
    assert len(text) < 4_000
    assert (unpacked(text) == stages).all()
