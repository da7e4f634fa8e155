"""Plain values of Arrow columns, by their types and by what `datasets` says of them."""

import json
from datetime import date, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from infrastructure.data.readers.arrow_values import PlainRows, label_of
from infrastructure.data.readers.rows import Label, Unreadable

LABEL = {"_type": "ClassLabel", "names": ["no", "yes"]}
DAY, WRITTEN = date(2024, 1, 5), "2024-01-05"


def rows_of(columns: dict[str, Any], features: object = None, of_file: bool = True) -> Any:
    """The rows of a table that a schema, or its file, describes so."""
    table = pa.table(columns)
    described = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    if features is not None and not of_file:
        table = table.replace_schema_metadata(described)
    plain = PlainRows(table.schema, described if features is not None and of_file else None)
    return [row for batch in table.to_batches() for row in plain.of(batch)]


def values(column: Any, feature: object = None) -> list[Any]:
    features = {} if feature is None else {"c": feature}
    found = [rows_of({"c": column}, features, of_file) for of_file in (True, False)]
    assert found[0] == found[1]
    return [row["c"] for row in found[0]]


@pytest.mark.parametrize(
    ("feature", "column", "expected"),
    [
        (LABEL, [1, 0, None, -1, 2], ["yes", "no", None, None, None]),
        (LABEL, [1.0], [1.0]),
        (LABEL, ["1"], ["1"]),
        ({**LABEL, "_type": "Value"}, [1], [1]),
        ({**LABEL, "names": "no"}, [1], [1]),
        ({"_type": "ClassLabel"}, [1], [1]),
        ({**LABEL, "names": [7, 8]}, [1], ["8"]),
        ([], [[1]], [[1]]),
        (3, [[1]], [[1]]),  # no description at all
        ([LABEL], [[1, None], None], [["yes", None], None]),
        ({"_type": "Sequence", "feature": LABEL}, [[0], []], [["no"], []]),
        ([[LABEL]], [[[1], [0]]], [[["yes"], ["no"]]]),
        ({"a": LABEL}, [{"a": 1, "b": 1}], [{"a": "yes", "b": 1}]),
        ({"_type": "Sequence", "feature": {"a": LABEL}}, [{"a": [1], "b": [1]}], None),
        ([{"a": LABEL}], [[{"a": 1, "b": None}]], [[{"a": "yes"}]]),
    ],
)
def test_labels_are_their_names_wherever_they_stand(
    feature: Any, column: list[Any], expected: Any
) -> None:
    assert values(column, feature) == (expected or [{"a": ["yes"], "b": [1]}])


def test_a_label_keeps_its_number() -> None:
    for number, name in enumerate(("no", "yes")):
        label = label_of(["no", "yes"], number)
        assert isinstance(label, Label)
        assert (label, label.number) == (name, number)
    assert label_of(["no", "yes"], 2) is label_of(["no", "yes"], -1) is label_of([], 0) is None


@pytest.mark.parametrize("metadata", [b"[", b"[]", b"{}", b'{"info": 1}', b'{"info": {}}'])
def test_an_empty_description_leaves_numbers(metadata: bytes) -> None:
    table = pa.table({"c": [1]})
    (batch,) = table.to_batches()
    assert PlainRows(table.schema, {b"huggingface": metadata}).of(batch) == [{"c": 1}]
    assert rows_of({"c": [1]}, [1]) == [{"c": 1}]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        # objects keep their empty keys, those in a list do not
        ([{"a": 1, "b": None}], [{"a": 1, "b": None}]),
        ([{"a": DAY, "b": None}, None], [{"a": WRITTEN, "b": None}, None]),
        ([[{"a": 1}, {"b": {"x": 1}}, None]], [[{"a": 1}, {"b": {"x": 1}}, None]]),
        (
            [[{"b": {"x": 1, "y": 2}}, {"b": {"x": 1}}]],
            [[{"b": {"x": 1, "y": 2}}, {"b": {"x": 1}}]],
        ),
        ([{"a": [{"x": 1}, {"y": 1}]}], [{"a": [{"x": 1}, {"y": 1}]}]),
        ([[[{"x": 1}, {"y": DAY}]]], [[[{"x": 1}, {"y": WRITTEN}]]]),
        ([time(3, 4)], ["03:04:00"]),
        ([Decimal("12.50"), None], ["12.50", None]),
        ([[Decimal("1.0"), None]], [["1.0", None]]),
        (["x", None], ["x", None]),
    ],
)
def test_a_value_is_plain(column: list[Any], expected: list[Any]) -> None:
    assert values(column) == expected


