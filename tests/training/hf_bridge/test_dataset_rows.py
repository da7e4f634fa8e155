"""All rows of a data set count, in their order, however they lie in memory or in a file."""

import itertools
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from infrastructure.run.identity import MOST_BLOCKS, new_key, row_digest
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
    seconds = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(seconds))
    monkeypatch.setattr(dataset_rows, "time", clock)
    monkeypatch.setattr(dataset_rows, "MOST_SECONDS", 25.0)
    first = rows_facts(Of([*range(1000)]), KEY, CPU)
    assert 20 < first["num_hashed"] < 30
    monkeypatch.setattr(dataset_rows, "MOST_SECONDS", 0.0)
    assert rows_facts(Of([*range(1000)]), KEY, CPU, first["num_hashed"]) == first
    changed = [-1, *range(1, 1000)]
    assert rows_facts(Of(changed), KEY, CPU, first["num_hashed"]) != first


@pytest.mark.parametrize("name", ["Image", "Audio", "Video"])
def test_a_table_of_files_is_read_as_it_gives_its_rows(name: str, tmp_path: Path) -> None:
    """The paths in its cells are other ones elsewhere; what lies there is the same."""
    found = SimpleNamespace(features=f"{{'x': {name}(decode=True)}}")
    kind = type("Table", (), {"__module__": "datasets.arrow_dataset", "format": {}})
    table = kind()
    vars(table).update(vars(found))
    assert not dataset_rows._is_table(table)
    table.features = "{'Images(s)': Value('string'), 'x': List(Value('int64'))}"
    assert dataset_rows._is_table(table)


def test_only_tables_of_datasets_are_read_as_tables() -> None:
    class Formatted(Of):
        format: ClassVar = {"format_kwargs": {"transform": print}}

    assert transform_of(Formatted([1])) is None
    assert hash_of(Formatted([1, 2])) == hash_of(Of([1, 2]))
    theirs = type("Stream", (Of,), {"__module__": "datasets.iterable_dataset"})
    assert transform_of(theirs([1])) is None
    assert hash_of(theirs([1, 2])) == hash_of(Of([1, 2]))


@pytest.mark.parametrize("num_rows", [0, 1, 5, 16, 40])
def test_a_few_rows_from_everywhere_are_read_twice(num_rows: int) -> None:
    read: list[int] = []

    class Noting(Of):
        def __getitem__(self, index: int) -> Any:
            read.append(index)
            return self.rows[index]

    assert rows_facts(Noting([*range(num_rows)]), KEY, CPU)["num_hashed"] == num_rows
    sampled = min(num_rows, dataset_rows.NUM_TWICE)
    assert len(read) == 2 * sampled + num_rows
    first = read[:sampled]
    assert first == read[sampled : 2 * sampled] == sorted({*first})
    assert max(first, default=0) >= num_rows - max(1, num_rows // 10)


@pytest.mark.parametrize("changing", [0, 20, 36])
def test_a_row_that_changes_when_it_is_read_again_cannot_be_compared(changing: int) -> None:
    class Counting(Of):
        def __getitem__(self, index: int) -> Any:
            self.rows[index] += index == changing
            return self.rows[index]

    indices = {i * 40 // dataset_rows.NUM_TWICE for i in range(dataset_rows.NUM_TWICE)}
    is_seen = changing in indices
    facts = rows_facts(Counting([*range(40)]), KEY, CPU)
    assert (facts["rows"] is None) is is_seen
    assert (facts["num_examples"], facts["num_hashed"]) == (40, 0 if is_seen else 40)


@pytest.mark.parametrize(("num_hashed", "expected"), [(0, 0), (1, 1), (4, 4), (9, 5)])
def test_as_many_rows_as_were_hashed_are_hashed(num_hashed: int, expected: int) -> None:
    rows = [*range(5)]
    facts = rows_facts(Of(rows), KEY, CPU, num_hashed)
    assert facts["num_hashed"] == expected
    for index in range(5):
        other = rows_facts(Of([*rows[:index], -1, *rows[index + 1 :]]), KEY, CPU, num_hashed)
        assert (other["rows"] != facts["rows"]) is (index < expected)


# Values of which no two are alike, though some are written alike, or lie alike in memory.
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 1.0, 0.0, "", "1", "None", b"", b"1", 2**63, -(2**70)),
    *([], [1], [1, 2], [2, 1], [12], [1, 2.0], [1, "2"], [1, None], [[1], 2], [[1, 2]], ["1", 2]),
    *([2**63, 1], [2**63, 2], [2**63], {}, {"a": 1}, {"b": 1}, {"a": 2}, {"a": 1, "b": 2}),
    *({"a": 2, "b": 1}, {"a": {"b": 1}}, {"a": "b"}, {"ab": ""}, ["a", "b"], ["ab"], ["", "ab"]),
    *(["a", 1, "b", 2], "\ud800", "ä", "ä".encode()),
    *(torch.zeros(2), torch.zeros(1, 2), torch.zeros(2, dtype=torch.int32), torch.ones(2)),
    *(torch.zeros(0), torch.zeros(0, 1), torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])),
    *(np.zeros(2), np.zeros((1, 2)), np.zeros(2, np.int64), np.array([1.0, 0.0])),
    *(np.float32(1), np.float64(1), np.array(["a"], object), np.array(["b"], object)),
    *(SimpleNamespace(a=3), SimpleNamespace(a=4), int, float, 1 + 2j),
    *({1: 2, "a": 3}, {1: 2, "b": 3}, {"a": {"b": 1, "c": 2}}, {"a": {"b": 1}, "c": 2}),
    *([True, 1], [1, 1], SimpleNamespace(mode=1), array("d", [1.0]), array("d", [2.0])),
]


