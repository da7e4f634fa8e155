"""Records of delimited text: which are rows, which are set aside, and as how many."""

import re
from pathlib import Path

import pytest

from infrastructure.data.readers import row_limits, text_formats
from infrastructure.data.readers.line_reader import BEGIN, Start, read_lines
from infrastructure.data.readers.rows import (
    BROKEN_CSV,
    BROKEN_JSON,
    INVALID_UTF8,
    LINE_TOO_LONG,
    WRONG_COLUMNS,
    WRONG_TYPE,
    BadRow,
    Row,
)
from infrastructure.data.readers.text_encoding import likely_encoding
from infrastructure.data.readers.text_formats import read_csv, read_jsonl, read_text, read_tsv

HEADER = "q,a\n"


def read(folder: Path, content: str, *, is_tsv: bool = False) -> list[tuple[int, object]]:
    """(line, fields of a row or the reason and detail of a bad one)."""
    path = folder / "rows.txt"
    path.write_text(content, newline="")
    rows = (read_tsv if is_tsv else read_csv)(path, "rows.txt")
    return [
        (row.line, [*row.values.values()] if isinstance(row, Row) else (row.reason, row.detail))
        for row in rows
    ]


@pytest.mark.parametrize(
    ("content", "num_joined"),
    [
        (HEADER + 'p,"One\ntwo,three"\n', 2),
        (HEADER + 'p,"One\r\ntwo,three"\r\n', 2),
        (HEADER + 'p,"One\ntwo, three"\n', 0),  # a sentence
        (HEADER + ' p,"One\n two,three"\n', 2),  # where the first field begins says nothing
        ("q, a\n" + 'p, "One\ntwo, three"\n', 0),  # no quote that opens a field
        ("q, a\n" + '"p, One\ntwo, three", x\n', 0),  # its lines have three fields
        ("q, a,b\n" + 'p, o,"1\nt, u,v"\n', 2),  # such names are separated so themselves
        (HEADER + 'p,"One\n,two"\n', 0),
        (HEADER + '"One,\ntwo",x\n', 0),
        (HEADER + 'p,"One\ntwo"\n', 0),
        (HEADER + 'p,"One\ntwo,three\nfour"\n', 0),
        ('q\n"One\ntwo"\n', 0),
        ('q;a\np;"One\ntwo;three"\n', 2),
        ('q;a\np;"One\ntwo;three"\np;"Roses\nare"\np;"Roses\nare"\n', 2),
        (HEADER + 'p,"One\ntwo,three"\np,"Roses\nare"\n', 2),  # one of each decides nothing
        (HEADER + 'p,"One\ntwo,three"\np,"Roses\nare"\np,"Roses\nare"\n', 0),
        (HEADER + 'p,"Roses\nare"\np,"Roses\nare"\np,"One\ntwo,three"\n', 0),
    ],
)
def test_lines_that_would_be_rows_are_joined_by_a_stray_quote(
    tmp_path: Path, content: str, num_joined: int
) -> None:
    found = read(tmp_path, content)
    joined = [one for one in found if isinstance(one[1], tuple)]
    assert len(joined) == num_joined
    detail = "data.quote_spans_rows(line=3, num_lines=2)"
    assert joined == [(2, ("broken CSV", detail))] * num_joined


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_return_within_a_line_is_a_part_of_its_cell(tmp_path: Path, end: str) -> None:
    content = end.join(["q,a\rb", "one\rtwo,x", '"é\r,",y', '"1\r', '2",z', ""])
    path = tmp_path / "rows.txt"
    path.write_bytes(content.encode())
    rows = [row.values for row in read_csv(path, "rows.txt") if isinstance(row, Row)]
    assert rows == [
        {"q": "one\rtwo", "a\rb": "x"},
        {"q": "é\r,", "a\rb": "y"},
        {"q": f"1\r{end}2", "a\rb": "z"},
    ]


