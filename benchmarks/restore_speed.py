"""G13: how fast a checkpoint is verified and loaded, beside hashing alone.

    python -m benchmarks.restore_speed [--megabytes 1500] [--rounds 9]

All in turn, from the warm cache, after a round that does not count, in which a virtual machine gets
its memory; speeds are medians, ratios medians within a round. Verifying is compared with hashing
the same bytes where they lie in memory, in one thread (ours uses two). Loading puts them into fresh
memory, which costs more than any hash; so it is compared with reading the files into fresh memory
and checking nothing. The memory that loading takes beyond what it returns is that of a process of
its own. `missed` counts the goals that were not reached. Prints one JSON line.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.states import GPT2, adam_state, as_bytes, ratios, seconds_of, size_bytes
from infrastructure.backup.format.hashing import hash_of
from infrastructure.backup.format.store import Store
from infrastructure.training.checkpoints.checkpoint_manager import load_checkpoint

SLOWEST = 1 / 0.8  # times the time of hashing or reading alone
MOST_MEMORY = 1.1  # times the largest pack
FULL_MEGABYTES = 1493


def measure(folder: Path, megabytes: int, rounds: int) -> dict[str, Any]:
    state = adam_state(GPT2, megabytes / FULL_MEGABYTES)
    store = Store(folder)
    name = store.commit(as_bytes(state), {}, step=1)
    manifest = store.read(name)
    buffers = [tensor.data for tensor in as_bytes(state).values()]
    store.verify(manifest)  # the cache is warm from here on
    actions: list[Callable[[], object]] = [
        lambda: hash_of("blake3", buffers),
        lambda: _read_files(store),
        lambda: store.verify(manifest),
        lambda: _load(store, name),
    ]
    times = [_seconds_of_each(actions, index) for index in range(1 + rounds)][1:]
    verify = ratios([(verifying, hashing) for hashing, _, verifying, _ in times])["median"]
    load = ratios([(loading, reading) for _, reading, _, loading in times])["median"]
    extra = _extra_memory(store.manifest_path(name), size_bytes(state))
    memory = extra / max(pack.size_bytes for pack in manifest.packs)
    speeds = (size_bytes(state) / median(row[i] for row in times) / 1e9 for i in range(4))
    hashed, read, verified, loaded = (round(speed, 2) for speed in speeds)
    return {
        "megabytes": size_bytes(state) // 10**6,
        "gigabytes_per_second": {
            "hash": hashed,
            "read": read,
            "verify": verified,
            "load": loaded,
        },
        "verify_of_hash": round(1 / verify, 3),
        "load_of_read": round(1 / load, 3),
        "extra_memory_of_largest_pack": round(memory, 3),
        "missed": sum((verify > SLOWEST, load > SLOWEST, memory > MOST_MEMORY)),
    }


def _seconds_of_each(actions: Sequence[Callable[[], object]], index: int) -> list[float]:
    """Every other round backwards: what the one before leaves of memory helps or hinders."""
    turn = list(range(len(actions)))[:: 1 if index % 2 else -1]
    seconds = {number: seconds_of(actions[number]) for number in turn}
    return [seconds[number] for number in range(len(actions))]


def _read_files(store: Store) -> None:
    """What a restore does at least; all of it is kept until the end, as a restore keeps it."""
    kept = []
    for path in sorted((store.root / "objects").glob("*/*")):
        kept.append(np.empty(path.stat().st_size, np.uint8).data)
        assert list(store.operations.read_into(path, kept[-1]))[-1:] == [len(kept[-1])]


def _load(store: Store, name: str) -> None:
    load_checkpoint(store.manifest_path(name))


def _extra_memory(checkpoint: Path, returned_bytes: int) -> int:
    """Bytes at the peak of loading beyond those of the state, in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.restore_speed", "--peak-of", str(checkpoint)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[1],
    )
    return int(done.stdout) - returned_bytes


def peak_of(checkpoint: Path) -> int:
    """By how many bytes loading raises this process's peak."""
    before = _peak_kilobytes()
    loaded = load_checkpoint(checkpoint)
    assert loaded.tensors
    return 1024 * (_peak_kilobytes() - before)


def _peak_kilobytes() -> int:
    """Not getrusage's, which a process inherits from the one that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=FULL_MEGABYTES)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--peak-of", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak_of:
        print(peak_of(arguments.peak_of))
        return
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps({"G13": measure(Path(folder), arguments.megabytes, arguments.rounds)}))


if __name__ == "__main__":
    main()
