"""Replicas of a model in processes started by torchrun or accelerate, and a clean exit for these.

If a process ends while a model still holds its process group, gloo's threads outlive the
interpreter, which sometimes aborts (SIGABRT) although all work is done. So the replicas' references
to the group are dropped at exit while the interpreter is intact, and all processes leave the group
together.
"""

import atexit
import contextlib
import gc
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist

# One process may still be saving when the others have ended; nobody waits longer than this.
PARTING_TIMEOUT = timedelta(seconds=10)

# The parts of DistributedDataParallel that hold its process group.
HOLDING = ("reducer", "logger", "process_group")

_replicas: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def is_launched() -> bool:
    """Return whether a launcher started this process together with others."""
    return dist.is_available() and dist.is_torchelastic_launched()


def replicate(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """Return the model, with gradients that are averaged over all launched processes."""
    # Its functions permanently keep, as a default, the group that exists when it is imported.
    import torch.distributed.nn.functional  # noqa: F401
    from accelerate import Accelerator

    if not _replicas:
        atexit.register(leave_together)
    replica = Accelerator(cpu=device.type == "cpu").prepare_model(model)
    _replicas.add(replica)
    return replica


def leave_together() -> None:
    """End the process group in all processes together. Replicas can no longer train; the models
    inside them are unchanged.

    This is also safe if a script has ended its process group itself.
    """
    for replica in _replicas:
        for name in HOLDING:
            replica.__dict__.pop(name, None)
    _replicas.clear()
    gc.collect()
    if not dist.is_initialized():
        return
    if dist.get_backend() == dist.Backend.GLOO:
        with contextlib.suppress(RuntimeError):  # a process is already gone
            dist.monitored_barrier(timeout=PARTING_TIMEOUT)
    dist.destroy_process_group()
