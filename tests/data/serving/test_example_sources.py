"""Examples come in the order of their epoch from any position on, changed as that position says."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infrastructure.data.encoding.augmentation import (
    AUGMENTATIONS,
    register_augmentation,
)
from infrastructure.data.encoding.tokenization import ConversationEncoder
from infrastructure.data.readers.rows import Conversation, Turn
from infrastructure.data.serving.example_order import (
    AUGMENT,
    epoch_order,
    random_state,
    with_replacements,
)
from infrastructure.data.serving.example_sources import (
    ENCODED_TOGETHER,
    Order,
    TextTokenizer,
)
from tests.data.builders import byte_level_tokenizer, epoch, pairs, pipeline, write_jsonl

NUM_ROWS = 2 * ENCODED_TOGETHER + 6  # three blocks, the last one short


def number(conversation: Conversation, rng: np.random.RandomState) -> Conversation:
    """Answer with a random number."""
    return Conversation((conversation.turns[0], Turn("assistant", str(rng.randint(10**6)))))


@pytest.fixture
def numbering() -> Iterator[None]:
    register_augmentation("number", number)
    yield
    AUGMENTATIONS.unregister("number")


def test_the_randomness_of_a_change_is_that_of_seed_epoch_and_position() -> None:
    """So a training that resumes in the middle of a block sees what it would have seen."""
    tokenizer = byte_level_tokenizer()
    encoder = ConversationEncoder(tokenizer, max_length=99)
    rows = [Conversation((Turn("user", f"Q{n}"), Turn("assistant", "A"))) for n in range(NUM_ROWS)]
    for seed, of_epoch, start in ((0, 0, 0), (7, 0, 0), (7, 2, 0), (7, 2, ENCODED_TOGETHER + 5)):
        examples = TextTokenizer(encoder, seed, number).examples(rows[start:], of_epoch, start)
        answers = [
            tokenizer.decode(one.input_ids[one.supervised], skip_special_tokens=True)
            for one in examples
        ]
        assert answers == [
            str(random_state(AUGMENT, seed, of_epoch, position).randint(10**6))
            for position in range(start, NUM_ROWS)
        ]


@pytest.mark.usefixtures("numbering")
@pytest.mark.parametrize("streaming", [False, True])
def test_a_change_depends_on_the_seed_of_the_run(
    tmp_path: Path, cache: Path, streaming: bool
) -> None:
    data = write_jsonl(tmp_path / "rows.jsonl", pairs(1))
    options: dict[str, Any] = {
        "augmentation": "number",
        "validation_split": 0,
        "streaming": streaming,
    }
    for seed, of_epoch in ((0, 0), (3, 0), (3, 1)):
        [text] = epoch(pipeline(data, cache, seed=seed, **options), of_epoch)
        assert str(random_state(AUGMENT, seed, of_epoch, 0).randint(10**6)) in text


ROWS = np.arange(100, 130)  # of a store that holds others before them


@pytest.mark.parametrize("is_filled", [False, True])
def test_an_order_has_the_rows_of_what_is_selected(is_filled: bool) -> None:
    """Each epoch, whichever was asked for before, and after another selection too."""
    chosen = np.array([1, 4, 6, 11, 12, 19, 23, 29])
    order = Order(ROWS, 5)
    everything = [epoch_order(30, 5, n) for n in range(2)]
    for n in (0, 1, 0):
        assert order.of(n).tolist() == ROWS[everything[n]].tolist()
    order.select(chosen, is_filled=is_filled)
    assert order.num_examples == (30 if is_filled else 8)
    for n in (0, 1, 0):
        if is_filled:
            expected = with_replacements(everything[n], chosen, 5, n)
        else:
            expected = chosen[epoch_order(8, 5, n)]
        assert order.of(n).tolist() == ROWS[expected].tolist()
        assert order.part(1 - n, 2, 5) == order.of(1 - n)[2:7].tolist()
