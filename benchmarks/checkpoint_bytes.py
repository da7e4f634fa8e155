"""G8: how many bytes a save writes when little has changed, beside restic and borg.

    python -m benchmarks.checkpoint_bytes [--megabytes 400]

Each save follows a full one of the same state (GPT-2 small with Adam, as the store's classes; for
LoRA its weights and moments beside a frozen base). Our bytes are counted where they are written;
those of restic and borg are what their repository grew by for a safetensors file of the same state.
The limit is 1.02 times the changed bytes and 256 KiB. The history saves again and again with 5% of
other tensors changed, and says what lies on the disk at last. Prints one JSON line.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from benchmarks.checkpoint_stall import FULL_MEGABYTES, change
from benchmarks.states import GPT2, LORA, Tensors, adam_state, as_bytes, size_bytes
from infrastructure.backup.format.file_operations import Buffer, FileOperations
from infrastructure.backup.format.store import Store

MOST_TIMES, MOST_MORE = 1.02, 256 * 1024
NUM_SAVES = 25
MOST_ON_DISK = 2.2  # times the state, when two versions are kept


class CountingFiles(FileOperations):
    """The local disk, and how many bytes were written to it."""

    def __init__(self) -> None:
        self.written_bytes = 0

    def write(self, path: Path, buffers: Sequence[Buffer]) -> None:
        self.written_bytes += sum(len(buffer) for buffer in buffers)
        super().write(path, buffers)


def change_share(state: Tensors, share: float, seed: int = 0) -> int:
    """Change whole tensors, drawn at random, of about this share of the bytes; how many bytes."""
    names = sorted(state)
    random.Random(seed).shuffle(names)
    changed = 0
    for name in names:
        if changed + state[name].nbytes <= share * size_bytes(state):
            change({name: state[name]})
            changed += state[name].nbytes
    return changed


def lora_state(megabytes: int) -> Tensors:
    """Adapter and optimizer, beside a base that never changes."""
    base = adam_state(GPT2, megabytes / FULL_MEGABYTES)
    frozen = {f"frozen/{name}": tensor for name, tensor in base.items()}
    return {**frozen, **adam_state(LORA, 0.3)}


def change_lora(state: Tensors) -> int:
    moving = {n: tensor for n, tensor in state.items() if not n.startswith("frozen/")}
    change(moving)
    return size_bytes(moving)


CASES: dict[str, tuple[Callable[[int], Tensors], Callable[[Tensors], int]]] = {
    label: (lambda mb: adam_state(GPT2, mb / FULL_MEGABYTES), changing)
    for label, changing in {
        "5%": lambda state: change_share(state, 0.05),
        "0%": lambda state: change_share(state, 0.0),
        "100%": lambda state: change_share(state, 1.0),
    }.items()
}
CASES["lora"] = (lora_state, change_lora)


def second_save(
    state: Tensors, changing: Callable[[Tensors], int], folder: Path, peers: bool
) -> dict[str, Any]:
    """Bytes that the save after a change adds."""
    files = CountingFiles()
    store = Store(folder / "store", files)
    store.commit(as_bytes(state), {"step": 1}, step=1)
    repositories = {name: make(folder / name) for name, make in PEERS.items() if peers}
    grown = {n: backup for n, backup in repositories.items() if backup is not None}
    sizes = {name: backup(state) for name, backup in grown.items()}
    changed, files.written_bytes = changing(state), 0
    store.commit(as_bytes(state), {"step": 2}, step=2)
    figures: dict[str, Any] = {"changed": changed, "temper": files.written_bytes}
    figures |= {name: backup(state) - sizes[name] for name, backup in grown.items()}
    absent = {name: "not installed" for name, backup in repositories.items() if backup is None}
    return {**figures, **absent}


def restic(folder: Path) -> Callable[[Tensors], int] | None:
    if shutil.which("restic") is None:
        return None
    base = ["restic", "--quiet", "--repo", str(folder / "repository")]
    environment = {"RESTIC_PASSWORD": "x", "RESTIC_CACHE_DIR": str(folder / "cache")}
    return _repository(folder, [*base, "init"], [*base, "backup"], environment)


def borg(folder: Path) -> Callable[[Tensors], int] | None:
    if shutil.which("borg") is None:
        return None
    repository = str(folder / "repository")
    environment = {"BORG_BASE_DIR": str(folder / "base")}
    create = ["borg", "create", "--compression", "none", repository + "::{now:%s%f}"]
    return _repository(folder, ["borg", "init", "-e", "none", repository], create, environment)


def _repository(
    folder: Path, make: list[str], backup: list[str], more: dict[str, str]
) -> Callable[[Tensors], int]:
    """A new repository; the returned function backs a state up and says how large it is then."""
    folder.mkdir()
    environment = {**os.environ, **more}
    subprocess.run(make, env=environment, check=True, capture_output=True)

    def back_up(state: Tensors) -> int:
        save_file(state, folder / "state.safetensors")
        command = [*backup, str(folder / "state.safetensors")]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        return size_on_disk(folder / "repository")

    return back_up


PEERS = {"restic": restic, "borg": borg}


def size_on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def history(folder: Path, megabytes: int) -> dict[str, float]:
    """Many saves with 5% changed before each, two versions kept: written, and on the disk."""
    state = adam_state(GPT2, megabytes / FULL_MEGABYTES)
    files = CountingFiles()
    store = Store(folder, files)
    store.commit(as_bytes(state), {}, step=0)
    files.written_bytes = changed = 0
    for step in range(1, NUM_SAVES):
        changed += change_share(state, 0.05, seed=step)
        store.commit(as_bytes(state), {}, step=step)
        store.remove_all_but(store.versions()[:2])
    return {
        "saves": NUM_SAVES,
        "written_by_changed": round(files.written_bytes / changed, 2),
        "disk_by_state": round(size_on_disk(folder) / size_bytes(state), 2),
    }


def measure(megabytes: int, peers: bool) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    missed = 0
    for label, (make, changing) in CASES.items():
        print(label, file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            figures[label] = second_save(make(megabytes), changing, Path(folder), peers)
        missed += figures[label]["temper"] > MOST_TIMES * figures[label]["changed"] + MOST_MORE
    with tempfile.TemporaryDirectory() as folder:
        figures["history"] = history(Path(folder), megabytes)
    missed += figures["history"]["disk_by_state"] > MOST_ON_DISK
    return {**figures, "missed": missed}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--alone", action="store_true", help="without restic and borg")
    arguments = parser.parse_args()
    print(json.dumps({"G8": measure(arguments.megabytes, not arguments.alone)}))


if __name__ == "__main__":
    main()
