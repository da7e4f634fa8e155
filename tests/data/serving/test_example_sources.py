"""Examples come in the order of their epoch from any position on, changed as that position says."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infrastructure.core.errors import DataError
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
    AugmentedExamples,
    Order,
    StoredConversations,
    StoredExamples,
    TextTokenizer,
)
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.data.store.token_store import TokenStore, TokenStoreWriter
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


@pytest.fixture
def stored(tmp_path: Path) -> TokenStore:
    """An entry of 12 examples of one token, its number, with their conversations."""
    folder = tmp_path / "entry"
    folder.mkdir()
    rows = [
        Conversation((Turn("user", "ä" * n), Turn("assistant", f"A{n}")), source="a", line=n)
        for n in range(12)
    ]
    lines = [f"{row.to_json()}\n".encode() for row in rows]
    (folder / "rows.jsonl").write_bytes(b"".join(lines))
    np.save(folder / "ends.npy", np.cumsum([len(line) for line in lines]))
    with TokenStoreWriter(folder, 100) as writer:
        tokens = [np.array([n] * (n + 1), dtype=np.int32) for n in range(12)]
        writer.append([TokenizedExample(ids, ids > 0) for ids in tokens])
        writer.finish({})
    return TokenStore(folder, 0)


def test_stored_examples_come_from_any_position_on(stored: TokenStore) -> None:
    order = Order(np.arange(2, 12), seed=4)
    source = StoredExamples(stored, order, lambda rows: [f"a:{row}" for row in rows])
    for number in (0, 3):
        rows = (epoch_order(10, 4, number) + 2).tolist()
        for start in (0, 1, 9, 10):
            examples = [one.input_ids.tolist() for one in source.iterate(number, start)]
            assert examples == [[row] * (row + 1) for row in rows[start:]]
        assert source.lengths(number).tolist() == [row + 1 for row in rows]
        assert source.places(number, 3, 4) == [f"a:{row}" for row in rows[3:7]]


def test_kept_conversations_are_found_by_their_number(stored: TokenStore) -> None:
    kept = StoredConversations(stored, "rows.jsonl", "ends.npy")
    order = Order(np.arange(2, 12), seed=4)
    tokenizer = byte_level_tokenizer()
    texts = TextTokenizer(ConversationEncoder(tokenizer, max_length=99), 0)
    source = AugmentedExamples(kept, order, texts)
    rows = (epoch_order(10, 4, 3) + 2).tolist()
    for row in (0, 5, 11):
        assert kept.get(row).turns == (Turn("user", "ä" * row), Turn("assistant", f"A{row}"))
    for start in (0, 4, 10):
        answers = [
            tokenizer.decode(one.input_ids[one.supervised], skip_special_tokens=True)
            for one in source.iterate(3, start)
        ]
        assert answers == [f"A{row}" for row in rows[start:]]
    assert source.places(3, 2, 3) == [f"a:{row}" for row in rows[2:5]]
    path = stored.folder / "rows.jsonl"
    path.write_bytes(path.read_bytes().replace(b"A7", b"A8"))
    damaged = StoredConversations(stored, "rows.jsonl", "ends.npy")
    folder = re.escape(str(stored.folder))
    reason = r"data\.cache_chunk_damaged\(file=rows\.jsonl, chunk=0\)"
    with pytest.raises(
        DataError, match=rf"prepared_data_damaged\(folder={folder}, reason={reason}\)"
    ):
        damaged.get(0)


def test_a_change_that_cannot_be_encoded_leaves_the_conversation(tmp_path: Path) -> None:
    """If that cannot be encoded either, it is named."""
    encoder = ConversationEncoder(byte_level_tokenizer(), max_length=20)
    rows = [Conversation((Turn("user", f"Q{n}"), Turn("assistant", "A"))) for n in range(3)]

    def widen(conversation: Conversation, rng: np.random.RandomState) -> Conversation:
        return conversation if conversation == rows[2] else replace(conversation, turns=LONG)

    plain = list(TextTokenizer(encoder, 0).examples(rows, 0, 0))
    found = list(TextTokenizer(encoder, 0, widen).examples(rows, 0, 0))
    assert [one.input_ids.tolist() for one in found] == [one.input_ids.tolist() for one in plain]
    long = Conversation(LONG, source="a", line=7)
    with pytest.raises(DataError, match=r"data\.row_no_longer_usable\(row=a:7: over-long"):
        list(TextTokenizer(encoder, 0).examples([rows[0], long], 0, 0))


LONG = (Turn("user", "word " * 99), Turn("assistant", "A"))


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
