"""G6: how long a training waits for a save, beside other ways to save the same state.

    python -m benchmarks.checkpoint_stall [--megabytes 1493] [--rounds 15]

The unit is a copy of the changed state into memory that is there already, in one thread, done next
to each save; so ratios mean something on a busy machine. Two states: full fine-tuning of GPT-2
small (fp32, Adam) and LoRA of a 1.1 B model. Temper's time is `CheckpointManager.begin`: tensors to
bytes, layout, copy, and telling the helper. Writers of files are synced (`fsync`). Prints one JSON
line; `missed` counts the states whose stall is above 1.2 (median) or 1.5 (p90), or whose first is
above 6 (fresh memory, once a run).
"""

import argparse
import contextlib
import gc
import json
import logging
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.states import GPT2, LORA, Tensors, adam_state, ratios, seconds_of, size_bytes
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.checkpoints.snapshot import Snapshot

FULL_MEGABYTES = 1493
OTHERS_ROUNDS = 5  # they take seconds each
MOST_MEDIAN, MOST_P90, MOST_FIRST = 1.2, 1.5, 6.0
COPIES_IN_MEMORY = 5.0  # the state, the reference copy, ours, and what others stage

Save = Callable[[Tensors], None]


def change(state: Tensors) -> None:
    """Make every tensor a new one, as an optimizer step does."""
    for tensor in state.values():
        tensor.add_(1e-3)


def copies_into(kept: Tensors) -> Save:
    """The unit: a copy in one thread into memory that has been used before."""

    def copy(state: Tensors) -> None:
        for name, tensor in state.items():
            kept[name].copy_(tensor)

    return copy


def snapshot_of(state: Tensors) -> Snapshot:
    groups: dict[str, Tensors] = {}
    for name, tensor in state.items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = tensor
    return Snapshot(groups, {"step": 1})


@contextlib.contextmanager
def temper(folder: Path) -> Iterator[tuple[Save, Save]]:
    """Ours: `begin`, and waiting for the commit, which is not timed."""
    manager = CheckpointManager(folder)
    try:
        yield lambda state: manager.begin(snapshot_of(state)), lambda _: _wait(manager)
    finally:
        manager.close()


def _wait(manager: CheckpointManager) -> None:
    assert len(manager.collect(wait=True)) == 1


@contextlib.contextmanager
def torch_save(folder: Path) -> Iterator[tuple[Save, Save]]:
    yield lambda state: _synced(folder, lambda path: torch.save(state, path)), _nothing


@contextlib.contextmanager
def safetensors(folder: Path) -> Iterator[tuple[Save, Save]]:
    from safetensors.torch import save_file

    yield lambda state: _synced(folder, lambda path: save_file(state, path)), _nothing


def _synced(folder: Path, save: Callable[[Path], None]) -> None:
    path = folder / "state"
    save(path)
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _nothing(_state: Tensors) -> None:
    return


def dcp(reuses: bool) -> Callable[[Path], contextlib.AbstractContextManager[tuple[Save, Save]]]:
    """DCP's async_save: its default stages into fresh memory, a stager of one's own is reused."""

    @contextlib.contextmanager
    def saving(folder: Path) -> Iterator[tuple[Save, Save]]:
        import torch.distributed.checkpoint as checkpoint
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        options = StagingOptions(False, False, False, False)
        stager = DefaultStager(options) if reuses else None
        running: list[Any] = []

        def begin(state: Tensors) -> None:
            more = {"async_stager": stager} if stager else {}
            target = folder / "dcp"
            shutil.rmtree(target, ignore_errors=True)
            running.append(checkpoint.async_save(state, checkpoint_id=target, **more))

        yield begin, lambda _: _finish(running.pop())
        if stager is not None:
            stager.close()

    return saving


def _finish(future: Any) -> None:
    getattr(future, "upload_completion", future).result()


SYSTEMS: dict[str, Callable[[Path], contextlib.AbstractContextManager[tuple[Save, Save]]]] = {
    "temper": temper,
    "torch.save": torch_save,
    "safetensors": safetensors,
    "dcp async_save": dcp(reuses=False),
    "dcp async_save, kept stager": dcp(reuses=True),
}


def measure(name: str, state: Tensors, kept: Tensors, rounds: int) -> dict[str, Any]:
    """Stalls as multiples of the copies next to them."""
    copy = copies_into(kept)
    pairs = []
    with tempfile.TemporaryDirectory() as folder, SYSTEMS[name](Path(folder)) as (begin, finish):
        for _ in range(rounds + 1):
            change(state)
            before = seconds_of(lambda: copy(state))
            stall = seconds_of(lambda: begin(state))
            finish(state)
            pairs.append((stall, (before + seconds_of(lambda: copy(state))) / 2))
    gc.collect()
    first, copied = pairs.pop(0)
    milliseconds = round(1000 * sorted(stall for stall, _ in pairs)[len(pairs) // 2], 1)
    return {**ratios(pairs), "first": round(first / copied, 2), "median_ms": milliseconds}


def compare(state: Tensors, rounds: int, others: bool) -> dict[str, Any]:
    kept = {name: tensor.clone() for name, tensor in state.items()}
    figures: dict[str, Any] = {"megabytes": size_bytes(state) // 10**6, "tensors": len(state)}
    for name in SYSTEMS if others else ["temper"]:
        print(f"{name}, {figures['megabytes']} MB", file=sys.stderr, flush=True)
        figures[name] = measure(name, state, kept, rounds if name == "temper" else OTHERS_ROUNDS)
    return figures


def is_missed(figures: dict[str, Any]) -> bool:
    ours = figures["temper"]
    return bool(
        ours["median"] > MOST_MEDIAN or ours["p90"] > MOST_P90 or ours["first"] > MOST_FIRST
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=FULL_MEGABYTES)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--alone", action="store_true", help="without the other ways")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    free_megabytes = psutil.virtual_memory().available / COPIES_IN_MEMORY / 1e6
    share = min(arguments.megabytes, free_megabytes) / FULL_MEGABYTES
    states = {"full": lambda: adam_state(GPT2, share), "lora": lambda: adam_state(LORA)}
    results = {
        label: compare(make(), arguments.rounds, not arguments.alone)
        for label, make in states.items()
    }
    missed = sum(is_missed(figures) for figures in results.values())
    print(json.dumps({"G6": {**results, "load": round(os.getloadavg()[0], 1), "missed": missed}}))


if __name__ == "__main__":
    main()
