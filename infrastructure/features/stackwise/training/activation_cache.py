"""A disk cache of the hidden states that frozen layers return, for use in every later epoch.

A page contains the hidden states of K neighboring examples in canonical order, computed in one
forward pass. Values depend only on their page and not on training batches, so a rebuilt cache has
the same bits. A page is one file, written atomically:

| bytes | content |
| --- | --- |
| 0 to 31 | hash of the cache's key, the page's number and its values |
| 32 to the end | the values, [L_i, d] of one example after the other, fp32 or bf16, little-endian |

The key contains everything that the values depend on: the examples and their order, the frozen
weights, time step, unit, page size, number format, masks. A page is used only if its hash matches,
and the hash of a page of another cache or with another number never does. The hash is compared when
a page is first read. A page that is truncated, corrupt or missing is rebuilt. The name of a cache's
folder is derived from its key.
"""

import hashlib
import json
import logging
import mmap
import os
import queue
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
import torch

from infrastructure.backup.format.file_operations import Buffer
from infrastructure.backup.format.hashing import available_hash, hash_of
from infrastructure.backup.format.tensor_bytes import dtype_name, to_bytes
from infrastructure.core.checksums import read_record, write_record
from infrastructure.core.errors import DamagedFileError, InputError, StorageError
from infrastructure.core.files import HASH_CHUNK_BYTES, atomic_write, make_directory, remove_parts
from infrastructure.core.hardware import disk_free_bytes
from infrastructure.core.integers import ceil_div
from infrastructure.core.json_text import JsonObject, JsonValue, as_text
from infrastructure.core.lock import Lock
from infrastructure.core.messages import phrase
from infrastructure.core.registry import Registry
from infrastructure.features.stackwise import registries
from infrastructure.monitoring.drawing.formatting import format_bytes

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
ID_BYTES = 16
DIGEST_BYTES = 32
FOLDER = "activations-"  # followed by the first half of the key's hash
REMOVED = ".removed-"
KEY_FILE = "key.json"
IN_USE = "in_use.lock"
NUM_BUILD_LOCKS = 64  # pages whose numbers agree modulo this share a lock
MAX_REBUILDS = 3  # of a page that is missing or damaged again right after it was built
READ_AHEAD = 64  # queued requests; more are dropped

CACHE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

Example = Any  # any type; `Pages` gets functions for its id and length
Compute = Callable[[list[Example]], Sequence[torch.Tensor]]
OnPage = Callable[[int, int], None]


def example_id(input_ids: object, supervised: object = None) -> bytes:
    """Return a 16-byte id of an example: the BLAKE2b hash of its content.

    Args:
        input_ids: int (L,) without padding; a sequence, an array or a tensor of any integer type.
            Preferably the ids after masking.
        supervised: bool (L,); needed if `input_ids` are the ids before masking and the masks depend
            on it.
    """
    digest = hashlib.blake2b(_as_array(input_ids, "<i8").tobytes(), digest_size=ID_BYTES)
    if supervised is not None:
        digest.update(b"supervised")
        digest.update(_as_array(supervised, np.bool_).tobytes())
    return digest.digest()


