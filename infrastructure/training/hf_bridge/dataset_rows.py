"""Keyed hashes of the rows on which a Trainer trains or evaluates, in their order.

Tables of `datasets` are read by column, other datasets row by row for at most `MOST_SECONDS`. On
resume, as many rows are compared as were hashed when the run began. A stream, and a dataset that
returns a different row each time, cannot be compared.
"""

import re
import time
from array import array
from collections.abc import Callable, Mapping
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch

from infrastructure.core.errors import InputError
from infrastructure.core.optional import require
from infrastructure.models.preserve import preserve
from infrastructure.run.identity import block_size, row_digest

NUM_TWICE = 16  # rows that are read twice
SHORT = 8  # characters of a block's hash, which only says where rows differ
MOST_SECONDS = 120.0
DECODED = re.compile(r"\b(Image|Audio|Video|Pdf|Nifti)\(")  # their files may be elsewhere

Feed = Callable[[bytes | memoryview], object]


class RowsFacts(TypedDict):
    """The number of rows, the number of hashed rows, and their hash; None if unknown.

    `blocks` contains a short hash of each block of `identity.block_size` rows.
    """

    num_examples: int | None
    num_hashed: int
    rows: str | None
    blocks: NotRequired[list[str]]


class UnseenValueError(InputError):
    """An error for a row that contains a value whose content cannot be read."""


def rows_facts(
    dataset: Any, key: str, device: torch.device, num_hashed: int | None = None
) -> RowsFacts:
    """Count and hash the rows of a dataset, as far as possible.

    Args:
        key: the run's key for hashes.
        device: the device whose random state is preserved.
        num_hashed: rows that were hashed when the run began. None: as many as time allows.
    """
    try:
        num_examples = len(dataset)
    except TypeError:
        return {"num_examples": None, "num_hashed": 0, "rows": None}
    try:
        with preserve(random=device):
            if _is_table(dataset):
                count, blocks = num_examples, _blocks_of_table(dataset, key)
            else:
                if _sample(dataset, key) != _sample(dataset, key):
                    raise UnseenValueError("trainer.rows_not_reproducible")
                count, blocks = _blocks_of_rows(dataset, key, num_hashed)
    except UnseenValueError:
        return {"num_examples": num_examples, "num_hashed": 0, "rows": None}
    whole = row_digest(key)
    whole.update("".join(blocks).encode())
    return {
        "num_examples": num_examples,
        "num_hashed": count,
        "rows": whole.hexdigest(),
        "blocks": [block[:SHORT] for block in blocks],
    }


def transform_of(dataset: Any) -> object:
    """Return the function that transforms the rows of a `datasets` table; None if there is none."""
    if not _is_of_datasets(dataset):
        return None
    return dataset.format["format_kwargs"].get("transform")


def _is_of_datasets(dataset: Any) -> bool:
    is_theirs = type(dataset).__module__.partition(".")[0] == "datasets"
    return is_theirs and hasattr(dataset, "format")


def _is_table(dataset: Any) -> bool:
    return _is_of_datasets(dataset) and DECODED.search(repr(dataset.features)) is None


