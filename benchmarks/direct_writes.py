"""What a version costs the processor past the page cache, and through it, beside a busy training.

    python -m benchmarks.direct_writes [--megabytes 152] [--rounds 9] [--folder DIR] [--write FILE]

Another process keeps all cores busy as a training does: products, and passes over its weights.
Beside it this one commits versions with the priority of a training's writer: hashed, written,
synced, read back and hashed; with direct I/O and through the cache, in turn. Prints a page, and
fails where direct I/O does not take less of a processor.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median

import torch

from benchmarks.machine import environment, publish, sentence, table
from benchmarks.turns import interval
from infrastructure.backup.format.file_operations import FileOperations
from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.store import Store
from infrastructure.backup.writer.writer_process import NICENESS

TENSOR_BYTES = 4 * 1024**2
MODES = DIRECT, CACHED = "direct", "cached"
Cost = tuple[float, float]  # seconds of a processor, and seconds by the clock


class CachedFiles(FileOperations):
    """The same, through the page cache."""

    is_direct = False


def keep_busy(started: Event) -> None:
    """The work of another process: a training's, on all cores."""
    inputs, weights = torch.randn(1024, 384), torch.randn(384, 1536)
    optimizer_state = torch.zeros(32 * 1024**2)
    while True:
        for _ in range(20):
            torch.nn.functional.silu(inputs @ weights)
        optimizer_state.mul_(0.9).add_(1.0)
        started.set()


def commit(store: Store, step: int, num_bytes: int) -> Cost:
    """Write a version that shares nothing with the one before, and remove that."""
    tensors = {
        f"model/{number}": TensorBytes("U8", (TENSOR_BYTES,), os.urandom(TENSOR_BYTES))
        for number in range(num_bytes // TENSOR_BYTES)
    }
    started, processor = time.perf_counter(), time.process_time()
    name = store.commit(tensors, {}, step=step)
    store.remove_all_but([name])
    return time.process_time() - processor, time.perf_counter() - started


def ratio_of(pairs: Sequence[tuple[Cost, Cost]]) -> float:
    """Processor time of direct I/O, of the other's."""
    direct, cached = zip(*pairs, strict=True)
    return sum(cost[0] for cost in direct) / sum(cost[0] for cost in cached)


def measure(folder: Path, num_bytes: int, num_rounds: int) -> dict[str, list[Cost]]:
    """Of each the costs of its versions, in turn; the first of each is not counted."""
    operations: dict[str, Callable[[], FileOperations]]
    operations = {DIRECT: FileOperations, CACHED: CachedFiles}
    stores = {mode: Store(folder / mode, operations[mode]()) for mode in MODES}
    costs: dict[str, list[Cost]] = {mode: [] for mode in MODES}
    for number in range(num_rounds + 1):
        for mode in MODES[:: -1 if number % 2 else 1]:
            cost = commit(stores[mode], number, num_bytes)
            if number:
                costs[mode].append(cost)
    return costs


def page(costs: dict[str, list[Cost]], num_bytes: int) -> tuple[str, float]:
    """The page, and the ratio."""
    pairs = list(zip(costs[DIRECT], costs[CACHED], strict=True))
    ratio, (low, high) = ratio_of(pairs), interval(pairs, ratio_of)
    rows = [
        (mode, *(f"{median(cost[index] for cost in costs[mode]):.2f}" for index in (0, 1)))
        for mode in MODES
    ]
    text = (
        "# Checkpoints past the page cache\n\n"
        f"`python -m benchmarks.direct_writes`: {len(pairs)} versions of {num_bytes / 2**20:.0f}"
        " MiB with each, in turn, beside a process that keeps all cores busy. Past the cache a"
        f" version takes {ratio:.2f} times the processor time (95% interval {low:.2f} to"
        f" {high:.2f}). {sentence(environment())}\n\n"
        f"{table(('I/O', 'processor seconds', 'seconds'), rows)}"
    )
    return text, ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=152)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: temporary")
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the page")
    arguments = parser.parse_args()
    num_bytes = arguments.megabytes * 1024**2
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    busy = context.Process(target=keep_busy, args=(started,), daemon=True)
    busy.start()
    started.wait()
    os.nice(NICENESS)
    try:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            costs = measure(Path(folder), num_bytes, arguments.rounds)
    finally:
        busy.terminate()
        busy.join()
    text, ratio = page(costs, num_bytes)
    publish(text, arguments.write)
    return int(ratio >= 1)


if __name__ == "__main__":
    sys.exit(main())
