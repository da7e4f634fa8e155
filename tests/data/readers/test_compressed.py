"""Archives: which member is the data, which archives are refused, and how streams go back."""

import gzip
import io
import random
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from infrastructure.data.readers import compressed
from infrastructure.data.readers.compressed import (
    data_name,
    document_kind,
    inflated_bytes,
    is_damaged,
    is_zip,
    member_of,
    num_other_members,
    open_bytes,
    rewindable,
)
from tests.data.file_shapes import zipped


def archive(folder: Path, *names: str, content: bytes | None = None) -> Path:
    path = folder / "a.zip"
    path.write_bytes(zipped(dict.fromkeys(names, b"data")) if content is None else content)
    return path


@pytest.mark.parametrize(
    ("names", "member", "num_others"),
    [
        (("a.csv",), "a.csv", 0),
        (("README.md", "LICENSE", "Licence.txt", "x/a.csv"), "x/a.csv", 3),
        (("notes.txt", "page.HTML", "b.pdf", "c.md", "d.text", "a.csv"), "a.csv", 5),
        (("readme.txt", "a.txt"), "a.txt", 1),
        (("folder/", ".a.csv", "_b.csv", "__MACOSX/a.csv", "x/.y/c.csv", "a.csv"), "a.csv", 0),
        (("readmes.csv",), "readmes.csv", 0),
    ],
)
def test_the_data_of_an_archive_is_its_only_table_or_its_only_text(
    tmp_path: Path, names: tuple[str, ...], member: str, num_others: int
) -> None:
    path = archive(tmp_path, *names)
    assert member_of(path) == member
    assert data_name(path) == Path(Path(member).name)
    assert num_other_members(path) == num_others
    with open_bytes(path) as file:
        assert file.read() == b"data"


@pytest.mark.parametrize(
    ("names", "count", "shown"),
    [
        (("a.csv", "b.csv"), 2, "a.csv, b.csv"),
        (("a.txt", "b.txt"), 2, "a.txt, b.txt"),
        (("a.csv", "b.csv", "c.csv", "d.csv", "e.txt"), 4, "a.csv, b.csv, c.csv"),
        (("README.md", ".hidden"), 0, "nothing"),
        (("x" * 90, "y"), 2, "x" * 80),
    ],
)
def test_an_archive_without_one_data_file_is_refused(
    tmp_path: Path, names: tuple[str, ...], count: int, shown: str
) -> None:
    path = archive(tmp_path, *names)
    refusal = (
        rf"zip_needs_one_file\(path={re.escape(str(path))}, num_files={count}, names={shown}\)"
    )
    with pytest.raises(ValueError, match=refusal):
        member_of(path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("word/document.xml", "word"),
        ("xl/workbook.xml", "excel"),
        ("xl/workbook.bin", "excel"),
        ("ppt/presentation.xml", "powerpoint"),
        ("META-INF/container.xml", "epub"),
        ("content.xml", "opendocument"),
        ("rows.csv", None),
    ],
)
def test_a_document_is_recognized_among_archives(
    tmp_path: Path, name: str, kind: str | None
) -> None:
    path = archive(tmp_path, name, "a.csv" if kind else "README")
    assert document_kind(path) == (kind and f"data.kind_{kind}")
    if kind:
        with pytest.raises(ValueError, match=rf"document_not_data\(path=a\.zip, .*kind_{kind}"):
            member_of(path)


def packed(method: int) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", method) as made:
        made.writestr("a.csv", b"data" * 99)
    return held.getvalue()


def encrypted() -> bytes:
    """An archive whose member says that it needs a password."""
    content = bytearray(packed(zipfile.ZIP_STORED))
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(mark) + at] |= 1
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (packed(zipfile.ZIP_STORED), None),
        (packed(zipfile.ZIP_DEFLATED), None),
        (packed(zipfile.ZIP_LZMA), "unsupported_compression"),
        (packed(zipfile.ZIP_BZIP2), "unsupported_compression"),
        (encrypted(), "has_password"),
    ],
)
def test_a_member_that_cannot_be_unpacked_in_little_memory_is_refused(
    tmp_path: Path, content: bytes, reason: str | None
) -> None:
    path = archive(tmp_path, content=content)
    if reason is None:
        with open_bytes(path) as file:
            assert file.read() == b"data" * 99
    else:
        refusal = rf"member_unreadable\(path={path}, filename=a\.csv, reason=data\.{reason}\(\)\)"
        with pytest.raises(ValueError, match=refusal):
            open_bytes(path)


@pytest.mark.parametrize("length", [0, 1, (1 << 16) - 1])
def test_an_archive_may_end_in_a_comment(tmp_path: Path, length: int) -> None:
    path = archive(tmp_path, "a.csv")
    with zipfile.ZipFile(path, "a") as made:
        made.comment = b"c" * length
    assert member_of(path) == "a.csv"
    path.write_bytes(path.read_bytes()[: -length - 1])
    with pytest.raises(ValueError, match=rf"data\.zip_truncated\(path={path}\)"):
        member_of(path)


