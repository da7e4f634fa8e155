"""The helper that writes checkpoints: `python -m infrastructure.backup.writer.writer_process`.

Each input line gives the location of a checkpoint's JSON description in memory that both processes
share; the tensors are in the same memory. Each output line reports that a checkpoint was committed
or refused. The process has a low priority (nice), so that it mainly uses CPU time that the training
does not need.
"""

import contextlib
import json
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from infrastructure.backup.format.packs import TensorBytes
from infrastructure.backup.format.retention import Retention, versions_to_keep
from infrastructure.backup.format.store import Store
from infrastructure.core.errors import TemperError
from infrastructure.core.files import make_directory
from infrastructure.core.lock import Lock
from infrastructure.core.stop_signals import ignore_stop_signals

NICENESS = 10  # gets a tenth of the CPU if all cores are busy; at 19 it would starve
LOCK_FILE = "lock"

_STORES: dict[Path, Store] = {}


def commit_message(
    root: Path, retention: Retention, memory: mmap.mmap, begin: int, length: int
) -> dict[str, str]:
    """Write the checkpoint that a message in `memory` describes, then remove old checkpoints.

    The caller must hold the lock of the store. The helper process inherits this lock.

    Returns:
        A dictionary with either the `name` of the checkpoint or an `error`.
    """
    view = memoryview(memory)
    places, rest = json.loads(bytes(view[begin : begin + length]))
    tensors = {
        name: TensorBytes(dtype, tuple(shape), view[begin : begin + length])
        for name, dtype, shape, begin, length in places
    }
    store = _STORES.setdefault(root, Store(root))
    try:
        store.sweep()
        name = store.commit(tensors, rest["values"], **rest["facts"])
        store.remove_all_but(versions_to_keep(store, retention))
    except (TemperError, OSError) as error:
        return {"error": str(error)}
    return {"name": name}


@contextlib.contextmanager
def only_writer(root: Path) -> Iterator[None]:
    """Return a context that waits for the lock of a store, and holds the lock inside the block.

    Another holder of the lock may be a writer that is still running after its training process has
    ended.
    """
    make_directory(root)
    lock = Lock(root / LOCK_FILE)
    try:
        lock.take(wait=True)
        yield
    finally:
        lock.release()


def main(root: Path, retention: Retention, descriptor: int) -> None:
    """Commit checkpoints until the standard input ends."""
    ignore_stop_signals()
    os.nice(NICENESS)
    for line in sys.stdin.buffer:
        answer = commit_message(root, retention, mmap.mmap(descriptor, 0), *map(int, line.split()))
        with contextlib.suppress(BrokenPipeError):  # the parent has ended
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Retention(**json.loads(sys.argv[2])), int(sys.argv[3]))
