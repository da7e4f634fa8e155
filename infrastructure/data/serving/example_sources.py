"""Sources of the examples of an epoch: the token store, or text that is tokenized on the fly.

Each source yields the examples of an epoch in order, starting at any position. All sources yield
the same number of examples, and without augmentation the same tokens.
"""

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from infrastructure.core.errors import DataError
from infrastructure.data.encoding.augmentation import Augmentation
from infrastructure.data.encoding.tokenization import ConversationEncoder, Encoded
from infrastructure.data.readers.rows import BadRow, Conversation
from infrastructure.data.serving.example_order import (
    AUGMENT,
    Indices,
    epoch_order,
    random_state,
    with_replacements,
)
from infrastructure.data.serving.streaming_dataset import StreamingDataset
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.data.store.token_store import CheckedFile, TokenStore, damage_explained

ENCODED_TOGETHER = 32


class Order:
    """The order of examples in an epoch, as row numbers of the token store.

    Attributes:
        all_rows: all rows; an example's id is its index among them.
        selected: the ids of the examples that are trained on, in ascending order.
        is_filled: True if an epoch is as long as without a selection, and selected examples are
            repeated in place of the others.
    """

    def __init__(self, rows: Indices, seed: int) -> None:
        self.all_rows, self.seed = rows, seed
        self.select(np.arange(len(rows)))

    def select(self, ids: Indices, *, is_filled: bool = False) -> None:
        """Limit epochs that begin from now on to the examples with these ids.

        Each of these examples occurs once, in an order that depends on (seed, epoch, ids). With
        `is_filled`, an epoch keeps the order of all examples, and selected examples repeat in place
        of those that are not selected.
        """
        self.selected, self.is_filled = ids, is_filled
        self._epoch = -1
        self._order = np.zeros(0, dtype=np.int64)

    @property
    def num_examples(self) -> int:
        """The number of examples in an epoch."""
        return len(self.all_rows if self.is_filled else self.selected)

    def of(self, epoch: int) -> Indices:
        """Return the store rows of an epoch, in order; the most recent epoch is cached."""
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self.all_rows[self._ids_of(epoch)]
        return self._order

    def part(self, epoch: int, start: int, count: int) -> list[int]:
        """Return `count` store rows of an epoch from `start` on.

        It may be called while another thread iterates over another epoch.
        """
        return [int(row) for row in self.all_rows[self._ids_of(epoch)[start : start + count]]]

    def _ids_of(self, epoch: int) -> Indices:
        order = epoch_order(self.num_examples, self.seed, epoch)
        if not self.is_filled:
            return self.selected[order]
        return with_replacements(order, self.selected, self.seed, epoch)


class StoredExamples:
    """A source of examples that have been tokenized and stored.

    Args:
        place_of: returns file:line for each of the given store rows.
    """

    def __init__(
        self, store: TokenStore, order: Order, place_of: Callable[[list[int]], list[str]]
    ) -> None:
        self.store = store
        self.order = order
        self.place_of = place_of

    def iterate(self, epoch: int, start: int) -> Iterator[TokenizedExample]:
        for row in self.order.of(epoch)[start:]:
            yield self.store.example(int(row))

    def lengths(self, epoch: int) -> Indices:
        """Return the length in tokens of each example of an epoch, in order."""
        return self.store.lengths()[self.order.of(epoch)]

    def places(self, epoch: int, start: int, count: int) -> list[str]:
        return self.place_of(self.order.part(epoch, start, count))


class StoredConversations:
    """The conversations that the store contains in addition to their tokens, by row number."""

    def __init__(self, store: TokenStore, name: str, ends: str) -> None:
        self._path: Path = store.folder / name
        self._file = CheckedFile(self._path, store.meta["files"][name])
        self._ends = np.concatenate([[0], store.array(ends)])

    def get(self, row: int) -> Conversation:
        """Return the conversation of row number `row`.

        Raises:
            DataError: the entry was damaged after it was opened.
        """
        start, end = int(self._ends[row]), int(self._ends[row + 1])
        with damage_explained(self._path.parent):
            self._file.check(start, end)
        with self._path.open("rb") as file:
            file.seek(start)
            return Conversation.from_json(file.read(end - start).decode())


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer of conversations during training, which also applies the augmentation, if any."""

    encoder: ConversationEncoder
    seed: int
    augment: Augmentation | None = None

    def examples(
        self, conversations: Iterable[Conversation], epoch: int, start: int
    ) -> Iterator[TokenizedExample]:
        """Tokenize conversations and yield their examples; the first one is at position `start`."""
        numbered = enumerate(conversations, start)
        while some := list(itertools.islice(numbered, ENCODED_TOGETHER)):
            plain = [conversation for _, conversation in some]
            changed = [self._changed(conversation, epoch, n) for n, conversation in some]
            results = self.encoder.encode(changed)
            for original, result in zip(plain, results, strict=True):
                yield result.example if isinstance(result, Encoded) else self._unchanged(original)

    def _changed(self, conversation: Conversation, epoch: int, position: int) -> Conversation:
        if self.augment is None:
            return conversation
        return self.augment(conversation, random_state(AUGMENT, self.seed, epoch, position))

    def _unchanged(self, conversation: Conversation) -> TokenizedExample:
        """Return the example of the original conversation, for use if the augmented one is
        unusable.
        """
        (result,) = self.encoder.encode([conversation])
        if isinstance(result, BadRow):
            raise DataError("data.row_no_longer_usable", row=result)
        return result.example


class AugmentedExamples:
    """A source of examples that are augmented again each time they are used."""

    def __init__(
        self, conversations: StoredConversations, order: Order, tokenizer: TextTokenizer
    ) -> None:
        self.conversations = conversations
        self.order = order
        self.tokenizer = tokenizer

    def iterate(self, epoch: int, start: int) -> Iterator[TokenizedExample]:
        rows = self.order.of(epoch)[start:]
        texts = (self.conversations.get(int(row)) for row in rows)
        return self.tokenizer.examples(texts, epoch, start)

    def places(self, epoch: int, start: int, count: int) -> list[str]:
        return [self.conversations.get(r).place for r in self.order.part(epoch, start, count)]


class StreamedExamples:
    """A source of examples that are read from the files during training."""

    def __init__(self, dataset: StreamingDataset, tokenizer: TextTokenizer) -> None:
        self.dataset = dataset
        self.tokenizer = tokenizer

    def iterate(self, epoch: int, start: int) -> Iterator[TokenizedExample]:
        return self.tokenizer.examples(self.dataset.iterate(epoch, start), epoch, start)

    def places(self, epoch: int, start: int, count: int) -> list[str]:
        """Return the source position (file:line) of examples, by reading their window again.

        This does not affect the thread that reads ahead.
        """
        texts = copy.copy(self.dataset).iterate(epoch, start)
        return [text.place for text in itertools.islice(texts, count)]
