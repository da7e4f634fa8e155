"""The conformance suite of data sources, which provide training examples.

A resumed run reads from the middle of an epoch, and must get the same examples as an uninterrupted
run.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.data.data_pipeline import DataPipeline
from infrastructure.models.tokenizer import train_tokenizer
from infrastructure.training.model_adapters.base_adapter import DataSource

BATCH_SIZE = 4


class DataSourceSuite:
    """A suite for data sources: subclass it and define `open`. The source needs at least 12
    examples.

    Attributes:
        shuffles: True if each epoch and each seed has a different order.
        repeats: True if each epoch contains the same examples.
        holds_out: True if there are examples for evaluation.
    """

    shuffles = True
    repeats = True
    holds_out = True

    def open(self, folder: Path, seed: int = 0) -> DataSource:
        """Return a newly opened source of `folder`, as for a process that resumes a run."""
        raise NotImplementedError

    def key(self, example: Any) -> Any:
        """Return a value that identifies an example; by default its whole content."""
        return plain(example)

    def test_the_order_is_that_of_seed_and_epoch_alone(self, tmp_path: Path) -> None:
        first = self.open(tmp_path)
        epoch = self._keys(first.train_batches(0, 0, BATCH_SIZE))
        later = self._keys(first.train_batches(1, 0, BATCH_SIZE))
        assert self._keys(first.train_batches(0, 0, BATCH_SIZE)) == epoch, (
            "an epoch has another order after another one was read"
        )
        again = self.open(tmp_path)
        assert self._keys(again.train_batches(1, 0, BATCH_SIZE)) == later, (
            "an epoch that is read first has another order than after the ones before it"
        )
        assert self._keys(again.train_batches(0, 0, BATCH_SIZE)) == epoch, (
            "a source that is opened anew has another order"
        )

    def test_an_epoch_goes_on_where_it_was_left(self, tmp_path: Path) -> None:
        epoch = self._keys(self.open(tmp_path).train_batches(0, 0, BATCH_SIZE))
        for start in (1, BATCH_SIZE, len(epoch) - 1, len(epoch)):
            rest = self._keys(self.open(tmp_path).train_batches(0, start, BATCH_SIZE))
            assert rest == epoch[start:], f"from example {start} on there are other ones"

    def test_the_batch_size_changes_no_order(self, tmp_path: Path) -> None:
        source = self.open(tmp_path)
        epoch = self._keys(source.train_batches(0, 0, BATCH_SIZE))
        for size in (1, 3, len(epoch) + 1):
            batches = [*source.train_batches(0, 0, size)]
            lengths = [len(batch) for batch in batches]
            assert self._keys(batches) == epoch, f"in batches of {size} there is another order"
            assert lengths[:-1] == [size] * (len(lengths) - 1), (
                f"batches of {size} have {lengths} examples: only the last one may be short"
            )
            assert lengths[-1] <= size, f"the last batch of {size} has {lengths[-1]} examples"

    def test_an_epoch_has_as_many_examples_as_its_length(self, tmp_path: Path) -> None:
        source = self.open(tmp_path)
        for epoch in (0, 1):
            count = len(self._keys(source.train_batches(epoch, 0, BATCH_SIZE)))
            assert count == source.num_examples, (
                f"num_examples is {source.num_examples}, and epoch {epoch} has {count}"
            )

    def test_every_epoch_holds_the_same_examples(self, tmp_path: Path) -> None:
        source = self.open(tmp_path)
        one, other = (self._keys(source.train_batches(e, 0, BATCH_SIZE)) for e in (0, 1))
        if self.repeats:
            assert sorted(map(repr, one)) == sorted(map(repr, other)), "an epoch has lost examples"
        else:
            assert one != other, "it is to have fresh examples in each epoch, and has the same"

    def test_another_epoch_and_another_seed_is_another_order(self, tmp_path: Path) -> None:
        source = self.open(tmp_path)
        orders = [self._keys(source.train_batches(epoch, 0, BATCH_SIZE)) for epoch in (0, 1)]
        orders.append(self._keys(self.open(tmp_path, seed=1).train_batches(0, 0, BATCH_SIZE)))
        if not self.repeats:
            return  # they differ in any case
        for order, what in ((orders[1], "epoch"), (orders[2], "seed")):
            is_another = order != orders[0]
            assert is_another == self.shuffles, (
                f"another {what} {'has' if is_another else 'is to have'} another order"
            )

    def test_the_fingerprint_depends_on_the_examples(self, tmp_path: Path) -> None:
        source = self.open(tmp_path)
        fingerprint = source.fingerprint
        assert isinstance(fingerprint, str), f"the fingerprint is no text: {fingerprint!r}"
        assert fingerprint, "the fingerprint is empty"
        self._keys(source.train_batches(0, 0, BATCH_SIZE))
        assert source.fingerprint == fingerprint, "reading changes the fingerprint"
        assert self.open(tmp_path).fingerprint == fingerprint, (
            "the same data has another fingerprint"
        )

    def test_what_is_held_out_is_always_the_same_and_not_trained_on(self, tmp_path: Path) -> None:
        source = self.open(tmp_path)
        held_out = self._keys(source.evaluation_batches(BATCH_SIZE))
        if not self.holds_out:
            assert not held_out, "it is to hold nothing out, and does"
            return
        assert held_out, "it is to hold something out, and does not"
        assert self._keys(source.evaluation_batches(3)) == held_out, (
            "in batches of another size there are other held-out examples"
        )
        trained = set(map(repr, self._keys(source.train_batches(0, 0, BATCH_SIZE))))
        assert self._keys(self.open(tmp_path).evaluation_batches(BATCH_SIZE)) == held_out, (
            "a source that is opened anew holds other examples out"
        )
        both = trained & set(map(repr, held_out))
        assert not both, f"{len(both)} held-out examples are trained on"

    def test_a_reader_that_stops_early_leaves_no_trace(self, tmp_path: Path) -> None:
        source = self.open(tmp_path)
        epoch = self._keys(source.train_batches(0, 0, BATCH_SIZE))
        with closing(source.train_batches(0, 0, BATCH_SIZE)) as batches:
            next(batches)
        assert self._keys(source.train_batches(0, 0, BATCH_SIZE)) == epoch, (
            "after a reader that stopped early the epoch is another one"
        )

    def _keys(self, batches: Iterable[Sequence[object]]) -> list[object]:
        return [self.key(example) for batch in batches for example in batch]


def read_by_pipeline(path: Path, data_format: str, seed: int) -> DataPipeline:
    """Return a data pipeline that reads a file of this format and holds out a share of its rows."""
    data = DataConfig(path=str(path), format=data_format, max_length=64, num_workers=0)
    cache = CacheConfig(directory=str(path.parent / "cache"))
    tokenizer = train_tokenizer([path.read_text()], vocab_size=300)
    return DataPipeline(data, tokenizer, cache_config=cache, seed=seed)


def plain(value: object) -> Any:
    """Convert a value and its content to plain values, so that equal values compare equal."""
    if isinstance(value, torch.Tensor):
        return plain(value.detach().cpu().numpy())
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if is_dataclass(value):
        return tuple(plain(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, dict):
        return tuple((key, plain(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    return value
