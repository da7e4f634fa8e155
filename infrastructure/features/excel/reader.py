"""Reader of Excel workbooks: the first visible sheet, whose first line names the columns.

openpyxl reads the sheet line by line, but holds all texts of the workbook in memory, so the
unpacked size is checked first. If the format of a cell matters (dates, percentages, leading zeros),
the value is the text that Excel shows. Cells with an error, or with a formula that was never
computed, have no value. Vertically merged cells all have the value of the first cell.
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.data.readers.compressed import ZIP_BEGINNING, inflated_bytes
from infrastructure.data.readers.file_type import BinaryFormat
from infrastructure.data.readers.line_reader import BEGIN, Start
from infrastructure.data.readers.row_limits import MAX_ROW_BYTES, too_large_words
from infrastructure.data.readers.rows import (
    LINE_TOO_LONG,
    BadRow,
    Row,
    Unreadable,
)

if TYPE_CHECKING:
    from openpyxl import Workbook

MAX_WORKBOOK_BYTES = 64 << 20  # unpacked; an empty XML element takes about ten times its length
MAX_LINES = 1 << 20  # the limit of Excel
NUM_SHEETS_SHOWN = 3
FORMULA = re.compile(rb"<f[ />]")
MERGED = re.compile(rb'<mergeCell ref="([A-Z]+)(\d+):[A-Z]+(\d+)"')
SCAN_BYTES, LONGEST_MARK = 1 << 20, 64


class Excel(BinaryFormat):
    """Excel workbooks. `line` and `offset` count lines of the sheet.

    Columns without a name and empty lines are left out.
    """

    title = "Excel"
    magic = ZIP_BEGINNING
    extensions = (".xlsx", ".xlsm")
    has_header = True

    def __call__(self, path: Path, name: str, start: Start = BEGIN) -> Iterator[Row | BadRow]:
        with _opened(path, name) as book:
            columns: dict[int, str] = {}
            for number, cells in enumerate(_lines(book, path, name), 1):
                if number > MAX_LINES:
                    raise InputError("excel.too_many_lines", file=name, max_lines=MAX_LINES)
                if not any(cell not in (None, "") for cell in cells):
                    continue
                if not columns:
                    columns = _columns(cells, name, number)
                elif number >= start.offset:
                    yield _row(cells, columns, name, number)

    def unread(self, path: Path, name: str) -> str:
        with _opened(path, path.name) as book:
            read = _sheet_of(book, path.name)
            others = [sheet.title for sheet in book.worksheets if sheet is not read]
        if not others:
            return ""
        sheets = ", ".join(others[:NUM_SHEETS_SHOWN])
        return phrase("excel.first_sheet_read", file=name, sheets=sheets)


@contextmanager
def _opened(path: Path, name: str, *, formulas: bool = False) -> Iterator["Workbook"]:
    openpyxl = require("openpyxl", "excel.reading")
    if inflated_bytes(path) > MAX_WORKBOOK_BYTES:
        raise InputError("excel.too_large", file=name, max_mib=MAX_WORKBOOK_BYTES >> 20)
    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about styles and parts that are not read
        try:
            book: Workbook = openpyxl.load_workbook(file, read_only=True, data_only=not formulas)
        except Exception as error:  # damaged parts make the library raise anything
            raise InputError(_damaged(name, error)) from error
        try:
            yield book
        finally:
            book.close()


def _lines(book: "Workbook", path: Path, name: str) -> Iterator[list[object]]:
    """Yield the lines of the sheet as plain values."""
    if not book.worksheets:
        return
    sheet = _sheet_of(book, name)
    sheet.reset_dimensions()  # ignore the size that the file states
    try:
        marks = _marks_of(sheet)
        with ExitStack() as opened:
            formula_lines: Iterator[Any] = repeat(())
            if marks.has_formulas:
                formulas = opened.enter_context(_opened(path, name, formulas=True))[sheet.title]
                formulas.reset_dimensions()
                formula_lines = formulas.iter_rows()
            lines = zip(sheet.iter_rows(), formula_lines, strict=False)
            for number, (cells, others) in enumerate(lines, 1):
                values = [_plain(cell) for cell in cells]
                for n, cell in enumerate(others[: len(values)]):
                    if cell.data_type == "f" and values[n] is None:
                        values[n] = Unreadable(phrase("excel.formula_without_value"))
                yield marks.filled(number, values) if marks.merged else values
    except Exception as error:
        raise InputError(_damaged(name, error)) from error


def _sheet_of(book: "Workbook", name: str) -> Any:
    """Return the first sheet that Excel shows."""
    shown = [sheet for sheet in book.worksheets if sheet.sheet_state == "visible"]
    if book.worksheets and not shown:
        raise InputError("excel.all_sheets_hidden", file=name)
    return shown[0] if shown else None


@dataclass
class _Marks:
    """Information about a sheet that openpyxl does not give with the cells, such as merged cells.

    Attributes:
        merged: (line, column) of the first cell of a vertically merged range → its last line.
    """

    has_formulas: bool = False
    merged: dict[tuple[int, int], int] = field(default_factory=dict)
    _open: dict[int, tuple[int, object]] = field(default_factory=dict)

    def filled(self, number: int, values: list[object]) -> list[object]:
        """Return a line, completed with the values of merged cells that extend into it.

        Must be called for all lines, in order.
        """
        for n, value in enumerate(values):
            if (number, n) in self.merged:
                self._open[n] = (self.merged[number, n], value)
        self._open = {n: held for n, held in self._open.items() if held[0] >= number}
        values += [None] * (max(self._open, default=0) + 1 - len(values))
        for n, (_, value) in self._open.items():
            values[n] = value
        return values


def _marks_of(sheet: Any) -> _Marks:
    """Return information that only the XML of a sheet contains, such as merged cells."""
    column_number = require("openpyxl.utils", "excel.reading").column_index_from_string
    marks, tail = _Marks(), b""
    with sheet.parent._archive.open(sheet._worksheet_path) as file:
        while chunk := file.read(SCAN_BYTES):
            text = tail + chunk
            marks.has_formulas = marks.has_formulas or FORMULA.search(text) is not None
            for column, first, last in MERGED.findall(text):
                if first != last:
                    at = (int(first), column_number(column.decode()) - 1)
                    marks.merged[at] = int(last)
            tail = text[-LONGEST_MARK:]
    return marks


def _damaged(name: str, error: Exception) -> str:
    if isinstance(error, MemoryError):
        return phrase("excel.out_of_memory", file=name)
    return phrase("excel.damaged", file=name, reason=" ".join(str(error).split())[:100])


def _columns(cells: Sequence[Any], name: str, number: int) -> dict[int, str]:
    named = {n: str(cell).strip() for n, cell in enumerate(cells) if cell not in (None, "")}
    names = list(named.values())
    if repeated := sorted({column for column in names if names.count(column) > 1}):
        raise InputError("excel.column_twice", file=name, line=number, column=repeated[0])
    return named


def _row(
    cells: Sequence[object], columns: Mapping[int, str], name: str, number: int
) -> Row | BadRow:
    values = {column: cells[n] if n < len(cells) else None for n, column in columns.items()}
    if sum(len(value) for value in values.values() if isinstance(value, str)) > MAX_ROW_BYTES:
        return BadRow(name, number, LINE_TOO_LONG, too_large_words(), offset=number)
    return Row(values, name, number, number)


def _plain(cell: Any) -> object:
    """Return the value of a cell as text, as in a CSV file; None if the cell is empty."""
    value = cell.value
    if value is None:
        return None
    if cell.data_type == "e":
        return Unreadable(phrase("excel.error_in_cell", value=value))
    if isinstance(value, str):
        return _unescaped(value)
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, datetime) and value.time() == time() and _shows_no_time(cell):
        return value.date().isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        minutes, seconds = divmod(round(value.total_seconds()), 60)
        return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    return _number(value, str(cell.number_format or ""))


def _unescaped(text: str) -> str:
    """Return a text with its escaped control characters decoded: `_x000D_` ends a line."""
    if "_x" not in text:
        return text
    unescape = require("openpyxl.utils.escape", "excel.reading").unescape
    return str(unescape(text))


def _shows_no_time(cell: Any) -> bool:
    numbers = require("openpyxl.styles.numbers", "excel.reading")
    return bool(numbers.is_datetime(cell.number_format) == "date")


def _number(value: float, shown_as: str) -> str:
    """Return a number as Excel shows it: up to 15 digits, without separators and currency signs."""
    if shown_as.endswith("%"):
        return f"{100 * value:.15g}%"
    if isinstance(value, int):
        return str(value).zfill(len(shown_as) if re.fullmatch("0+", shown_as) else 0)
    shown = f"{value:.15g}"
    return shown if float(shown) != value else str(value)


EXCEL = Excel()
