"""The output of frozen layers for a batch: computed, or read from a cache of examples.

A batch contains its examples either one after another in a packed row (`cu_seq_lens`), or one in
each row, from its beginning.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from infrastructure.core.errors import InputError
from infrastructure.data.store.examples import EXAMPLES, TokenizedExample
from infrastructure.features.stackwise.training.activation_cache import (
    CACHE_DTYPES,
    Cache,
    Pages,
    example_id,
    trunk_hash,
)
from infrastructure.features.stackwise.training.rack import Rack
from infrastructure.features.stackwise.training.stack_phases import StackPhase
from infrastructure.features.stackwise.training.time_step_caches import CacheMode, TimeStepCaches
from infrastructure.training.strategies.run_parts import Examples, ExampleSource

PAGE_EXAMPLES = 16  # computed together, however they are batched later
MEGABYTE = 1_000_000

Batch = Mapping[str, Any]
Run = Callable[[Batch], torch.Tensor]


class TrunkCache:
    """The cache of frozen layers' output, which is refilled in each phase of a run.

    Args:
        root: the parent folder of caches.
        storage: a name in `CACHES`.
        num_time_steps, num_boundaries: numbers of time steps and of cached layers in the whole run.
        size: number of time steps that are kept; None: all.

    Raises:
        ValueError: the data cannot be cached, or there is no space for it; the message gives a
            solution.
    """

    def __init__(
        self,
        rack: Rack,
        source: ExampleSource,
        root: Path,
        *,
        dtype: str,
        budget_megabytes: int,
        mode: CacheMode,
        size: int | None,
        num_time_steps: int,
        num_boundaries: int,
        storage: str = "disk",
    ) -> None:
        self.rack, self.source = rack, source
        self.dtype = CACHE_DTYPES[dtype]
        self.pages = Pages(_all_examples(source.data), PAGE_EXAMPLES, identify=identity_of)
        self.caches = TimeStepCaches(
            root,
            size,
            mode=mode,
            num_time_steps=num_time_steps,
            num_boundaries=num_boundaries,
            budget_bytes=budget_megabytes * MEGABYTE,
            cache=storage,
        )
        self.cache: Cache | None = None
        self._opened: tuple[int, int] | None = None

    def enter(self, phase: StackPhase, trunk: Iterator[tuple[str, torch.Tensor]], run: Run) -> None:
        """Fill the cache of a phase, as far as its budget allows."""
        name = (phase.time_step or 0, phase.start)
        if name == self._opened:
            return
        key = {
            **self.source.facts,
            "data": self.source.data.fingerprint,
            "time_step": name[0],
            "unit": phase.start,
            "trunk_hash": trunk_hash(trunk),
        }

        def compute(examples: Sequence[object]) -> list[torch.Tensor]:
            batch = self.source.prepare_batch(examples)
            hidden = run(batch).float().cpu()
            return [hidden[place].clone() for place in places_of(batch)]

        self.cache = self.caches.open(
            key, self.pages, compute, hidden_size=self.rack.hidden_size, dtype=self.dtype
        )
        self._opened = name

    def leave(self) -> None:
        """Stop reading from the cache in a phase that has no frozen layers."""
        self.cache = self._opened = None

    def read(self, batch: Batch, like: torch.Tensor) -> torch.Tensor | None:
        """Return the cached output of frozen layers for a batch, (B, L, d), or None.

        It has the device and dtype of `like`. None means that an example of the batch is not
        cached.
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

    def prefetch(self, examples: Sequence[Any]) -> None:
        """Read the cached values of a batch into memory in advance."""
        if self.cache is not None:
            self.cache.prefetch([identity_of(example) for example in examples])

    def close(self, is_over: bool) -> None:
        """Close the caches, and delete their content if the run has ended."""
        if is_over:
            self.caches.discard()
        self.caches.close()
        self.leave()


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
