"""Reading a document goes on at any of its rows, as if it had been read from the beginning."""

import json
from pathlib import Path
from typing import Any

import pytest

from infrastructure.data.readers.json_format import lists_of, read_json
from infrastructure.data.readers.line_reader import Start
from infrastructure.data.readers.rows import BadRow, Row

ROWS: list[Any] = [{"n": n, "text": "é" * n} for n in range(5)]
ROWS[2:2] = ["no object"]
DOCUMENTS: dict[str, Any] = {
    "array": ROWS,
    "list": {"version": 1, "data": ROWS, "about": {"a": [1, 2]}},
    "columns": {"n": list(range(5)), "text": ["é" * n for n in range(5)]},
}


def facts_of(rows: list[Row | BadRow]) -> list[tuple[object, int, int]]:
    return [
        (row.values if isinstance(row, Row) else row.reason, row.line, row.offset) for row in rows
    ]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("layout", DOCUMENTS)
def test_any_start_gives_the_rest(tmp_path: Path, layout: str, indent: int | None) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(DOCUMENTS[layout], indent=indent, ensure_ascii=False))
    rows = list(read_json(path, "a.json"))
    assert len(rows) == (5 if layout == "columns" else 6)
    assert [row.line for row in rows] == sorted({row.line for row in rows})
    if indent is None:
        assert [row.line for row in rows] == list(range(1, len(rows) + 1))  # they are counted
    for number, row in enumerate(rows):
        found = list(read_json(path, "a.json", Start(row.offset, row.line)))
        assert facts_of(found) == facts_of(rows[number:])


@pytest.mark.parametrize("first", ["train", "validation", "other"])
def test_of_several_lists_the_requested_one_is_read(tmp_path: Path, first: str) -> None:
    lists = {name: [{"n": f"{name} {n}"} for n in range(3)] for name in ("other", "validation")}
    lists["train"] = [{"n": f"train {n}"} for n in range(4)]
    ordered = {first: lists[first], **lists}
    path = tmp_path / "a.json"
    path.write_text(json.dumps(ordered))
    assert lists_of(path) == ("validation", ("other",))
    for split in ("", "train", "validation", "other"):
        rows = list(read_json(path, "a.json", split=split))
        assert [row.values for row in rows if isinstance(row, Row)] == lists[split or "train"]