def test_the_first_records_decide_whether_fields_span_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poems = 'p,"Roses\nare"\n' * 2
    content = HEADER + 'p,"One\ntwo,three"\n' + "x,y\n" * 60 + poems
    for sniffed, num_bad in ((1 << 20, 0), (100, 2)):
        monkeypatch.setattr(text_formats, "SNIFF_BYTES", sniffed)
        found = read(tmp_path, content)
        assert sum(isinstance(one[1], tuple) for one in found) == num_bad


UP_TO_3 = "data.record_ends_on_line(line=3)"


def fields(number: int, extent: str = "") -> str:
    """The detail of a row with this number of fields in a table of two columns."""
    counts = f"num_fields={number}, num_columns=2, extent={extent}"
    return f"data.field_count_differs({counts})"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("1,2,3\n4,5\n", [(2, fields(3)), (3, ["4", "5"])]),
        ('1,"2\nx y",3,4\n5,6\n', [(2, fields(4, UP_TO_3)), (4, ["5", "6"])]),
        ('1\n\n4,5\n"6"\n', [(2, fields(1)), (4, ["4", "5"]), (5, fields(1))]),
        ('1,"2" x\n4,5\n', [(2, "expected after"), (3, ["4", "5"])]),
        ('1,"2\n3,4" x\n5,6\n', [(2, UP_TO_3), (2, UP_TO_3), (4, ["5", "6"])]),
        ("q,a\n1,2\n", [(2, "data.header_repeated()"), (3, ["1", "2"])]),
        ("\ufeffq,a\n1,2\n", [(2, "data.header_repeated()"), (3, ["1", "2"])]),
        ("q,b\nx,a\n", [(2, ["q", "b"]), (3, ["x", "a"])]),
        ("é,ü\n1,2\n", [(2, ["é", "ü"]), (3, ["1", "2"])]),
        ("é\0,2\n1,2\n", [(2, "data.nul_byte()"), (3, ["1", "2"])]),
    ],
)
def test_a_record_that_does_not_fit_is_set_aside_with_its_lines(
    tmp_path: Path, content: str, expected: list[tuple[int, object]]
) -> None:
    found = read(tmp_path, HEADER + content)
    assert [line for line, _ in found] == [line for line, _ in expected]
    for (_, one), (_, wanted) in zip(found, expected, strict=True):
        if isinstance(wanted, list):
            assert one == wanted
        else:
            assert isinstance(one, tuple)
            assert str(wanted) in one[1]
            assert (UP_TO_3 in one[1]) == (UP_TO_3 in str(wanted))


@pytest.mark.parametrize(
    ("line", "reason", "shown"),
    [
        (b"1,2,3", WRONG_COLUMNS, "['1', '2', '3']"),
        (b'1,"2"  x', BROKEN_CSV, '1,"2" x'),
        (b'1,"2\n3,4"', BROKEN_CSV, '1,"2'),
        (b"q,a", BROKEN_CSV, "['q', 'a']"),
        (b"1,\0", BROKEN_CSV, "['1', '\\x00']"),
        (b"1,\xff", INVALID_UTF8, "['1', '?']"),
        (b'1,"\xff\n3,4\nx y"', INVALID_UTF8, "['1', '?\\n3,4\\nx y']"),
    ],
)
def test_a_record_that_is_set_aside_is_found_and_shown(
    tmp_path: Path, line: bytes, reason: str, shown: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"q,a\n\n\xc3\xa9,1\n" + line + b"\n5,6\n")
    _, *bad, last = read_csv(path, "x")
    assert isinstance(last, Row)
    offset = len(b"q,a\n\n\xc3\xa9,1\n")
    assert {(type(row), row.source, row.line, row.offset) for row in bad} == {
        (BadRow, "x", 4, offset)
    }
    assert {(row.reason, row.excerpt) for row in bad if isinstance(row, BadRow)} == {
        (reason, shown)
    }
    advice = "data.fix_spanning_quote()" if line == b'1,"2\n3,4"' else ""
    assert {row.advice for row in bad if isinstance(row, BadRow)} == {advice}
    assert len(bad) == (2 if advice else 1)
    assert list(read_csv(path, "x", Start(offset, 4))) == [*bad, last]


