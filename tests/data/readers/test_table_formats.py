"""Binary tables: read from any record, and saved data sets of which a part is damaged."""

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infrastructure.data.readers import table_formats
from infrastructure.data.readers.line_reader import Start
from infrastructure.data.readers.rows import BadRow, Row
from infrastructure.data.readers.sources import discover
from infrastructure.data.readers.table_formats import (
    _groups_from,
    is_saved_dataset,
    load_huggingface,
    read_huggingface,
    split_place,
)


def saved(folder: Path, num_rows: int = 5) -> Path:
    rows = {"text": [f"{n}" for n in range(num_rows)]}
    datasets.Dataset.from_dict(rows).save_to_disk(str(folder))
    return folder


def read(place: object, start: int = 0) -> list[tuple[int, int, object]]:
    [file] = discover(str(place))
    return [
        (row.offset, row.line, row.values["text"] if isinstance(row, Row) else row.reason)
        for row in file.rows(Start(start, start + 1))
    ]


@pytest.mark.parametrize("start", [0, 1, 3, 4, 9, 10])
def test_a_saved_data_set_is_read_in_slices_from_any_record(
    tmp_path: Path, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_formats, "READ_ROWS", 4)
    expected = [(n, n + 1, f"{n}") for n in range(start, 10)]
    assert read(saved(tmp_path / "set", 10), start) == expected


@pytest.mark.parametrize(
    ("record", "groups", "first"),
    [(0, [0, 1, 2], 0), (2, [0, 1, 2], 0), (3, [1, 2], 3), (6, [2], 6), (7, [], 7)],
)
def test_groups_before_a_record_are_not_read(
    tmp_path: Path, record: int, groups: list[int], first: int
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"{n}" for n in range(7)]}), path, row_group_size=3)
    assert _groups_from(pq.read_metadata(path), record) == (groups, first)
    assert [row[0] for row in read(path, record)] == list(range(record, 7))


def damage(part: Path) -> None:
    content = bytearray(part.read_bytes())
    content[8:40] = bytes(32)
    part.write_bytes(content)


@pytest.mark.parametrize("name", ["state.json", "dataset_info.json"])
def test_a_saved_data_set_without_one_of_its_files_is_damaged(tmp_path: Path, name: str) -> None:
    folder = saved(tmp_path / "set")
    (folder / name).unlink()
    assert is_saved_dataset(folder)
    with pytest.raises(ValueError, match=rf"saved_dataset_damaged\(folder={folder}, reason=\S"):
        read(folder)


@pytest.mark.parametrize("name", ["state.json", "dataset_info.json", "*.arrow"])
def test_a_saved_data_set_with_a_damaged_file_is_damaged(tmp_path: Path, name: str) -> None:
    folder = saved(tmp_path / "set")
    [part] = folder.glob(name)
    part.write_text("[]") if part.suffix == ".json" else damage(part)
    with pytest.raises(ValueError, match=rf"saved_dataset_damaged\(folder={folder}, reason=\S"):
        read(folder)