def _as_array(values: object, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
    array = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values
    return np.ascontiguousarray(array, dtype)


def _id_of(example: Example) -> bytes:
    return example_id(example.input_ids)


def _length_of(example: Example) -> int:
    return len(example.input_ids)


def trunk_hash(named_tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Hash the parameters and buffers of frozen layers: names, types, shapes and bytes (SHA-256).

    The order of the tensors does not matter. Tensors are hashed one at a time, and copied only if
    they are not contiguous on the CPU.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(named_tensors, key=lambda pair: pair[0]):
        stored = to_bytes(tensor)
        digest.update(json.dumps([name, stored.dtype, stored.shape]).encode())
        digest.update(stored.data)
    return digest.hexdigest()


def bytes_needed(
    num_tokens: int,
    hidden_size: int,
    dtype: torch.dtype,
    num_time_steps: int = 1,
    num_boundaries: int = 1,
) -> int:
    """Return the size of cached hidden states in bytes.

    Args:
        num_boundaries: number of layers whose inputs are cached.
    """
    return num_tokens * hidden_size * dtype.itemsize * num_time_steps * num_boundaries


def refuse_without_space(folder: Path, needed_bytes: int) -> None:
    """Check that a cache fits on the disk of `folder`.

    Raises:
        ValueError: less than `needed_bytes` are free.
    """
    free_bytes = disk_free_bytes(folder)
    if free_bytes is not None and needed_bytes > free_bytes:
        raise InputError(
            "stackwise.cache_exceeds_free_space",
            folder=folder,
            needed=format_bytes(needed_bytes),
            free=format_bytes(free_bytes),
        )


class Pages:
    """The distinct examples in a fixed order, divided into pages of `page_size`.

    Args:
        examples: in an order that never changes, such as epoch 0 of the data. If several have the
            same id, only the first one counts.
        page_size: number of examples that are computed together.
        identify: returns the id of an example; by default the hash of its `input_ids`.
        length: returns the number of tokens of an example, L_i.

    Raises:
        ValueError: there are no examples, or `page_size` is less than 1.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        page_size: int,
        identify: Callable[[Example], bytes] = _id_of,
        length: Callable[[Example], int] = _length_of,
    ) -> None:
        if page_size < 1 or len(examples) == 0:
            raise InputError(
                "stackwise.nothing_to_cache",
                count=len(examples),
                page_size=page_size,
            )
        self.page_size = page_size
        self.num_tokens = 0
        self._examples = examples
        self._order: dict[bytes, int] = {}  # id → index among the distinct examples
        self._sources: list[int] = []
        self._lengths: list[int] = []
        for source in range(len(examples)):
            example = examples[source]
            identity = identify(example)
            if self._order.setdefault(identity, len(self._order)) == len(self._sources):
                self._sources.append(source)
                self._lengths.append(length(example))
        self._ids = list(self._order)
        self.num_tokens = sum(self._lengths)

    def __len__(self) -> int:
        return ceil_div(len(self._ids), self.page_size)

    def ids(self, number: int) -> list[bytes]:
        """Return the ids of the examples on page `number`."""
        return self._ids[self._part(number)]

    def lengths(self, number: int) -> list[int]:
        """Return the number of tokens of each example on page `number`."""
        return self._lengths[self._part(number)]

    def examples(self, number: int) -> list[Example]:
        """Return the examples on page `number`."""
        return [self._examples[source] for source in self._sources[self._part(number)]]

    def find(self, identity: bytes) -> tuple[int, int] | None:
        """Return the page that contains an example, and its row on that page, or None."""
        number = self._order.get(identity)
        return None if number is None else divmod(number, self.page_size)

    def fingerprint(self) -> str:
        """Return a hash of the ids and lengths of all examples in their order."""
        digest = hashlib.blake2b(b"".join(self._ids), digest_size=DIGEST_BYTES)
        digest.update(np.array(self._lengths, "<i8").tobytes())
        return digest.hexdigest()

    def _part(self, number: int) -> slice:
        return slice(number * self.page_size, (number + 1) * self.page_size)


@dataclass
class CacheStatistics:
    """Counters of the activation caches in this process.

    Attributes:
        hits, misses: numbers of requested examples that were cached, and that were not.
        examples_built, pages_built: examples and pages that this process computed and wrote.
        pages_damaged: pages on the disk that failed verification.
        bytes_written, bytes_read: bytes of written pages; bytes of values that were read.
    """

    hits: int = 0
    misses: int = 0
    examples_built: int = 0
    pages_built: int = 0
    pages_damaged: int = 0
    bytes_written: int = 0
    bytes_read: int = 0


class Cache(Protocol):
    """The interface of an activation cache, which may store its values anywhere.

    A cache is created with the arguments of `ActivationCache`.
    """

    def missing_bytes(self) -> int:
        """Return the number of bytes that `build` will write to the disk."""

    def build(self, compute: Compute, on_page: OnPage | None = None) -> None:
        """Compute and store the missing values, as far as the budget allows."""

    def covers(self, ids: Iterable[bytes]) -> bool:
        """Return whether all examples with these ids can be read."""

    def read(self, ids: Sequence[bytes]) -> list[torch.Tensor] | None:
        """Return the values of these examples, [L_i, d] each, or None if one is not cached."""

    def prefetch(self, ids: Sequence[bytes]) -> None:
        """Announce that these examples will be read soon."""

    def close(self) -> None:
        """Release all resources, but keep the stored values."""

    def discard(self) -> None:
        """Close the cache, and delete its values unless another process uses them."""


class ActivationCache:
    """A disk cache of the hidden states that one layer gets as input, at one time step.

    Processes that share a directory may build and read the same cache at the same time. They divide
    the pages among themselves, and each reads what the others have written.

    Args:
        directory: the parent folder of all caches; other files in it are left alone.
        key: JSON values that identify everything that the values depend on: hash of the frozen
            weights, time step, unit, data, labels, mask seed. The cache adds `pages`,
            `hidden_size` and `dtype` itself.
        hidden_size: d.
        dtype: `torch.float32` or `torch.bfloat16`.
        budget_bytes: the first pages that fit are cached; None: all.
        statistics: shared counters for several caches; None: its own counters.

    Raises:
        ValueError: the key is not JSON, the dtype is not supported, or the directory is not
            writable.
    """

    def __init__(
        self,
        directory: Path,
        key: Mapping[str, JsonValue],
        pages: Pages,
        *,
        hidden_size: int,
        dtype: torch.dtype = torch.float32,
        budget_bytes: int | None = None,
        statistics: CacheStatistics | None = None,
    ) -> None:
        if dtype not in CACHE_DTYPES.values():
            raise InputError("stackwise.unsupported_cache_dtype", dtype=dtype)
        self.pages = pages
        self.hidden_size = hidden_size
        self.dtype = dtype
        self.statistics = statistics if statistics is not None else CacheStatistics()
        self.key = complete_key(key, pages, hidden_size, dtype)
        self._key_hash = key_hash(self.key)
        self._hash = as_text(self.key["hash"])
        self.folder = directory / f"{FOLDER}{self._key_hash[:32]}"
        self.num_pages = self._pages_that_fit(budget_bytes)
        self._compute: Compute | None = None
        self._verified: dict[int, tuple[int, int]] = {}  # page → inode, time of what was read
        self._requests: queue.Queue[Sequence[bytes] | None] = queue.Queue(READ_AHEAD)
        self._reader: threading.Thread | None = None
        try:
            self._lock: Lock | None = _hold(self.folder)
            remove_parts(self.folder)
            self._write_key()
        except OSError as error:
            raise InputError(
                "stackwise.cache_not_writable",
                directory=directory,
                reason=error.strerror or error,
            ) from error

    def _pages_that_fit(self, budget_bytes: int | None) -> int:
        if budget_bytes is None:
            return len(self.pages)
        total = 0
        for number in range(len(self.pages)):
            total += self._page_bytes(number)
            if total > budget_bytes:
                return number
        return len(self.pages)

    def _page_bytes(self, number: int) -> int:
        num_tokens = sum(self.pages.lengths(number))
        return DIGEST_BYTES + bytes_needed(num_tokens, self.hidden_size, self.dtype)

    def _write_key(self) -> None:
        path = self.folder / KEY_FILE
        with suppress(FileNotFoundError, DamagedFileError):
            if read_record(path) == self.key:
                return
        write_record(path, self.key)  # pages are verified by their hash, not by this file

    def missing_bytes(self) -> int:
        """Return the number of bytes that `build` will write."""
        return sum(self._page_bytes(n) for n in range(self.num_pages) if not self._has_size(n))

    def build(self, compute: Compute, on_page: OnPage | None = None) -> None:
        """Compute and write the missing pages in order, as far as the budget allows.

        Existing pages are skipped. Their hash is compared when they are first read.

        Args:
            compute: returns the hidden states [L_i, d] of the examples of one page, in one forward
                pass that depends only on these examples and the key. It is also called later to
                rebuild damaged pages, and must not change the state of random generators.
            on_page: called with the number of finished pages and their total; may raise to stop.

        Raises:
            ValueError: the disk does not have enough free space, or `compute` returns wrong shapes.
            StorageError: a page cannot be written.
        """
        refuse_without_space(self.folder, self.missing_bytes())
        self._compute = compute
        num_there, others = 0, []
        for number in range(self.num_pages):
            if self._make(number, self._has_size, wait=False):
                num_there = self._report(num_there, on_page)
            else:
                others.append(number)
        for number in others:
            self._make(number, self._has_size, wait=True)
            num_there = self._report(num_there, on_page)

    def _report(self, num_there: int, on_page: OnPage | None) -> int:
        if on_page is not None:
            on_page(num_there + 1, self.num_pages)
        return num_there + 1

    def covers(self, ids: Iterable[bytes]) -> bool:
        """Return whether all these examples are cached; False before `build` is called."""
        return self._compute is not None and all(self._find(identity) for identity in ids)

    def _find(self, identity: bytes) -> tuple[int, int] | None:
        place = self.pages.find(identity)
        return place if place is not None and place[0] < self.num_pages else None

    def read(self, ids: Sequence[bytes]) -> list[torch.Tensor] | None:
        """Return copies of the cached values of these examples, on the CPU. Rebuild damaged pages.

        Returns:
            A tensor [L_i, d] for each example; None if one is not cached or `build` was not called.

        Raises:
            StorageError: a damaged page cannot be written again.
        """
        if not self.covers(ids):
            self.statistics.misses += len(ids)
            return None
        places = [place for identity in ids if (place := self._find(identity)) is not None]
        values: dict[tuple[int, int], torch.Tensor] = {}
        for number in dict.fromkeys(number for number, _ in places):
            rows = [row for page, row in dict.fromkeys(places) if page == number]
            places_here = ((number, row) for row in rows)
            values.update(zip(places_here, self._rows(number, rows), strict=True))
        read = [values[place] for place in places]
        self.statistics.hits += len(ids)
        self.statistics.bytes_read += sum(value.nbytes for value in values.values())
        return read

    def prefetch(self, ids: Sequence[bytes]) -> None:
        """Read the pages of these examples into memory in a background thread.

        A damaged page is ignored here; `read` rebuilds it.
        """
        if self._reader is None:
            self._reader = threading.Thread(
                target=self._read_ahead, name="temper-activations", daemon=True
            )
            self._reader.start()
        with suppress(queue.Full):  # the thread is behind the training anyway
            self._requests.put_nowait(ids)

    def _read_ahead(self) -> None:
        while (ids := self._requests.get()) is not None:
            for number, row in filter(None, map(self._find, ids)):
                with suppress(OSError), self._path(number).open("rb") as file:
                    if not self._is_verified(number, file):
                        self._is_whole(number, file)  # this reads the whole file
                    elif hasattr(os, "posix_fadvise"):
                        start, size = self._extent(number, row)
                        os.posix_fadvise(file.fileno(), start, size, os.POSIX_FADV_WILLNEED)

    def size_bytes(self) -> int:
        """Return the current size of the cache on the disk, in bytes."""
        return folder_bytes(self.folder)

    def close(self) -> None:
        """Stop the background thread, and allow others to remove the folder. Its content stays."""
        if self._reader is not None:
            self._reader_stop()
        if self._lock is not None:
            with suppress(OSError):
                os.utime(self.folder / IN_USE)
            self._lock.release()
            self._lock = None
        self._compute = None

    def _reader_stop(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._requests.get_nowait()
        self._requests.put(None)
        assert self._reader is not None
        self._reader.join()
        self._reader = None

    def discard(self) -> None:
        """Close the cache, and delete its folder unless another process has it open."""
        self.close()
        remove_unused(self.folder, where_there_are_no_locks=True)

    def _make(self, number: int, is_there: Callable[[int], bool], *, wait: bool) -> bool:
        """Build page `number` if it does not exist, and return whether it exists now.

        Return False without `wait` if another process holds the lock of this page.
        """
        if is_there(number):
            return True
        lock = Lock(self.folder / f"build-{number % NUM_BUILD_LOCKS}.lock")
        try:
            if not lock.take(wait=wait, where_there_are_none=True):
                return False
            if not is_there(number):
                if self._path(number).exists():
                    self.statistics.pages_damaged += 1
                    logger.warning(
                        phrase("stackwise.damaged_page_rebuilt", page=self._path(number))
                    )
                self._build_page(number)
            return True
        finally:
            lock.release()

    def _build_page(self, number: int) -> None:
        assert self._compute is not None, "pages are built by `build`, and after it"
        lengths = self.pages.lengths(number)
        with torch.no_grad():
            computed = self._compute(self.pages.examples(number))
            shapes = [tuple(value.shape) for value in computed]
            expected = [(length, self.hidden_size) for length in lengths]
            if shapes != expected:
                raise InputError(
                    "stackwise.hidden_state_shapes_differ", shapes=shapes, expected=expected
                )
            values = [value.detach().to(self.dtype).cpu().contiguous() for value in computed]
        data = [to_bytes(value).data for value in values]
        try:
            with atomic_write(self._path(number)) as file:
                file.write(bytes.fromhex(self._digest(number, data)))
                for part in data:
                    file.write(part)
                file.flush()
                status = os.fstat(file.fileno())
        except OSError as error:
            raise StorageError(
                "stackwise.cache_write_failed",
                folder=self.folder,
                reason=error.strerror or error,
            ) from error
        self._verified[number] = (status.st_ino, status.st_mtime_ns)
        self.statistics.pages_built += 1
        self.statistics.examples_built += len(lengths)
        self.statistics.bytes_written += self._page_bytes(number)

    def _digest(self, number: int, values: Iterable[Buffer]) -> str:
        identity = [self._key_hash.encode(), number.to_bytes(8, "little")]
        return hash_of(self._hash, [*identity, *values])

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.page"

    def _has_size(self, number: int) -> bool:
        with suppress(FileNotFoundError):
            return self._path(number).stat().st_size == self._page_bytes(number)
        return False

    def _is_verified(self, number: int, file: BinaryIO) -> bool:
        """Return whether this version of the page in the open file was already verified."""
        status = os.fstat(file.fileno())
        known = self._verified.get(number) == (status.st_ino, status.st_mtime_ns)
        return known and status.st_size == self._page_bytes(number)

    def _is_whole(self, number: int, file: BinaryIO) -> bool:
        """Return whether the page in the open file is intact; verify its hash once."""
        if self._is_verified(number, file):
            return True
        try:
            status = os.fstat(file.fileno())
            expected = file.read(DIGEST_BYTES).hex()
            parts = iter(lambda: file.read(HASH_CHUNK_BYTES), b"")
            if self._digest(number, parts) != expected:
                return False
        except OSError:  # the disk cannot read the file
            return False
        self._verified[number] = (status.st_ino, status.st_mtime_ns)
        return True

    def _can_be_read(self, number: int) -> bool:
        with suppress(FileNotFoundError), self._path(number).open("rb") as file:
            return self._is_whole(number, file)
        return False

    def _extent(self, number: int, row: int) -> tuple[int, int]:
        """Return the offset of a row in its page file, and its size, in bytes."""
        lengths = self.pages.lengths(number)
        before, own = sum(lengths[:row]), lengths[row]
        size = self.hidden_size * self.dtype.itemsize
        return DIGEST_BYTES + before * size, own * size

    def _rows(self, number: int, rows: Sequence[int]) -> list[torch.Tensor]:
        """Return copies of rows of a page, after rebuilding it if it is damaged.

        They are copies because another process may replace or remove the page.
        """
        for _ in range(MAX_REBUILDS):
            self._make(number, self._can_be_read, wait=True)
            with suppress(FileNotFoundError), self._path(number).open("rb") as file:
                if self._is_whole(number, file):  # it may have been replaced in between
                    # a private mapping, because torch wants writable memory
                    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
                        return [self._row(mapped, number, row) for row in rows]
        raise StorageError(
            "stackwise.page_damaged_repeatedly",
            page=self._path(number),
            count=MAX_REBUILDS,
        )

    def _row(self, mapped: mmap.mmap, number: int, row: int) -> torch.Tensor:
        start, size = self._extent(number, row)
        shape = (self.pages.lengths(number)[row], self.hidden_size)
        if size == 0:
            return torch.empty(shape, dtype=self.dtype)
        count = size // self.dtype.itemsize
        values = torch.frombuffer(mapped, dtype=self.dtype, count=count, offset=start)
        return values.reshape(shape).clone()


CACHES: Registry[Callable[..., Cache]] = registries.CACHES
CACHES.provide({"disk": ActivationCache}, Cache)


def complete_key(
    key: Mapping[str, JsonValue], pages: Pages, hidden_size: int, dtype: torch.dtype
) -> JsonObject:
    """Return `key` with further facts that the cached values depend on, such as the dtype.

    Raises:
        ValueError: the key is not JSON, or contains one of the names that are added.
    """
    own = {
        "format_version": FORMAT_VERSION,
        "hash": available_hash(),
        "dtype": dtype_name(torch.empty(0, dtype=dtype)),
        "hidden_size": hidden_size,
        "page_size": pages.page_size,
        "pages": pages.fingerprint(),
    }
    if taken := sorted(own.keys() & key.keys()):
        raise InputError("stackwise.reserved_cache_key", names=", ".join(taken))
    try:
        whole: JsonObject = json.loads(json.dumps({**key, **own}, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError("stackwise.cache_key_not_json", error=error) from error
    return whole


def key_hash(key: Mapping[str, JsonValue]) -> str:
    """Return the SHA-256 of a cache's key in hexadecimal."""
    text = json.dumps(key, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _hold(folder: Path) -> Lock:
    """Create the folder of a cache, and lock it so that other processes do not remove it."""
    while True:
        make_directory(folder)
        try:
            lock = Lock(folder / IN_USE)
        except FileNotFoundError:  # another process has just removed it
            continue
        lock.take(shared=True)  # waits while another process removes it
        if _is_file(lock, folder / IN_USE):
            return lock
        lock.release()


def _is_file(lock: Lock, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(lock.descriptor), path.stat())
    except FileNotFoundError:
        return False


def remove_unused(folder: Path, *, where_there_are_no_locks: bool = False) -> bool:
    """Delete the folder of a cache unless a living process has it open; return whether it is gone.

    Args:
        where_there_are_no_locks: also delete it on a file system without locks. A process that
            reads it then rebuilds the missing pages.
    """
    try:
        lock = Lock(folder / IN_USE)
    except FileNotFoundError:
        return not folder.exists()
    try:
        if not lock.take(wait=False, where_there_are_none=where_there_are_no_locks):
            return False
        hidden = folder.with_name(f"{REMOVED}{folder.name}-{secrets.token_hex(4)}")
        with suppress(FileNotFoundError):
            folder.rename(hidden)
    finally:
        lock.release()
    shutil.rmtree(hidden, ignore_errors=True)
    return True


def is_unused(folder: Path) -> bool:
    """Return whether no living process has the cache in `folder` open; False if that is unknown."""
    try:
        lock = Lock(folder / IN_USE)
    except OSError:
        return False
    try:
        return lock.take(wait=False, where_there_are_none=False)
    finally:
        lock.release()


def folder_bytes(folder: Path) -> int:
    """Return the total size of the files in a folder in bytes; 0 if it does not exist."""
    total = 0
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                total += path.stat().st_size
    return total
