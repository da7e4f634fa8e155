"""Reading a document goes on at any of its rows, as if it had been read from the beginning."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infrastructure.data.readers import json_format, row_limits
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


@pytest.mark.parametrize(
    ("layout", "document"),
    [
        ("nested", {"data": [{"paragraphs": [{"context": "c", "qas": [{"n": 0}, {"n": 1}]}]}]}),
        ("records", {"x": {"n": 0, "m": 0}, "y": {"n": 1, "m": 0}}),
        ("objects", None),
        ("one row", {"n": 0, "messages": [{"role": "user"}]}),
    ],
)
def test_any_start_gives_the_rest_of_other_layouts(
    tmp_path: Path, layout: str, document: Any
) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"n": 0}\n\n{"n": 1},\n' if document is None else json.dumps(document))
    rows = list(read_json(path, "a.json"))
    found = [row.values["n"] for row in rows if isinstance(row, Row)]
    assert found == list(range(1 if layout == "one row" else 2))
    assert [row.line for row in rows] == ([1, 3] if layout == "objects" else [1, 2][: len(rows)])
    for number, row in enumerate(rows):
        again = list(read_json(path, "a.json", Start(row.offset, row.line)))
        assert facts_of(again) == facts_of(rows[number:])


def test_an_element_that_is_not_a_row_is_skipped_and_its_kind_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[\n"text",\n{"a": "\\ud83d", "b": ["x"]},\n[{"a": 1}],\nnull]')
    found = [row for row in read_json(path, "a.json") if isinstance(row, BadRow)]
    assert [(row.line, row.reason, row.detail) for row in found] == [
        (2, "wrong type", "data.json_element_not_object(kind=text)"),
        (3, "half a character", ""),
        (4, "wrong type", "data.json_element_not_object(kind=a list)"),
        (5, "wrong type", "data.json_element_not_object(kind=nothing)"),
    ]
    assert [row.excerpt for row in found] == ["text", "a ? b x", "[{'a': 1}]", "None"]
    assert [(row.source, row.offset) for row in found] == [("a.json", n) for n in (2, 10, 39, 51)]
    path.write_bytes(b'[{"a": "bcd\xfcf"}, {"a": "\xd0\xd1\xd2\xd3"}]')
    assert list(read_json(path, "x")) == [
        BadRow("x", 1, "invalid UTF-8", "", "a bcd?f", 1, "cp1252"),
        BadRow("x", 2, "invalid UTF-8", "", "a ????", 17),
    ]


@pytest.mark.parametrize(
    "text", ['[{"a": "é"},\n {"a": 2}]', '{"data":\n[{"a": "é"},\n {"a": 2}]}']
)
def test_a_mark_at_the_beginning_moves_offsets_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    plain = list(read_json(path, "x"))
    path.write_text("\ufeff" + text)
    marked = list(read_json(path, "x"))
    assert [replace(row, offset=row.offset - 3) for row in marked] == plain
    for number, row in enumerate(marked):
        assert list(read_json(path, "x", Start(row.offset, row.line))) == marked[number:]


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ('[{"a": 1},\n{"a": 1, "a": 2}]', 2, "key=a)"),
        ('[{"a": 1},\n{"a":\n1 2}]', 2, "error=Expecting ',' delimiter, line=3)"),
        ('[{"a": 1},\n{"a"', 2, "error=Expecting ':' delimiter, line=2)"),
        ('[{"a": 1},\n\n{"b": ' + "[" * 600 + "]" * 600 + "}]", 3, "too_deep"),
        ('{"data": [{"a": 1}],\n"b" 3}', 2, "json_expected(character=:)"),
        ('{"data": [{"a": 1}], "b": [3\n 4]}', 2, "json_expected(character=,)"),
        ('{"a": {"b": 1, "c": 1},\n"d": {"b": 1, "c": 2},\n"d" {}}', 3, "character=:)"),
        ('[{"a": 1}\n]\n\nx', 4, "json_text_after_end()"),
    ],
)
def test_a_document_that_is_broken_is_named_with_the_line(
    tmp_path: Path, text: str, line: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    for num_bytes in (1 << 20, 7):
        monkeypatch.setattr(json_format, "READ_BYTES", num_bytes)
        with pytest.raises(
            ValueError, match=rf"data\.json_broken\(file=x, line={line}, reas"
        ) as it:
            list(read_json(path, "x"))
        assert reason in str(it.value)


def test_an_element_of_too_many_values_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_limits, "MAX_ROW_VALUES", 1 << 20)
    monkeypatch.setattr(json_format, "READ_BYTES", 1 << 22)
    (tmp_path / "a.json").write_text('[{"a": 1},\n[' + "1," * (1 << 20) + "1]]")
    size = r"size=data\.row_too_large\(max_mib=16, max_millions=1\)\)"
    refusal = rf"json_broken\(file=x, line=1, reason=data\.json_element_too_large\({size}"
    with pytest.raises(ValueError, match=refusal):
        list(read_json(tmp_path / "a.json", "x"))


@pytest.mark.parametrize("document", ["[ELEMENT]", '{"data": [ELEMENT, {"a": 1}]}'])
def test_an_element_longer_than_a_row_is_refused(
    document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_format, "READ_BYTES", 100)
    monkeypatch.setattr(json_format, "MAX_ELEMENT_CHARACTERS", 1 << 20)
    path = tmp_path / "a.json"
    for length, is_read in ((1 << 19, True), (1 << 21, False)):
        path.write_text(document.replace("ELEMENT", json.dumps({"a": "x" * length})))
        if is_read:
            assert len(list(read_json(path, "a.json"))) >= 1
        else:
            with pytest.raises(ValueError, match=r"line=1, reason=.*element_too_long\(max_mib=1\)"):
                list(read_json(path, "a.json"))


def test_a_table_larger_than_memory_is_refused_and_records_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_format, "MAX_TABLE_BYTES", 100)
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"a": ["x" * 40] * 2, "b": ["y" * 40] * 2, "c": ["z"] * 2}))
    with pytest.raises(ValueError, match=r"too_large\(file=a\.json, max_mib=0, max_columns=1000\)"):
        list(read_json(path, "a.json"))
    path.write_text(json.dumps({f"{n}": {"a": "x" * 40, "b": n} for n in range(9)}))
    assert [row.values["b"] for row in read_json(path, "a.json") if isinstance(row, Row)] == [
        *range(9)
    ]