@pytest.mark.parametrize(
    ("kind", "entries", "expected"),
    [
        (pa.map_(pa.string(), pa.int8()), [("a", 1), ("b", None)], {"a": 1, "b": None}),
        (pa.map_(pa.int8(), pa.int8()), [(1, 2), (3, 4)], {"1": 2, "3": 4}),
        (pa.map_(pa.date32(), pa.date32()), [(DAY, DAY)], {WRITTEN: WRITTEN}),
        (pa.map_(pa.binary(), pa.int8()), [(b"a", 1)], {"\"b'a'\"": 1}),
        (pa.map_(pa.string(), pa.int8()), [("a", 1), ("a", 2)], [["a", 1], ["a", 2]]),
        (
            pa.map_(pa.string(), pa.struct({"x": pa.int8(), "y": pa.int8()})),
            [("a", {"x": 1, "y": None})],
            {"a": {"x": 1}},
        ),
    ],
)
def test_a_map_is_an_object_unless_a_key_is_there_twice(
    kind: Any, entries: Any, expected: Any
) -> None:
    assert values(pa.array([entries, None], kind)) == [expected, None]


def test_texts_that_stand_for_others_are_written_out() -> None:
    days = pa.array([DAY, None, DAY]).dictionary_encode()
    assert values(days) == [WRITTEN, None, WRITTEN]
    inside = pa.ListArray.from_arrays([0, 2], pa.array([DAY, DAY]).dictionary_encode())
    assert values(inside) == [[WRITTEN, WRITTEN]]


def test_row_numbers_are_left_out_unless_they_are_all() -> None:
    index = {"__index_level_0__": [7], "__index_level_12__": [8]}
    assert rows_of({"a": [1], **index, "__index_level_x__": [9]}) == [
        {"a": 1, "__index_level_x__": 9}
    ]
    assert rows_of(index) == [{name: value for name, (value,) in index.items()}]


def test_a_column_that_is_there_twice_is_read_as_it_is() -> None:
    schema = pa.schema([("a", pa.date32()), ("a", pa.date32()), ("b", pa.date32())])
    assert {*PlainRows(schema).converters} == {"b"}


def test_a_column_that_python_cannot_hold_harms_no_other() -> None:
    beyond = pa.array([3_000_000, 1], pa.date32())  # the year 10183
    rows = rows_of({"day": [DAY, None], "beyond": beyond, "a": [1, 2]})
    assert [(row["day"], row["a"]) for row in rows] == [(WRITTEN, 1), (None, 2)]
    unknown = Unreadable("data.unsupported_arrow_type(type=date32[day])")
    assert [row["beyond"] for row in rows] == [unknown] * 2


def test_a_text_that_is_no_utf8_is_refused() -> None:
    damaged = pa.array([b"\xff"]).view(pa.string())
    for columns in ({"a": damaged}, {"a": damaged, "b": pa.array([3_000_000], pa.date32())}):
        with pytest.raises(UnicodeDecodeError):
            rows_of(columns)
    beyond_first = {"b": pa.array([3_000_000], pa.date32()), "a": damaged}
    with pytest.raises(UnicodeDecodeError):
        rows_of(beyond_first)
