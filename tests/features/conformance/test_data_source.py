"""Our sources keep the contract, and a source with a defect does not."""

import itertools
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from infrastructure.data.serving.example_order import epoch_order
from infrastructure.features.conformance.data_source import DataSourceSuite
from infrastructure.features.specification.tactical_mappo import EnvironmentSeeds
from infrastructure.features.stackwise.training.layers_adapter import LoaderSource
from infrastructure.training.model_adapters.base_adapter import DataSource
from tests.data.builders import pairs, pipeline, write_jsonl
from tests.features.conformance.planted import failure, without_defect


class TestPipeline(DataSourceSuite):
    settings: ClassVar[dict[str, Any]] = {}

    def open(self, folder: Path, seed: int = 0) -> DataSource:
        data = write_jsonl(folder / "rows.jsonl", pairs(40))
        return pipeline(data, folder / "cache", seed=seed, **self.settings)


class TestStreamedPipeline(TestPipeline):
    settings: ClassVar[dict[str, Any]] = {"streaming": True, "buffer_size": 7}


class TestLoader(DataSourceSuite):
    holds_out = False

    def open(self, folder: Path, seed: int = 0) -> DataSource:
        rows = TensorDataset(torch.arange(22.0)[:, None])
        return LoaderSource(DataLoader(rows, batch_size=4, shuffle=True), seed)


class TestLoaderInItsOwnOrder(DataSourceSuite):
    holds_out = shuffles = False

    def open(self, folder: Path, seed: int = 0) -> DataSource:
        rows = TensorDataset(torch.arange(22.0)[:, None])
        return LoaderSource(DataLoader(rows, batch_size=4), seed)


class TestEnvironmentSeeds(DataSourceSuite):
    repeats = False

    def open(self, folder: Path, seed: int = 0) -> DataSource:
        return EnvironmentSeeds(seed, num_examples=18, num_evaluation_examples=5)


Batches = Generator[Sequence[int], None, None]


class Sound:
    """Numbers in an order of seed and epoch; what defects are planted in."""

    num_examples = 22

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @property
    def fingerprint(self) -> str:
        return "numbers"

    def order(self, epoch: int) -> list[int]:
        return [int(n) for n in epoch_order(self.num_examples, self.seed, epoch)]

    def train_batches(self, epoch: int, start_example: int, batch_size: int) -> Batches:
        rest = self.order(epoch)[start_example:]
        for start in range(0, len(rest), batch_size):
            yield rest[start : start + batch_size]

    def evaluation_batches(self, batch_size: int) -> Batches:
        for start in range(100, 105, batch_size):
            yield list(range(start, min(105, start + batch_size)))


class RowsChangeOrder(Sound):
    """As with a generator that somebody else draws from, too."""

    def order(self, epoch: int) -> list[int]:
        return random.sample(range(self.num_examples), self.num_examples)


class OrderOfTheHistory(Sound):
    """The n-th epoch that is read, whichever it is."""

    read = -1

    def order(self, epoch: int) -> list[int]:
        self.read += 1
        return super().order(self.read)


class BeginsAnew(Sound):
    def train_batches(self, epoch: int, start_example: int, batch_size: int) -> Batches:
        yield from super().train_batches(epoch, 0, batch_size)


class ShufflesBatches(Sound):
    def order(self, epoch: int) -> list[int]:
        return list(range(self.num_examples))

    def train_batches(self, epoch: int, start_example: int, batch_size: int) -> Batches:
        batches = [*super().train_batches(epoch, start_example, batch_size)]
        for index in epoch_order(len(batches), self.seed, epoch):
            yield batches[int(index)]


class BeginsAgainAtTheEnd(Sound):
    def train_batches(self, epoch: int, start_example: int, batch_size: int) -> Batches:
        yield from super().train_batches(epoch, start_example % self.num_examples, batch_size)


class HasNoBatchLargerThanItself(Sound):
    """As with a loader that drops what fills no batch."""

    def train_batches(self, epoch: int, start_example: int, batch_size: int) -> Batches:
        if batch_size <= self.num_examples:
            yield from super().train_batches(epoch, start_example, batch_size)


class JoinsAShortLastBatch(Sound):
    def train_batches(self, epoch: int, start_example: int, batch_size: int) -> Batches:
        batches = [*super().train_batches(epoch, start_example, batch_size)]
        if len(batches) > 1 and len(batches[-1]) == 1:
            batches[-2:] = [[*batches[-2], *batches[-1]]]
        yield from batches


