"""A dataset of files larger than memory, read through a buffer that is limited in rows and bytes.

A window is the content of one buffer. Windows are used in the order of the files, and the rows
inside a window are shuffled. The order is a pure function of (seed, epoch), and reading can begin
at any position without reading the data before its window (except in files that are compressed or
not UTF-8, which must be read up to there).
"""

from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from infrastructure.core.errors import DataError, InputError
from infrastructure.data.readers.line_reader import Start
from infrastructure.data.readers.rows import BadRow, Row
from infrastructure.data.readers.sources import DataFile, discover
from infrastructure.data.readers.text_encoding import AUTO
from infrastructure.data.serving.example_order import WINDOW, random_state
from infrastructure.data.store.stream_index import (
    WindowIndex,
    WindowIndexBuilder,
    estimated_bytes,
)


class StreamingDataset(IterableDataset[Any]):
    """A dataset whose files are read while it is iterated over.

    One pass over the files (`build_index`, or the first use) finds the usable rows and the starts
    of the windows. It works in a `torch.utils.data.DataLoader` with any number of workers: each
    worker takes different windows.

    Args:
        data_path: a file or a folder, as for `DataConfig.path`; or the files themselves.
        buffer_size: maximum number of rows in the buffer.
        memory_limit: maximum number of bytes in the buffer (estimated from the content); a single
            row that is larger is buffered alone.
        data_format: as for `DataConfig.format`.
        encoding: as for `DataConfig.encoding`.
        seed: seed of the order.
        convert: converts a row to an item of the dataset; must be deterministic.
        index: an index that was built before with the same limits; None: build one.

    Raises:
        ValueError: there is no data, or a limit is not positive.
    """

    def __init__(
        self,
        data_path: Path | str | list[DataFile],
        buffer_size: int = 1000,
        memory_limit: int | None = None,
        *,
        data_format: str = "auto",
        encoding: str = AUTO,
        seed: int = 0,
        convert: Callable[[Row], object] = attrgetter("values"),
        index: WindowIndex | None = None,
    ) -> None:
        if buffer_size < 1 or (memory_limit is not None and memory_limit < 1):
            raise InputError("data.invalid_stream_limits")
        self.files = (
            list(data_path)
            if isinstance(data_path, list)
            else discover(str(data_path), data_format, encoding=encoding)
        )
        self.buffer_size = buffer_size
        self.memory_limit = memory_limit
        self.seed = seed
        self.epoch = 0
        self.convert = convert
        self.buffered_rows = 0
        self._index = index
        self._stamps = [file.stamp() for file in self.files]

    @property
    def index(self) -> WindowIndex:
        """The index of where windows start; built at the first use."""
        if self._index is None:
            self._index = self.build_index()
        return self._index

    def build_index(self) -> WindowIndex:
        """Read all files once, and return the index of windows; bad rows are left out."""
        builder = WindowIndexBuilder(self.buffer_size, self.memory_limit)
        for number, file in enumerate(self.files):
            for row in file.rows():
                is_used = isinstance(row, Row)
                size = estimated_bytes(row.values) if isinstance(row, Row) else 0
                builder.add(number, row.offset, row.line, size, is_used)
        return builder.finish()

    def __len__(self) -> int:
        return self.index.num_items

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch for the next iteration with `iter`."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for window in range(first, len(self.index), step):
            yield from self._shuffled(window, self.epoch)

    def iterate(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the items of an epoch from position `start` on."""
        window, skipped = self.index.find(start)
        for number in range(window, len(self.index)):
            yield from self._shuffled(number, epoch, skipped)
            skipped = 0

    def _shuffled(self, window: int, epoch: int, skipped: int = 0) -> Iterator[object]:
        buffer = self._load(window)
        self.buffered_rows = len(buffer)
        order = random_state(WINDOW, self.seed, epoch, window).permutation(len(buffer))
        for position in order[skipped:]:
            yield buffer[position]
        buffer.clear()

    def _load(self, window: int) -> list[object]:
        number, offset, line, row_number, num_items, _ = map(int, self.index.windows[window])
        file = self.files[number]
        if file.stamp() != self._stamps[number]:
            raise DataError("data.file_changed_during_training", file=file.path)
        buffer: list[object] = []
        for row in file.rows(Start(offset, line)):
            if self.index.is_used[row_number]:
                buffer.append(self._converted(row))
            row_number += 1
            if len(buffer) == num_items:
                return buffer
        raise DataError("data.file_became_shorter", file=file.path)

    def _converted(self, row: Row | BadRow) -> object:
        item = row if isinstance(row, BadRow) else self.convert(row)
        if isinstance(item, BadRow):
            raise DataError("data.row_no_longer_readable", row=item)
        return item
