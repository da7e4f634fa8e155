"""Weights and gradients between the processes of one training, by torch.distributed."""

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

# Before there is a group: its functions keep the one that they find as a default, for good, and
# gloo's threads with it, which now and then abort a process that ends.
import torch.distributed.nn.functional

from infrastructure.core.callbacks import do_nothing
from infrastructure.training.core.error_handlers import is_device_fault

LEADER = 0
BUCKET_BYTES = 32 << 20
POLL_SECONDS = 0.0005
# Everybody is there when an exchange begins: so long it takes at most.
TIMEOUT = timedelta(minutes=10)


class ExchangeError(Exception):
    """An exchange broke off: somebody is gone."""


class Exchange:
    """The process group of one training; all of its processes call the same methods together.

    Args:
        watch: raises where somebody is lost; asked while a GPU waits, which would wait for ever.

    Attributes:
        moved_bytes: of weights and gradients that this process has given and taken.
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        device: torch.device,
        watch: Callable[[], None] = do_nothing,
    ) -> None:
        self.device, self.watch = device, watch
        self.is_leader = rank == LEADER
        self.moved_bytes = 0
        self._on_gpu = device.type == "cuda" and dist.is_nccl_available()
        dist.init_process_group(
            "nccl" if self._on_gpu else "gloo",
            store=dist.PrefixStore("temper", store),
            rank=rank,
            world_size=size,
            timeout=TIMEOUT,
        )

    def spread(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give the leader's values to everybody's tensors.

        Raises:
            ExchangeError: somebody is gone.
        """
        for bucket in _buckets(tensors):
            flat = _flat(bucket)
            self._do(dist.broadcast, flat.view(torch.uint8))
            if not self.is_leader:
                _copy_back(flat, bucket)

    def add_up(self, tensors: Iterable[torch.Tensor]) -> None:
        """Put the sum over all processes into the leader's tensors; the others' are of no use then.

        Raises:
            ExchangeError: somebody is gone.
        """
        for bucket in _buckets(tensors):
            flat = _flat(bucket)
            self._do(dist.reduce, flat)
            if self.is_leader:
                _copy_back(flat, bucket)

    def close(self) -> None:
        """Leave; the others need not be there any more."""
        if self._on_gpu:  # destroying waits for what is on its way
            dist.distributed_c10d._abort_process_group()
        else:
            dist.destroy_process_group()

    def _do(self, exchange: Callable[..., dist.Work | None], flat: torch.Tensor) -> None:
        try:
            work = exchange(flat, LEADER, async_op=True)
            assert work is not None
            while self._on_gpu and not work.is_completed():
                self.watch()
                time.sleep(POLL_SECONDS)
            work.wait()
            self.moved_bytes += flat.nbytes
        except RuntimeError as error:
            if is_device_fault(error):
                raise
            raise ExchangeError(str(error)) from error


def _buckets(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Tensors of one type together, up to a size; the same for everybody who has the same ones."""
    filling: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        bucket = filling.setdefault(tensor.dtype, [])
        if bucket and sum(t.nbytes for t in bucket) + tensor.nbytes > BUCKET_BYTES:
            yield filling.pop(tensor.dtype)
            bucket = filling.setdefault(tensor.dtype, [])
        bucket.append(tensor)
    yield from filling.values()


def _flat(bucket: list[torch.Tensor]) -> torch.Tensor:
    """One row of all elements; that of a single contiguous tensor shares its memory."""
    if len(bucket) == 1:
        return bucket[0].detach().contiguous().view(-1)
    return torch.cat([tensor.detach().reshape(-1) for tensor in bucket])


def _copy_back(flat: torch.Tensor, bucket: list[torch.Tensor]) -> None:
    parts = flat.split([tensor.numel() for tensor in bucket])
    for tensor, part in zip(bucket, parts, strict=True):
        if tensor.data_ptr() != part.data_ptr():
            tensor.detach().copy_(part.view_as(tensor))
