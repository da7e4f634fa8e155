"""What several processes bring, and what moves between them: two with one thread each against
one with one thread, the same batches of the same model, and torch's DDP beside them.

    python -m benchmarks.parallel [--steps 40] [--rounds 3]

Prints one JSON line: seconds of a step (median over the rounds' medians), how much faster two
processes are than one, and the bytes that each of them gives and takes in a step. Needs two free
cores.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.training.core.state import TrainingState
from infrastructure.training.distributed.replicate import shares_of
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.model_adapters.base_adapter import ModelAdapter
from infrastructure.training.trainer_factory import TrainerFactory

WARM_UP = 5
BATCH_SIZE = 32
SYSTEMS = ("one process", "two processes", "DDP")


class Stopwatch(Observer):
    """Seconds of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.started = 0.0

    def step_start(self, state: TrainingState) -> None:
        self.started = time.perf_counter()

    def step_end(self, state: TrainingState) -> None:
        self.seconds.append(time.perf_counter() - self.started)


class Loss(torch.nn.Module):
    """A model as DDP wants it: its forward is all that is done."""

    def __init__(self, adapter: ModelAdapter) -> None:
        super().__init__()
        self.adapter, self.model = adapter, adapter.model

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        assert self.model is not None
        return self.adapter.compute_loss(self.model, batch).loss_sum


def config_for(folder: Path, num_steps: int, num_processes: int = 1) -> DeploymentConfig:
    """The embedded model on the sample tasks, in fp32."""
    settings = {
        "training.batch_size": BATCH_SIZE,
        "training.max_steps": num_steps,
        "training.mixed_precision": False,
        "cache.directory": str(folder),
    }
    return DeploymentConfig(num_processes=num_processes, device="cpu", **settings)


def temper(folder: Path, num_steps: int, num_processes: int) -> dict[str, float]:
    """A training by Temper: seconds of a step, and the bytes that move in it."""
    trainer = TrainerFactory().for_run(config_for(folder, num_steps, num_processes))
    watch = Stopwatch()
    trainer.add_hooks([watch])
    trainer.train()
    moved = 0 if trainer.ranks is None else trainer.ranks.moved_bytes
    return {"seconds": median(watch.seconds[WARM_UP:]), "bytes": moved / num_steps}


def ddp(folder: Path, num_steps: int) -> dict[str, float]:
    """The same steps by DistributedDataParallel, as a process of torchrun."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    trainer = TrainerFactory().for_one_process(config_for(folder, num_steps))
    model, data = trainer.initialize_model().train(), trainer.initialize_data()
    strategy = trainer.bind_strategy()
    optimizer = strategy.create_optimizer(model, 1e-3)
    replicas = DistributedDataParallel(Loss(trainer.adapter))
    seconds: list[float] = []
    with closing(data.train_batches(0, 0, BATCH_SIZE)) as batches:
        for _, examples in zip(range(num_steps), batches, strict=False):
            started = time.perf_counter()
            batch = trainer.adapter.prepare_batch(shares_of(examples, size)[rank])
            loss_sum = replicas(batch) * size  # it takes the mean
            (loss_sum / trainer.adapter.count_items(examples)).backward()
            strategy.update_parameters(model, optimizer, None, None)
            seconds.append(time.perf_counter() - started)
    moved = sum(p.nbytes for p in model.parameters()) * 2 * (size - 1)
    del replicas  # which holds the process group
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    return {"seconds": median(seconds[WARM_UP:]), "bytes": float(moved)}


def measured(system: str, folder: Path, num_steps: int) -> dict[str, float]:
    """One system in processes of its own, each with one thread."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2"] if system == "DDP" else []
    command = [sys.executable, *launcher, "-m", "benchmarks.parallel", "--system", system]
    done = subprocess.run(
        [*command, "--steps", str(num_steps), "--folder", str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    print(system, figures, file=sys.stderr, flush=True)
    return figures


def compared(rounds: int, num_steps: int) -> dict[str, Any]:
    """All systems, one after the other, round by round."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in SYSTEMS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for system in SYSTEMS:
                runs[system].append(measured(system, Path(folder), num_steps))
    seconds = {name: median(one["seconds"] for one in runs[name]) for name in SYSTEMS}
    return {
        "benchmark": "parallel",
        "step_seconds": {name: round(value, 4) for name, value in seconds.items()},
        "faster_than_one": round(seconds["one process"] / seconds["two processes"], 2),
        "DDP_faster_than_one": round(seconds["one process"] / seconds["DDP"], 2),
        "bytes_in_a_step": {name: round(runs[name][-1]["bytes"]) for name in SYSTEMS[1:]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--system", choices=SYSTEMS, help="measure this one, in this process")
    parser.add_argument("--folder", type=Path, help="of what is kept between them")
    options = parser.parse_args()
    if options.system is None:
        print(json.dumps(compared(options.rounds, options.steps)))
    elif options.system == "DDP":
        figures = ddp(options.folder, options.steps)
        if os.environ["LOCAL_RANK"] == "0":
            print(json.dumps(figures))
    else:
        count = 1 + (options.system == "two processes")
        print(json.dumps(temper(options.folder, options.steps, count)))


if __name__ == "__main__":
    main()