@pytest.mark.parametrize(
    ("line", "reason", "detail", "shown", "encoding"),
    [
        (b'{"a": 1', BROKEN_JSON, "error=Expecting ',' delimiter, column=8)", None, ""),
        (b'{"a" 1}', BROKEN_JSON, "error=Expecting ':' delimiter, column=6)", None, ""),
        (b'{"a": "x', BROKEN_JSON, "error=Unterminated string starting, column=7)", None, ""),
        (b'{"a": 1, "a": 2}', BROKEN_JSON, "key=a", None, ""),
        (
            b'{"abc": "\xfc"}',
            INVALID_UTF8,
            "byte_of_line(position=10)",
            '{"abc": "\ufffd"}',
            "cp1252",
        ),
        (b"[1]", WRONG_TYPE, "line_not_object(kind=a list)", None, ""),
        (
            b"[" * 2000,
            LINE_TOO_LONG,
            "row_too_large(max_mib=16, max_millions=0)",
            "[" * 119 + "…",
            "",
        ),
        (b"x" * 3000, LINE_TOO_LONG, "data.row_too_long(max_mib=16)", "", ""),
    ],
)
def test_a_line_that_is_no_row_is_found_and_shown(
    tmp_path: Path,
    line: bytes,
    reason: str,
    detail: str,
    shown: str | None,
    encoding: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_limits, "MAX_ROW_VALUES", 1000)
    monkeypatch.setattr(
        text_formats, "read_lines", lambda file, start=BEGIN: read_lines(file, start, 2500)
    )
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\r\n\r\n' + line + b"\r\n" + b'{"a": 3}')
    first, bad, last = read_jsonl(path, "x")
    assert (first, last) == (Row({"a": 1}, "x", 1, 0), Row({"a": 3}, "x", 4, 14 + len(line)))
    assert isinstance(bad, BadRow)
    seen = (bad.source, bad.line, bad.offset, bad.reason, bad.excerpt, bad.encoding)
    assert seen == ("x", 3, 12, reason, line.decode() if shown is None else shown, encoding)
    assert detail in bad.detail


def test_a_passage_that_is_no_text_is_found_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_formats, "MAX_LINE_BYTES", 20)
    path = tmp_path / "rows.txt"
    path.write_bytes(b"\none\n\nab\xfccd\n\n\0\n\n" + b"12345678\n" * 3 + b"\nend\n" + b"x" * 16)
    rows = list(read_text(path, "x"))
    text, nul = "data.byte_of_passage(position=3)", "data.nul_byte()"
    assert rows == [
        Row({"text": "one"}, "x", 2, 1),
        BadRow("x", 4, INVALID_UTF8, text, "ab\ufffdcd", 6, "cp1252"),
        BadRow("x", 6, WRONG_TYPE, nul, "\0", 13),
        BadRow("x", 8, LINE_TOO_LONG, "data.row_too_long(max_mib=0)", "", 16),
        Row({"text": "end\n" + "x" * 16}, "x", 12, 44),
    ]


def test_a_header_over_two_lines_is_one_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    assert read(tmp_path, '"q\nx",a\n1,2\n') == [(3, ["1", "2"])]
    broken = r"header_line_broken\(file=rows\.txt, reason='.' expected after '\"'\)"
    with pytest.raises(ValueError, match=broken):
        read(tmp_path, 'q,"a" x\n1,2\n')
    with pytest.raises(ValueError, match=r"data\.quote_never_closed.*file=rows\.txt.*line=2"):
        read(tmp_path, HEADER + '1,"2\n3,4\n')


