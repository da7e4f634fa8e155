"""The output of frozen layers for a batch: computed, or read from a cache of examples.

A batch contains its examples either one after another in a packed row (`cu_seq_lens`), or one in
each row, from its beginning.
"""

import hashlib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.errors import InputError
from infrastructure.data.store.examples import EXAMPLES, TokenizedExample
from infrastructure.features.stackwise.training.activation_cache import (
    CACHE_DTYPES,
    CACHES,
    Cache,
    Pages,
    example_id,
    key_hash,
    trunk_hash,
)
from infrastructure.features.stackwise.training.rack import Rack
from infrastructure.features.stackwise.training.stack_phases import StackPhase
from infrastructure.training.strategies.run_parts import Examples, ExampleSource

PAGE_EXAMPLES = 16  # computed together, however they are batched later
MEGABYTE = 1_000_000
# A cache's folder: the first half of a hash of the training, the time step, the unit, and a hash of
# all that its values depend on.
FOLDER = re.compile(r"activations-[0-9a-f]{16}-(\d+)-(\d+)-[0-9a-f]{16}")

Batch = Mapping[str, Any]
Run = Callable[[Batch], torch.Tensor]


def kept_caches(config: TrainingConfig, phases: Sequence[StackPhase]) -> tuple[int, int]:
    """Return the number of time steps whose caches are kept, and the most caches at a time.

    In mode "stack" an older unit's cache stays until the newer unit's cache for the same time step
    is complete.
    """
    steps = len({phase.time_step for phase in phases})
    if not config.store_all_time_steps:
        steps = min(steps, config.time_step_cache_size)
    boundaries = max(1, len({phase.start for phase in phases} - {0}))
    if config.cache_mode == "rack":
        return steps, steps * boundaries
    return steps, steps + (1 if boundaries > 1 else 0)


class TrunkCache:
    """The caches of frozen layers' output in a run, one of which is read in each phase.

    Each cache gets the same part of the budget. So the settings alone decide which examples a cache
    contains, and a resumed run that lost some caches reads the same examples from caches as before.

    Args:
        root: the parent folder of caches; other runs may use it, too.
        phases: all phases of the run.

    Raises:
        ValueError: the data cannot be cached, or there is no space for it; the message gives a
            solution.
    """

    def __init__(
        self,
        rack: Rack,
        source: ExampleSource,
        root: Path,
        config: TrainingConfig,
        phases: Sequence[StackPhase],
    ) -> None:
        self.rack, self.source, self.root, self.config = rack, source, root, config
        self.pages = Pages(_all_examples(source.data), PAGE_EXAMPLES, identity_of)
        self.num_time_steps, num_caches = kept_caches(config, phases)
        self.bytes_each = config.cache_size * MEGABYTE // num_caches
        self.cache: Cache | None = None
        self._training: dict[str, Any] = {**source.facts, "data": source.data.fingerprint}
        self._prefix = f"activations-{key_hash(self._training)[:16]}"
        self._open: dict[str, Cache] = {}  # by folder, the least recently used first

    def enter(self, phase: StackPhase, trunk: Iterator[tuple[str, torch.Tensor]], run: Run) -> None:
        """Complete the cache of a phase, as far as its budget allows.

        In a phase without a frozen trunk, no cache is read.
        """
        if phase.start == 0:
            self.cache = None
            return
        time_step, unit = phase.time_step or 0, phase.start
        own = {"time_step": time_step, "unit": unit, "trunk_hash": trunk_hash(trunk)}
        key = {**self._training, **own}
        name = f"{self._prefix}-{time_step}-{unit}-{key_hash(key)[:16]}"

        def compute(examples: Sequence[object]) -> list[torch.Tensor]:
            batch = self.source.prepare_batch(examples)
            hidden = run(batch).float().cpu()
            return [hidden[place].clone() for place in places_of(batch)]

        used = [step for step, _ in self._places().values()]
        recent = list(dict.fromkeys([time_step, *reversed(used)]))[: self.num_time_steps]
        for other, (step, older) in self._places().items():
            is_outdated = (step, older) == (time_step, unit) and other != name
            if is_outdated or step not in recent:
                self._discard(other)
        self.cache = self._open.pop(name, None) or CACHES.get(self.config.cache_storage)(
            self.root / name,
            key,
            self.pages,
            hidden_size=self.rack.hidden_size,
            dtype=CACHE_DTYPES[self.config.cache_dtype],
            budget_bytes=self.bytes_each,
        )
        self._open[name] = self.cache
        self.cache.build(compute)
        for other, (step, older) in self._places().items():
            if self.config.cache_mode == "stack" and step == time_step and older < unit:
                self._discard(other)

    def read(self, batch: Batch, like: torch.Tensor) -> torch.Tensor | None:
        """Return the trunk's output for a batch (B, L, d) on the device and in the dtype of `like`.

        None if an example of the batch is not cached.
        """
        if self.cache is None or EXAMPLES not in batch:
            return None
        cached = self.cache.read([identity_of(example) for example in batch[EXAMPLES]])
        if cached is None:
            return None
        rows, length = batch["input_ids"].shape
        hidden = torch.zeros(rows, length, self.rack.hidden_size, dtype=like.dtype)
        for place, values in zip(places_of(batch), cached, strict=True):
            hidden[place] = values.to(like.dtype)
        return hidden.to(like.device, non_blocking=True)

    def close(self, is_over: bool) -> None:
        """Delete the caches if the run is complete; an interrupted run keeps its caches."""
        for name in self._places() if is_over else ():
            self._discard(name)
        self._open.clear()
        self.cache = None

    def _places(self) -> dict[str, tuple[int, int]]:
        """Return time step and unit of this training's caches, the least recently used first.

        Caches that a killed process left are included.
        """
        folders = sorted(self.root.glob(f"{self._prefix}-*"), key=_last_use)
        names = [path.name for path in folders if path.name not in self._open]
        matches = map(FOLDER.fullmatch, [*names, *self._open])
        return {match[0]: (int(match[1]), int(match[2])) for match in matches if match}

    def _discard(self, name: str) -> None:
        cache = self._open.pop(name, None)
        if cache is not None:
            cache.discard()
        shutil.rmtree(self.root / name, ignore_errors=True)


def _last_use(folder: Path) -> int:
    with suppress(FileNotFoundError):  # another process has just removed it
        return folder.stat().st_mtime_ns
    return 0


def identity_of(example: TokenizedExample) -> bytes:
    """Return the id under which a tokenized example is cached."""
    known_by = example_id(example.input_ids, example.supervised)
    if not example.pictures:
        return known_by
    digest = hashlib.blake2b(known_by, digest_size=len(known_by))
    for picture in example.pictures:
        digest.update(bytes.fromhex(picture.sha256))
    return digest.digest()


def places_of(batch: Batch) -> list[tuple[int, slice]]:
    """Return the row and the positions of each example in a batch."""
    lengths = [len(example.input_ids) for example in batch[EXAMPLES]]
    if "cu_seq_lens" not in batch:
        return [(row, slice(0, length)) for row, length in enumerate(lengths)]
    places, start = [], 0
    for length in lengths:
        places.append((0, slice(start, start + length)))
        start += length
    return places


def _all_examples(data: Examples) -> list[object]:
    """Return all examples in the order of the first epoch, which never changes."""
    with closing(data.train_batches(0, 0, max(1, min(data.num_examples, 1024)))) as batches:
        examples = [example for batch in batches for example in batch]
    if not examples or not hasattr(examples[0], "input_ids"):
        raise InputError("stackwise.cache_needs_token_ids")
    return examples
