"""Lines with their offsets, whatever ends them; a line over the limit is counted, not held."""

import io

import pytest

from infrastructure.data.readers.line_reader import BEGIN, UTF8_MARK, Line, Start, read_lines

LIMIT = 6  # of bytes in a line, with its end


def lines(content: bytes, start: Start = BEGIN) -> list[Line]:
    return list(read_lines(io.BytesIO(content), start, LIMIT))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"a\nbc", [b"a\n", b"bc"]),
        (b"a\r\n\r\nb\n", [b"a\r\n", b"\r\n", b"b\n"]),
        (b"12345\n123456\n", [b"12345\n", None]),
        (b"123456", [b"123456"]),
        (b"1234567", [None]),
        (b"1234567\na\n", [None, b"a\n"]),
        (b"x" * 50 + b"\n" + b"y" * 12 + b"\nz", [None, None, b"z"]),
        (UTF8_MARK + b"a\n" + UTF8_MARK + b"b\n", [b"a\n", UTF8_MARK + b"b\n"]),
        (UTF8_MARK, [b""]),
    ],
)
def test_each_line_is_read_or_counted(content: bytes, expected: list[bytes | None]) -> None:
    found = lines(content)
    assert [line.data for line in found] == expected
    assert [line.number for line in found] == list(range(1, len(expected) + 1))
    assert [line.offset for line in found] == [0, *(line.end for line in found)][: len(found)]
    assert (found[-1].end if found else 0) == len(content)
    for number, line in enumerate(found):
        assert lines(content, Start(line.offset, line.number)) == found[number:]


def test_a_line_that_was_not_held_is_not_blank() -> None:
    assert [line.is_blank for line in lines(b" \t\n\na\n" + b" " * 9)] == [True, True, False, False]