def _sample(dataset: Any, key: str) -> str:
    num_examples = len(dataset)
    digest = row_digest(key)
    for index in sorted({i * num_examples // NUM_TWICE for i in range(NUM_TWICE)}):
        if index < num_examples:
            _feed(digest.update, dataset[index])
    return digest.hexdigest()


def _blocks_of_rows(dataset: Any, key: str, num_hashed: int | None) -> tuple[int, list[str]]:
    num_examples = len(dataset)
    deadline = time.monotonic() + MOST_SECONDS
    size, blocks, count = block_size(num_examples), list[str](), 0
    while count < (num_examples if num_hashed is None else min(num_hashed, num_examples)):
        if num_hashed is None and time.monotonic() > deadline:
            break
        if count % size == 0:
            digest = row_digest(key)
            blocks.append("")
        _feed(digest.update, dataset[count])
        blocks[-1] = digest.hexdigest()
        count += 1
    return count, blocks


def _feed(update: Feed, value: Any) -> None:
    """Add the content of a value to a hash, in a form that no other value has."""
    if isinstance(value, torch.Tensor):
        update(f"tensor {value.dtype} {tuple(value.shape)}\n".encode())
        plain = value.detach().cpu().contiguous().view(-1)
        update(plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    elif isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject:
            _feed(update, value.tolist())
        else:
            update(f"array {value.dtype} {value.shape}\n".encode())
            update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, str | bytes):
        data = value.encode(errors="surrogatepass") if isinstance(value, str) else value
        update(f"{type(value).__name__} {len(data)}\n".encode())
        update(data)
    elif isinstance(value, Mapping):
        update(f"mapping {len(value)}\n".encode())
        for key in sorted(value, key=str):
            _feed(update, str(key))
            _feed(update, value[key])
    elif isinstance(value, list | tuple):
        update(f"list {len(value)}\n".encode())
        if value and type(value[0]) is int and (numbers := _as_numbers(value)) is not None:
            update(numbers)
        else:
            for one in value:
                _feed(update, one)
    elif hasattr(value, "tobytes") and hasattr(value, "mode"):  # an image
        update(f"picture {value.mode} {value.size}\n".encode())
        update(value.tobytes())
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        _feed(update, vars(value))
    else:
        text = repr(value)
        if " at 0x" in text:
            raise UnseenValueError("trainer.type_not_comparable", type=type(value).__name__)
        update(f"{text}\n".encode())


def _as_numbers(values: Any) -> bytes | None:
    try:
        return b"numbers\n" + array("q", values).tobytes()
    except (TypeError, OverflowError):
        return None


def _blocks_of_table(dataset: Any, key: str) -> list[str]:
    """Return a hash of each block of rows, independent of the order of columns."""
    names = dataset.column_names
    if (shown := dataset.format["columns"]) is not None:
        names = [name for name in names if name in shown]
    table = dataset.with_format("arrow", columns=names)
    size, blocks = block_size(len(dataset)), []
    for start in range(0, len(dataset), size):
        batch, digest = table[start : start + size], row_digest(key)
        for name in sorted(names):
            digest.update(f"{len(name)} {name}\n".encode())
            _feed_column(digest.update, batch.column(name).combine_chunks())
        blocks.append(digest.hexdigest())
    return blocks


def _feed_column(update: Feed, column: Any) -> None:
    """Add the values of an Arrow column to a hash, ignoring unused bytes in its buffers."""
    pa, pc = require("pyarrow", "data"), require("pyarrow.compute", "data")
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    kind, types = column.type, pa.types
    update(f"{len(column)} {column.null_count}\n".encode())
    if column.null_count:
        update(np.asarray(column.is_null()).tobytes())
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        update(np.asarray(pc.list_value_length(column).fill_null(0)).astype("<i8").tobytes())
        _feed_column(update, column.flatten())
    elif types.is_struct(kind):
        names = [kind.field(index).name for index in range(kind.num_fields)]
        children = dict(zip(names, column.flatten(), strict=True))
        for name, child in sorted(children.items()):
            update(f"{len(name)} {name}\n".encode())
            _feed_column(update, child)
    elif types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind):
        filled = column.cast(pa.large_binary()).fill_null(b"")
        update(np.asarray(pc.binary_length(filled)).astype("<i8").tobytes())
        update(b"".join(filled.to_pylist()))
    elif types.is_integer(kind) and kind != pa.uint64():
        update(np.asarray(column.cast(pa.int64()).fill_null(0)).tobytes())
    elif types.is_floating(kind):
        update(np.asarray(column.cast(pa.float64()).fill_null(0.0)).tobytes())
    elif types.is_boolean(kind):
        update(np.asarray(column.fill_null(False)).tobytes())
    else:
        update(repr(column.to_pylist()).encode())
