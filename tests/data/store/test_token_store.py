"""Examples come back as they were written; any flipped bit or cut file is noticed."""

import re
import zlib
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infrastructure.core.errors import DataError
from infrastructure.data.store import token_store as module
from infrastructure.data.store.examples import Picture, TokenizedExample
from infrastructure.data.store.token_store import (
    CONVERSATIONS_FILE,
    META,
    PICTURE_BYTES,
    DamagedEntryError,
    TokenStore,
    TokenStoreWriter,
)

IN_MEMORY, MAPPED = 10**9, 0


def random_examples(count: int, vocabulary_size: int = 50_000) -> list[TokenizedExample]:
    rng = np.random.RandomState(count)
    return [
        TokenizedExample(
            rng.randint(0, vocabulary_size, size=length).astype(np.int32),
            rng.randint(0, 2, size=length).astype(bool),
            f"task {rng.randint(3)}",
        )
        for length in rng.randint(1, 40, size=count)
    ]


def write(folder: Path, examples: list[TokenizedExample], vocabulary_size: int = 50_000) -> None:
    folder.mkdir()
    with TokenStoreWriter(folder, vocabulary_size) as writer:
        for start in range(0, len(examples), 7):
            writer.append(examples[start : start + 7])
        writer.append([])
        (folder / "notes.jsonl").write_text('{"a": "\u2028"}\n')
        writer.finish({"about": "ä"})


def same(left: TokenizedExample, right: TokenizedExample) -> bool:
    return (
        np.array_equal(left.input_ids, right.input_ids)
        and np.array_equal(left.supervised, right.supervised)
        and (left.task, left.input_ids.dtype, left.supervised.dtype)
        == (right.task, right.input_ids.dtype, right.supervised.dtype)
    )


@pytest.mark.parametrize("memory_bytes", [IN_MEMORY, MAPPED])
@pytest.mark.parametrize("vocabulary_size", [50_000, 200_000])
def test_examples_come_back(tmp_path: Path, memory_bytes: int, vocabulary_size: int) -> None:
    examples = random_examples(100, vocabulary_size)
    write(tmp_path / "entry", examples, vocabulary_size)
    store = TokenStore(tmp_path / "entry", memory_bytes)
    assert len(store) == 100
    assert store.is_in_memory == (memory_bytes == IN_MEMORY)
    assert all(same(store.example(i), example) for i, example in enumerate(examples))
    assert store.lines("notes.jsonl") == ['{"a": "\u2028"}']
    assert store.meta["about"] == "ä"
    assert list(store.meta["files"]) == sorted(store.meta["files"])
    for array in (store._input_ids, store._supervised):
        assert isinstance(array.values, np.memmap) == (memory_bytes == MAPPED)
    ids = np.load(tmp_path / "entry" / "input_ids.npy", allow_pickle=False)
    assert ids.dtype == (np.uint16 if vocabulary_size <= 1 << 16 else np.uint32)
    assert len(ids) == sum(len(example.input_ids) for example in examples)


@pytest.mark.parametrize("memory_bytes", [IN_MEMORY, MAPPED])
def test_an_empty_store_can_be_opened(tmp_path: Path, memory_bytes: int) -> None:
    write(tmp_path / "entry", [])
    assert len(TokenStore(tmp_path / "entry", memory_bytes)) == 0


def flip_bit(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 4
    path.write_bytes(data)


FILES = ["input_ids.npy", "supervised.npy", "offsets.npy", "tasks.npy", META]


def test_the_last_bits_of_any_number_are_kept(tmp_path: Path) -> None:
    for length in range(1, 18):
        tokens = np.arange(length, dtype=np.int32)
        examples = [TokenizedExample(tokens, mask) for mask in (tokens % 3 > 0, tokens % 5 == 0)]
        folder = tmp_path / str(length)
        write(folder, examples)
        for memory_bytes in (IN_MEMORY, MAPPED):
            store = TokenStore(folder, memory_bytes)
            assert all(same(store.example(i), example) for i, example in enumerate(examples))


def test_entries_up_to_the_limit_are_held_in_memory(tmp_path: Path) -> None:
    write(tmp_path / "entry", random_examples(9))
    sizes = [path.stat().st_size for path in (tmp_path / "entry").iterdir() if path.name != META]
    for memory_bytes, is_in_memory in ((sum(sizes), True), (sum(sizes) - 1, False)):
        assert TokenStore(tmp_path / "entry", memory_bytes).is_in_memory is is_in_memory


LINES = ("notes.jsonl", 3, r"data\.cache_chunk_damaged.*file=notes\.jsonl")


@pytest.mark.parametrize(
    ("name", "position", "refusal", "memory_bytes"),
    [
        *[(name, position, None, IN_MEMORY) for name in FILES for position in (20, 140, -2)],
        *[(*LINES, memory_bytes) for memory_bytes in (IN_MEMORY, MAPPED)],
        *[(name, 20, None, MAPPED) for name in FILES],  # numpy trusts a header
    ],
)
def test_a_flipped_bit_is_noticed_at_opening(
    tmp_path: Path, name: str, position: int, refusal: str | None, memory_bytes: int
) -> None:
    write(tmp_path / "entry", random_examples(200))
    flip_bit(tmp_path / "entry" / name, position)
    with pytest.raises(DamagedEntryError, match=refusal):
        TokenStore(tmp_path / "entry", memory_bytes)


@pytest.mark.parametrize("name", [*FILES, "notes.jsonl"])
def test_a_cut_or_missing_file_is_noticed_at_opening(tmp_path: Path, name: str) -> None:
    for remaining in (-2, 0):
        folder = tmp_path / f"entry{remaining}"
        write(folder, random_examples(20))
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:remaining])
        with pytest.raises(DamagedEntryError):
            TokenStore(folder, MAPPED)
        (folder / name).unlink()
        with pytest.raises(DamagedEntryError):
            TokenStore(folder, MAPPED)


