"""One rank of a tiny training by several processes, for `test_checkpoint_storage`.

    RANK=0 WORLD_SIZE=2 python -m tests.training.distributed.checkpoint_training FOLDER KIND ACTION

KIND is fsdp (fully_shard) or ddp (replicas). ACTION is save (train two steps, save, train another)
or die (rank 1 kills itself in the middle of a second save). Each rank prints the sum of the weights
that were saved.
"""

import gc
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from infrastructure.backup.format.store import Store
from infrastructure.core.errors import StorageError
from infrastructure.training.distributed.checkpoint_storage import save_distributed

OPTIONS = StateDictOptions()
NUM_ROWS = 12


def make_model(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 10), torch.nn.Tanh(), torch.nn.Linear(10, 5), torch.nn.LayerNorm(5)
    )
    if kind == "ddp":
        return DistributedDataParallel(model)
    fully_shard(model[0])
    fully_shard(model[2])
    return fully_shard(model)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    """All rows on every rank, so that the number of ranks does not change the result."""
    generator = torch.Generator().manual_seed(number)
    model(torch.randn(NUM_ROWS, 6, generator=generator)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer, options=OPTIONS)
    return {"model": weights, "optimizer": moments}


def checksum(model: torch.nn.Module) -> float:
    total = 0.0
    for parameter in model.parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        total += float(whole.detach().double().abs().sum())
    return total


def act(folder: Path, kind: str, action: str, rank: int) -> float:
    """What ACTION says; the sum of the weights that were saved."""
    root = folder / "store"
    model = make_model(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for number in (1, 2):
        step(model, optimizer, number)
    save_distributed(root, state_of(model, optimizer), {"step": 2}, step=2)
    total = checksum(model)
    step(model, optimizer, 3)
    if action == "die":
        if rank == 1:
            Store.place = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore
        try:
            save_distributed(root, state_of(model, optimizer), {"step": 3}, step=3)
        except (StorageError, RuntimeError) as error:
            print(f"refused: {type(error).__name__}", flush=True)
            os._exit(7)
    return total


def main(folder: Path, kind: str, action: str) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous-{action}-{size}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=30),
    )
    print(act(folder, kind, action, rank), flush=True)
    # The model is gone when its process group ends: gloo's threads abort now and then otherwise.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
