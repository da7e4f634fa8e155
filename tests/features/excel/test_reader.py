"""Cells of a workbook are what Excel shows of them."""

import re
import warnings
import zipfile
from datetime import date, datetime, time, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infrastructure.data.readers.compressed import inflated_bytes
from infrastructure.data.readers.line_reader import Start
from infrastructure.data.readers.row_limits import too_large_words
from infrastructure.data.readers.rows import LINE_TOO_LONG, BadRow, Row, Unreadable
from infrastructure.features.excel import reader
from infrastructure.features.excel.reader import EXCEL
from tests.data.file_shapes import zipped

pytest.importorskip("openpyxl")


def read(
    folder: Path, lines: list[list[Any]], merged: tuple[str, ...] = (), formats: str = ""
) -> list[list[Any]]:
    """The values below a header, of a sheet with these lines."""
    from openpyxl import Workbook

    book = Workbook()
    sheet = book.active
    width = max(map(len, lines))
    for line in [[f"c{n}" for n in range(width)], *lines]:
        sheet.append(line)
    for row in sheet.iter_rows(min_row=2) if formats else ():
        for cell in row:
            cell.number_format = formats
    for cells in merged:
        sheet.merge_cells(cells)
    book.save(folder / "rows.xlsx")
    rows = [*EXCEL(folder / "rows.xlsx", "rows.xlsx")]
    assert all(isinstance(row, Row) for row in rows)
    return [[*row.values.values()] for row in rows if isinstance(row, Row)]


@pytest.mark.parametrize(
    ("shown_as", "cells", "expected"),
    [
        ("0%", [0.5, 1, -0.07, 1 / 3], ["50%", "100%", "-7%", "33.3333333333333%"]),
        ("0", [7, 12], ["7", "12"]),
        ("000", [7, 1234, 0.5], ["007", "1234", "0.5"]),
        ("0.00", [7, 2.5], ["7", "2.5"]),
        ("General", [0.1 + 0.2, 2 / 3, 1e-7], ["0.3", "0.666666666666667", "1e-07"]),
        (
            "General",
            [True, False, "TRUE", "_x0041_", "a_xb"],
            ["TRUE", "FALSE", "TRUE", "A", "a_xb"],
        ),
        (
            "yyyy-mm-dd",
            [datetime(2024, 1, 5), datetime(2024, 1, 5, 10, 30)],
            ["2024-01-05", "2024-01-05T10:30:00"],
        ),
        ("yyyy-mm-dd hh:mm", [datetime(2024, 1, 5)], ["2024-01-05T00:00:00"]),
        ("dd/mm/yy", [date(2024, 1, 5)], ["2024-01-05"]),
        ("hh:mm", [time(3, 4)], ["03:04:00"]),
        (
            "[h]:mm:ss",
            [timedelta(hours=26, minutes=3, seconds=4), timedelta(seconds=59.6)],
            ["26:03:04", "0:01:00"],
        ),
    ],
)
def test_a_cell_is_what_is_shown(
    tmp_path: Path, shown_as: str, cells: list[Any], expected: list[str]
) -> None:
    assert read(tmp_path, [cells], formats=shown_as) == [expected]


def test_only_a_formula_without_a_value_is_unreadable(tmp_path: Path) -> None:
    """Empty cells of the same sheet stay empty."""
    (first, second) = read(tmp_path, [["a", None, "=1+1", None], ["b", "c", None, "d"]])
    assert first == ["a", None, Unreadable("excel.formula_without_value()"), None]
    assert second == ["b", "c", None, "d"]
    error = Unreadable("excel.error_in_cell(value=#N/A)")
    assert read(tmp_path, [["#N/A", None]]) == [[error, None]]


