"""G7: how much slower steps are while a save is in flight.

    python -m benchmarks.checkpoint_drag [--megabytes 1493] [--rounds 5]

A training in one thread does steps, then begins a save and does more until it is committed: once as
Temper saves (a helper process), and once as most others do in the background (a thread of the same
process). Ratios are of the median steps of one round. It needs a free core: on a busier machine it
says so and measures nothing. Prints one JSON line; `missed` is 1 where the median is above 1.1.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch

from benchmarks.checkpoint_stall import FULL_MEGABYTES, change, snapshot_of
from benchmarks.states import GPT2, Tensors, adam_state, as_bytes, seconds_of, size_bytes
from infrastructure.backup.format.store import Store
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager

MOST = 1.10
NUM_STEPS = 60  # before each save, to compare with
FREE_CORES = 1.6  # one for the training, and most of one for the helper

Begin = Callable[[Tensors], Callable[[], bool]]  # starts a save, returns what tells that it is done


def make_step() -> Callable[[], None]:
    """One optimizer step of a small network: arithmetic and memory traffic."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(1024, 1024) for _ in range(4)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(32, 1024)

    def step() -> None:
        model(data).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def in_a_process(manager: CheckpointManager) -> Begin:
    def begin(state: Tensors) -> Callable[[], bool]:
        manager.begin(snapshot_of(state))
        return lambda: bool(manager.collect())

    return begin


def in_a_thread(store: Store) -> Begin:
    """A mutant of a kind: the same bytes to the same disk, from a thread of the training."""

    def begin(state: Tensors) -> Callable[[], bool]:
        copied = as_bytes({name: tensor.clone() for name, tensor in state.items()})
        thread = threading.Thread(target=lambda: store.commit(copied, {}, step=1))
        thread.start()
        return lambda: not thread.is_alive()

    return begin


def drag(begin: Begin, state: Tensors, rounds: int) -> dict[str, float]:
    """Medians over rounds: steps in flight by steps before, seconds to the commit, seconds lost."""
    step, rows = make_step(), []
    for _ in range(rounds):
        change(state)
        alone = median(seconds_of(step) for _ in range(NUM_STEPS))
        started, beside = time.perf_counter(), []
        is_done = begin(state)
        begun = time.perf_counter()
        while not is_done():
            beside.append(seconds_of(step))
        committed = time.perf_counter() - started
        lost = time.perf_counter() - begun - len(beside) * alone
        rows.append((median(beside) / alone, committed, lost))
    ratio, committed, lost = (round(median(row[i] for row in rows), 3) for i in range(3))
    return {"step_ratio": ratio, "seconds_to_commit": committed, "seconds_lost": lost}


def free_cores() -> float:
    """Processor cores that nothing else uses just now."""
    return len(os.sched_getaffinity(0)) * (1 - psutil.cpu_percent(interval=2.0) / 100)


def measure(megabytes: int, rounds: int) -> dict[str, Any]:
    state = adam_state(GPT2, megabytes / FULL_MEGABYTES)
    figures: dict[str, Any] = {"megabytes": size_bytes(state) // 10**6}
    with tempfile.TemporaryDirectory() as folder:
        manager = CheckpointManager(Path(folder) / "process")
        try:
            figures["temper"] = drag(in_a_process(manager), state, rounds)
        finally:
            manager.close()
        figures["a thread"] = drag(in_a_thread(Store(Path(folder) / "thread")), state, rounds)
    return {**figures, "missed": int(figures["temper"]["step_ratio"] > MOST)}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=FULL_MEGABYTES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--anyway", action="store_true", help="measure on a busy machine too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    free = round(free_cores(), 2)
    if free < FREE_CORES and not arguments.anyway:
        print(f"{free} cores are free; this needs {FREE_CORES}", file=sys.stderr)
        print(json.dumps({"G7": {"skipped": f"only {free} cores were free"}}))
        return
    print(
        json.dumps({"G7": {"free_cores": free, **measure(arguments.megabytes, arguments.rounds)}})
    )


if __name__ == "__main__":
    main()
