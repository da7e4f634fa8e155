"""Files that are not written in UTF-8: read in the encoding that is given, or refused with it."""

import codecs
import contextlib
import gzip
import json
from pathlib import Path

import pytest

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.data.preparation.plan import find_shape
from infrastructure.data.readers.line_reader import Start
from infrastructure.data.readers.rows import INVALID_UTF8, OTHER_ENCODING, BadRow, Row
from infrastructure.data.readers.sources import discover
from infrastructure.data.readers.text_encoding import READ_BYTES, likely_encoding, open_utf8

TEXTS = {
    "cp1252": "Wie heißt das? – „Österreich“",
    "iso8859-1": "Où est le café de l'hôtel ?",
    "utf-16-le": "naïve 日本 🙂",
    "utf-16": "naïve 日本 🙂",
    "utf-32": "naïve 日本 🙂",
    "shift_jis": "日本の首都はどこですか、教えて。",
    "gb18030": "中国的首都是哪里？",
    "cp1251": "Как называется столица России?",
}
ROWS = ["a", "b", "c"]


def written(text: str, kind: str) -> str:
    """Three rows that hold a text, in a format."""
    rows = [{"prompt": f"{text} {row}", "completion": text} for row in ROWS]
    if kind == "csv":
        return "prompt,completion\r\n" + "".join(f'"{text} {row}","{text}"\r\n' for row in ROWS)
    if kind == "json":
        return json.dumps(rows, ensure_ascii=False, indent=1)
    if kind == "txt":
        return "\n\n".join(f"{text} {row}" for row in ROWS)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json", "txt", "jsonl.gz"])
@pytest.mark.parametrize("encoding", TEXTS)
def test_text_is_read_in_the_encoding_that_is_given(
    encoding: str, kind: str, tmp_path: Path
) -> None:
    text = TEXTS[encoding]
    data = written(text, kind).encode(encoding)
    path = tmp_path / f"rows.{kind}"
    path.write_bytes(gzip.compress(data) if kind.endswith("gz") else data)
    [file] = discover(str(path), encoding=DataConfig(encoding=encoding).encoding)
    rows = list(file.rows())
    column = "text" if kind == "txt" else "prompt"
    assert [row.values[column] for row in rows if isinstance(row, Row)] == [
        f"{text} {row}" for row in ROWS
    ]
    again = list(file.rows(Start(rows[2].offset, rows[2].line)))  # as a stream goes on
    assert again == rows[2:]


