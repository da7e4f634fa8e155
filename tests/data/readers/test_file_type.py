"""The first bytes of a file tell its kind and the remedy: real files of each kind."""

import bz2
import contextlib
import gzip
import io
import lzma
import re
import sqlite3
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import h5py
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from PIL import Image

from infrastructure.data.readers.file_type import (
    BinaryFormat,
    check_text,
    json_kind,
    kind_of_file,
    read_head,
    what_it_is,
)
from tests.data.file_shapes import sheet, zipped


def in_memory(write: Any) -> bytes:
    held = io.BytesIO()
    write(held)
    return held.getvalue()


def picture(kind: str) -> bytes:
    return in_memory(lambda file: Image.new("RGB", (4, 4)).save(file, kind))


def database() -> bytes:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("create table rows (text)")
        return connection.serialize()


def hdf5(file: Any) -> None:
    with h5py.File(file, "w") as made:
        made["text"] = [1]


def tar(file: Any) -> None:
    with tarfile.open(fileobj=file, mode="w") as made:
        made.addfile(tarfile.TarInfo("rows.jsonl"))


TABLE = pa.table({"text": ["a"]})


def arrow(file: Any) -> None:
    with pa.ipc.new_file(file, TABLE.schema) as made:
        made.write_table(TABLE)


def damaged_zip() -> bytes:
    """An archive with one file, whose packed bytes are not what was packed."""
    content = in_memory(lambda file: zip_into(file))
    return content[:35] + b"\xff" * 9 + content[44:]


def zip_into(file: Any) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("a.csv", b"data" * 99)


DAMAGED_ZIP = damaged_zip()
UNPACK = "unpack_or_export"
KINDS: list[tuple[bytes, str, str]] = [
    (b"", "empty", "give_nonempty_file"),
    (b"\xef\xbb\xbf \r\n\t", "empty", "give_nonempty_file"),
    (gzip.compress(b"a"), "gzip", "add_gz_extension"),
    (bz2.compress(b"a"), "bzip2", "add_bz2_extension"),
    (zstandard.compress(b"a"), "zstd", "add_zst_extension"),
    (lzma.compress(b"a"), "xz", UNPACK),
    (zipped({"a": b""}), "zip", "rename_zip"),
    (zipped({}), "empty_zip", UNPACK),
    (b"PK\x07\x08" + zipped({"a": b""}), "zip_part", UNPACK),
    (b"7z\xbc\xaf\x27\x1c\0\4", "7z", UNPACK),
    (b"Rar!\x1a\x07\1\0", "rar", UNPACK),
    (in_memory(tar), "tar", UNPACK),
    (in_memory(lambda file: pq.write_table(TABLE, file)), "parquet", "rename_parquet"),
    (in_memory(hdf5), "hdf5", "rename_hdf5"),
    (in_memory(arrow), "arrow", UNPACK),
    (database(), "sqlite", UNPACK),
    (b"%PDF-1.7\n", "pdf", UNPACK),
    (b"{\\rtf1 text}", "rtf", UNPACK),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(9), "old_office", "save_as_xlsx"),
    *((picture(kind), "image", UNPACK) for kind in ("PNG", "JPEG", "GIF")),
    (picture("WEBP"), "riff", UNPACK),
    (b"\x7fELF\2\1\1" + bytes(9), "program", UNPACK),
    (b"GGUF\3\0\0\0", "gguf", UNPACK),
    *((bytes([0x80, version]) + b"}q\0.", "pickle", UNPACK) for version in (2, 3, 4, 5)),
    (b"\n <HTML lang='en'>", "web_page", "web_page_downloaded"),
    (b"\xef\xbb\xbf<!DOCTYPE html><p>", "web_page", "web_page_downloaded"),
    (b"<head><title>", "web_page", "web_page_downloaded"),
    (b"version https://git-lfs.github.com/spec/v1\noid", "lfs_pointer", "fetch_lfs_file"),
    (b"text\0text", "binary", "give_readable_format"),
]


@pytest.mark.parametrize(("content", "kind", "remedy"), KINDS)
def test_a_file_is_what_its_first_bytes_show(content: bytes, kind: str, remedy: str) -> None:
    assert what_it_is(content) == (f"data.kind_{kind}", f"data.{remedy}()")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_two_bytes_a_character_are_known_by_their_order(encoding: str) -> None:
    found = what_it_is("question,answer\nWhat?,Österreich\n".encode(encoding))
    assert found == ("data.utf16_without_bom", f"data.set_encoding(encoding={encoding})")


