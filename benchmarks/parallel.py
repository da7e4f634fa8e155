"""What several processes bring, and what moves between them: two with one thread each, beside one,
beside plain loops with torch's DDP and FSDP2, on the same batches of the same model.

    python -m benchmarks.parallel [--cycles 12] [--before CHECKOUT]
        [--write benchmarks/results/parallel.md]

All systems are there at once and do a few steps in turn, so that whatever else the machine does is
done to all of them alike; a ratio is the median over the cycles. Prints one JSON line: seconds of a
step, how many times as fast as each plain loop Temper is, and the bytes that each process sends in
a step. Fails where it is less than 0.95 times as fast as a plain loop. Needs two free cores.
CHECKOUT is a folder with another state of this project, which is measured, too.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from statistics import median
from typing import IO, Any, cast
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.machine import environment, sentence, table
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.files import write_text
from infrastructure.training.core.state import TrainingState
from infrastructure.training.distributed.group import JoinedGroup
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.model_adapters.base_adapter import ModelAdapter
from infrastructure.training.trainer_factory import TrainerFactory

NUM_STEPS, WARM_UP = 8, 2  # of a turn; the first ones are not counted
BATCH_SIZE = 32
ONE, TWO, DDP, SHARDED, FSDP2, BEFORE = (
    *("one process", "two processes", "DDP"),
    *("two processes, sharded", "FSDP2", "two processes before"),
)
PLAIN_LOOPS = (DDP, FSDP2)
SYSTEMS = (ONE, TWO, DDP, SHARDED, FSDP2)
# What is compared with what.
PAIRS = ((TWO, ONE), (TWO, DDP), (SHARDED, FSDP2), (TWO, BEFORE))
LEAST = 0.95  # times as fast as a plain loop of the same kind


class Turns(Observer):
    """Seconds of each step; waits for the next turn before every few."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.num_steps = 0
        self.started = 0.0

    def step_start(self, state: TrainingState) -> None:
        if self.num_steps % NUM_STEPS == 0 and not next_turn(self.seconds):
            state.interrupt("measured")
        self.started = time.perf_counter()

    def step_end(self, state: TrainingState) -> None:
        self.seconds.append(time.perf_counter() - self.started)
        self.num_steps += 1


def next_turn(seconds: list[float]) -> bool:
    """Write what the steps of this turn took, and wait for the next one; False: there is none."""
    print(json.dumps(seconds), flush=True)
    seconds.clear()
    return bool(sys.stdin.readline().strip())


class Loss(torch.nn.Module):
    """A model as DDP and FSDP2 want it: its forward is all that is done."""

    def __init__(self, adapter: ModelAdapter) -> None:
        super().__init__()
        self.adapter, self.model = adapter, adapter.model

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        assert self.model is not None
        return self.adapter.compute_loss(self.model, batch).loss_sum


def config_for(folder: Path, num_processes: int = 1, **settings: Any) -> DeploymentConfig:
    """The embedded model on the sample tasks, in fp32."""
    settings = {
        "training.batch_size": BATCH_SIZE,
        "training.num_epochs": 1000,
        "training.validation_frequency": 10**6,
        "training.mixed_precision": False,
        "cache.directory": str(folder),
        **settings,
    }
    return DeploymentConfig(num_processes=num_processes, device="cpu", **settings)


def temper(config: DeploymentConfig) -> float:
    """A training by Temper; the bytes that each process sends in a step."""
    trainer = TrainerFactory().for_run(config)
    turns = Turns()
    trainer.add_hooks([turns])
    sizes: list[int] = []
    add_up = JoinedGroup.sum

    def noting(group: JoinedGroup, tensors: Iterable[torch.Tensor]) -> None:
        given = [*tensors]
        sizes.extend(tensor.nbytes for tensor in given)
        add_up(group, given)

    with mock.patch.object(JoinedGroup, "sum", noting):
        trainer.train()
    return sum(sizes) / turns.num_steps


