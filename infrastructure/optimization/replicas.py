"""Models that launched processes (torchrun, accelerate) share, and how these processes end.

A process that ends while a model still holds its process group leaves gloo's threads to a torn-down
interpreter, which now and then aborts (SIGABRT) although all work is done. So what replicas hold of
the group is dropped at exit while the interpreter is whole, and all processes leave together.
"""

import atexit
import contextlib
import gc
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist

# One process may still save what was trained when the others have ended; nobody waits longer.
PARTING_TIMEOUT = timedelta(seconds=10)

# What DistributedDataParallel holds of its process group.
HOLDING = ("reducer", "logger", "process_group")

_replicas: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def is_launched() -> bool:
    """Whether a launcher started this process together with others."""
    return dist.is_available() and dist.is_torchelastic_launched()


def replicate(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """The model with gradients that are the mean over all launched processes."""
    # Its functions keep the group that there is when it is imported as a default, for good.
    import torch.distributed.nn.functional  # noqa: F401
    from accelerate import Accelerator

    if not _replicas:
        atexit.register(leave_together)
    replica = Accelerator(cpu=device.type == "cpu").prepare_model(model)
    _replicas.add(replica)
    return replica


def leave_together() -> None:
    """End the process group; the replicas train no more, and the models inside them are as ever.

    A script that has ended its process group itself is left with nothing that holds it.
    """
    for replica in _replicas:
        for name in HOLDING:
            replica.__dict__.pop(name, None)
    _replicas.clear()
    gc.collect()
    if not dist.is_initialized():
        return
    if dist.get_backend() == dist.Backend.GLOO:
        with contextlib.suppress(RuntimeError):  # somebody is gone already
            dist.monitored_barrier(timeout=PARTING_TIMEOUT)
    dist.destroy_process_group()
