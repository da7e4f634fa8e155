"""Order is a pure function of seed, epoch and position."""

import numpy as np

from infrastructure.data.serving.example_order import (
    AUGMENT,
    ORDER,
    REPLACE,
    SELECT,
    WINDOW,
    epoch_order,
    random_selection,
    random_state,
    selection_hash,
    with_replacements,
)


def test_each_example_comes_once_in_an_epoch() -> None:
    for num_examples in (0, 1, 7, 1000):
        order = epoch_order(num_examples, seed=3, epoch=2)
        assert sorted(order) == list(range(num_examples))
        assert order.dtype == np.int64


def test_order_depends_on_seed_and_epoch_alone() -> None:
    np.random.seed(1)
    first = epoch_order(100, 0, 0)
    np.random.seed(2)
    assert np.array_equal(first, epoch_order(100, 0, 0))
    others = [epoch_order(100, *pair) for pair in ((0, 1), (1, 0), (-1, 0), (2**40, 0))]
    assert len({tuple(order) for order in [first, *others]}) == 5


def test_the_order_is_the_same_in_every_version() -> None:
    """A checkpoint of an older version must find its examples: these numbers never change."""
    assert (ORDER, WINDOW, AUGMENT, SELECT, REPLACE) == (0, 2, 3, 4, 5)
    assert epoch_order(10, seed=1, epoch=2).tolist() == EXPECTED_ORDER
    large, negative = epoch_order(10, 5 * 2**32 + 3, 2**32 - 1), epoch_order(10, -7, 0)
    assert large.tolist() == [0, 3, 1, 6, 8, 2, 5, 9, 4, 7]
    assert negative.tolist() == [5, 2, 7, 1, 9, 4, 8, 0, 6, 3]
    assert random_selection(20, 5, seed=7).tolist() == [0, 5, 8, 9, 18]


def test_what_stands_in_the_places_of_others_is_the_same_in_every_version() -> None:
    order, kept = epoch_order(8, seed=7, epoch=3), np.array([1, 2, 6])
    assert order.tolist() == [3, 0, 2, 5, 6, 1, 4, 7]
    replaced = with_replacements(order, kept, 7, 3)
    assert replaced.tolist() == [1, 6, 2, 2, 6, 1, 6, 2]
    nothing = np.zeros(0, dtype=np.int64)
    assert with_replacements(nothing, kept, 7, 3).tolist() == []


EXPECTED_ORDER = [1, 4, 6, 7, 9, 3, 0, 8, 2, 5]


def test_uses_do_not_share_a_stream() -> None:
    streams = {
        tuple(random_state(use, 0, 0).permutation(50))
        for use in (ORDER, WINDOW, AUGMENT, SELECT, REPLACE)
    }
    assert len(streams) == 5


def test_the_name_of_a_selection_is_that_of_its_numbers() -> None:
    ids = [5, 1, 70_000]
    names = {selection_hash(np.array(ids, dtype=kind)) for kind in (np.int32, np.int64, ">i8")}
    assert names == {selection_hash(sorted(ids))}
    assert selection_hash([1, 5]) not in names