def test_a_row_of_which_one_field_is_no_text_is_set_aside_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    for row in (b"x,\xff", b"\xfcber,so", b"\xfc,\xff"):
        path.write_bytes(b"q,a\n\xc3\xa9,1\n" + row + b"\n2,3\n")
        first, bad, last = read_csv(path, "rows.csv")
        assert isinstance(first, Row)
        assert isinstance(last, Row)
        assert (first.values["q"], last.line) == ("é", 4)
        assert isinstance(bad, BadRow)
        assert (bad.source, bad.line, bad.reason) == ("rows.csv", 3, INVALID_UTF8)
        assert bad.offset == len(b"q,a\n\xc3\xa9,1\n")
        assert bad.encoding == likely_encoding(row.replace(b",", b" "))


TABBED = [f"q{n}\ta{n}" for n in range(40)]


@pytest.mark.parametrize(
    ("lines", "are_text"),
    [
        (['"5 inches\tx'], True),
        (['x\t"so" he said'], True),
        (['x\t"so"'], False),
        (['"x"\tso'], False),
        (['x\t"so" he said', 'y\t"so"'], False),  # as many of each
        (['x\t"so" he said', 'y\t"so" she', 'z\t"so"'], True),
        (['x\tsay "so"'], False),  # means the same either way
        (['x\t"so" he said', "", ""], True),
        # of 42 lines and the header two may be uneven
        (['x\t"so" he said', "1\t2\t3", "y"], True),
        (['x\t"so" he said', "1\t2\t3", "y", "z"], False),
        (['x\t"so" he said', *["p\tq"] * 15, "1\t2\t3", "y", "z"], True),  # 3 of 60
        (['x\t"one', 'two"', 'y\t"one', 'two"', 'z\t"so" he said'], False),
    ],
)
def test_quotes_of_a_tabbed_file_are_text_where_they_break_more_than_they_quote(
    tmp_path: Path, lines: list[str], are_text: bool
) -> None:
    content = "\n".join(["q\ta", *TABBED, *lines]) + "\n"
    written = [line.split("\t") for line in lines if line]
    try:
        found = [one for line, one in read(tmp_path, content, is_tsv=True) if line > 41]
    except ValueError:
        found = []
    as_they_stand = [
        one if isinstance(one, list) else written[number] for number, one in enumerate(found)
    ]
    quotes = sum(str(one).count('"') for one in as_they_stand)
    is_same = len(found) == len(written) and quotes == "".join(lines).count('"')
    has_broken = any(isinstance(one, tuple) and "broken" in one[0] for one in found)
    assert (is_same and not has_broken) == (are_text or 'x\tsay "so"' in lines)


@pytest.mark.parametrize("begins_at", [0, 1, 2, 3])
def test_a_line_that_is_too_long_is_a_row_by_itself_and_parts_what_is_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins_at: int
) -> None:
    """From any row on."""
    monkeypatch.setattr(
        text_formats, "read_lines", lambda file, start=BEGIN: read_lines(file, start, 20)
    )
    path = tmp_path / "rows.txt"
    path.write_text("one\ntwo\n" + "x" * 30 + "\nthree\n\nfour\nfive\n")
    rows = list(read_text(path, "rows.txt"))
    found = [(row.line, row.values["text"] if isinstance(row, Row) else None) for row in rows]
    assert found == [(1, "one\ntwo"), (3, None), (4, "three"), (6, "four\nfive")]
    start = Start(rows[begins_at].offset, rows[begins_at].line)
    assert list(read_text(path, "rows.txt", start)) == rows[begins_at:]


@pytest.mark.parametrize(
    ("content", "position", "line", "encoding"),
    [
        (b"one\n\nGr\xfc\xdfe aus Wien\n", 3, 3, "cp1252"),
        (b"one\n\nfirst line\nGr\xfc\xdfe\n", 14, 3, "cp1252"),
        (b"\xff\xfe\xfd\xfc\n", 1, 1, ""),
    ],
)
def test_a_passage_that_is_no_utf8_names_the_byte(
    tmp_path: Path, content: bytes, position: int, line: int, encoding: str
) -> None:
    path = tmp_path / "rows.txt"
    path.write_bytes(content)
    [bad] = [row for row in read_text(path, "rows.txt") if isinstance(row, BadRow)]
    assert (bad.line, bad.reason, bad.encoding) == (line, INVALID_UTF8, encoding)
    assert bad.detail == f"data.byte_of_passage(position={position})"
    assert bad.offset == content.rindex(b"\n\n") + 2 if b"\n\n" in content else bad.offset == 0


