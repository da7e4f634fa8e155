"""The rows that a Trainer evaluates on are the same where all of them say the same."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.training.hf_bridge import evaluated_rows
from infrastructure.training.hf_bridge.evaluated_rows import FIRST_ROWS, EvaluatedRows

CPU = torch.device("cpu")


def identity_of(dataset: Any) -> str | None:
    return EvaluatedRows(CPU).identity_of(dataset)


VALUES: list[Any] = [
    *(None, 1, 1.5, "1", [1], [[1]], [1, 2], [2, 1], {"a": 1}, {"b": 1}, {"a": 2}, {"a": {"b": 1}}),
    *(np.array([1]), np.array([1.0]), np.array([2]), torch.tensor([1]), torch.tensor([1.0])),
    *(torch.tensor([[1]]), torch.tensor([2]), {"a": 1, "b": 2}, {"a": [1], "b": "x"}),
]


def test_no_two_rows_are_alike() -> None:
    hashes = [identity_of([value]) for value in VALUES]
    assert None not in hashes
    assert len({*hashes}) == len(VALUES)
    assert identity_of([(1, 2)]) == identity_of([[1, 2]])
    assert identity_of([{"b": 2, "a": 1}]) == identity_of([{"a": 1, "b": 2}])
    assert identity_of([{1: 2, "a": 1}]) == identity_of([{"a": 1, 1: 2}])


@pytest.mark.parametrize("num_rows", [1, FIRST_ROWS, FIRST_ROWS + 4])
def test_each_row_and_their_order_count(num_rows: int) -> None:
    rows = [*range(num_rows)]
    whole = identity_of(rows)
    assert whole == identity_of([*rows])
    for index in range(num_rows):
        assert identity_of([*rows[:index], -1, *rows[index + 1 :]]) != whole
    assert identity_of([*rows, num_rows]) != whole
    assert num_rows == 1 or identity_of(rows[::-1]) != whole


def test_each_row_of_a_table_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets import Dataset as Table

    monkeypatch.setattr(evaluated_rows, "BATCH_ROWS", 7)
    cells = [*range(20)]
    whole = identity_of(Table.from_dict({"x": cells}))
    assert whole == identity_of(Table.from_dict({"x": cells})) is not None
    for index in cells:
        changed = [-1 if cell == index else cell for cell in cells]
        assert identity_of(Table.from_dict({"x": changed})) != whole


def test_rows_that_cannot_be_known_have_no_identity() -> None:
    assert identity_of(None) is None
    assert identity_of(itertools.count()) is None

    class Drawing(list[int]):
        def __getitem__(self, index: Any) -> Any:
            return torch.rand(2)

    state = torch.get_rng_state()
    assert identity_of(Drawing([1, 2])) is None
    assert torch.equal(torch.get_rng_state(), state)


def test_a_data_set_is_read_once_until_another_one_comes() -> None:
    read: list[int] = []

    class Noting(list[int]):
        def __getitem__(self, index: Any) -> Any:
            read.append(index)
            return super().__getitem__(index)

    rows, others, reader = Noting([1, 2]), Noting([3]), EvaluatedRows(CPU)
    first = reader.identity_of(rows)
    assert read == [0, 1] * 3
    assert reader.identity_of(rows) == first
    assert reader.identity_of(None) is None
    assert reader.identity_of(rows) == first
    assert len(read) == 6
    assert reader.identity_of(others) not in (first, None)
    assert reader.identity_of(rows) == first