def test_a_byte_order_mark_needs_no_setting(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    for encoding in ("utf-16", "utf-32", "utf-8-sig"):
        path.write_bytes(written("naïve", "csv").encode(encoding))
        for setting in ("auto", "cp1252"):
            first = next(iter(discover(str(path), encoding=setting)[0].rows()))
            assert isinstance(first, Row)
            assert first.values == {"prompt": "naïve a", "completion": "naïve"}


def test_what_the_encoding_does_not_have_sets_one_row_aside(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    good, bad = b'{"text": "\x82\xa0"}\n', b'{"text": "\x82"}\n'
    path.write_bytes(good + bad + good)
    first, second, third = discover(str(path), encoding="shift_jis")[0].rows()
    assert isinstance(second, BadRow)
    assert (second.reason, second.line, second.detail) == (OTHER_ENCODING, 2, "shift_jis")
    assert second.remedy == "data.set_encoding_of_file()"
    assert [row.values for row in (first, third) if isinstance(row, Row)] == [{"text": "あ"}] * 2


def test_utf_8_is_not_read_in_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "Österreich"}\n', encoding="utf-8")
    refusal = rf"utf8_despite_encoding\(path={tmp_path}/a\.jsonl, encoding=cp1252\)"
    with pytest.raises(ValueError, match=refusal):
        discover(str(tmp_path), encoding="cp1252")
    (tmp_path / "a.jsonl").write_text('{"text": "plain"}\n', encoding="utf-8")
    assert len(list(discover(str(tmp_path), encoding="cp1252")[0].rows())) == 1


def test_a_setting_that_has_no_effect_on_a_file_is_noted(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": ["a"]}), tmp_path / "a.parquet")
    [file] = discover(str(tmp_path), encoding="cp1252")
    assert file.note == "data.encoding_of_binary_file(file=a.parquet, format=parquet)"


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json", "txt"])
def test_windows_text_is_refused_with_its_encoding(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{kind}"
    path.write_bytes(written(TEXTS["cp1252"], kind).encode("cp1252"))
    rows = list(discover(str(path))[0].rows())
    assert {(row.reason, row.encoding) for row in rows if isinstance(row, BadRow)} == {
        (INVALID_UTF8, "cp1252")
    }
    with pytest.raises(ValueError, match=r"data\.windows_text.*encoding=cp1252"):
        find_shape(discover(str(path)), DataConfig(path=str(path)))


def test_the_guess_is_for_western_languages_alone() -> None:
    guesses = {name: likely_encoding(text.encode(name)) for name, text in TEXTS.items()}
    assert guesses["cp1252"] == guesses["iso8859-1"] == "cp1252"
    assert likely_encoding("Wie grüßt man?;Grüß Gott".encode("cp1252")) == "cp1252"
    assert {guesses[name] for name in ("shift_jis", "gb18030", "cp1251")} == {""}


def test_an_encoding_has_one_spelling() -> None:
    spellings = {"latin-1": "iso8859-1", "windows-1252": "cp1252", "UTF8": "utf-8", "sjis": ""}
    encodings = {name: DataConfig(encoding=name).encoding for name in spellings}
    assert encodings == spellings | {"sjis": "shift_jis"}
    for wrong in ("ansi-1", "base64", "unicode_escape", ""):
        with pytest.raises(
            ValueError, match=rf"config\.wrong_value\(setting=data\.encoding, .*value=\"{wrong}\""
        ):
            DataConfig(encoding=wrong)


@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_mark_decides_in_either_order_of_bytes(
    mark: bytes, encoding: str, end: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(mark + end.join(["q,a", "naïve,日本", "x,y", ""]).encode(encoding))
    [file] = discover(str(path))
    rows = [row for row in file.rows() if isinstance(row, Row)]
    assert [row.values for row in rows] == [{"q": "naïve", "a": "日本"}, {"q": "x", "a": "y"}]
    assert [row.line for row in rows] == [2, 3]
    assert list(file.rows(Start(rows[1].offset, 3))) == rows[1:]


@pytest.mark.parametrize("encoding", ["", "cp1252"])
@pytest.mark.parametrize(
    ("length", "end", "read"),
    [
        (READ_BYTES - 1, "\r\n", "\r\n"),  # the head ends between the two
        (READ_BYTES - 2, "\r\n", "\r\n"),
        (READ_BYTES - 1, "\r", "\r"),  # no line is seen to end
        (READ_BYTES - 2, "\r", "\n"),
        (1, "\r", "\n"),
    ],
)
def test_the_head_of_a_file_shows_how_its_lines_end(
    length: int, end: str, read: str, encoding: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("x" * length + end + "y" + end, newline="")
    with contextlib.closing(open_utf8(path, encoding)) as file:
        begun = file.read(1)
        assert begun == b"x"  # as many bytes as requested
        content = (begun + b"".join(iter(lambda: file.read(READ_BYTES), b""))).decode()
    assert content[length:] == read + "y" + read


@pytest.mark.parametrize(
    ("text", "is_western"),
    [
        ("aüb", True),
        ("abcdefüüü", True),
        ("abcdefghüüüü", False),  # a whole word
        ("abü", True),  # a third of the letters
        ("aü", False),
        ("12 ü", False),
        ("abc", False),
    ],
)
def test_few_letters_beyond_ascii_are_western(text: str, is_western: bool) -> None:
    assert likely_encoding(text.encode("cp1252")) == ("cp1252" if is_western else "")
    assert likely_encoding(b"abc \x81") == "", "it has no such byte"