def test_a_line_has_the_number_that_excel_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(tmp_path, [["a", "b"], ["", None], ["c", "d"]])
    path = tmp_path / "rows.xlsx"
    rows = [*EXCEL(path, "rows.xlsx")]
    assert [(row.line, row.offset) for row in rows] == [(2, 2), (4, 4)]
    assert [row.line for row in EXCEL(path, "rows.xlsx", Start(4, 4))] == [4]
    for most, is_read in ((4, True), (3, False)):
        monkeypatch.setattr(reader, "MAX_LINES", most)
        if is_read:
            assert len([*EXCEL(path, "rows.xlsx")]) == 2
        else:
            with pytest.raises(ValueError, match=r"too_many_lines\(file=rows\.xlsx, max_lines=3\)"):
                [*EXCEL(path, "rows.xlsx")]


def test_the_first_sheet_that_is_shown_is_read() -> None:
    def sheets(*states: str) -> Any:
        return SimpleNamespace(worksheets=[SimpleNamespace(sheet_state=state) for state in states])

    for states, number in (
        (("visible", "visible", "hidden"), 0),
        (("hidden", "veryHidden", "visible", "visible"), 2),
    ):
        book = sheets(*states)
        assert reader._sheet_of(book, "a.xlsx") is book.worksheets[number]
    assert reader._sheet_of(sheets(), "a.xlsx") is None, "nothing but charts"
    with pytest.raises(ValueError, match=r"excel\.all_sheets_hidden.*file=a\.xlsx"):
        reader._sheet_of(sheets("hidden", "veryHidden"), "a.xlsx")


def written(path: Path, **sheets: list[list[Any]]) -> Path:
    """A workbook with these sheets."""
    from openpyxl import Workbook

    book = Workbook()
    book.remove(book.active)
    for title, lines in sheets.items():
        sheet = book.create_sheet(title)
        for line in lines:
            sheet.append(line)
    book.worksheets[0].sheet_state = "hidden" if len(sheets) > 1 else "visible"
    book.save(path)
    return path


def test_three_of_the_other_sheets_are_named(tmp_path: Path) -> None:
    titles = "abcdef"
    path = written(tmp_path / "rows.xlsx", **{title: [[title], [1]] for title in titles})
    assert [row.values for row in EXCEL(path, "x") if isinstance(row, Row)] == [{"b": "1"}]
    assert EXCEL.unread(path, "x") == "excel.first_sheet_read(file=x, sheets=a, c, d)"
    path = written(tmp_path / "one.xlsx", b=[["b"], [1]])
    assert EXCEL.unread(path, "x") == ""


def test_the_first_line_with_content_names_the_columns(tmp_path: Path) -> None:
    lines = [[], [None, " q ", "", "a"], [], ["x", "1", "y", "2"], [None, "3"], [0]]
    path = written(tmp_path / "rows.xlsx", b=lines)
    rows = [*EXCEL(path, "x")]
    values = [row.values for row in rows if isinstance(row, Row)]
    assert values == [{"q": "1", "a": "2"}, {"q": "3", "a": None}, {"q": None, "a": None}]
    assert [(row.source, row.line) for row in rows] == [("x", 4), ("x", 5), ("x", 6)]
    written(path, b=[[], ["z", "b", "z", "b", "a"], ["1"]])
    with pytest.raises(ValueError, match=r"excel\.column_twice\(file=x, line=2, column=b\)"):
        [*EXCEL(path, "x")]


def test_a_row_of_long_cells_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_ROW_BYTES", 10)
    path = tmp_path / "rows.xlsx"
    written(path, b=[["q", "a"], ["12345", "12345"], ["12345", "123456"], ["1", "2"]])
    found = [row for row in EXCEL(path, "x") if isinstance(row, BadRow)]
    assert found == [BadRow("x", 3, LINE_TOO_LONG, too_large_words(), offset=3)]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError("all"), "excel.out_of_memory(file=x)"),
        (ValueError("a \n b" * 60), f"excel.damaged(file=x, reason={('a ba' + ' ba' * 60)[:100]})"),
    ],
)
def test_damage_has_a_short_reason(
    tmp_path: Path, error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "rows.xlsx", b=[["q"], ["1"]])

    def fail(*given: object, **settings: object) -> None:
        raise error

    for place in ("openpyxl.load_workbook", f"{reader.__name__}._marks_of"):
        with monkeypatch.context() as patch:
            patch.setattr(place, fail)
            with pytest.raises(ValueError, match=re.escape(words)):
                [*EXCEL(path, "x")]