def plain_loop(
    folder: Path, distribute: Callable[[Loss], torch.nn.Module], *, takes_mean: bool
) -> float:
    """The same steps by a loop of a few lines, as a process of torchrun."""
    from infrastructure.training.distributed.replicate import shares_of

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    trainer = TrainerFactory().for_one_process(config_for(folder))
    model, data = trainer.initialize_model().train(), trainer.initialize_data()
    strategy = trainer.bind_strategy()
    num_bytes = float(sum(p.nbytes for p in model.parameters()))
    distributed = distribute(Loss(trainer.adapter))
    optimizer = strategy.create_optimizer(model, 1e-3)
    factor = size if takes_mean else 1
    with closing(endless_batches(data)) as batches:
        seconds: list[float] = []
        while _all_take_turns(rank, seconds):
            for _ in range(NUM_STEPS):
                examples = next(batches)
                started = time.perf_counter()
                batch = trainer.adapter.prepare_batch(shares_of(examples, size)[rank])
                loss_sum = distributed(batch) * factor
                (loss_sum / trainer.adapter.count_items(examples)).backward()
                strategy.update_parameters(model, optimizer, None, None)
                seconds.append(time.perf_counter() - started)
    del distributed  # which holds the process group
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    return num_bytes * (size - 1) / size


def endless_batches(data: Any) -> Iterator[Any]:
    """As the training has them, epoch by epoch."""
    epoch = 0
    while True:
        with closing(data.train_batches(epoch, 0, BATCH_SIZE)) as batches:
            yield from batches
        epoch += 1


def _all_take_turns(rank: int, seconds: list[float]) -> bool:
    go_on = torch.zeros(())
    if rank == 0:
        go_on += next_turn(seconds)
    dist.broadcast(go_on, 0)
    seconds.clear()
    return bool(go_on)


def in_replicas(loss: Loss) -> torch.nn.Module:
    return cast(torch.nn.Module, DistributedDataParallel(loss))


def in_shards(loss: Loss) -> torch.nn.Module:
    """Each layer by itself, and the rest; as its documentation does it."""
    from torch.distributed.fsdp import fully_shard

    from infrastructure.training.distributed.shard import blocks_of

    assert loss.model is not None
    for block in blocks_of(loss.model):
        fully_shard(block)
    return cast(torch.nn.Module, fully_shard(loss))


def be(system: str, folder: Path) -> float:
    """Take this system's turns until there is no more; the bytes that are sent in a step."""
    if system == DDP:
        return 2 * plain_loop(folder, in_replicas, takes_mean=True)
    if system == FSDP2:  # gathered for forward and backward, and its gradients scattered
        return 3 * plain_loop(folder, in_shards, takes_mean=True)
    sharded = {"training.shard": "yes", "training.enabled_extensions": []}
    settings: dict[str, Any] = sharded if system == SHARDED else {}
    return temper(config_for(folder, 1 if system == ONE else 2, **settings))


