"""The largest micro-batch that fitted, remembered from run to run in a small file of the cache.

What is remembered only saves time: a file that is damaged or cannot be written is passed over.
"""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from infrastructure.core.files import write_json
from infrastructure.core.hardware import memory, processor

FILE = "memory_limits.json"
MAX_LIMITS = 100
MAX_BYTES = 1 << 20

log = logging.getLogger(__name__)

Key = dict[str, Any]


class MemoryLimits:
    """Micro-batch sizes by what decides them: device, model, length, precision, what trains.

    Args:
        directory: where the file lies; made when something is remembered.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE

    def get(self, key: Key) -> int | None:
        """The micro-batch that fitted last time; None if it never was too large."""
        return next((size for known, size in self._read() if known == key), None)

    def remember(self, key: Key, micro_batch_size: int) -> None:
        """Keep the size for `key`; of many the ones longest unchanged are forgotten."""
        others = [(known, size) for known, size in self._read() if known != key]
        kept = [*others, (key, micro_batch_size)][-MAX_LIMITS:]
        try:
            write_json(self.path, [{"key": k, "micro_batch_size": size} for k, size in kept])
        except OSError as error:
            log.warning("the micro-batch that fits is not remembered: %s", error)

    def _read(self) -> list[tuple[Key, int]]:
        try:
            if self.path.stat().st_size > MAX_BYTES:
                return []
            entries = json.loads(self.path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return []
        entries = entries if isinstance(entries, list) else []
        return [
            (entry["key"], entry["micro_batch_size"])
            for entry in entries
            if isinstance(entry, dict)
            and isinstance(entry.get("key"), dict)
            and type(entry.get("micro_batch_size")) is int
            and entry["micro_batch_size"] >= 1
        ]


@dataclass(frozen=True)
class RememberedLimit:
    """What is remembered of one training on one device."""

    limits: MemoryLimits
    key: Key

    def at_most(self, asked: int) -> int:
        """The micro-batch that was asked for, or what fitted last time, if that is less."""
        fitted = self.limits.get(self.key)
        if fitted is None or fitted >= asked:
            return asked
        log.warning(
            "micro-batches of %d, not of %d, which did not fit on this device before (%s);"
            " the batch and the result stay the same",
            fitted,
            asked,
            self.limits.path,
        )
        return fitted

    def remember(self, micro_batch_size: int) -> None:
        """Keep it for the next training like this one."""
        self.limits.remember(self.key, micro_batch_size)


def describe_device(device: torch.device) -> Key:
    """Name and memory of a device: what decides, with the model, how much fits."""
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        return {"device": facts.name, "memory_bytes": facts.total_memory}
    return {"device": processor().model, "memory_bytes": memory().total_bytes}