STYLES = (
    b'<styleSheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"/>'  # no default
)


def test_the_size_and_the_styles_that_a_workbook_states_do_not_matter(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.xlsx", b=[["q", "a"], ["1", "=1+1"], ["2", "3"]])
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    sheet = content["xl/worksheets/sheet1.xml"]
    assert b'ref="A1:B3"' in sheet
    content["xl/worksheets/sheet1.xml"] = sheet.replace(b'ref="A1:B3"', b'ref="A1:A2"')
    content["xl/styles.xml"] = STYLES
    path.write_bytes(zipped(content))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = [row.values for row in EXCEL(path, "x") if isinstance(row, Row)]
    unknown = Unreadable("excel.formula_without_value()")
    assert rows == [{"q": "1", "a": unknown}, {"q": "2", "a": "3"}]
    assert EXCEL.has_header
    computed = re.sub(rb"(</f><v)(></v>| ?/>)", rb"\1>2</v>", sheet)
    assert computed != sheet
    path.write_bytes(zipped({**content, "xl/worksheets/sheet1.xml": computed}))
    assert [row.values["a"] for row in EXCEL(path, "x") if isinstance(row, Row)] == ["2", "3"]


def test_a_workbook_may_be_as_large_as_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (reader.MAX_WORKBOOK_BYTES, reader.MAX_LINES) == (64 << 20, 1 << 20)
    path = written(tmp_path / "rows.xlsx", b=[["q"], ["x" * 9999]])
    size = inflated_bytes(path)
    monkeypatch.setattr(reader, "MAX_WORKBOOK_BYTES", size)
    assert len([*EXCEL(path, "x")]) == 1
    monkeypatch.setattr(reader, "MAX_WORKBOOK_BYTES", size - 1)
    with pytest.raises(ValueError, match=r"excel\.too_large\(file=x, max_mib=0\)"):
        [*EXCEL(path, "x")]


def test_merged_cells_reach_down_to_their_last_line_alone(tmp_path: Path) -> None:
    below = [["a", "1"], ["b", None], ["c", None]]
    assert read(tmp_path, below, ("B2:B4",)) == [["a", "1"], ["b", "1"], ["c", "1"]]
    lines = [
        ["a", "1", "x", None],
        ["b", None, None, None],
        ["c", None, "y", None],
        ["d", "2", None, "z"],
        ["e", None, "w", None],
    ]
    found = read(tmp_path, lines, ("B2:B4", "C2:C3", "B5:B6", "C4:C5"))
    assert [line[1] for line in found] == ["1", "1", "1", "2", "2"]
    assert [line[2] for line in found] == ["x", "x", "y", "y", "w"]
    assert [line[3] for line in found] == [None, None, None, "z", None]
    assert [line[0] for line in found] == ["a", "b", "c", "d", "e"]


def test_cells_that_are_merged_across_are_not_repeated(tmp_path: Path) -> None:
    found = read(tmp_path, [["a", "b", None], ["c", None, "d"]], ("B2:C2",))
    assert found == [["a", "b", None], ["c", None, "d"]]
    wide = read(tmp_path, [["a", "b", None], ["c", None, None]], ("B2:C3",))
    assert [line[1] for line in wide] == ["b", "b"]


def test_a_mark_at_the_border_of_two_pieces_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "infrastructure.features.excel.reader.SCAN_BYTES"
    for size in (7, 50, 64):
        monkeypatch.setattr(module, size)
        found = read(tmp_path, [["a", "b", "=1+1"], ["c", None, "d"]], ("B2:B3",))
        assert [line[1] for line in found] == ["b", "b"]
        assert isinstance(found[0][2], Unreadable)