@pytest.mark.parametrize(
    ("num_even", "num_odd", "kind"),
    [
        (0, 81, "utf16_without_bom"),
        (9, 81, "utf16_without_bom"),
        (81, 9, "utf16_without_bom"),
        (0, 80, "kind_binary"),
        (80, 0, "kind_binary"),
        (10, 81, "kind_binary"),
        (81, 10, "kind_binary"),
    ],
)
def test_zeros_in_every_other_byte_are_utf16(num_even: int, num_odd: int, kind: str) -> None:
    head = bytearray(b"ab" * 100)
    head[: 2 * num_even : 2], head[1 : 2 * num_odd : 2] = bytes(num_even), bytes(num_odd)
    found = what_it_is(bytes(head))
    assert found is not None
    assert found[0] == f"data.{kind}"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl.gz", b"{}", "compressed_file_damaged({}, kind=gzip, reason=Not a gzipped file"),
        (
            "a.jsonl.BZ2",
            b"{}",
            "compressed_file_damaged({}, kind=bzip2, reason=Invalid data stream",
        ),
        ("a.jsonl.zst", b"{}", "compressed_file_damaged({}, kind=zstd, reason=ZSTD"),
        (
            "a.zip",
            DAMAGED_ZIP,
            "compressed_file_damaged({}, kind=zip, reason=Error -3 while decomp",
        ),
        ("a.jsonl", None, "file_unreadable({}, reason=Is a directory)"),
        (
            "b.jsonl",
            b" ",
            "file_not_text({}, kind=data.kind_empty(), contrast=, remedy=data.give_n",
        ),
        (
            "c.jsonl",
            b"%PDF",
            "file_not_text({}, kind=data.kind_pdf(), contrast=data.not_text_as_named(), "
            "remedy=data.unpack_or_export())",
        ),
    ],
)
def test_a_file_that_cannot_be_read_as_text_is_named(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    path = tmp_path / name
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape("data." + words.format(f"path={path}"))):
        check_text(path, read_head(path)[0])


@pytest.mark.parametrize(
    "text", ["a", "{}", "<p>a</p>", "PK", "ustar", "# version https://git-lfs"]
)
def test_text_is_no_other_kind(text: str) -> None:
    assert what_it_is(text.encode()) is None


@pytest.mark.parametrize(
    ("content", "kind", "remedy"),
    [
        (sheet([["a"], ["1"]]), "excel", "rename_excel"),
        (zipped({"word/document.xml": b""}), "word", "export_as_text"),
        (zipped({"a.csv": b""}), "zip", "rename_zip"),
        (zipped({"a.csv": b""})[:40], "zip", "rename_zip"),  # cut off
    ],
)
def test_a_document_that_is_an_archive_is_named(
    tmp_path: Path, content: bytes, kind: str, remedy: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    assert kind_of_file(path, content) == (f"data.kind_{kind}", f"data.{remedy}()")
    packed = path.rename(tmp_path / "rows.csv.gz")  # which is opened as what its name says
    assert kind_of_file(packed, content) == ("data.kind_zip", "data.rename_zip()")
    assert kind_of_file(path, b"a,b") is None
    assert kind_of_file(path, b"%PDF") == ("data.kind_pdf", "data.unpack_or_export()")


class Marked(BinaryFormat):
    title, magic = "Marked", b"MARK"


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (b"MARK1", None),
        (gzip.compress(b"a"), "data.but_kind(kind=data.kind_gzip(), remedy=data.add_gz_extension("),
        (b'{"a": 1}', "data.but_text(format=jsonl)"),
        (b'\xef\xbb\xbf [{"a": 1}]', "data.but_text(format=jsonl)"),
        (b"a,b\n", "data.but_text(format=csv)"),
    ],
)
def test_a_file_of_another_format_is_named(head: bytes, what: str | None) -> None:
    if what is None:
        Marked().check(Path("a.mark"), head)
        assert (Marked().unread(Path("a.mark"), "a"), Marked().has_header) == ("", False)
    else:
        with pytest.raises(ValueError, match=r"file_not_of_format\(path=a\.mark") as raised:
            Marked().check(Path("a.mark"), head)
        assert f"format=Marked, what={what}" in str(raised.value)


ROW, TWO = '{"a": 1}', '{"a": 1, "b": {"c": 2}}'


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (ROW, "jsonl"),
        (f"{ROW}\n{TWO}\n", "jsonl"),
        (f"\ufeff\n{ROW}\n\n", "jsonl"),
        ('{"messages": [{"role": "user"}]}', "jsonl"),
        (f'{{"data": [{ROW}]}}', "json"),
        (f"[{ROW}]", "json"),
        (f"[{ROW}]\n[{ROW}]", "jsonl"),  # a list in each line
        (f"[\n{ROW}]", "json"),
        ('{\n"a": 1}', "json"),
        ('{"a":\n1}', "json"),
        (f"{ROW} {ROW}", "json"),
        (f"{ROW},\n{ROW},\n", "json"),
        (f"{ROW}, {ROW}", "json"),
        (f"{ROW} x", "named"),
        (f"{ROW}]", "named"),
        ("{'a': 1}\n", "named"),
        ("3 4", "named"),
        ("3", "jsonl"),
        ('"a"\n"b"', "jsonl"),
    ],
)
def test_json_is_a_document_or_a_row_in_each_line(text: str, kind: str) -> None:
    assert json_kind(text.encode(), "named") == kind
