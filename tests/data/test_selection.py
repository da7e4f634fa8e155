"""A pipeline that trains on selected examples: how many, which, in which order, what is refused."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infrastructure.data.encoding.augmentation import (
    AUGMENTATIONS,
    register_augmentation,
)
from infrastructure.data.readers.rows import Conversation, Turn
from infrastructure.data.serving.example_order import random_selection, selection_hash
from infrastructure.features.quantum.config import QuantumConfig
from infrastructure.features.quantum.training.data_selection_step import limit_data
from tests.data.builders import epoch, pipeline


def shout(conversation: Conversation, rng: np.random.RandomState) -> Conversation:
    question, *rest = conversation.turns
    return Conversation((Turn(question.role, question.text + "!"), *rest), conversation.task)


@pytest.fixture
def shouting() -> Any:
    register_augmentation("shout", shout)
    yield
    AUGMENTATIONS.unregister("shout")


def limited(data: Path, cache: Path, num_selected: int, **settings: Any) -> Any:
    prepared = pipeline(data, cache, **settings)
    prepared.limit_to(num_selected)
    return prepared


def texts_of(prepared: Any, ids: Any) -> list[str]:
    return [str(list(example.input_ids)) for example in prepared.examples(ids)]


def heard(prepared: Any, number: int = 0, start: int = 0) -> list[str]:
    batches = prepared.train_batches(number, start, 8)
    return [str(list(example.input_ids)) for batch in batches for example in batch]


def test_the_number_is_the_selections_from_the_start_on(data: Path, cache: Path) -> None:
    whole = pipeline(data, cache)
    prepared = limited(data, cache, 20)
    assert (prepared.num_examples, prepared.num_candidates) == (20, whole.num_examples)
    first = epoch(prepared)
    assert len(set(first)) == 20
    assert set(first) < set(epoch(whole))
    assert prepared.lengths().shape == (20,)
    assert prepared.fingerprint not in (whole.fingerprint, limited(data, cache, 21).fingerprint)
    assert prepared.fingerprint == limited(data, cache, 20).fingerprint
    assert list(prepared.selected) == list(random_selection(whole.num_examples, 20, 0))
    assert list(whole.selected) == list(range(whole.num_examples))


@pytest.mark.parametrize("mode", [{}, {"memory_size": 0}])
def test_epochs_hold_the_selected_examples_in_an_order_of_their_own(
    data: Path, cache: Path, mode: dict[str, Any]
) -> None:
    chosen = [3, 1, 4, 15, 9, 26]
    prepared, again = (limited(data, cache, 6, **mode) for _ in range(2))
    epoch(again, 1)  # what was read before does not matter
    for one in (prepared, again):
        one.select(chosen)
        assert list(one.selected) == sorted(chosen)
    assert sorted(heard(prepared, 1)) == sorted(texts_of(prepared, chosen))
    assert set(heard(prepared, 1)) <= set(texts_of(prepared, chosen))
    assert heard(prepared, 1) == heard(again, 1) != heard(again, 2)
    assert heard(prepared, 1, 2) == heard(prepared, 1)[2:]
    assert prepared.places(1, 0, 6) == again.places(1, 0, 6)


def test_selecting_all_is_as_if_nothing_was_selected(data: Path, cache: Path) -> None:
    whole = pipeline(data, cache)
    assert epoch(limited(data, cache, whole.num_examples), 1) == epoch(whole, 1)


@pytest.mark.parametrize("mode", [{}, {"memory_size": 0}])
def test_without_a_limit_an_epoch_stays_as_long(
    data: Path, cache: Path, mode: dict[str, Any]
) -> None:
    prepared, again, whole = (pipeline(data, cache, **mode) for _ in range(3))
    left_out = [0, 3, 7]
    kept = sorted(set(range(whole.num_examples)) - set(left_out))
    for one in (prepared, again):
        one.select(kept)
    assert prepared.num_examples == whole.num_examples == len(heard(prepared, 1))
    assert prepared.fingerprint == whole.fingerprint
    assert prepared.lengths().shape == (whole.num_examples,)
    assert set(heard(prepared, 1)) <= set(texts_of(prepared, kept))
    times = sorted(Counter(heard(prepared, 1)).values())
    assert times == [1] * (len(kept) - len(left_out)) + [2] * len(left_out)
    pairs = list(zip(heard(prepared, 1), heard(whole, 1), strict=True))
    assert {was for now, was in pairs if now != was} == set(texts_of(whole, left_out))
    assert heard(prepared, 1) == heard(again, 1) != heard(again, 2)
    assert heard(prepared, 1, 5) == heard(prepared, 1)[5:]
    assert prepared.places(1, 3, 9) == again.places(1, 0, 12)[3:]
    prepared.unselect()
    assert epoch(prepared, 1) == epoch(whole, 1)


def test_without_a_limit_few_come_many_times(data: Path, cache: Path) -> None:
    prepared = pipeline(data, cache)
    prepared.select([2, 5])
    times = Counter(heard(prepared)).values()
    assert len(times) == 2
    assert max(times) - min(times) <= 1
    for ids in ([], [1, 1], [10**6], [prepared.num_candidates], [-1]):
        wanted = rf"wanted=any number, num_candidates={prepared.num_candidates}\)"
        with pytest.raises(ValueError, match=rf"invalid_selection\(num_ids=.*, {wanted}"):
            prepared.select(ids)


@pytest.mark.usefixtures("shouting")
def test_augmented_examples_are_looked_at_as_they_are(data: Path, cache: Path) -> None:
    plain, loud = pipeline(data, cache), limited(data, cache, 3, augmentation="shout")
    loud.select([5, 6, 7])
    assert texts_of(loud, [5, 6, 7]) == texts_of(plain, [5, 6, 7])
    assert len(heard(loud)) == 3
    assert not set(heard(loud)) & set(texts_of(plain, [5, 6, 7]))


def test_names_of_examples(data: Path, cache: Path) -> None:
    prepared = limited(data, cache, 2)
    assert len(set(prepared.places_of([0, 1, 2]))) == 3
    prepared.select([1, 2])
    assert sorted(prepared.places(0, 0, 2)) == sorted(prepared.places_of([1, 2]))


@pytest.mark.parametrize("ids", [[1, 2], [1, 1, 2], [-1, 1, 2], [1, 2, 10**6], [1, 2, 3, 4], []])
def test_what_is_no_selection_is_refused(data: Path, cache: Path, ids: list[int]) -> None:
    prepared = limited(data, cache, 3)
    before = list(prepared.selected)
    num_ids, num_distinct = len(ids), len({*ids})
    given = rf"num_ids={num_ids}, num_distinct={num_distinct}, wanted=3, num_candidates="
    given += str(prepared.num_candidates)
    with pytest.raises(ValueError, match=rf"data\.invalid_selection\({given}\)"):
        prepared.select(ids)
    assert list(prepared.selected) == before


def test_a_limit_that_cannot_be(data: Path, cache: Path) -> None:
    most = pipeline(data, cache).num_candidates
    for number in (0, most + 1):
        given = rf"num_examples={number}, num_candidates={most}"
        with pytest.raises(ValueError, match=rf"data\.selection_out_of_range\({given}\)"):
            limited(data, cache, number)
    with pytest.raises(ValueError, match=r"data\.stream_not_selectable"):
        limited(data, cache, 3, streaming=True)
    with pytest.raises(ValueError, match=r"data\.stream_not_selectable"):
        limit_data(pipeline(data, cache, streaming=True), QuantumConfig())


def test_a_selection_has_a_name() -> None:
    assert selection_hash([3, 1]) == selection_hash(np.array([1, 3])) != selection_hash([1, 2])
    assert len(set(random_selection(50, 20, 1))) == 20
    assert list(random_selection(50, 20, 1)) != list(random_selection(50, 20, 2))
