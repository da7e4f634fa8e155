"""The largest micro-batch size that fits into memory, stored for later runs."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import torch

from infrastructure.core.hardware import memory, processor
from infrastructure.core.json_cache import JsonCache, Key
from infrastructure.core.messages import phrase

FILE = "memory_limits.json"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KnownMicroBatchLimit:
    """The largest micro-batch size that is known to fit, for one model on one device.

    Attributes:
        key: what determines the size: device, model, length, precision, trained parameters.
    """

    limits: JsonCache[int]
    key: Key

    def at_most(self, requested: int) -> int:
        """Return `requested`, but at most the micro-batch size that fit in an earlier run."""
        fitted = self.limits.get(self.key)
        if fitted is None or fitted >= requested:
            return requested
        log.warning(
            phrase(
                "training.micro_batch_did_not_fit_before",
                fitted=fitted,
                requested=requested,
                path=self.limits.path,
            ),
        )
        return fitted

    def remember(self, micro_batch_size: int) -> None:
        """Store the size for later runs of this model on this device."""
        self.limits.put(self.key, micro_batch_size)


def memory_limits(cache_directory: Path) -> JsonCache[int]:
    """Return the cache of micro-batch sizes that fit. Its key is everything that determines the
    size.
    """
    return JsonCache(cache_directory / FILE, phrase("training.fitting_micro_batch_size"), _is_size)


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def describe_device(device: torch.device) -> Key:
    """Return the name and memory size of a device."""
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        return {"device": facts.name, "memory_bytes": facts.total_memory}
    return {"device": processor().model, "memory_bytes": memory().total_bytes}
