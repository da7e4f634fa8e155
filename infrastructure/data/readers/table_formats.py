"""Readers of binary tables: Parquet, and datasets of the `datasets` library.

They read slices of at most READ_ROWS records, which limits memory, and can begin at any record.
`line` and `offset` count records. The libraries are imported when such a file is read.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infrastructure.core.errors import InputError
from infrastructure.core.hub import offline_where_unreachable
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.data.readers.arrow_values import PlainRows
from infrastructure.data.readers.file_type import BinaryFormat
from infrastructure.data.readers.line_reader import BEGIN, Start
from infrastructure.data.readers.parquet_pages import (
    check_nesting,
    rows_at_once,
    texts_in_dictionaries,
)
from infrastructure.data.readers.row_limits import (
    fits_a_row,
    too_large_words,
)
from infrastructure.data.readers.rows import (
    INVALID_UTF8,
    LINE_TOO_LONG,
    BadRow,
    Row,
)

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from pyarrow import RecordBatch
    from pyarrow.parquet import FileMetaData

READ_ROWS = 256


class Parquet(BinaryFormat):
    """Parquet files; row groups before the start are not read."""

    title = "Parquet"
    magic = b"PAR1"
    extensions = (".parquet", ".pq")

    def __call__(self, path: Path, name: str, start: Start = BEGIN) -> Iterator[Row | BadRow]:
        parquet = require("pyarrow.parquet", "data.read_parquet")
        arrow = require("pyarrow", "data.read_parquet")
        try:
            with path.open("rb") as raw:  # its name may not be UTF-8
                metadata = parquet.read_metadata(raw)
            check_nesting(metadata, name)
            groups, first = _groups_from(metadata, start.offset)
            texts = texts_in_dictionaries(metadata)
            with (
                path.open("rb") as raw,
                path.open("rb") as whole,
                parquet.ParquetFile(whole, read_dictionary=texts) as file,
            ):
                plain = PlainRows(file.schema_arrow)
                for group in groups:
                    num_rows = rows_at_once(raw, metadata, group, texts, name)
                    for batch in file.iter_batches(batch_size=num_rows, row_groups=[group]):
                        skipped = min(max(0, start.offset - first), batch.num_rows)
                        yield from _arrow_rows(batch.slice(skipped), plain, name, first + skipped)
                        first += batch.num_rows
        except MemoryError as error:
            raise InputError("data.parquet_out_of_memory", file=name) from error
        except (arrow.ArrowException, OSError) as error:
            raise InputError("data.parquet_damaged", file=name, reason=error) from error


def _groups_from(metadata: "FileMetaData", record: int) -> tuple[list[int], int]:
    """Return the row groups to read in order to begin at `record`, and the first record of these
    groups.
    """
    first = 0
    for group in range(metadata.num_row_groups):
        num_rows = metadata.row_group(group).num_rows
        if first + num_rows > record:
            return list(range(group, metadata.num_row_groups)), first
        first += num_rows
    return [], first


def _arrow_rows(
    batch: "RecordBatch", plain: PlainRows, name: str, first: int
) -> Iterator[Row | BadRow]:
    """Yield the rows of a batch as plain values. Rows over the size limit are never built."""
    if batch.num_rows == 0:
        return
    is_large = not fits_a_row(batch)
    try:
        if not is_large:
            for index, values in enumerate(plain.of(batch), first):
                yield Row(values, name, index + 1, index)
            return
    except UnicodeDecodeError:
        pass
    if batch.num_rows > 1:  # smaller pieces show which row it is
        half = batch.num_rows // 2
        yield from _arrow_rows(batch.slice(0, half), plain, name, first)
        yield from _arrow_rows(batch.slice(half), plain, name, first + half)
    elif is_large:
        yield BadRow(name, first + 1, LINE_TOO_LONG, too_large_words(), offset=first)
    else:
        yield BadRow(name, first + 1, INVALID_UTF8, offset=first)


def read_huggingface(path: Path, name: str, start: Start = BEGIN) -> Iterator[Row | BadRow]:
    """Yield the rows of a dataset of the `datasets` library; see `load_huggingface`."""
    arrow = require("pyarrow", "data.read_hub_datasets")
    dataset = load_huggingface(str(path)).with_format("arrow")
    described = dataset.features.arrow_schema
    plain = PlainRows(described, described.metadata)
    try:
        for first in range(start.offset, len(dataset), READ_ROWS):
            table = dataset[first : first + READ_ROWS]
            position = first
            for batch in table.to_batches():
                yield from _arrow_rows(batch, plain, name, position)
                position += batch.num_rows
    except (arrow.ArrowException, OSError) as error:
        raise _damaged(split_place(str(path))[0], error) from error


def load_huggingface(place: str) -> Any:
    """Open a folder written by `save_to_disk`, or a dataset of the Hugging Face Hub.

    Args:
        place: a folder, or `owner/name`; optionally followed by `:configuration` (Hub) and
            `@split`, such as `openai/gsm8k:main@train[:10%]`. The default split is "train".

    Raises:
        ValueError: there is no such dataset, configuration or split.
    """
    datasets = require("datasets", "data.read_hub_datasets")
    where, split = split_place(place)
    if is_saved_dataset(Path(where)):
        try:
            saved = datasets.load_from_disk(where)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise _damaged(where, error) from error
        return _split_of(saved, split, place)
    repository, _, configuration = where.partition(":")
    try:
        with offline_where_unreachable(datasets.config):
            return datasets.load_dataset(repository, configuration or None, split=split or "train")
    except (OSError, ValueError, ConnectionError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(str(error).split())
        raise InputError("data.hub_dataset_not_found", name=place, reason=reason) from error


def split_place(place: str) -> tuple[str, str]:
    """Split `folder@split` into (folder, split); an existing path has no split."""
    if Path(place).exists() or "@" not in place:
        return place, ""
    where, _, split = place.rpartition("@")
    return where, split


def is_saved_dataset(folder: Path) -> bool:
    """Return whether `datasets.save_to_disk` wrote the folder, even if files are damaged."""
    if any((folder / name).is_file() for name in ("state.json", "dataset_dict.json")):
        return True
    return (folder / "dataset_info.json").is_file() and any(folder.glob("*.arrow"))


def _damaged(folder: str, error: BaseException) -> InputError:
    reason = " ".join(str(error).split())
    return InputError("data.saved_dataset_damaged", folder=folder, reason=reason)


def _split_of(loaded: "Dataset | DatasetDict", split: str, place: str) -> object:
    splits = list(loaded.keys()) if hasattr(loaded, "keys") else []
    if not splits and not split:
        return loaded
    if (split or "train") not in splits:
        known_splits = (
            phrase("data.known_splits", splits=splits)
            if splits
            else phrase("data.dataset_without_splits")
        )
        raise InputError(
            "data.unknown_split", dataset=place, split=split or "train", known_splits=known_splits
        )
    return loaded[split or "train"]