def test_a_batch_of_a_saved_data_set_that_ends_early_is_damage(tmp_path: Path) -> None:
    """The stream begins as it should."""
    folder = saved(tmp_path / "set", 500)
    [part] = folder.glob("*.arrow")
    part.write_bytes(part.read_bytes()[: part.stat().st_size // 2])
    with pytest.raises(ValueError, match="saved_dataset_damaged"):
        read(folder)


@pytest.mark.parametrize(
    ("files", "is_one"),
    [
        (("state.json",), True),
        (("dataset_dict.json",), True),
        (("dataset_info.json", "a.arrow"), True),
        (("dataset_info.json",), False),  # of a repository on the Hub
        (("a.arrow",), False),
        ((), False),
    ],
)
def test_a_saved_data_set_is_known_by_its_files(
    tmp_path: Path, files: tuple[str, ...], is_one: bool
) -> None:
    for name in files:
        (tmp_path / name).touch()
    assert is_saved_dataset(tmp_path) is is_one


def test_the_split_follows_the_last_sign_unless_the_path_exists(tmp_path: Path) -> None:
    for place, expected in (
        ("owner/name@test", ("owner/name", "test")),
        ("owner/name:part@test[:9%]", ("owner/name:part", "test[:9%]")),
        ("a@b@test", ("a@b", "test")),
        ("owner/name", ("owner/name", "")),
        (f"{tmp_path}/none@x", (f"{tmp_path}/none", "x")),
    ):
        assert split_place(place) == expected
    (tmp_path / "a@b").mkdir()
    assert split_place(f"{tmp_path}/a@b") == (f"{tmp_path}/a@b", "")


def test_a_split_of_a_saved_data_set_is_named_or_the_one_to_train_on(tmp_path: Path) -> None:
    sets = {
        name: datasets.Dataset.from_dict({"text": [name]}) for name in ("test", "train", "extra")
    }
    datasets.DatasetDict(sets).save_to_disk(str(tmp_path / "set"))
    for place, text in (("set", "train"), ("set@test", "test"), ("set@extra", "extra")):
        assert read(tmp_path / place) == [(0, 1, text)]
    [file] = discover(str(tmp_path / "set"))
    assert [(one.name, one.format) for one in file.test] == [("set@test", "huggingface")]
    assert file.held_out == ()
    assert file.note == "data.files_skipped(files_are=data.files_is(files=set@extra))"
    [named] = discover(f"{tmp_path / 'set'}@test")
    assert (named.test, named.note) == ((), "")
    known = r"known_splits=data\.known_splits\(splits=\['test', 'train', 'extra'\]\)"
    with pytest.raises(ValueError, match=rf"unknown_split\(.*split=dev, {known}"):
        load_huggingface(f"{tmp_path / 'set'}@dev")
    del sets["train"]
    datasets.DatasetDict(sets).save_to_disk(str(tmp_path / "other"))
    unknown = "unknown_split(dataset={}, split={}, known_splits=data.{}"
    other = unknown.format(tmp_path / "other", "train", "known_splits(splits=['test', 'extra']))")
    with pytest.raises(ValueError, match=re.escape(other)):
        load_huggingface(str(tmp_path / "other"))
    alone = saved(tmp_path / "alone")
    words = unknown.format(f"{alone}@test", "test", "dataset_without_splits())")
    with pytest.raises(ValueError, match=re.escape(words)):
        load_huggingface(f"{alone}@test")


@pytest.mark.parametrize(
    ("place", "loaded"),
    [
        ("o/n", ("o/n", None, "train")),
        ("o/n@test[:9%]", ("o/n", None, "test[:9%]")),
        ("o/n:part@test", ("o/n", "part", "test")),
    ],
)
def test_a_dataset_of_the_hub_is_loaded_by_its_parts(
    place: str, loaded: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(repository: str, configuration: str | None, *, split: str) -> object:
        if split == "test":
            raise FileNotFoundError("a\n  b")
        return repository, configuration, split

    monkeypatch.setattr(table_formats, "offline_where_unreachable", contextlib.nullcontext)
    monkeypatch.setattr(datasets, "load_dataset", load)
    if loaded[2] == "test":
        refusal = r"hub_dataset_not_found\(name=o/n:part@test, reason=a b\)"
        with pytest.raises(ValueError, match=refusal):
            load_huggingface(place)
        monkeypatch.setattr(datasets, "load_dataset", lambda *given, split: (*given, split))
    assert load_huggingface(place) == loaded


def test_a_table_that_cannot_be_decoded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    for error, words in (
        (MemoryError(), "parquet_out_of_memory(file=a.parquet)"),
        (OSError("why"), "parquet_damaged(file=a.parquet, reason=why)"),
        (pa.ArrowInvalid("why"), "parquet_damaged(file=a.parquet, reason=why)"),
    ):

        def fail(*given: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(table_formats, "rows_at_once", fail)
        with pytest.raises(ValueError, match=re.escape(f"data.{words}")):
            read(tmp_path / "a.parquet")


def test_the_hash_of_a_saved_data_set_is_of_its_rows_and_its_split(tmp_path: Path) -> None:
    sets = {name: datasets.Dataset.from_dict({"text": ["a"]}) for name in ("train", "test")}
    for name in ("one", "other"):
        datasets.DatasetDict(sets).save_to_disk(str(tmp_path / name))
    hashes = {
        place: discover(str(tmp_path / place))[0].sha256()
        for place in ("one", "one@test", "one@train")
    }
    assert len({*hashes.values()}) == 3
    state = tmp_path / "one/train/state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"_fingerprint": "other"}))
    assert discover(str(tmp_path / "one"))[0].sha256() != hashes["one"]


def test_records_of_several_batches_are_counted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{n}" for n in range(11)]
    parts = [datasets.Dataset.from_dict({"text": texts[n : n + 3]}) for n in range(0, 11, 3)]
    whole = datasets.concatenate_datasets(parts)
    monkeypatch.setattr(table_formats, "load_huggingface", lambda place: whole)
    found = list(read_huggingface(Path("x"), "x", Start(1, 2)))
    assert found == [Row({"text": f"{n}"}, "x", n + 1, n) for n in range(1, 11)]


def test_a_row_that_is_no_utf8_is_set_aside_with_its_number(tmp_path: Path) -> None:
    texts = [b"a", b"b", b"\xff", b"c", b"\xff"]
    column = pa.array(texts).view(pa.string())
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet", use_dictionary=False)
    [file] = discover(str(tmp_path / "a.parquet"))
    assert list(file.rows()) == [
        BadRow("a.parquet", n + 1, "invalid UTF-8", offset=n)
        if text == b"\xff"
        else Row({"text": text.decode()}, "a.parquet", n + 1, n)
        for n, text in enumerate(texts)
    ]


def test_each_row_that_is_too_large_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are found by halves, and no batch that holds one is built."""
    monkeypatch.setattr("infrastructure.data.readers.row_limits.MAX_ROW_BYTES", 100)
    texts: list[Any] = ["a" * (101 if n in (0, 5, 6, 12) else 9) for n in range(13)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    found = read(tmp_path / "a.parquet")
    assert [row[:2] for row in found] == [(n, n + 1) for n in range(13)]
    assert [n for n, _, value in found if value == "line too long"] == [0, 5, 6, 12]
    [file] = discover(str(tmp_path / "a.parquet"))
    details = {row.detail for row in file.rows() if isinstance(row, BadRow)}
    assert details == {"data.row_too_large(max_mib=16, max_millions=4)"}
