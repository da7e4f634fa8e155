"""G4 in its long form: `python -m tests.faults.damage` prints one JSON line."""

import random
from pathlib import Path

from infrastructure.backup.format.store import Store
from infrastructure.core.errors import CheckpointError
from tests.faults.judge import print_figures
from tests.faults.memory_files import MemoryFiles
from tests.faults.store_history import ROOT, tensors_at

NUM_OBJECT_BITS = 5000


def is_silent(memory: MemoryFiles, path: Path, bit: int) -> bool:
    """Whether all versions verify although this bit of one is flipped."""
    intact = memory.files[path]
    data = bytearray(intact)
    data[bit // 8] ^= 1 << bit % 8
    memory.files[path] = bytes(data)
    store = Store(ROOT, memory)
    try:
        for name in store.versions():
            store.verify(store.read(name))
    except CheckpointError:
        return False
    finally:
        memory.files[path] = intact
    return True


def main() -> None:
    memory = MemoryFiles()
    store = Store(ROOT, memory)
    for step in (1, 2):
        store.commit(tensors_at(step), {"step": step}, step=step)
    manifest = store.manifest_path(store.versions()[0])
    objects = [path for path in memory.files if "objects" in path.parts]
    draw = random.Random(0)
    flips = [(manifest, bit) for bit in range(8 * len(memory.files[manifest]))]
    for _ in range(NUM_OBJECT_BITS):
        path = draw.choice(objects)
        flips.append((path, draw.randrange(8 * len(memory.files[path]))))
    silent = sum(is_silent(memory, path, bit) for path, bit in flips)
    print_figures("G4", {"bits": len(flips), "silent": silent})


if __name__ == "__main__":
    main()
