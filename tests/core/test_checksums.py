"""Records with a checksum, and folders with their sums."""

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from infrastructure.core import checksums
from infrastructure.core.checksums import (
    SUMS,
    damaged_files,
    files_in,
    has_checksum,
    parse_sums,
    read_record,
    sums_text,
    write_record,
    write_sums,
)
from infrastructure.core.errors import DamagedFileError

RECORD: dict[str, Any] = {"name": "ä", "rate": 1e-3, "deep": {"1": [1, 2.5, None, True]}}


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    write_record(path := tmp_path / "run.json", RECORD)
    assert read_record(path) == RECORD
    assert has_checksum(path.read_bytes())
    write_record(path, {**read_record(path), "more": 1})
    assert read_record(path) == {**RECORD, "more": 1}


def test_every_bit_of_a_record_counts(tmp_path: Path) -> None:
    write_record(path := tmp_path / "run.json", RECORD)
    intact = path.read_bytes()
    silent = []
    for bit in range(8 * len(intact)):
        data = bytearray(intact)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        try:
            found = read_record(path)
        except DamagedFileError:
            continue
        if found != RECORD and has_checksum(bytes(data)):
            silent.append(bit)
    assert silent == []  # a blank that became another one, or a word "checksum" that did not


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "core.record_not_json(error=Expecting value: "),
        ("{", "core.record_not_json(error=Expecting property name"),
        ("[" * 100_000, "core.record_not_json(error=core.nested_too_deep("),
        ("[1]", "core.record_not_object()"),
        ("1", "core.record_not_object()"),
        ('{"a": 1, "checksum": "0"}', "core.record_checksum_mismatch()"),
    ],
)
def test_what_is_no_record_is_named(tmp_path: Path, text: str, problem: str) -> None:
    (path := tmp_path / "run.json").write_text(text)
    with pytest.raises(DamagedFileError) as raised:
        read_record(path)
    assert str(raised.value).startswith(f"core.damaged_record(path={path}, error={problem}")


def test_a_record_of_an_older_version_is_read(tmp_path: Path) -> None:
    (path := tmp_path / "run.json").write_text(json.dumps(RECORD))
    assert read_record(path) == RECORD
    assert not has_checksum(path.read_bytes())


def test_sums_name_what_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    for name in ("config.json", "model.safetensors", "base/model.safetensors"):
        (tmp_path / name).write_text(name)
    write_sums(tmp_path)
    assert damaged_files(tmp_path) == []
    checked = subprocess.run(["sha256sum", "--check", "--quiet", SUMS], cwd=tmp_path, check=False)
    assert checked.returncode == 0
    (tmp_path / "base/model.safetensors").write_text("base/model.safetensorS")
    (tmp_path / "config.json").unlink()
    assert damaged_files(tmp_path) == ["base/model.safetensors", "config.json"]
    write_sums(tmp_path)  # once more: the sums are no file that they name
    assert damaged_files(tmp_path) == []
    assert [*parse_sums((tmp_path / SUMS).read_text())] == [
        *("base/model.safetensors", "model.safetensors")
    ]
    [some] = [path for path in files_in(tmp_path) if path.parent.name == "base"]
    sums = parse_sums(sums_text(tmp_path, [some]))
    assert [*sums] == ["base/model.safetensors"]
    (tmp_path / "model.safetensors").write_text("of other sums")
    assert damaged_files(tmp_path, sums) == []
    assert damaged_files(tmp_path) == ["model.safetensors"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "core.checksums_empty(path={path})"),
        ("\xff", "core.checksums_not_text(path={path})"),
        (f"{'0' * 64}  a\nno sum\n", "core.invalid_checksum_line(file=SHA256SUMS, line=no sum)"),
        *(
            (
                f"{line}\n",
                f"core.invalid_checksum_line(file=SHA256SUMS, line={line[:80]})",
            )
            for line in (
                f"{'0' * 64}  ../../etc/passwd",
                f"{'0' * 64}  /etc/passwd{'!' * 9}",
                f"{'0' * 63}  a",
                f"{'G' * 64}  a",
                f"{'0' * 64} *a",
            )
        ),
    ],
)
def test_sums_that_are_damaged_are_named(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / SUMS).write_bytes(text.encode("latin-1"))
    with pytest.raises(DamagedFileError) as raised:
        damaged_files(tmp_path)
    assert str(raised.value) == problem.format(path=tmp_path / SUMS)


def test_a_hash_of_a_value_depends_on_no_order_and_stays_as_it_is() -> None:
    """Runs record it, and later versions compare with it."""
    text = '{"a": "x/y", "b": ["\\u00e4", 1.5]}'
    value = {"b": ["ä", 1.5], "a": Path("x/y")}
    assert checksums.text_hash(value) == hashlib.sha256(text.encode()).hexdigest()


def test_a_folder_without_sums_is_not_compared(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert damaged_files(tmp_path) == []


def test_a_file_that_may_not_be_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("a")
    write_sums(tmp_path)

    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(checksums, "file_sha256", refuse)
    with pytest.raises(PermissionError):
        damaged_files(tmp_path)


def test_a_file_that_the_disk_cannot_give_back_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("a")
    write_sums(tmp_path)

    def broken(path: Path) -> str:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(checksums, "file_sha256", broken)
    assert damaged_files(tmp_path) == ["a"]


def test_a_record_names_a_path_that_is_no_text(tmp_path: Path) -> None:
    """Python holds its bytes as surrogates, which UTF-8 does not have."""
    record = {"path": "runs/\udcff", "steps": {1: 2}, "order": {"b": 1, "a": 2}}
    write_record(path := tmp_path / "run.json", record)
    assert read_record(path) == {**record, "steps": {"1": 2}}
    again = {"order": {"a": 2, "b": 1}, "steps": {"1": 2}, "path": "runs/\udcff"}
    path.write_text(json.dumps({**again, "checksum": json.loads(path.read_text())["checksum"]}))
    assert read_record(path) == again
