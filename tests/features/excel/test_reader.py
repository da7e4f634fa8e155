"""Cells of a workbook are what Excel shows of them."""

from datetime import date, datetime, time, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infrastructure.data.readers.line_reader import Start
from infrastructure.data.readers.rows import Row, Unreadable
from infrastructure.features.excel import reader
from infrastructure.features.excel.reader import EXCEL

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
    assert isinstance(first[2], Unreadable)
    assert [first[0], first[1], first[3]] == ["a", None, None]
    assert second == ["b", "c", None, "d"]
    assert read(tmp_path, [["#N/A", None]])[0][1] is None


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
            with pytest.raises(ValueError, match=r"excel\.too_many_lines.*max_lines=3"):
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


def test_merged_cells_reach_down_to_their_last_line_alone(tmp_path: Path) -> None:
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