class DropsLast(Sound):
    def train_batches(self, epoch: int, start_example: int, batch_size: int) -> Batches:
        for batch in super().train_batches(epoch, start_example, batch_size):
            if len(batch) == batch_size:
                yield batch


class LosesExamples(Sound):
    def order(self, epoch: int) -> list[int]:
        return [n % 20 if epoch else n for n in super().order(epoch)]


class NeverShuffles(Sound):
    def order(self, epoch: int) -> list[int]:
        return list(range(self.num_examples))


class OtherFingerprints(Sound):
    @property
    def fingerprint(self) -> str:
        return f"{id(self)}-{random.random()}"


class TrainsOnHeldOut(Sound):
    def evaluation_batches(self, batch_size: int) -> Batches:
        yield list(range(3))


class DrawsHeldOut(Sound):
    def evaluation_batches(self, batch_size: int) -> Batches:
        yield random.sample(range(100, 200), 5)


class GoesOnWhereAReaderStopped(Sound):
    at = 0

    def train_batches(self, epoch: int, start_example: int, batch_size: int) -> Batches:
        for batch in super().train_batches(epoch, start_example + self.at, batch_size):
            self.at += len(batch)
            yield batch
        self.at = 0


class OrderOfTheFirstEpochRead(Sound):
    """All epochs have another order if the first one is not read first."""

    first: int | None = None

    def order(self, epoch: int) -> list[int]:
        self.first = epoch if self.first is None else self.first
        return super().order(epoch)[:: -1 if self.first else 1]


class HasItsOwn(Sound):
    """The n-th reader has another order of the first epoch, and holds other examples out."""

    numbers = itertools.count()

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.number = next(self.numbers)

    def order(self, epoch: int) -> list[int]:
        own = 0 if epoch else self.number
        return [*range(own, self.num_examples), *range(own)]

    def evaluation_batches(self, batch_size: int) -> Batches:
        yield [1000 + self.number]


class BeginsWithAShortBatch(Sound):
    def train_batches(self, epoch: int, start_example: int, batch_size: int) -> Batches:
        yield self.order(epoch)[start_example : start_example + 1]
        yield from super().train_batches(epoch, start_example + 1, batch_size)


class LosesOneLater(Sound):
    def order(self, epoch: int) -> list[int]:
        return super().order(epoch)[epoch:]


class HasNoSeed(Sound):
    def order(self, epoch: int) -> list[int]:
        return [int(n) for n in epoch_order(self.num_examples, 0, epoch)]


def with_fingerprint(fingerprint: Callable[[Any], Any]) -> Callable[[int], Sound]:
    class Other(HasItsOwn):
        @property
        def fingerprint(self) -> str:
            found: str = fingerprint(self)
            return found

    return Other


class CountsItsReads(Sound):
    reads = 0

    @property
    def fingerprint(self) -> str:
        return f"numbers after {self.reads}"

    def order(self, epoch: int) -> list[int]:
        self.reads += 1
        return super().order(epoch)


class HoldsOutByBatches(Sound):
    def evaluation_batches(self, batch_size: int) -> Batches:
        yield list(range(100, 100 + batch_size))


class HoldsNothingOut(Sound):
    def evaluation_batches(self, batch_size: int) -> Batches:
        yield from ()


ORDER = "test_the_order_is_that_of_seed_and_epoch_alone"
ANOTHER_ORDER = "test_another_epoch_and_another_seed_is_another_order"
FINGERPRINT = "test_the_fingerprint_depends_on_the_examples"
HELD_OUT = "test_what_is_held_out_is_always_the_same_and_not_trained_on"
FRESH = "test_every_epoch_holds_the_same_examples"

