"""C1: how much slower a training is that is watched, and whether the monitor's memory stays.

    python -m benchmarks.monitor_overhead [--pairs 40] [--block-seconds 2] [--samples 1000000]

One training of the embedded model goes on and on; in every second block of it the monitor, with its
files, alerts, Prometheus endpoint, TensorBoard and log, is on. Neighbouring blocks make a pair, in
the order off on, on off, …; `clock` is the ratio of their mean steps. The speed of a shared machine
wanders by more than what is looked for, so what the monitor takes is counted too: the time in its
hooks, and the processor time of the threads beside the training's, more than they take without it.
`ratio` is 1 + both over the time of a step alone: what watching costs where no core is free for it.
Then a monitor takes a million samples. Prints one JSON line; `missed` is 1 where the ratio is above
1.01, where all of the interval of the clock's is, or where memory grew.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch

from benchmarks.turns import interval
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.gpu_readings import GpuReadings
from infrastructure.core.hardware import GpuReading
from infrastructure.core.machine_readings import MachineReadings
from infrastructure.monitoring.training_monitor import HISTORY, TrainingMetrics, TrainingMonitor
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Hook, Observer
from infrastructure.training.observers.monitoring_setup import monitoring_hooks
from infrastructure.training.trainer_factory import TrainerFactory

MOST = 1.01
MOST_GROWTH_BYTES = 4_000_000  # of the resident set; four bytes a sample would show
WARM_UP_STEPS = 5


@dataclass(frozen=True)
class Block:
    """Means of the steps of a block, in seconds.

    Attributes:
        clock: a whole step.
        hooks: of it, in the watching hooks.
        beside: processor time of all threads but the training's.
    """

    is_on: bool
    clock: float
    hooks: float
    beside: float


class Blocks(Observer):
    """Switches the watching hooks on and off, and takes the time of each step between.

    Attributes:
        blocks: those that are over.
    """

    def __init__(self, watching: Sequence[Hook], num_blocks: int, block_seconds: float) -> None:
        self.watching, self.num_blocks, self.block_seconds = watching, num_blocks, block_seconds
        self.blocks: list[Block] = []
        self._is_on = False
        self._in_hooks = 0.0
        self._num_steps = 0
        self._began: tuple[float, float, float] | None = None

    def step_start(self, state: TrainingState) -> None:
        self._call("step_start", state)

    def step_end(self, state: TrainingState) -> None:
        self._call("step_end", state)
        self._num_steps += 1
        if self._began is None:
            is_over = state.step == WARM_UP_STEPS
        else:
            is_over = time.perf_counter() - self._began[0] >= self.block_seconds
        if is_over:
            self._next_block(state)

    def train_end(self, state: TrainingState) -> None:
        self._switch(state, False)

    def _call(self, event: str, state: TrainingState) -> None:
        if self._is_on:
            started = time.perf_counter()
            for hook in self.watching:
                getattr(hook, event)(state)
            self._in_hooks += time.perf_counter() - started

    def _next_block(self, state: TrainingState) -> None:
        if self._began is not None:
            taken = [now - then for now, then in zip(self._now(), self._began, strict=True)]
            self.blocks.append(Block(self._is_on, *(one / self._num_steps for one in taken)))
        if len(self.blocks) == self.num_blocks:
            state.stop("all blocks are measured")
        self._switch(state, len(self.blocks) % 4 in (1, 2))
        self._began, self._num_steps = self._now(), 0

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), self._in_hooks, time.process_time() - time.thread_time()

    def _switch(self, state: TrainingState, on: bool) -> None:
        if on != self._is_on:
            for hook in self.watching:
                (hook.train_start if on else hook.train_end)(state)
                if on:
                    hook.phase_start(state)
        self._is_on = on


def overhead(pairs: int, block_seconds: float) -> dict[str, Any]:
    """Ratios of a watched step to one that is not."""
    with tempfile.TemporaryDirectory() as folder:
        config = DeploymentConfig(
            output_dir=folder,
            training={"max_steps": 10**6, "log_frequency": 1, "validation_interval": None},
            monitor={"prometheus": 9464, "alert_sinks": ["log"]},
        )
        trainer = TrainerFactory().for_run(config)
        watched = trainer.adapter, trainer.precision
        watching = monitoring_hooks(config, Path(folder), *watched, print, {})
        blocks = Blocks(watching, 2 * pairs, block_seconds)
        trainer.add_hooks([blocks])
        trainer.train()
    return {"pairs": pairs, **ratios(blocks.blocks)}


def ratios(blocks: Sequence[Block]) -> dict[str, Any]:
    """Of a watched step to one alone, over pairs of neighbours: medians, and an interval."""
    pairs = [
        (first, second) if first.is_on else (second, first)
        for first, second in zip(blocks[::2], blocks[1::2], strict=True)
    ]
    by_clock = [on.clock / off.clock for on, off in pairs]
    counted = [1 + (on.hooks + on.beside - off.beside) / off.clock for on, off in pairs]
    return {
        "ratio": round(median(counted), 4),
        "clock": round(median(by_clock), 4),
        "clock_interval_95": [round(bound, 4) for bound in interval(by_clock, median)],
        "step_seconds": round(median(off.clock for _, off in pairs), 4),
    }


class OneReading(MachineReadings):
    """The machine as it was at the beginning: a million looks at the real one take an hour."""

    def __init__(self) -> None:
        super().__init__()
        self._reading = super().read()

    def read(self) -> Any:
        return self._reading


class TwoGpus(GpuReadings):
    def read(self) -> list[GpuReading]:
        return [GpuReading(i, "T4", 50.0, 1 << 30, 1 << 34, 60.0, 70.0) for i in range(2)]


def growth(num_samples: int) -> dict[str, Any]:
    """Growth of the resident set over so many samples, and what the monitor's files take."""
    with tempfile.TemporaryDirectory() as folder:
        monitor = TrainingMonitor(Path(folder), sinks=[], machine=OneReading(), gpus=TwoGpus())

        def take(number: int) -> None:
            for step in range(number):
                monitor.log_training_metrics(
                    TrainingMetrics(float(step), 0, step, 2.0, 0.1, 8, gradient_norm=step % 300.0)
                )
                monitor.sample()

        take(10 * HISTORY)  # everything that is bounded is full now
        before = psutil.Process().memory_info().rss
        take(num_samples - 10 * HISTORY)
        grown = psutil.Process().memory_info().rss - before
        monitor.stop_monitoring()
        on_disk = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    return {"samples": num_samples, "grown_bytes": grown, "disk_bytes": on_disk}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--block-seconds", type=float, default=2.0)
    parser.add_argument("--samples", type=int, default=10**6)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cost = overhead(arguments.pairs, arguments.block_seconds)
    memory = growth(arguments.samples)
    slow = cost["ratio"] > MOST or cost["clock_interval_95"][0] > MOST
    missed = int(slow or memory["grown_bytes"] > MOST_GROWTH_BYTES)
    print(json.dumps({"C1": {"overhead": cost, "memory": memory, "missed": missed}}))


if __name__ == "__main__":
    main()
