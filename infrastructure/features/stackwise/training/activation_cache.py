"""A disk cache of a frozen trunk's hidden states: computed once, read in every later epoch.

Values depend only on their page, so a cache that is lost and rebuilt has the same bits. A page is K
neighboring examples in canonical order. They are computed together in one forward pass, however
they are batched later. A page is one file, written atomically:

| bytes | content |
| --- | --- |
| 0 to 31 | hash of the cache's key, the page's number and its values |
| 32 to the end | the values, [L_i, d] of one example after the other, fp32 or bf16, little-endian |

The key contains everything that the values depend on: the examples and their order, trunk, time
step, unit, page size, dtype, masks. So a reader knows everything but the values. It trusts
nothing in a file until the hash agrees, and that never happens for a page of another cache or with
another number. The hash is compared when a page is first read. A page that is truncated, corrupt
or missing is rebuilt. No lock is needed, because every process writes the same bytes to a page.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from infrastructure.backup.format.tensor_bytes import dtype_name, to_bytes
from infrastructure.core.errors import InputError, StorageError
from infrastructure.core.files import atomic_write, make_directory, remove_parts
from infrastructure.core.hardware import disk_free_bytes
from infrastructure.core.integers import ceil_div
from infrastructure.core.json_text import JsonValue
from infrastructure.core.messages import phrase
from infrastructure.core.registry import Registry
from infrastructure.features.stackwise import registries
from infrastructure.monitoring.drawing.formatting import format_bytes

logger = logging.getLogger(__name__)

FORMAT_VERSION = 2
ID_BYTES = 16
DIGEST_BYTES = 32
MAX_REBUILDS = 3  # of a page that is missing or damaged again right after it was built

CACHE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

Example = Any  # has `input_ids`
Compute = Callable[[list[Example]], Sequence[torch.Tensor]]


def example_id(input_ids: object, supervised: object = None) -> bytes:
    """Return the id of an example: the BLAKE2b hash of its content, 16 bytes.

    Args:
        input_ids: int (L,), a sequence, an array or a tensor, without padding; the integer type
            does not matter. Preferably the ids that the trunk reads, with masks applied.
        supervised: bool (L,); required if `input_ids` are not masked yet and the masks depend on
            `supervised`.
    """
    digest = hashlib.blake2b(_as_array(input_ids, "<i8").tobytes(), digest_size=ID_BYTES)
    if supervised is not None:
        digest.update(b"supervised")
        digest.update(_as_array(supervised, np.bool_).tobytes())
    return digest.digest()


def _as_array(values: object, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
    array = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values
    return np.ascontiguousarray(array, dtype)


def trunk_hash(named_tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Return the SHA-256 over a trunk's parameters and buffers: names, types, shapes and bytes.

    The order of the tensors does not matter. Tensors are hashed one at a time and in place. Only a
    tensor that is not contiguous on the CPU is copied.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(named_tensors, key=lambda pair: pair[0]):
        stored = to_bytes(tensor)
        digest.update(json.dumps([name, stored.dtype, stored.shape]).encode())
        digest.update(stored.data)
    return digest.hexdigest()


def key_hash(key: Mapping[str, JsonValue]) -> str:
    """Return the SHA-256 of a key, hexadecimal."""
    text = json.dumps(key, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def bytes_needed(num_tokens: int, hidden_size: int, dtype: torch.dtype) -> int:
    """Return the bytes of the hidden states of all tokens."""
    return num_tokens * hidden_size * dtype.itemsize


class Pages:
    """The distinct examples in canonical order, in pages of `page_size`.

    Args:
        examples: in an order that never changes, such as epoch 0 of the data; at least one. If
            several have the same id, only the first one counts.
        page_size: number of examples that are computed together.
        identify: returns the id of an example.
    """

    def __init__(
        self, examples: Sequence[Example], page_size: int, identify: Callable[[Example], bytes]
    ) -> None:
        self.page_size = page_size
        self._examples: list[Example] = []
        self._order: dict[bytes, int] = {}  # id → index among the distinct examples
        for example in examples:
            if self._order.setdefault(identify(example), len(self._order)) == len(self._examples):
                self._examples.append(example)
        self._ids = list(self._order)
        self._lengths = [len(example.input_ids) for example in self._examples]

    def __len__(self) -> int:
        return ceil_div(len(self._ids), self.page_size)

    def ids(self, number: int) -> list[bytes]:
        """Return the ids of page `number`."""
        return self._ids[self._part(number)]

    def lengths(self, number: int) -> list[int]:
        """Return the number of tokens of each example of page `number`."""
        return self._lengths[self._part(number)]

    def examples(self, number: int) -> list[Example]:
        """Return the examples of page `number`."""
        return self._examples[self._part(number)]

    def find(self, identity: bytes) -> tuple[int, int] | None:
        """Return the page of an example and its row there, or None."""
        number = self._order.get(identity)
        return None if number is None else divmod(number, self.page_size)

    def fingerprint(self) -> str:
        """Return a hash of the ids and lengths in their order."""
        digest = hashlib.blake2b(b"".join(self._ids), digest_size=DIGEST_BYTES)
        digest.update(np.array(self._lengths, "<i8").tobytes())
        return digest.hexdigest()

    def _part(self, number: int) -> slice:
        return slice(number * self.page_size, (number + 1) * self.page_size)


class Cache(Protocol):
    """The interface of a cache, wherever it stores its values.

    A cache is created with the arguments of `ActivationCache`.
    """

    def build(self, compute: Compute) -> None:
        """Compute the missing values, as far as the budget allows."""

    def read(self, ids: Sequence[bytes]) -> list[torch.Tensor] | None:
        """Return the values of these examples, [L_i, d] each, on the CPU.

        Return None if an example is not cached.
        """

    def discard(self) -> None:
        """Delete the values."""


class ActivationCache:
    """A cache of the hidden states at one boundary for one time step, in its own folder.

    Args:
        folder: a folder that only this cache uses.
        key: JSON values; everything that the cached values depend on, such as the trunk's hash,
            time step, unit, data, labels and mask seed. `pages`, `hidden_size` and `dtype` are
            added.
        hidden_size: d.
        dtype: `torch.float32` or `torch.bfloat16`.
        budget_bytes: size limit; the first pages in canonical order that fit are cached.

    Raises:
        ValueError: the folder is not writable.
    """

    def __init__(
        self,
        folder: Path,
        key: Mapping[str, JsonValue],
        pages: Pages,
        *,
        hidden_size: int,
        dtype: torch.dtype,
        budget_bytes: int,
    ) -> None:
        self.folder, self.pages = folder, pages
        self.hidden_size, self.dtype = hidden_size, dtype
        own: dict[str, JsonValue] = {
            "format_version": FORMAT_VERSION,
            "dtype": dtype_name(torch.empty(0, dtype=dtype)),
            "hidden_size": hidden_size,
            "page_size": pages.page_size,
            "pages": pages.fingerprint(),
        }
        self._key_hash = key_hash({**key, **own})
        self.num_pages = self._pages_that_fit(budget_bytes)
        self._compute: Compute | None = None
        self._verified: set[int] = set()
        try:
            make_directory(folder)
            remove_parts(folder)
            os.utime(folder)  # the time of its last use
        except OSError as error:
            raise InputError(
                "stackwise.cache_not_writable",
                directory=folder,
                reason=error.strerror or error,
            ) from error

    def _pages_that_fit(self, budget_bytes: int) -> int:
        total = 0
        for number in range(len(self.pages)):
            total += self._page_bytes(number)
            if total > budget_bytes:
                return number
        return len(self.pages)

    def _page_bytes(self, number: int) -> int:
        num_tokens = sum(self.pages.lengths(number))
        return DIGEST_BYTES + bytes_needed(num_tokens, self.hidden_size, self.dtype)

    def build(self, compute: Compute) -> None:
        """Write the missing pages in canonical order, until the budget is used up.

        Existing pages are skipped. Their hash is compared when they are first read.

        Args:
            compute: returns the hidden states [L_i, d] of the examples of one page, in one forward
                pass that depends only on these examples and the key. The function is kept, to
                rebuild damaged pages, and must not change the state of random generators.

        Raises:
            ValueError: the disk does not have enough free space, or `compute` returns wrong shapes.
            StorageError: a page cannot be written.
        """
        missing = [n for n in range(self.num_pages) if not self._has_size(n)]
        self._refuse_without_space(sum(map(self._page_bytes, missing)))
        self._compute = compute
        for number in missing:
            self._build_page(number, compute)

    def _refuse_without_space(self, needed_bytes: int) -> None:
        free_bytes = disk_free_bytes(self.folder)
        if free_bytes is not None and needed_bytes > free_bytes:
            raise InputError(
                "stackwise.cache_exceeds_free_space",
                folder=self.folder,
                needed=format_bytes(needed_bytes),
                free=format_bytes(free_bytes),
            )

    def read(self, ids: Sequence[bytes]) -> list[torch.Tensor] | None:
        """Return copies of the values of these examples, [L_i, d] each, on the CPU.

        A damaged page is rebuilt first.

        Returns:
            The values; None if an example is not cached, or `build` was not called.

        Raises:
            StorageError: a damaged page cannot be written again.
        """
        places = [self.pages.find(identity) for identity in ids]
        cached = [place for place in places if place is not None and place[0] < self.num_pages]
        compute = self._compute
        if compute is None or len(cached) < len(ids):
            return None
        return [self._row(number, row, compute) for number, row in cached]

    def discard(self) -> None:
        """Delete the folder."""
        self._compute = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def _row(self, number: int, row: int, compute: Compute) -> torch.Tensor:
        lengths = self.pages.lengths(number)
        size = self.hidden_size * self.dtype.itemsize
        for _ in range(MAX_REBUILDS):
            if number not in self._verified and not self._is_whole(number):
                logger.warning(phrase("stackwise.damaged_page_rebuilt", page=self._path(number)))
                self._build_page(number, compute)
                continue  # and compare what is on the disk now
            self._verified.add(number)
            with suppress(FileNotFoundError), self._path(number).open("rb") as file:
                file.seek(DIGEST_BYTES + sum(lengths[:row]) * size)
                data = bytearray(file.read(lengths[row] * size))
                if len(data) == lengths[row] * size:
                    values = torch.frombuffer(data, dtype=self.dtype) if data else torch.empty(0)
                    return values.to(self.dtype).view(lengths[row], self.hidden_size)
            self._verified.discard(number)
        raise StorageError(
            "stackwise.page_damaged_repeatedly",
            page=self._path(number),
            count=MAX_REBUILDS,
        )

    def _build_page(self, number: int, compute: Compute) -> None:
        with torch.no_grad():
            computed = compute(self.pages.examples(number))
            shapes = [tuple(value.shape) for value in computed]
            expected = [(length, self.hidden_size) for length in self.pages.lengths(number)]
            if shapes != expected:
                raise InputError(
                    "stackwise.hidden_state_shapes_differ", shapes=shapes, expected=expected
                )
            values = [value.detach().to(self.dtype).cpu().contiguous() for value in computed]
        data = b"".join(bytes(to_bytes(value).data) for value in values)
        try:
            make_directory(self.folder)
            with atomic_write(self._path(number)) as file:
                file.write(self._digest(number, data) + data)
        except OSError as error:
            raise StorageError(
                "stackwise.cache_write_failed",
                folder=self.folder,
                reason=error.strerror or error,
            ) from error

    def _digest(self, number: int, values: bytes) -> bytes:
        digest = hashlib.blake2b(self._key_hash.encode(), digest_size=DIGEST_BYTES)
        digest.update(number.to_bytes(8, "little"))
        digest.update(values)
        return digest.digest()

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.page"

    def _has_size(self, number: int) -> bool:
        with suppress(FileNotFoundError):
            return self._path(number).stat().st_size == self._page_bytes(number)
        return False

    def _is_whole(self, number: int) -> bool:
        """Return whether the file of a page exists and is intact."""
        with suppress(OSError):  # it is missing, or the disk cannot read it
            data = self._path(number).read_bytes()
            is_complete = len(data) == self._page_bytes(number)
            return is_complete and data[:DIGEST_BYTES] == self._digest(number, data[DIGEST_BYTES:])
        return False


CACHES: Registry[Callable[..., Cache]] = registries.CACHES
CACHES.provide({"disk": ActivationCache}, Cache)