def test_a_nul_byte_makes_no_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_bytes(b"one\n\nt\0wo\n\nthree\n")
    rows = list(read_text(path, "rows.txt"))
    assert [row.line for row in rows] == [1, 3, 5]
    assert isinstance(rows[1], BadRow)
    assert (rows[1].detail, rows[1].offset) == ("data.nul_byte()", 5)


def test_a_line_of_a_table_that_is_too_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        text_formats, "read_lines", lambda file, start=BEGIN: read_lines(file, start, 20)
    )
    for max_bytes, max_mib in ((16 << 20, 16), (20, 0)):
        monkeypatch.setattr(text_formats, "MAX_LINE_BYTES", max_bytes)
        refusal = rf"table_line_too_long\(file=rows\.txt, line=3, max_mib={max_mib}\)"
        with pytest.raises(ValueError, match=refusal):
            read(tmp_path, HEADER + "1,2\n" + "x" * 30 + "\n")


@pytest.mark.parametrize(
    ("header", "refusal"),
    [
        ("", "table_without_header(file=rows.txt)"),
        ("\t\t", "table_without_header(file=rows.txt)"),
        ("sep=;\tx", "excel_separator_line(file=rows.txt, line=sep=;)"),
        ("b\ta\tb\ta", "table_column_twice(file=rows.txt, column=a)"),
    ],
)
def test_a_header_without_a_name_for_each_column_is_refused(
    tmp_path: Path, header: str, refusal: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(f"data.{refusal}")):
        read(tmp_path, f"{header}\n1\t2\n" if header else "", is_tsv=True)


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("q;a", ["q", "a"]),
        ("q\ta", ["q", "a"]),
        ("q|a", ["q", "a"]),
        ("q,a", ["q", "a"]),
        ("q;x,a", ["q;x", "a"]),  # a comma goes first
        ("q|x;a", ["q|x", "a"]),
        ('"q,x";a', ["q,x", "a"]),
        ("question", ["question"]),
    ],
)
def test_the_header_decides_what_parts_the_fields(
    tmp_path: Path, header: str, columns: list[str]
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"{header}\n{header.replace('q', 'x').replace('a', 'y')}\n")
    [row] = read_csv(path, "rows.csv")
    assert isinstance(row, Row)
    assert [*row.values] == columns


@pytest.mark.parametrize(
    ("content", "num_rows"),
    [
        ("a\nb\n", 2),
        ("a\n\nb\n", 2),
        ("a\nb\n\nc\nd\n", 2),
        ("\n\na\nb\n\n\n", 2),  # a blank line at an edge parts nothing
        ("a\n \t\nb\nc\n", 2),
        ("", 0),
    ],
)
def test_blank_lines_between_texts_make_passages(
    tmp_path: Path, content: str, num_rows: int
) -> None:
    path = tmp_path / "rows.txt"
    path.write_text(content)
    assert len(list(read_text(path, "rows.txt"))) == num_rows


def test_the_beginning_of_a_text_decides_whether_it_has_passages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_formats, "SNIFF_BYTES", 20)
    path = tmp_path / "rows.txt"
    for num_lines, num_rows in ((3, 2), (30, 31)):
        path.write_text("text\n" * num_lines + "\nend\n")
        assert len(list(read_text(path, "rows.txt"))) == num_rows


def test_a_field_may_be_longer_than_the_csv_module_takes(tmp_path: Path) -> None:
    long = "x" * 200_000
    assert read(tmp_path, HEADER + f'1,{long}\n"{long}",2\n') == [
        (2, ["1", long]),
        (3, [long, "2"]),
    ]
