"""How the rows of a document are laid out, by what its first object holds."""

import json
from pathlib import Path
from typing import Any

import pytest

from infrastructure.data.readers.json_layout import (
    LIST_KEYS,
    MOST_COLUMNS,
    Layout,
    has_paragraphs,
    is_one_row,
    layout_of_object,
    list_of_rows,
    questions_in,
    rows_of_columns,
    unwrapped,
)
from infrastructure.data.readers.sources import discover, held_out_beside

ROW, OTHER = {"q": "a", "a": "b"}, {"q": "c", "a": "d"}
CHAT = [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("document", "layout"),
    [
        ({}, Layout.ONE_ROW),
        ({"q": "a"}, Layout.ONE_ROW),
        ({"messages": CHAT}, Layout.ONE_ROW),
        ({"q": "a", "meta": {"x": 1, "y": 2}}, Layout.ONE_ROW),
        # columns
        ({"q": ["a", "b"], "a": ["c", "d"]}, Layout.COLUMNS),
        ({"q": ["a"], "a": ["c"]}, Layout.COLUMNS),
        ({"q": ["a", "b"], "a": ["c"]}, Layout.ONE_ROW),
        ({"q": [], "a": []}, Layout.ONE_ROW),
        ({"q": ["a"], "a": "c"}, Layout.ONE_ROW),
        ({"q": ["a"]}, Layout.ONE_ROW),
        ({"q": [["a"], ["b"]]}, Layout.COLUMNS),
        ({"q": ["a"], "a": [{"x": 1}]}, Layout.ONE_ROW),
        ({"q": {"0": "a", "1": "b"}, "a": {"0": "c", "1": "d"}}, Layout.COLUMNS),
        ({"q": {"0": "a"}, "a": {"1": "c"}}, Layout.ONE_ROW),
        ({"q": {"0": "a"}, "a": {}}, Layout.ONE_ROW),
        ({"columns": ["q"], "data": [["a"], ["b"]]}, Layout.COLUMNS),
        ({"columns": ["q"], "index": [0], "data": [["a"]]}, Layout.COLUMNS),
        ({"columns": "q", "data": [["a"], ["b"]]}, Layout.ONE_ROW),
        ({"columns": ["q", "a"], "data": ["x"]}, Layout.ONE_ROW),
        ({"q": ["a", {"x": 1}], "a": ["b", "c"]}, Layout.COLUMNS),  # the first value decides
        ({"q": {"0": "a"}, "a": {"0": "b"}, "c": {"1": "c"}}, Layout.ONE_ROW),
        ({"q": {"0": "a", "x": "b"}, "a": {"0": "c", "x": "d"}}, Layout.RECORDS),
        # records
        ({"x": ROW, "y": OTHER}, Layout.RECORDS),
        ({"0": ROW}, Layout.RECORDS),
        ({"x": ROW}, Layout.ONE_ROW),
        ({"x": ROW, "y": {**OTHER, "more": 1}}, Layout.ONE_ROW),
        ({"x": {"q": 1}, "y": {"q": 2}}, Layout.ONE_ROW),
        ({"x": ROW, "y": OTHER, "n": 2}, Layout.ONE_ROW),
        ({"x": ROW, "y": {}}, Layout.ONE_ROW),
        *(
            ({"x": {key: "a", "b": 1}, "y": {key: "a", "b": 1}}, Layout.ONE_ROW)
            for key in ("role", "from", "author", "parts")
        ),
        ({f"{n}": n for n in range(MOST_COLUMNS + 1)}, Layout.RECORDS),
        ({f"{n}": n for n in range(MOST_COLUMNS)}, Layout.ONE_ROW),
    ],
)
def test_an_object_has_one_layout(document: dict[str, Any], layout: Layout) -> None:
    assert layout_of_object(document) is layout
    assert is_one_row(document) is (layout is Layout.ONE_ROW)


@pytest.mark.parametrize(
    ("document", "key"),
    [
        *(({"n": 1, "other": [ROW], name: [ROW]}, name) for name in LIST_KEYS),
        ({"rows": [ROW], "train": [ROW], "data": [ROW]}, "data"),
        ({"rows": [ROW], "train": [ROW]}, "train"),
        ({"data": [], "rows": [ROW]}, "data"),
        ({"data": [], "n": 1}, "data"),
        ({"mine": [ROW], "n": 1}, "mine"),
        ({"mine": [ROW], "yours": [ROW]}, None),
        ({"mine": [ROW], "tags": ["a"]}, None),
        ({"mine": [ROW], "about": {}}, None),
        ({"mine": [ROW], "n": 1, "about": {}}, None),
        ({"mine": [ROW, 3], "n": 1}, "mine"),
        ({"mine": [3, ROW], "n": 1}, None),
        ({"mine": []}, None),
        ({"mine": ["a"]}, None),
        ({"mine": CHAT}, None),
        ({"data": CHAT}, None),
        ({"data": "a"}, None),
    ],
)
def test_the_list_of_rows_is_a_known_one_or_the_only_one(
    document: dict[str, Any], key: str | None
) -> None:
    assert list_of_rows(document) == key
    assert is_one_row(document) is (key is None)


def test_an_empty_list_of_rows_has_no_columns() -> None:
    document: dict[str, Any] = {"columns": ["q"], "data": []}
    assert layout_of_object(document) is Layout.ONE_ROW
    assert list_of_rows(document) == "data"


def test_validation_goes_before_test(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({key: [ROW, OTHER] for key in ("test", "train", "validation")}))
    [held_out] = held_out_beside(discover(str(path)))
    assert held_out.split == "validation"


@pytest.mark.parametrize(
    "table",
    [
        {"q": ["a", "c"], "a": ["b", "d"]},
        {"q": {"0": "a", "1": "c"}, "a": {"0": "b", "1": "d"}},
        {"columns": ["q", "a"], "index": [7, 8], "data": [["a", "b"], ["c", "d"]]},
    ],
)
def test_a_table_of_columns_has_rows(table: dict[str, Any]) -> None:
    assert list(rows_of_columns(table)) == [ROW, OTHER]


def test_a_row_of_the_hub_is_taken_out_of_its_wrapping() -> None:
    wrapped = {"row_idx": 0, "row": ROW, "truncated_cells": []}
    assert unwrapped(wrapped) == ROW
    for other in (ROW, {"row": ROW}, {"row_idx": 0, "row": "a"}, [wrapped], 3):
        assert unwrapped(other) is other


def test_each_question_has_the_passage_that_it_is_about() -> None:
    first, second = {"question": "1"}, {"question": "2", "context": "its own"}
    element = {
        "title": "t",
        "paragraphs": [
            {"context": "one", "qas": [first, "x", first]},
            "x",
            {"context": "two", "qas": [second]},
            {"qas": "x"},
            {"qas": [first]},
        ],
    }
    assert list(questions_in(element)) == [
        {"question": "1", "context": "one"},
        {"question": "1", "context": "one"},
        {"question": "2", "context": "two"},
        {"question": "1", "context": None},
    ]
    assert [list(questions_in(other)) for other in (3, {}, {"paragraphs": 3})] == [[], [], []]
    assert has_paragraphs(element)
    assert has_paragraphs({"paragraphs": [{"qas": []}, "x"]})
    assert not has_paragraphs({"paragraphs": {"qas": []}})
    for paragraphs in (None, [], "x", ["x"], [{"qas": "x"}], [{"context": "a"}]):
        assert not has_paragraphs({"paragraphs": paragraphs})
    assert not has_paragraphs([element])