def test_no_two_values_are_alike() -> None:
    hashes = [hash_of(Of([value])) for value in VALUES]
    assert None not in hashes
    alike = [
        (one, other)
        for (one, first), (other, second) in itertools.combinations(
            zip(VALUES, hashes, strict=True), 2
        )
        if first == second
    ]
    assert alike == []


def test_no_two_pictures_are_alike() -> None:
    from PIL import Image

    shapes = [("L", (2, 6)), ("L", (3, 4)), ("P", (3, 4)), ("RGB", (2, 2)), ("RGB", (4, 1))]
    pictures = [Image.new(mode, size) for mode, size in shapes]
    assert len({hash_of(Of([one])) for one in pictures}) == len(pictures)


def test_how_a_value_lies_in_memory_does_not_count() -> None:
    grid = torch.arange(6.0).view(2, 3)
    assert hash_of(Of([grid.t().contiguous().t()])) == hash_of(Of([grid]))
    assert hash_of(Of([grid.requires_grad_()])) == hash_of(Of([grid.detach()]))
    assert hash_of(Of([np.asfortranarray(grid.detach().numpy())])) == hash_of(
        Of([grid.detach().numpy()])
    )
    assert hash_of(Of([{"a": 1, "b": 2}])) == hash_of(Of([{"b": 2, "a": 1}]))
    assert hash_of(Of([SimpleNamespace(a=1)])) == hash_of(Of([{"a": 1}]))
    assert hash_of(Of([(1, 2)])) == hash_of(Of([[1, 2]]))


# Columns of one type each, of which no two hold the same.
COLUMNS: dict[str, list[list[Any]]] = {
    "int64": [[1, 2], [2, 1], [None, 1], [1, None], [None, 0], [None, None]],
    "uint64": [[2**64 - 1, 1], [2**64 - 2, 1], [None, 1]],
    "int8": [[1, 2], [2, 1]],
    "float64": [[0.1, 0.2], [0.1, 0.3], [None, 0.0], [0.0, None]],
    "float32": [[0.5, 2.0], [2.0, 0.5]],
    "bool_": [[True, False], [False, True], [None, False], [False, None]],
    "string": [["ab", "c"], ["ac", "b"], ["a", "bc"], [None, ""], ["", None], ["", ""]],
    "large_string": [["ab", "c"], ["a", "bc"]],
    "binary": [[b"ab", b"c"], [b"ac", b"b"], [b"a", b"bc"], [None, b""], [b"", None]],
    "date32": [[1, 2], [2, 1], [None, 1]],
}


def column_hash(column: Any) -> str:
    digest = row_digest(KEY)
    dataset_rows._feed_column(digest.update, column)
    return digest.hexdigest()


def assert_all_differ(columns: list[Any]) -> None:
    assert len({*map(column_hash, columns)}) == len(columns), columns


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("around", ["plain", "list_", "large_list", "struct"])
def test_no_two_columns_are_alike(kind: str, around: str) -> None:
    import pyarrow as pa

    of_type = getattr(pa, kind)()
    if around == "plain":
        columns = [pa.array(cells, of_type) for cells in COLUMNS[kind]]
    elif around == "struct":
        of_type = pa.struct([("one", of_type), ("two", of_type)])
        pairs = [dict(zip(("one", "two"), cells, strict=True)) for cells in COLUMNS[kind]]
        columns = [pa.array([pair, {}], of_type) for pair in pairs]
        columns += [pa.array([{}, pair], of_type) for pair in pairs if {*pair.values()} != {None}]
        columns += [pa.array([pairs[0], None], of_type)]
    else:
        of_type = getattr(pa, around)(of_type)
        rows = [
            divided
            for a, b in COLUMNS[kind]
            for divided in ([[a, b]], [[a], [b]], [[a, b], []], [[], [a, b]], [[a, b], None])
        ]
        columns = [pa.array(cells, of_type) for cells in rows]
    assert_all_differ(columns)
    for column in columns:
        pieces = pa.chunked_array([column[:1], column[1:]])
        assert column_hash(pieces) == column_hash(column)
        longer = pa.concat_arrays([columns[0], column])[len(columns[0]) :]
        assert column_hash(longer) == column_hash(column), "a slice is read as what it shows"
    assert column_hash(pa.chunked_array([], of_type)) == column_hash(pa.array([], of_type))


def test_fields_of_a_cell_count_by_their_names_in_any_order() -> None:
    import pyarrow as pa

    cells = [{"a": 1, "b": 2}]
    one = pa.array(cells, pa.struct([("a", pa.int64()), ("b", pa.int64())]))
    same = pa.array(cells, pa.struct([("b", pa.int64()), ("a", pa.int64())]))
    other = pa.array([{"a": 1, "c": 2}], pa.struct([("a", pa.int64()), ("c", pa.int64())]))
    assert column_hash(one) == column_hash(same) != column_hash(other)


def test_each_row_of_a_long_table_and_each_name_of_a_column_count() -> None:
    num_rows = 2 * MOST_BLOCKS + 1
    cells = [*range(num_rows)]
    whole = hash_of(table([{"x": x, "y": 0} for x in cells]))
    for index in (0, 999, 1000, 1001, num_rows - 1):
        changed = [{"x": -1 if x == index else x, "y": 0} for x in cells]
        assert hash_of(table(changed)) != whole
    assert hash_of(table([{"z": x, "y": 0} for x in cells])) != whole
    assert hash_of(table([{"y": x, "x": 0} for x in cells])) != whole
    assert hash_of(table([{"x": x} for x in cells])) != whole
