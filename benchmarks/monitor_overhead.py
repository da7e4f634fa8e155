"""C1: how much slower a training is that is watched, and whether the monitor's memory stays.

    python -m benchmarks.monitor_overhead [--pairs 12] [--block-seconds 6] [--samples 1000000]

One training of the embedded model goes on and on; in every second block of it the monitor, with its
files, alerts, Prometheus endpoint, TensorBoard and log, is on. Neighbouring blocks make a pair, in
the order off on, on off, …; the ratio is that of their mean steps, by the clock and by the
processor time of the process (which other load on the machine hardly touches). Then a monitor takes
a million samples. Prints one JSON line; `missed` is 1 where a median is above 1.01 or memory grew.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import psutil
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.gpu_readings import GpuReading, GpuReadings
from infrastructure.core.machine_readings import MachineReadings
from infrastructure.monitoring.training_monitor import HISTORY, TrainingMetrics, TrainingMonitor
from infrastructure.training.extensions.extension_hooks import Hook, Observer
from infrastructure.training.state import TrainingState
from infrastructure.training.trainer_factory import TrainerFactory
from infrastructure.training.watching import watching_hooks

MOST = 1.01
MOST_GROWTH_BYTES = 4_000_000  # of the resident set; four bytes a sample would show
WARM_UP_STEPS = 5

Times = tuple[float, float]  # by the clock, and of the processor


class Blocks(Observer):
    """Switches the watching hooks on and off, and takes the time of each step between.

    Attributes:
        blocks: (was on, mean step by the clock, mean step of the processor).
    """

    def __init__(self, watching: Sequence[Hook], num_blocks: int, block_seconds: float) -> None:
        self.watching, self.num_blocks, self.block_seconds = watching, num_blocks, block_seconds
        self.blocks: list[tuple[bool, float, float]] = []
        self._is_on = False
        self._steps: list[Times] = []
        self._last: Times | None = None
        self._block_end = float("inf")

    def step_start(self, state: TrainingState) -> None:
        if self._is_on:
            for hook in self.watching:
                hook.step_start(state)

    def step_end(self, state: TrainingState) -> None:
        if self._is_on:
            for hook in self.watching:
                hook.step_end(state)
        now = (time.perf_counter(), time.process_time())
        if self._last is not None:
            self._steps.append((now[0] - self._last[0], now[1] - self._last[1]))
        if state.step == WARM_UP_STEPS or now[0] >= self._block_end:
            self._next_block(state)
            now = (time.perf_counter(), time.process_time())
            self._block_end = now[0] + self.block_seconds
        self._last = now

    def train_end(self, state: TrainingState) -> None:
        self._switch(state, False)

    def _next_block(self, state: TrainingState) -> None:
        if state.step > WARM_UP_STEPS:
            wall, processor = (mean(step[i] for step in self._steps) for i in range(2))
            self.blocks.append((self._is_on, wall, processor))
        self._steps = []
        if len(self.blocks) == self.num_blocks:
            state.stop("all blocks are measured")
        self._switch(state, len(self.blocks) % 4 in (1, 2))

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
        watching = watching_hooks(config, Path(folder), *watched, print, {})
        blocks = Blocks(watching, 2 * pairs, block_seconds)
        trainer.add_hooks([blocks])
        trainer.train()
    return {"pairs": pairs, **ratios(blocks.blocks)}


def ratios(blocks: Sequence[tuple[bool, float, float]]) -> dict[str, Any]:
    """Median and quartiles over pairs, by the clock and of the processor."""
    found: dict[str, Any] = {}
    for name, column in (("clock", 1), ("processor", 2)):
        of_pairs = []
        for first, second in zip(blocks[::2], blocks[1::2], strict=True):
            on, off = (first, second) if first[0] else (second, first)
            of_pairs.append(on[column] / off[column])
        of_pairs.sort()
        quarter = len(of_pairs) // 4
        found[name] = {
            "median": round(median(of_pairs), 4),
            "quartiles": [round(of_pairs[quarter], 4), round(of_pairs[-1 - quarter], 4)],
            "step_seconds": round(median(b[column] for b in blocks if not b[0]), 4),
        }
    return found


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
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--block-seconds", type=float, default=6.0)
    parser.add_argument("--samples", type=int, default=10**6)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cost = overhead(arguments.pairs, arguments.block_seconds)
    memory = growth(arguments.samples)
    slow = any(cost[name]["median"] > MOST for name in ("clock", "processor"))
    missed = int(slow or memory["grown_bytes"] > MOST_GROWTH_BYTES)
    print(json.dumps({"C1": {"overhead": cost, "memory": memory, "missed": missed}}))


if __name__ == "__main__":
    main()