class Measured:
    """A system in processes of its own, each with one thread."""

    def __init__(self, system: str, folder: Path, checkout: Path) -> None:
        launcher = (
            ["-m", "torch.distributed.run", "--nproc-per-node=2"] if system in PLAIN_LOOPS else []
        )
        name = TWO if system == BEFORE else system
        self.seconds: list[float] = []
        self.process = subprocess.Popen(
            [
                *(sys.executable, *launcher, __file__, "--system", name),
                *("--folder", str(folder / system.replace(" ", "-"))),
            ],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "CUDA_VISIBLE_DEVICES": "",
                "PYTHONPATH": str(checkout),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()  # it is ready

    def turn(self) -> float:
        """Do a few steps; the median seconds of one."""
        _pipe(self.process.stdin).write("go\n")
        _pipe(self.process.stdin).flush()
        self.seconds.append(median(self._read()[WARM_UP:]))
        return self.seconds[-1]

    def end(self) -> float:
        """The bytes that each process has sent in a step."""
        with suppress(OSError):
            _pipe(self.process.stdin).close()
        (num_bytes,) = self._read() or self._read()
        self.process.wait()
        return num_bytes

    def _read(self) -> list[float]:
        while line := _pipe(self.process.stdout).readline():
            if line.startswith("["):
                return [float(number) for number in json.loads(line)]
        raise ChildProcessError(f"it ended with {self.process.wait()}")


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def compared(names: Sequence[str], num_cycles: int, before: Path | None) -> dict[str, Any]:
    """These systems in turn, cycle by cycle."""
    here = Path(__file__).resolve().parents[1]
    checkouts = {**dict.fromkeys(names, here), **({BEFORE: before} if before else {})}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as at_the_end:
        systems: dict[str, Measured] = {}
        for name, checkout in checkouts.items():
            systems[name] = Measured(name, Path(folder), checkout)
            at_the_end.callback(systems[name].process.kill)
        for number in range(num_cycles + 1):
            seconds = {name: system.turn() for name, system in systems.items()}
            print({name: round(value, 4) for name, value in seconds.items()}, file=sys.stderr)
            if number == 0:  # memory is allocated, kernels are chosen
                for system in systems.values():
                    system.seconds.clear()
        sent = {name: round(system.end()) for name, system in systems.items() if name != BEFORE}
    if SHARDED in sent and FSDP2 in sent:
        # a group counts what it sends itself; what FSDP exchanges is the same as in the plain loop
        sent[SHARDED] += sent[FSDP2]
    return summary({name: system.seconds for name, system in systems.items()}, sent)


def summary(seconds: Mapping[str, Sequence[float]], sent: Mapping[str, int]) -> dict[str, Any]:
    """What was found: medians over the cycles, and the range of each ratio.

    Args:
        seconds: of a step, by system and cycle.
        sent: bytes of a step, by system.
    """
    each = {
        f"{one} of {other}": ratios(seconds[one], seconds[other])
        for one, other in PAIRS
        if one in seconds and other in seconds
    }
    return {
        "benchmark": "parallel",
        "cycles": len(next(iter(seconds.values()))),
        "step_seconds": {name: round(median(values), 4) for name, values in seconds.items()},
        "times_as_fast": {name: round(median(values), 3) for name, values in each.items()},
        "range": {n: [round(min(values), 3), round(max(values), 3)] for n, values in each.items()},
        "bytes_sent_in_a_step": dict(sent),
    }


def ratios(seconds: Sequence[float], of_other: Sequence[float]) -> list[float]:
    """How many times as fast the first is, in each cycle."""
    return [other / own for own, other in zip(seconds, of_other, strict=True)]


def slower_than_plain(results: dict[str, Any]) -> list[str]:
    """The comparisons with plain loops that have less than is to be had."""
    to_reach = [f"{one} of {other}" for one, other in PAIRS if other in PLAIN_LOOPS]
    ratio_of = results["times_as_fast"]
    return [name for name in to_reach if ratio_of.get(name, LEAST) < LEAST]


def page(results: dict[str, Any]) -> str:
    """What was found, to be read."""
    too_slow = slower_than_plain(results)
    verdict = f"LESS for {', '.join(too_slow)}" if too_slow else "so it is"
    comparisons = [
        (name, f"{value:.3f}", *(f"{end:.3f}" for end in results["range"][name]))
        for name, value in results["times_as_fast"].items()
    ]
    sent = results["bytes_sent_in_a_step"]
    systems = [
        (name, f"{seconds * 1000:,.1f}", f"{sent[name]:,}" if name in sent else "not counted")
        for name, seconds in results["step_seconds"].items()
    ]
    facts = sentence(environment() | {"num_threads": 1})
    return (
        "# Two processes beside plain DDP and FSDP2\n\n"
        f"`python -m benchmarks.parallel`: {results['cycles']} cycles, in each of which every"
        f" system does {NUM_STEPS} steps of the same batches ({BATCH_SIZE} examples) of the"
        " embedded model in fp32, each process with one thread. Temper is to be at least"
        f" {LEAST:g} times as fast as a plain loop with DDP, and one with FSDP2: {verdict}."
        f" {facts}\n\n"
        + table(("times as fast", "median", "least of a cycle", "most"), comparisons)
        + "\n"
        + table(("", "ms of a step", "bytes that each process sends in a step"), systems)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--cycles", type=int, default=12)
    parser.add_argument("--only", choices=SYSTEMS, nargs="+", default=SYSTEMS)
    parser.add_argument("--before", type=Path, metavar="CHECKOUT")
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep a page")
    parser.add_argument("--system", choices=SYSTEMS, help="be this one, in this process")
    parser.add_argument("--folder", type=Path, help="of what it keeps")
    options = parser.parse_args()
    if options.system is None:
        results = compared(options.only, options.cycles, options.before)
        print(json.dumps(results))
        if options.write is not None:
            write_text(options.write, page(results))
        sys.exit(int(bool(slower_than_plain(results))))
    num_bytes = be(options.system, options.folder)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(json.dumps([num_bytes]), flush=True)


if __name__ == "__main__":
    main()
