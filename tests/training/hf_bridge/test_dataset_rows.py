"""All rows of a data set count, in their order, however they lie in memory or in a file."""

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from infrastructure.run.identity import new_key
from infrastructure.training.hf_bridge import dataset_rows
from infrastructure.training.hf_bridge.dataset_rows import rows_facts, transform_of
from tests.training.hf_bridge.tiny_trainer import Rows

CPU = torch.device("cpu")
KEY = new_key()


class Of(Dataset[Any]):
    """Rows that are given."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


class Drawing(Of):
    """Gives a row another way each time."""

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.rand(2)}


def hash_of(dataset: Any, key: str = KEY) -> str | None:
    return rows_facts(dataset, key, CPU)["rows"]


def table(rows: list[dict[str, Any]]) -> Any:
    from datasets import Dataset as Table

    return Table.from_list(rows)


def chats(num_rows: int = 40) -> list[dict[str, Any]]:
    return [
        {
            "ids": [1, 2, n],
            "messages": [{"role": "user", "content": f"ä {n}"}],
            "label": None if n % 3 else bool(n % 2),
            "weight": n / 7,
        }
        for n in range(num_rows)
    ]


def test_other_rows_are_other_data_and_reading_them_draws_nothing() -> None:
    state = torch.get_rng_state()
    facts = rows_facts(Rows(), KEY, CPU)
    assert facts == rows_facts(Rows(), KEY, CPU)
    assert facts["num_examples"] == facts["num_hashed"] == len(Rows())
    for index in range(len(Rows())):
        other = Rows()
        other.ids[index, -1] += 1
        assert hash_of(other) != facts["rows"], index
    assert rows_facts(Drawing([1, 2]), KEY, CPU)["rows"] is None
    assert torch.equal(torch.get_rng_state(), state)


def test_a_hash_depends_on_the_key() -> None:
    for dataset in (Rows(), table(chats())):
        assert hash_of(dataset) != hash_of(dataset, new_key())


def test_of_a_stream_nothing_is_known() -> None:
    stream: Any = itertools.count()
    facts = rows_facts(stream, KEY, CPU)
    assert facts == {"num_examples": None, "num_hashed": 0, "rows": None}


def test_each_cell_of_a_table_counts_and_how_it_is_stored_does_not(tmp_path: Path) -> None:
    from datasets import Dataset as Table
    from datasets import concatenate_datasets

    rows = chats()
    whole = hash_of(table(rows))
    for index, (name, value) in itertools.product(
        (0, 17, 39),
        [("ids", [1, 2]), ("messages", []), ("label", True), ("weight", 0.5), ("label", False)],
    ):
        changed = [dict(row) for row in rows]
        if changed[index][name] != value:
            changed[index][name] = value
            assert hash_of(table(changed)) != whole, (index, name)
    assert hash_of(table(rows[::-1])) != whole
    assert hash_of(table(rows[:-1])) != whole
    other_order = [dict(reversed(row.items())) for row in rows]
    pieces = concatenate_datasets([table(rows[:7]), table(rows[7:])])
    pieces_of_rest = table([rows[3], *rows]).select(range(1, 41))
    table(rows).to_parquet(tmp_path / "rows.parquet")
    table(rows).save_to_disk(tmp_path / "saved")
    read = Table.from_parquet(str(tmp_path / "rows.parquet"), cache_dir=str(tmp_path / "cache"))
    for same in (
        *(table(other_order), pieces, pieces_of_rest, read),
        *(table(rows).with_format("torch"), Table.load_from_disk(str(tmp_path / "saved"))),
    ):
        assert hash_of(same) == whole
    assert hash_of(table(rows).with_format("torch", columns=["ids"])) != whole


def test_where_one_cell_ends_and_the_next_begins_counts() -> None:
    one, other = ([{"ids": ids} for ids in cells] for cells in ([[1], [2, 3]], [[1, 2], [3]]))
    assert hash_of(table(one)) != hash_of(table(other))
    one, other = ([{"text": text} for text in cells] for cells in (["a", "bc"], ["ab", "c"]))
    assert hash_of(table(one)) != hash_of(table(other))


@pytest.mark.parametrize("value", [0, 0.0, False, "", []])
def test_a_missing_value_is_not_the_one_that_fills_it(value: object) -> None:
    one, other = ([{"x": cell} for cell in cells] for cells in ([None, value], [value, None]))
    assert hash_of(table(one)) != hash_of(table(other))


def test_how_the_keys_inside_a_cell_are_ordered_does_not_count() -> None:
    one, other = {"role": "user", "text": "a"}, {"text": "a", "role": "user"}
    assert hash_of(table([{"x": one}])) == hash_of(table([{"x": other}]))
    assert hash_of(table([{"x": [one]}])) == hash_of(table([{"x": [other]}]))


def test_what_gives_a_table_its_rows_is_found() -> None:
    def doubled(batch: Any) -> Any:
        return batch

    assert transform_of(table(chats()).with_transform(doubled)) is doubled
    assert transform_of(table(chats())) is None
    assert transform_of(Rows()) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.arange(5000), np.where(np.arange(5000) == 2500, 0, np.arange(5000))),
        (torch.zeros(3, dtype=torch.bfloat16), torch.zeros(3)),
        ("ab", b"ab"),
        ([["a"], ["b"]], [["a", "b"], []]),
        ({"a": "b"}, {"ab": ""}),
        ([1, 2**70], [1, 2**71]),
        ([1, None], [1, 0]),
        (np.array(["a", None], dtype=object), np.array(["a", "b"], dtype=object)),
        (1.5, 1.25),
    ],
)
def test_each_kind_of_value_counts(one: Any, other: Any) -> None:
    assert hash_of(Of([one])) == hash_of(Of([one]))
    assert hash_of(Of([one])) != hash_of(Of([other]))


def test_pictures_count_by_their_pixels_and_what_has_no_content_is_unseen() -> None:
    from PIL import Image

    black, same, white = (Image.new("RGB", (3, 2), color) for color in ("black", "black", "white"))
    assert hash_of(Of([black])) == hash_of(Of([same])) != hash_of(Of([white]))
    assert rows_facts(Of([object()]), KEY, CPU)["rows"] is None


def test_as_many_rows_are_compared_as_time_allowed_at_the_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dataset_rows, "MOST_SECONDS", 0.05)

    class Slow(Of):
        def __getitem__(self, index: int) -> Any:
            time.sleep(0.002)
            return self.rows[index]

    first = rows_facts(Slow([*range(1000)]), KEY, CPU)
    assert 0 < first["num_hashed"] < 1000
    monkeypatch.setattr(dataset_rows, "MOST_SECONDS", 0.0)
    assert rows_facts(Slow([*range(1000)]), KEY, CPU, first["num_hashed"]) == first
    changed = [-1, *range(1, 1000)]
    assert rows_facts(Slow(changed), KEY, CPU, first["num_hashed"]) != first
