"""What two GPUs of one machine do together."""

import time
from statistics import median
from typing import Any

import torch

from benchmarks.gpu_check.bench import Bench, SkippedError, largest_difference
from benchmarks.gpu_check.numerics import Figures
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.trainer_factory import TrainerFactory

NUM_STEPS, WARMUP_STEPS = 12, 4
MOST_DIFFERENCE = 1e-4  # of a loss in fp32; sums are rounded in another order


class _Steps(Observer):
    """The loss of each step, and when it ended."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.ends: list[float] = []

    def step_end(self, state: TrainingState) -> None:
        self.losses.append(state.loss)
        self.ends.append(time.perf_counter())

    @property
    def seconds(self) -> float:
        pairs = zip(self.ends[WARMUP_STEPS:], self.ends[WARMUP_STEPS + 1 :], strict=False)
        return median(after - before for before, after in pairs)


def two_gpus_equal_one(bench: Bench) -> Figures:
    """The same batches in fp32 on one device and on two: the losses, and how much faster it is."""
    return _compared(bench, "no")


def two_gpus_spread_equal_one(bench: Bench) -> Figures:
    """As `two_gpus_equal_one`, with the model spread over the two."""
    return _compared(bench, "yes")


def _compared(bench: Bench, shard: str) -> Figures:
    if bench.has_gpu and torch.cuda.device_count() < 2:
        raise SkippedError("there is one GPU")
    alone, together = _trained(bench, 1, "auto"), _trained(bench, 2, shard)
    difference = largest_difference(together.losses, alone.losses)
    return {
        "passed": difference < MOST_DIFFERENCE,
        "difference": difference,
        "faster_than_one": round(alone.seconds / together.seconds, 2),
        "devices": _devices(bench),
    }


def _trained(bench: Bench, num_processes: int, shard: str) -> _Steps:
    steps, settings = _Steps(), _settings(bench)
    settings["training"] |= {"shard": shard}
    trainer = TrainerFactory().for_run(DeploymentConfig(num_processes=num_processes, **settings))
    trainer.add_hooks([steps])
    trainer.train()
    return steps


def _settings(bench: Bench) -> dict[str, Any]:
    training = {"max_steps": NUM_STEPS, "batch_size": 8, "learning_rate": 1e-3, "warmup_steps": 0}
    return {
        "model": {"name": str(bench.model("tiny")), "dtype": "fp32"},
        "data": {
            **{"path": str(bench.rows), "validation_split": 0.0},
            **{"max_length": 512, "num_workers": 0},
        },
        "training": {**training, "mixed_precision": False, "validation_interval": None},
        "cache": {"directory": str(bench.folder / "cache")},
        "device": bench.device,
    }


def _devices(bench: Bench) -> list[str]:
    if not bench.has_gpu:
        return ["cpu", "cpu"]
    return [torch.cuda.get_device_name(number) for number in range(2)]
