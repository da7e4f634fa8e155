"""Does a stream go on as fast far in as near its beginning?

    python -m benchmarks.stream_resume [--rows 10010000] [--write FILE]

Short rows are written into a file of JSON lines, and its index is built, which is timed apart: a
training builds it once, and keeps it. Then streams are opened again and again, at row 1,000 and at
row 10,000,000, in turns; the time is from opening the files until the first 64 rows are there.
Prints a page, and fails where the far ones take more than 1.2 times as long.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median

from benchmarks.machine import environment, publish, sentence, table
from infrastructure.data.serving.streaming_dataset import StreamingDataset
from infrastructure.data.store.stream_index import WindowIndex

NEAR, FAR = 10**3, 10**7
FURTHER_ROWS = 10**4  # so that the far position is none of the last ones
ROWS_READ = 64
MOST_RATIO = 1.2
ROUNDS = 51


@dataclass
class Times:
    """What was measured.

    Attributes:
        index_seconds: for one pass over all rows.
        seconds: of each opening, by position; those of one place in the lists are neighbours.
    """

    num_rows: int
    index_seconds: float
    seconds: dict[int, list[float]]

    @property
    def ratio(self) -> float:
        """How much longer the far one takes, as the median over neighbours."""
        near, far = (self.seconds[position] for position in sorted(self.seconds))
        return median(late / early for early, late in zip(near, far, strict=True))


def write_rows(path: Path, count: int) -> None:
    with path.open("w") as file:
        for start in range(0, count, 10**5):
            numbers = range(start, min(count, start + 10**5))
            file.writelines(f'{{"text": "row {number}"}}\n' for number in numbers)


def seconds_until_rows(path: Path, index: WindowIndex, position: int) -> float:
    """From opening a stream at a position until its first rows are there.

    Raises:
        RuntimeError: the rows are not those of the window that this position lies in.
    """
    began = time.perf_counter()
    stream = StreamingDataset(path, index=index)
    rows = list(islice(stream.iterate(epoch=0, start=position), ROWS_READ))
    seconds = time.perf_counter() - began
    windows = {int(row["text"].split()[1]) // stream.buffer_size for row in rows}
    window = position // stream.buffer_size
    if len(rows) < ROWS_READ or not window <= min(windows) <= max(windows) <= window + 1:
        raise RuntimeError(f"at row {position} the stream gave rows of the windows {windows}")
    return seconds


def measure(folder: Path, num_rows: int, positions: Sequence[int], rounds: int) -> Times:
    path = folder / "rows.jsonl"
    write_rows(path, num_rows)
    began = time.perf_counter()
    index = StreamingDataset(path).build_index()
    index_seconds = time.perf_counter() - began
    seconds: dict[int, list[float]] = {position: [] for position in positions}
    for position in positions:
        seconds_until_rows(path, index, position)  # the first ones do not count
    for turn in range(rounds):
        for position in positions[:: -1 if turn % 2 else 1]:
            seconds[position].append(seconds_until_rows(path, index, position))
    return Times(num_rows, index_seconds, seconds)


def page(times: Times) -> str:
    rows = [
        (f"{position:,}", f"{1000 * median(each):.2f} ms", f"{1000 * min(each):.2f} ms")
        for position, each in times.seconds.items()
    ]
    num_rounds = len(next(iter(times.seconds.values())))
    return (
        "# Going on in the middle of a stream\n\n"
        f"`python -m benchmarks.stream_resume`: {times.num_rows:,} short rows of JSON lines, whose"
        f" index took {times.index_seconds:.0f} s, once. From opening the stream until"
        f" {ROWS_READ} rows are there, {num_rounds} times in turns. The far ones take"
        f" {times.ratio:.2f} times as long as the near ones (at most {MOST_RATIO})."
        f" {sentence(environment())}\n\n{table(('from row', 'median', 'fastest'), rows)}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rows", type=int, default=FAR + FURTHER_ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the page")
    arguments = parser.parse_args()
    if arguments.rows < FAR + ROWS_READ:
        parser.error(f"--rows {arguments.rows}: at least {FAR + ROWS_READ}, to go on at row {FAR}")
    with tempfile.TemporaryDirectory() as folder:
        times = measure(Path(folder), arguments.rows, (NEAR, FAR), arguments.rounds)
    publish(page(times), arguments.write)
    return 0 if times.ratio <= MOST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