@pytest.mark.parametrize(
    ("name", "is_noticed"),
    [
        ("offsets.npy", (True, True)),
        ("tasks.npy", (True, True)),
        ("picture_offsets.npy", (True, True)),
        ("pictures.jsonl", (True, True)),
        ("input_ids.npy", (True, False)),
        ("supervised.npy", (True, False)),
        (CONVERSATIONS_FILE, (True, False)),
        (PICTURE_BYTES, (False, False)),
    ],
)
def test_only_large_files_are_checked_where_they_are_used(
    tmp_path: Path, name: str, is_noticed: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file is noticed at opening if it is held in memory, and a picture when it is read."""
    monkeypatch.setattr(module, "CHUNK_BYTES", 256)
    picture = Picture(sha256(b"x" * 99).hexdigest(), 99, content=b"x" * 99)
    examples = [replace(example, pictures=(picture,) * 6) for example in random_examples(200)]
    folder = tmp_path / "entry"
    folder.mkdir()
    with TokenStoreWriter(folder, 50_000) as writer:
        writer.append(examples)
        (folder / CONVERSATIONS_FILE).write_text("{}\n" * 300)
        writer.finish({})
    flip_bit(folder / name, -1)
    for memory_bytes, must_notice in zip((IN_MEMORY, MAPPED), is_noticed, strict=True):
        if must_notice:
            damaged = rf"data\.cache_chunk_damaged\(file={name}, chunk=[1-9]"
            with pytest.raises(DamagedEntryError, match=damaged):
                TokenStore(folder, memory_bytes)
        else:
            assert same(TokenStore(folder, memory_bytes).example(0), examples[0])
    intact = TokenStore(folder, MAPPED) if name == PICTURE_BYTES else None
    if intact is not None:
        with pytest.raises(DataError, match=rf"image_changed\(path={folder / name}\)"):
            intact.example(199).pictures[5].read()
        assert intact.example(199).pictures[4].read() == picture.content


def test_damage_after_opening_is_reported_with_the_remedy(tmp_path: Path) -> None:
    write(tmp_path / "entry", random_examples(20))
    store = TokenStore(tmp_path / "entry", MAPPED)
    flip_bit(tmp_path / "entry" / "notes.jsonl", 3)
    with pytest.raises(DataError, match=r"data\.prepared_data_damaged"):
        store.lines("notes.jsonl")
    (tmp_path / "entry" / "tasks.npy").unlink()
    with pytest.raises(DataError, match=r"data\.prepared_data_damaged"):
        store.array("tasks.npy")


def test_an_array_is_checked_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 256)
    write(tmp_path / "entry", random_examples(200))
    store = TokenStore(tmp_path / "entry", MAPPED)
    assert store.array("tasks.npy").tolist() == store._tasks.tolist()
    flip_bit(tmp_path / "entry" / "tasks.npy", -1)
    folder = re.escape(str(tmp_path / "entry"))
    damaged = (
        rf"prepared_data_damaged\(folder={folder}, reason=data\.cache_chunk_damaged\(file=tasks"
    )
    with pytest.raises(DataError, match=damaged):
        store.array("tasks.npy")


def test_a_mapped_file_is_checked_where_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 256)
    examples = random_examples(200)
    write(tmp_path / "entry", examples)
    flip_bit(tmp_path / "entry" / "input_ids.npy", -1)
    store = TokenStore(tmp_path / "entry", MAPPED)
    assert same(store.example(0), examples[0])
    with pytest.raises(DataError, match=r"data\.prepared_data_damaged"):
        store.example(199)


def test_an_unfinished_entry_cannot_be_opened(tmp_path: Path) -> None:
    with TokenStoreWriter(tmp_path, 100) as writer:
        writer.append(random_examples(3))
    with pytest.raises(
        DamagedEntryError, match=r"data\.cache_metadata_unreadable.*file=meta\.json"
    ):
        TokenStore(tmp_path, IN_MEMORY)


def test_a_store_of_several_chunks(tmp_path: Path) -> None:
    long = TokenizedExample(
        np.arange(1 << 20, dtype=np.int32) % 60_000, np.ones(1 << 20, dtype=bool)
    )
    write(tmp_path / "entry", [*random_examples(5), long, *random_examples(5)])
    store = TokenStore(tmp_path / "entry", MAPPED)
    assert same(store.example(5), long)
    assert len(store.meta["files"]["input_ids.npy"]["crc32"]) == 3


def test_entries_of_earlier_releases_are_read(tmp_path: Path) -> None:
    """Their format and their checksums never change without another version."""
    write(tmp_path / "entry", random_examples(3))
    assert TokenStore(tmp_path / "entry", MAPPED).meta["format_version"] == 5
    assert module._json_checksum({"b": "ä", "a": 1}) == zlib.crc32('{"a": 1, "b": "ä"}'.encode())


def test_memory_that_is_released_is_read_from_the_files_from_then_on(tmp_path: Path) -> None:
    examples = random_examples(100)
    write(tmp_path / "entry", examples)
    store = TokenStore(tmp_path / "entry", IN_MEMORY)
    assert store.release_memory(unused_seconds=60.0) == 0
    num_tokens = sum(len(example.input_ids) for example in examples)
    assert store.release_memory() == 2 * num_tokens + -(-num_tokens // 8)
    assert store.release_memory() == 0
    for array in (store._input_ids, store._supervised):
        assert isinstance(array.values, np.memmap)
    assert all(same(store.example(i), example) for i, example in enumerate(examples))


def test_pictures_come_back_from_their_files_and_from_the_entry(tmp_path: Path) -> None:
    """Some rows name files, in the middle of which a picture may begin, and some hold pictures."""
    (tmp_path / "pictures").write_bytes(b"--one-and-two--")
    shown = {b"one": 2, b"two": 10, b"three": None, b"fourth": None}
    pictures = [
        Picture(sha256(content).hexdigest(), len(content), content=content)
        if start is None
        else Picture(sha256(content).hexdigest(), len(content), str(tmp_path / "pictures"), start)
        for content, start in shown.items()
    ]
    order = [(0,), (), (2, 1), (), (3, 0), (2,), ()]
    examples = [
        replace(example, pictures=tuple(pictures[n] for n in numbers))
        for example, numbers in zip(random_examples(len(order)), order, strict=True)
    ]
    (tmp_path / "entry").mkdir()
    with TokenStoreWriter(tmp_path / "entry", 50_000) as writer:
        writer.append(examples[:2])
        writer.append(examples[2:])
        writer.finish({})
    in_entry = (tmp_path / "entry" / PICTURE_BYTES).stat().st_size
    assert in_entry == 2 * len("three") + len("fourth")
    whole = sum(path.stat().st_size for path in (tmp_path / "entry").iterdir())
    fits = whole - in_entry - (tmp_path / "entry" / META).stat().st_size
    for memory_bytes, is_in_memory in ((fits, True), (fits - 1, False)):
        store = TokenStore(tmp_path / "entry", memory_bytes)
        assert store.is_in_memory == is_in_memory  # pictures are never held there
        read = [[picture.read() for picture in store.example(n).pictures] for n in range(7)]
        assert read == [[list(shown)[n] for n in numbers] for numbers in order]
    (tmp_path / "pictures").write_bytes(b"--ONE-and-two--")
    with pytest.raises(DataError):
        store.example(0).pictures[0].read()
    assert store.example(2).pictures[1].read() == b"two"
    (tmp_path / "pictures").unlink()
    with pytest.raises(DataError):
        store.example(2).pictures[1].read()
    with (tmp_path / "entry" / PICTURE_BYTES).open("ab") as file:
        file.truncate(in_entry - 1)
    with pytest.raises(DamagedEntryError):
        TokenStore(tmp_path / "entry", MAPPED)


def test_an_entry_of_another_version_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "entry", random_examples(3))
    monkeypatch.setattr(module, "FORMAT_VERSION", module.FORMAT_VERSION + 1)
    with pytest.raises(DamagedEntryError, match=r"cache_metadata_altered\(file=meta\.json\)"):
        TokenStore(tmp_path / "entry", MAPPED)


def test_memory_is_held_while_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    write(tmp_path / "entry", examples := random_examples(10))
    store = TokenStore(tmp_path / "entry", IN_MEMORY)
    now[0] += 50.0
    store.example(3)
    now[0] += 50.0
    assert store.release_memory(unused_seconds=60.0) == 0
    now[0] += 10.0
    assert store.release_memory(unused_seconds=60.0) > sum(len(e.input_ids) for e in examples)


def test_a_mapped_file_is_read_once_for_its_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 256)
    write(tmp_path / "entry", random_examples(200))
    store = TokenStore(tmp_path / "entry", MAPPED)
    first = [store.example(n).input_ids.tolist() for n in range(200)]
    monkeypatch.setattr(zlib, "crc32", lambda data: pytest.fail("a chunk is checked twice"))
    assert [store.example(n).input_ids.tolist() for n in range(200)] == first


@pytest.mark.parametrize(
    ("name", "change", "code"),
    [
        (META, lambda path: path.write_text("{"), r"metadata_unreadable\(file=meta\.json"),
        (META, lambda path: path.write_text("[]"), r"metadata_unreadable\(file=meta\.json"),
        (META, lambda path: path.write_text("{}"), r"metadata_unreadable\(file=meta\.json"),
        (META, lambda path: path.write_bytes(b"\xff"), r"metadata_unreadable\(file=meta\.json"),
        (META, lambda path: path.unlink(), r"metadata_unreadable\(file=meta\.json"),
        (
            META,
            lambda path: path.write_text(path.read_text().replace("about", "above")),
            r"metadata_altered\(file=meta\.json",
        ),
        ("tasks.npy", lambda path: path.unlink(), r"file_truncated\(file=tasks\.npy"),
        ("notes.jsonl", lambda path: path.write_text(""), r"file_truncated\(file=notes\.jsonl"),
    ],
)
def test_damage_is_named_with_its_file(tmp_path: Path, name: str, change: Any, code: str) -> None:
    write(tmp_path / "entry", random_examples(5))
    change(tmp_path / "entry" / name)
    with pytest.raises(DamagedEntryError, match=rf"data\.cache_{code}"):
        TokenStore(tmp_path / "entry", MAPPED)


def test_a_file_that_is_no_array_is_named_though_its_checksum_is_right(tmp_path: Path) -> None:
    write(tmp_path / "entry", random_examples(5))
    (tmp_path / "entry" / "tasks.npy").write_bytes(b"no array")
    module.write_meta(tmp_path / "entry", {"tasks": []})
    with pytest.raises(DamagedEntryError, match=r"data\.cache_file_not_array\(file=tasks\.npy\)"):
        TokenStore(tmp_path / "entry", MAPPED)


def test_a_file_that_is_gone_when_it_is_used_is_named(tmp_path: Path) -> None:
    write(tmp_path / "entry", random_examples(5))
    store = TokenStore(tmp_path / "entry", IN_MEMORY)
    (tmp_path / "entry" / "notes.jsonl").unlink()
    unreadable = r"reason=data\.file_unreadable\(path=notes\.jsonl, reason=No such file"
    with pytest.raises(DataError, match=rf"data\.prepared_data_damaged\(.*{unreadable}"):
        store.lines("notes.jsonl")


def test_lengths_and_tasks_are_those_of_the_examples(tmp_path: Path) -> None:
    examples = random_examples(30)
    write(tmp_path / "entry", examples)
    store = TokenStore(tmp_path / "entry", MAPPED)
    assert store.lengths().tolist() == [len(example.input_ids) for example in examples]
    assert [store.task(n) for n in range(30)] == [example.task for example in examples]


@pytest.mark.parametrize("vocabulary_size", [1 << 16, (1 << 16) + 1])
def test_ids_are_as_wide_as_the_vocabulary_needs(tmp_path: Path, vocabulary_size: int) -> None:
    last = np.array([0, vocabulary_size - 1], dtype=np.int32)
    write(tmp_path / "entry", [TokenizedExample(last, last > 0)], vocabulary_size)
    store = TokenStore(tmp_path / "entry", IN_MEMORY)
    assert store.example(0).input_ids.tolist() == last.tolist()
    ids = np.load(tmp_path / "entry" / "input_ids.npy", allow_pickle=False)
    assert ids.dtype.itemsize == (2 if vocabulary_size == 1 << 16 else 4)


def test_a_picture_that_is_gone_or_another_is_named(tmp_path: Path) -> None:
    path = tmp_path / "it.png"
    path.write_bytes(b"--one")
    held = Picture(sha256(b"one").hexdigest(), 3, str(path), 2)
    assert held.read() == b"one"
    path.write_bytes(b"--two")
    with pytest.raises(DataError, match=r"data\.image_changed\(path=.*it\.png\)"):
        held.read()
    path.unlink()
    with pytest.raises(
        DataError, match=r"data\.image_no_longer_readable\(path=.*it\.png, reason=No"
    ):
        held.read()