def test_the_directory_of_an_archive_may_be_as_large_as_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive(tmp_path, "a.csv")
    content = path.read_bytes()
    assert compressed.MAX_LISTING_BYTES == 4 << 20
    (size,) = struct.unpack_from("<I", content, content.rindex(b"PK\x05\x06") + 12)
    for bound, is_read in ((size, True), (size - 1, False)):
        monkeypatch.setattr(compressed, "MAX_LISTING_BYTES", bound)
        if is_read:
            assert member_of(path) == "a.csv"
        else:
            with pytest.raises(ValueError, match=rf"data\.zip_too_large\(path={path}\)"):
                member_of(path)


END = b"PK\x05\x06"


@pytest.mark.parametrize(
    ("old", "new", "refusal"),
    [
        (
            b"PK\x01\x02",
            b"PK\x01\x03",
            "zip_unreadable({}, reason=Bad magic number for central dir",
        ),
        (b"a.csv", b"b.csv", "zip_unreadable({}, reason=File name in directory 'a.csv' and header"),
        (END, b"PK\x06\x07" + bytes(16) + END, "zip_too_large({})"),
    ],
)
def test_an_archive_that_cannot_be_read_is_named(
    tmp_path: Path, old: bytes, new: bytes, refusal: str
) -> None:
    content = packed(zipfile.ZIP_DEFLATED)
    path = archive(tmp_path, content=content.replace(old, new, 1))
    with pytest.raises(ValueError, match=re.escape("data." + refusal.format(f"path={path}"))):
        open_bytes(path)


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        *((kind("x"), True) for kind in (EOFError, zlib.error, gzip.BadGzipFile)),
        (zipfile.BadZipFile("x"), True),
        (OSError("x"), True),
        (OSError(2, "x"), False),
        (ValueError("x"), False),
    ],
)
def test_damage_is_distinct_from_other_errors(error: Exception, is_one: bool) -> None:
    assert is_damaged(error) is is_one


def test_an_archive_is_known_by_its_name_and_its_beginning(tmp_path: Path) -> None:
    path = archive(tmp_path, "a.csv")
    assert is_zip(path)
    assert is_zip(path.rename(tmp_path / "A.ZIP"))
    assert not is_zip(tmp_path / "none.zip")
    for name, content in (("a.csv", zipped({"a": b""})), ("b.zip", b"a,b\n")):
        (tmp_path / name).write_bytes(content)
        assert not is_zip(tmp_path / name)
        assert data_name(tmp_path / name) == tmp_path / name


@pytest.mark.parametrize("ending", ["gz", "bz2", "zst", "GZ"])
def test_the_name_of_compressed_data_is_that_without_its_ending(ending: str) -> None:
    assert data_name(Path(f"x/rows.jsonl.{ending}")) == Path("x/rows.jsonl")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_what_an_archive_unpacks_to_is_that_of_all_its_files(tmp_path: Path, method: int) -> None:
    held = io.BytesIO()
    sizes = (700_000, 0, 30)
    with zipfile.ZipFile(held, "w", method) as made:
        for number, size in enumerate(sizes):
            made.writestr(f"{number}", b"\0" * size)
    path = archive(tmp_path, content=held.getvalue())
    assert inflated_bytes(path) == sum(sizes)


def test_another_compression_is_refused_before_anything_is_unpacked(tmp_path: Path) -> None:
    assert document_kind(archive(tmp_path, content=zipped({}))) is None
    path = archive(tmp_path, content=packed(zipfile.ZIP_BZIP2))
    with pytest.raises(ValueError, match=rf"zip_unreadable\(path={path}, reason=data\.unsupported"):
        inflated_bytes(path)


class Forward:
    """A stream that cannot go back."""

    def __init__(self, data: bytes) -> None:
        self.file, self.is_closed = io.BytesIO(data), False

    def read(self, size: int) -> bytes:
        return self.file.read(min(size, 70_000))

    def close(self) -> None:
        self.is_closed = True


def test_a_stream_that_is_opened_again_goes_anywhere(monkeypatch: Any) -> None:
    data = random.Random(0).randbytes(300_000)
    opened: list[Forward] = []

    def open_again() -> Forward:
        opened.append(Forward(data))
        return opened[-1]

    draw, plain = random.Random(1), io.BytesIO(data)
    with rewindable(open_again) as file:
        for _ in range(60):
            if draw.random() < 0.5:
                whence = draw.choice((io.SEEK_SET, io.SEEK_CUR))
                least = -plain.tell() if whence == io.SEEK_CUR else 0
                offset = draw.randint(least, least + 250_000)
                offset = min(offset, len(data) - (plain.tell() if whence == io.SEEK_CUR else 0))
                assert file.seek(offset, whence) == plain.seek(offset, whence)
            else:
                size = draw.choice((1, 1000, 100_000))
                assert file.read(size) == plain.read(size)
            assert file.tell() == plain.tell()
        file.seek(0)
        assert file.seek(len(data) + 9) == len(data)
        assert file.read(1) == b""
    assert all(stream.is_closed for stream in opened)