FURTHER: list[tuple[Callable[[int], Sound], str, str, dict[str, bool]]] = [
    (OrderOfTheFirstEpochRead, ORDER, "an epoch that is read first", {}),
    (HasItsOwn, ORDER, "a source that is opened anew", {}),
    (
        BeginsWithAShortBatch,
        "test_the_batch_size_changes_no_order",
        "batches of 3 have [1, 3, 3, 3, 3, 3, 3, 3] examples",
        {},
    ),
    (
        LosesOneLater,
        "test_an_epoch_has_as_many_examples_as_its_length",
        "num_examples is 22, and epoch 1 has 21",
        {},
    ),
    (NeverShuffles, FRESH, "it is to have fresh examples", {"repeats": False}),
    (Sound, ANOTHER_ORDER, "another epoch has another order", {"shuffles": False}),
    (HasNoSeed, ANOTHER_ORDER, "another seed is to have", {}),
    (with_fingerprint(lambda _: 5), FINGERPRINT, "the fingerprint is no text: 5", {}),
    (with_fingerprint(lambda _: ""), FINGERPRINT, "the fingerprint is empty", {}),
    (CountsItsReads, FINGERPRINT, "reading changes the fingerprint", {}),
    (
        with_fingerprint(lambda source: f"reader {source.number}"),
        FINGERPRINT,
        "the same data has another fingerprint",
        {},
    ),
    (Sound, HELD_OUT, "it is to hold nothing out", {"holds_out": False}),
    (HoldsNothingOut, HELD_OUT, "it is to hold something out", {}),
    (HoldsOutByBatches, HELD_OUT, "in batches of another size", {}),
    (HasItsOwn, HELD_OUT, "a source that is opened anew holds other examples out", {}),
]


@pytest.mark.parametrize(("kind", "test", "sentence", "attributes"), FURTHER)
def test_a_further_defect_is_seen(
    kind: Callable[[int], Sound],
    test: str,
    sentence: str,
    attributes: dict[str, bool],
    tmp_path: Path,
) -> None:
    class Suite(DataSourceSuite):
        def open(self, folder: Path, seed: int = 0) -> DataSource:
            return kind(seed)

    suite = Suite()
    vars(suite).update(attributes)
    message = failure(suite, test, tmp_path)
    assert message is not None
    assert sentence in message


@dataclass
class Example:
    ids: Any
    more: Any


def test_equal_examples_have_equal_keys() -> None:
    ids = np.array([[1, 2]], dtype=np.int32)
    example = Example(torch.tensor([[1, 2]], dtype=torch.int32), {"a": [ids, (3, "b")]})
    array = ("int32", (1, 2), ids.tobytes())
    assert DataSourceSuite().key(example) == (array, (("a", (array, (3, "b"))),))
    others = [ids.astype(np.int64), ids.T, ids + 1, ids[0]]
    assert len({DataSourceSuite().key(one) for one in [ids, *others]}) == 5


DEFECTS: list[tuple[Callable[[int], Sound], str, str]] = [
    (RowsChangeOrder, "test_the_order_is_that_of_seed_and_epoch_alone", "another order"),
    (OrderOfTheHistory, "test_the_order_is_that_of_seed_and_epoch_alone", "another one was read"),
    (BeginsAnew, "test_an_epoch_goes_on_where_it_was_left", "from example 1 on"),
    (BeginsAgainAtTheEnd, "test_an_epoch_goes_on_where_it_was_left", "from example 22 on"),
    (HasNoBatchLargerThanItself, "test_the_batch_size_changes_no_order", "in batches of 23"),
    (JoinsAShortLastBatch, "test_the_batch_size_changes_no_order", "the last batch of 1 has 2"),
    (ShufflesBatches, "test_the_batch_size_changes_no_order", "in batches of"),
    (DropsLast, "test_an_epoch_has_as_many_examples_as_its_length", "num_examples is 22"),
    (LosesExamples, "test_every_epoch_holds_the_same_examples", "lost examples"),
    (NeverShuffles, "test_another_epoch_and_another_seed_is_another_order", "another epoch"),
    (OtherFingerprints, "test_the_fingerprint_depends_on_the_examples", "fingerprint"),
    (TrainsOnHeldOut, "test_what_is_held_out_is_always_the_same_and_not_trained_on", "trained on"),
    (DrawsHeldOut, "test_what_is_held_out_is_always_the_same_and_not_trained_on", "held-out"),
    (GoesOnWhereAReaderStopped, "test_a_reader_that_stops_early_leaves_no_trace", "stopped early"),
]


class TestSound(DataSourceSuite):
    def open(self, folder: Path, seed: int = 0) -> DataSource:
        return Sound(seed)


@pytest.mark.parametrize(("kind", "test", "sentence"), DEFECTS)
def test_a_defect_is_seen(
    kind: Callable[[int], Sound], test: str, sentence: str, tmp_path: Path
) -> None:
    class Suite(DataSourceSuite):
        def open(self, folder: Path, seed: int = 0) -> DataSource:
            return kind(seed)

    message = failure(Suite(), test, tmp_path)
    assert message is not None
    assert sentence in message


def test_each_test_has_a_defect_that_it_sees() -> None:
    assert without_defect(DataSourceSuite, {test for _, test, _ in DEFECTS}) == []
