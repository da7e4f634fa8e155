"""The store of tokenized examples: files that are written once, verified, and read when needed.

An entry is a folder of .npy files and a meta.json, which is written last and holds a checksum of
every MiB of every file. All files are checked when the entry is opened, so that a damaged entry is
built again. If an entry is larger than the memory that it may use, its LARGE_FILES are not loaded
but memory-mapped, and each MiB of these is checked when it is first used.

| file | content |
| --- | --- |
| input_ids.npy | token ids of all examples, one after the other (uint16 or uint32) |
| supervised.npy | one bit per token: is it a loss target |
| offsets.npy | int64 (n + 1): where each example begins |
| tasks.npy | uint32 (n): index into `tasks` of meta.json |
| picture_offsets.npy | int64 (n + 1): where each example's images begin; only if there are any |
| pictures.jsonl | for each image: sha256, num_bytes, path ("": in pictures.bin), start |
| pictures.bin | the images that the rows themselves held, one after the other |
| train_contents.npy, evaluation_contents.npy | hashes of the rows' content; not in old entries |
| row_files.npy, row_lines.npy | int32, int64 (n): index of the file in the report, and the line |
"""

import json
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Self, TypedDict

import numpy as np
import numpy.typing as npt

from infrastructure.core.errors import DataError, Problem
from infrastructure.core.files import write_json
from infrastructure.core.integers import ceil_div
from infrastructure.core.json_text import JsonObject, as_object, parse_json
from infrastructure.data.store.examples import Picture, TokenizedExample

# 3: conversations with tool calls and turns that are not trained on. Entries of another version
# are built again.
FORMAT_VERSION = 5
CHUNK_BYTES = 1 << 20
META = "meta.json"
CONVERSATIONS_FILE = "conversations.jsonl"
PICTURES, PICTURE_OFFSETS, PICTURE_BYTES = "pictures.jsonl", "picture_offsets.npy", "pictures.bin"
LARGE_FILES = ("input_ids.npy", "supervised.npy", CONVERSATIONS_FILE, PICTURE_BYTES)

Array = npt.NDArray[Any]


class DamagedEntryError(Problem):
    """An error for a cache entry whose files have changed since they were written. The entry can be
    built again.
    """


