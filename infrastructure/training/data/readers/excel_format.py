"""Reader of Excel workbooks: the first sheet, whose first line names the columns.

openpyxl reads them, line by line, and holds the texts of a workbook once; how large one is unpacked
is counted before.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infrastructure.core.optional import require
from infrastructure.training.data.readers.compressed import inflated_bytes
from infrastructure.training.data.readers.line_reader import BEGIN, Start
from infrastructure.training.data.readers.row_limits import MAX_ROW_BYTES, too_large_words
from infrastructure.training.data.readers.rows import LINE_TOO_LONG, BadRow, Row

if TYPE_CHECKING:
    from openpyxl import Workbook

MAX_WORKBOOK_BYTES = 64 << 20  # unpacked; an empty element of XML takes some ten times its length
MAX_LINES = 1 << 20  # as Excel has
NUM_SHEETS_SHOWN = 3


def read_excel(path: Path, name: str, start: Start = BEGIN) -> Iterator[Row | BadRow]:
    """The lines of the first sheet below the one that names the columns; columns without a name
    and empty lines are left out. `line` and `offset` count lines of the sheet.

    Raises:
        ValueError: the workbook is damaged, too large, or has no line that names the columns.
    """
    with _opened(path, name) as book:
        columns: dict[int, str] = {}
        for number, cells in enumerate(_lines(book, name), 1):
            if number > MAX_LINES:
                raise ValueError(
                    f"{name}: a sheet of more than {MAX_LINES:,} lines: save it as CSV"
                )
            if not any(cell not in (None, "") for cell in cells):
                continue
            if not columns:
                columns = _columns(cells, name, number)
            elif number >= start.offset:
                yield _row(cells, columns, name, number)


def other_sheets(path: Path) -> list[str]:
    """The names of the sheets that are not read, the first few."""
    with _opened(path, path.name) as book:
        return [sheet.title for sheet in book.worksheets[1 : 1 + NUM_SHEETS_SHOWN]]


@contextmanager
def _opened(path: Path, name: str) -> Iterator["Workbook"]:
    openpyxl = require("openpyxl", "reading Excel files")
    if inflated_bytes(path, MAX_WORKBOOK_BYTES) > MAX_WORKBOOK_BYTES:
        raise ValueError(
            f"{name}: a workbook of more than {MAX_WORKBOOK_BYTES >> 20} MiB: save it as CSV"
        )
    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of styles and of parts that are not read
        try:
            book: Workbook = openpyxl.load_workbook(file, read_only=True, data_only=True)
        except Exception as error:  # whatever a damaged part makes of the library
            raise ValueError(_damaged(name, error)) from error
        try:
            yield book
        finally:
            book.close()


def _lines(book: "Workbook", name: str) -> Iterator[Sequence[Any]]:
    if not book.worksheets:
        return
    sheet = book.worksheets[0]
    sheet.reset_dimensions()  # what the file claims of its size
    try:
        yield from sheet.iter_rows(values_only=True)
    except Exception as error:
        raise ValueError(_damaged(name, error)) from error


def _damaged(name: str, error: Exception) -> str:
    if isinstance(error, MemoryError):
        return f"{name}: reading this workbook takes too much memory: save it as CSV"
    return f"{name}: the Excel file is damaged ({' '.join(str(error).split())[:100]})"


def _columns(cells: Sequence[Any], name: str, number: int) -> dict[int, str]:
    named = {n: str(cell).strip() for n, cell in enumerate(cells) if cell not in (None, "")}
    names = list(named.values())
    if repeated := sorted({column for column in names if names.count(column) > 1}):
        raise ValueError(
            f"{name}:{number}: the column {repeated[0]!r} appears twice: rename one of them"
        )
    return named


def _row(cells: Sequence[Any], columns: dict[int, str], name: str, number: int) -> Row | BadRow:
    values = {column: _plain(cells[n]) if n < len(cells) else None for n, column in columns.items()}
    if sum(len(value) for value in values.values() if isinstance(value, str)) > MAX_ROW_BYTES:
        return BadRow(name, number, LINE_TOO_LONG, too_large_words(), offset=number)
    return Row(values, name, number, number)


def _plain(cell: object) -> object:
    """A cell as CSV would hold it: text."""
    if isinstance(cell, date | time):
        return cell.isoformat()
    return cell if cell is None or isinstance(cell, str) else str(cell)
