"""The helper that commits versions: `python -m infrastructure.backup.writer.writer_process`.

One line in for each version: where its description, as JSON, lies in memory that both processes
have, as its tensors do. One line out when it is committed or refused. Nice, so that it takes only
what the training leaves.
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

NICENESS = 10  # of a machine whose cores are all busy it still gets a tenth; at 19 it starves
LOCK_FILE = "lock"

_STORES: dict[Path, Store] = {}


def commit_message(
    root: Path, retention: Retention, memory: mmap.mmap, begin: int, length: int
) -> dict[str, str]:
    """Commit what the message at `begin` of `memory` describes, then prune; the answer has a `name`
    or an `error`.

    The caller holds the store's lock; the helper holds the one that it inherited.
    """
    view = memoryview(memory)
    places, rest = json.loads(bytes(view[begin : begin + length]))
    tensors = {
        name: TensorBytes(dtype, tuple(shape), view[begin : begin + length])
        for name, dtype, shape, begin, length in places
    }
    store = _STORES.setdefault(root, Store(root))
    store.objects.compresses = rest["compress"]
    try:
        store.sweep()
        name = store.commit(tensors, rest["values"], **rest["facts"])
        store.remove_all_but(versions_to_keep(store, retention))
    except (TemperError, OSError) as error:
        return {"error": str(error)}
    return {"name": name}


@contextlib.contextmanager
def only_writer(root: Path) -> Iterator[None]:
    """Wait until no other process writes into this store, nor a helper that outlived its training;
    inside, none begins to."""
    make_directory(root)
    lock = Lock(root / LOCK_FILE)
    try:
        lock.take(wait=True)
        yield
    finally:
        lock.release()


def main(root: Path, retention: Retention, descriptor: int) -> None:
    """Serve until standard input ends."""
    ignore_stop_signals()
    os.nice(NICENESS)
    for line in sys.stdin.buffer:
        answer = commit_message(root, retention, mmap.mmap(descriptor, 0), *map(int, line.split()))
        with contextlib.suppress(BrokenPipeError):  # nobody is left to be told
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Retention(**json.loads(sys.argv[2])), int(sys.argv[3]))