class ArrayWriter:
    """A writer of a one-dimensional .npy file, piece by piece."""

    def __init__(self, path: Path, dtype: npt.DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self.length = 0
        self.file: BinaryIO = path.open("wb")
        self._write_header()

    def append(self, values: Array) -> None:
        """Append values to the array."""
        self.file.write(np.ascontiguousarray(values, self.dtype).data)
        self.length += len(values)

    def close(self) -> None:
        """Write the final length into the header, in which numpy has reserved space for it."""
        header_end = self.data_start
        self.file.seek(0)
        self._write_header()
        assert self.file.tell() == header_end
        self.file.close()

    def _write_header(self) -> None:
        description = np.lib.format.dtype_to_descr(self.dtype)
        header = {"descr": description, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self.file, header)
        self.data_start = self.file.tell()


class TokenStoreWriter:
    """A writer of examples into the folder of a cache entry. It is a context manager.

    `finish` makes the entry readable.
    """

    def __init__(self, folder: Path, vocabulary_size: int) -> None:
        self.folder = folder
        dtype = np.uint16 if vocabulary_size <= 1 << 16 else np.uint32
        self.input_ids = ArrayWriter(folder / "input_ids.npy", dtype)
        self.supervised = ArrayWriter(folder / "supervised.npy", np.uint8)
        self.offsets = ArrayWriter(folder / "offsets.npy", np.int64)
        self.tasks = ArrayWriter(folder / "tasks.npy", np.uint32)
        self._writers = (self.input_ids, self.supervised, self.offsets, self.tasks)
        self.offsets.append(np.zeros(1))
        self._task_indices: dict[str, int] = {}
        self._rest: npt.NDArray[np.bool_] = np.zeros(0, dtype=bool)
        self._end = 0
        self._num_pictures = [0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for writer in self._writers:
            writer.file.close()

    def append(self, examples: Sequence[TokenizedExample]) -> None:
        """Append examples to the entry."""
        if not examples:
            return
        ends = self._end + np.cumsum([len(example.input_ids) for example in examples])
        self._end = int(ends[-1])
        self.offsets.append(ends)
        self.input_ids.append(np.concatenate([example.input_ids for example in examples]))
        self._append_bits(np.concatenate([example.supervised for example in examples]))
        self._append_pictures(examples)
        indices = self._task_indices
        self.tasks.append(
            np.array([indices.setdefault(example.task, len(indices)) for example in examples])
        )

    def _append_pictures(self, examples: Sequence[TokenizedExample]) -> None:
        pictures = [picture for example in examples for picture in example.pictures]
        for example in examples:
            self._num_pictures.append(self._num_pictures[-1] + len(example.pictures))
        if not pictures:
            return
        with (
            (self.folder / PICTURES).open("a", encoding="utf-8") as lines,
            (self.folder / PICTURE_BYTES).open("ab") as contents,
        ):
            for picture in pictures:
                start = picture.start if picture.path else contents.tell()
                contents.write(b"" if picture.path else picture.read())
                lines.write(
                    json.dumps([picture.sha256, picture.num_bytes, picture.path, start]) + "\n"
                )

    def _append_bits(self, mask: npt.NDArray[np.bool_]) -> None:
        mask = np.concatenate([self._rest, mask])
        whole = len(mask) // 8 * 8
        self.supervised.append(np.packbits(mask[:whole], bitorder="little"))
        self._rest = mask[whole:]

    def finish(self, meta: JsonObject) -> None:
        """Close the arrays and write meta.json with the checksums of all files in the folder."""
        self.supervised.append(np.packbits(self._rest, bitorder="little"))
        for writer in self._writers:
            writer.close()
        if self._num_pictures[-1]:
            offsets = np.array(self._num_pictures, dtype=np.int64)
            np.save(self.folder / PICTURE_OFFSETS, offsets, allow_pickle=False)
        write_meta(self.folder, {**meta, "tasks": list(self._task_indices)})


def write_meta(folder: Path, meta: JsonObject) -> None:
    """Write the meta.json of an entry, with the checksums of all other files in the folder."""
    suffixes = (".npy", ".jsonl", ".bin")
    files = sorted(path for path in folder.iterdir() if path.suffix in suffixes)
    sealed = {
        **meta,
        "format_version": FORMAT_VERSION,
        "files": {path.name: _checksums(path) for path in files},
    }
    write_json(folder / META, {**sealed, "checksum": _json_checksum(sealed)})


class FileFacts(TypedDict):
    """The size of one file of an entry, and the checksums of its chunks."""

    num_bytes: int
    crc32: list[int]


def _checksums(path: Path) -> FileFacts:
    with path.open("rb") as file:
        sums = [zlib.crc32(chunk) for chunk in iter(lambda: file.read(CHUNK_BYTES), b"")]
    return {"num_bytes": path.stat().st_size, "crc32": sums}


def _json_checksum(value: Mapping[str, object]) -> int:
    return zlib.crc32(json.dumps(value, sort_keys=True, ensure_ascii=False).encode())


def read_meta(folder: Path) -> dict[str, Any]:
    """Return the checked meta.json of an entry, after checking the sizes of all its files.

    Raises:
        DamagedEntryError: a file is missing or damaged; the text names it.
    """
    try:
        meta: dict[str, Any] = as_object(parse_json((folder / META).read_text("utf-8")))
        checksum = meta.pop("checksum")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise DamagedEntryError("data.cache_metadata_unreadable", file=META) from error
    if checksum != _json_checksum(meta) or meta["format_version"] != FORMAT_VERSION:
        raise DamagedEntryError("data.cache_metadata_altered", file=META)
    for name, facts in meta["files"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != facts["num_bytes"]:
            raise DamagedEntryError("data.cache_file_truncated", file=name)
    return meta


class CheckedFile:
    """A file of a cache entry. Its chunks are verified by checksum before they are used."""

    def __init__(self, path: Path, facts: FileFacts) -> None:
        self.path = path
        self._sums: list[int] = facts["crc32"]
        self._is_checked = np.zeros(len(self._sums), dtype=bool)

    def check(self, start: int, end: int) -> None:
        """Verify the checksums of the bytes from `start` to `end`; each chunk is verified only
        once.

        Raises:
            DamagedEntryError: a chunk has changed since it was written.
        """
        first, last = start // CHUNK_BYTES, ceil_div(end, CHUNK_BYTES)
        if self._is_checked[first:last].all():
            return
        try:
            with self.path.open("rb") as file:
                for chunk in np.flatnonzero(~self._is_checked[first:last]) + first:
                    file.seek(int(chunk) * CHUNK_BYTES)
                    if zlib.crc32(file.read(CHUNK_BYTES)) != self._sums[chunk]:
                        raise DamagedEntryError(
                            "data.cache_chunk_damaged", file=self.path.name, chunk=chunk
                        )
                    self._is_checked[chunk] = True
        except OSError as error:
            reason = error.strerror or error
            raise DamagedEntryError(
                "data.file_unreadable", path=self.path.name, reason=reason
            ) from error


class MappedArray:
    """A .npy file of a cache entry, either loaded and verified, or mapped and verified when
    used.
    """

    def __init__(self, path: Path, facts: FileFacts, in_memory: bool) -> None:
        self._file = CheckedFile(path, facts)
        self._file.check(0, facts["num_bytes"] if in_memory else 1)  # numpy trusts the header
        try:
            mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DamagedEntryError("data.cache_file_not_array", file=path.name) from error
        self.values: Array = np.array(mapped) if in_memory else mapped
        self._data_start = facts["num_bytes"] - self.values.nbytes
        self._in_memory = in_memory
        self._used_at = time.monotonic()

    def release_memory(self, unused_seconds: float) -> int:
        """Drop the file's content from memory, so that it is read from disk; return the freed
        bytes.
        """
        if not self._in_memory or time.monotonic() - self._used_at < unused_seconds:
            return 0
        held = self.values.nbytes
        self.values = np.load(self._file.path, mmap_mode="r", allow_pickle=False)
        self._in_memory = False
        return held

    def __getitem__(self, where: slice) -> Array:
        self._used_at = time.monotonic()
        if not self._in_memory:
            size = self.values.itemsize
            start, end = where.start * size, where.stop * size
            self._file.check(self._data_start + start, self._data_start + end)
        part: Array = self.values[where]
        return part


@contextmanager
def damage_explained(folder: Path) -> Iterator[None]:
    """Return a context that turns errors about damaged cache entries into errors that say what to
    do.

    Raises:
        DataError: instead of a `DamagedEntryError`.
    """
    try:
        yield
    except DamagedEntryError as error:
        raise DataError("data.prepared_data_damaged", folder=folder, reason=error) from error


class TokenStore:
    """The examples of one cache entry, by number.

    Args:
        folder: an entry that `StoreWriter` finished.
        memory_bytes: entries up to this size are held in memory, larger ones memory-mapped.

    Raises:
        DamagedEntryError: opening has found damage. If a method finds damage later, it raises
            `DataError`.
    """

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        self.folder = folder
        self.meta = read_meta(folder)
        sizes = {name: facts["num_bytes"] for name, facts in self.meta["files"].items()}
        self.num_bytes = sum(sizes.values()) - sizes.get(PICTURE_BYTES, 0)  # never held in memory
        self.is_in_memory = self.num_bytes <= memory_bytes
        self._input_ids = self._open("input_ids.npy", self.is_in_memory)
        self._supervised = self._open("supervised.npy", self.is_in_memory)
        self._offsets = self._open("offsets.npy", in_memory=True).values
        self._tasks = self._open("tasks.npy", in_memory=True).values
        for name in self.meta["files"].keys() - {"offsets.npy", "tasks.npy"}:
            if name not in LARGE_FILES or (self.is_in_memory and name == CONVERSATIONS_FILE):
                self._check(name)
        self._task_names: list[str] = self.meta["tasks"]
        self._picture_offsets: Array | None = None
        self._picture_lines: list[str] = []
        if PICTURE_OFFSETS in self.meta["files"]:
            self._picture_offsets = self._open(PICTURE_OFFSETS, in_memory=True).values
            self._picture_lines = (folder / PICTURES).read_text("utf-8").splitlines()

    def __len__(self) -> int:
        return len(self._tasks)

    def array(self, name: str) -> Array:
        """Return a small array of the entry, loaded and checked as a whole."""
        with damage_explained(self.folder):
            return self._open(name, in_memory=True).values

    def lengths(self) -> npt.NDArray[np.int64]:
        """Return the number of tokens of each example, by its number."""
        return np.diff(self._offsets).astype(np.int64)

    def lines(self, name: str) -> list[str]:
        """Return the lines of a text file of the entry, after verifying its checksums."""
        with damage_explained(self.folder):
            self._check(name)
        return (self.folder / name).read_text("utf-8").split("\n")[:-1]

    def release_memory(self, unused_seconds: float = 0.0) -> int:
        """Free the examples from memory if they have not been used for `unused_seconds`.

        Returns:
            The number of freed bytes. Afterwards, examples are read from the files.
        """
        return sum(
            array.release_memory(unused_seconds) for array in (self._input_ids, self._supervised)
        )

    def task(self, index: int) -> str:
        return self._task_names[self._tasks[index]]

    def example(self, index: int) -> TokenizedExample:
        """Return example number `index`."""
        start, end = int(self._offsets[index]), int(self._offsets[index + 1])
        first_byte = start // 8
        with damage_explained(self.folder):
            ids = self._input_ids[start:end]
            packed = self._supervised[first_byte : ceil_div(end, 8)]
        bits = np.unpackbits(packed, bitorder="little")
        mask = bits[start - 8 * first_byte : end - 8 * first_byte].view(np.bool_)
        pictures = self._pictures(index)
        return TokenizedExample(ids.astype(np.int32), mask, self.task(index), pictures)

    def _pictures(self, index: int) -> tuple[Picture, ...]:
        if self._picture_offsets is None:
            return ()
        start, end = self._picture_offsets[index : index + 2]
        facts = (json.loads(line) for line in self._picture_lines[start:end])
        inside = str(self.folder / PICTURE_BYTES)
        return tuple(Picture(sha, size, path or inside, at) for sha, size, path, at in facts)

    def _check(self, name: str) -> None:
        facts = self.meta["files"][name]
        CheckedFile(self.folder / name, facts).check(0, facts["num_bytes"])

    def _open(self, name: str, in_memory: bool) -> MappedArray:
        return MappedArray(self.folder / name, self.meta["files"][name], in_memory)
