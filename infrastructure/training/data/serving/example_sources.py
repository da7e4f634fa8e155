"""Where the examples of an epoch come from: the token store, or text that is tokenised on the way.

Each source gives the examples of an epoch in its order, from any position on. Where they come from
changes neither their number nor, without augmentation, their tokens.
"""

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from infrastructure.core.errors import DataError
from infrastructure.training.data.encoding.augmentation import Augmentation
from infrastructure.training.data.encoding.tokenization import ConversationEncoder, Encoded
from infrastructure.training.data.readers.rows import BadRow, Conversation
from infrastructure.training.data.serving.example_order import (
    AUGMENT,
    Indices,
    balanced_order,
    epoch_order,
    random_state,
    with_replacements,
)
from infrastructure.training.data.serving.streaming_dataset import StreamingDataset
from infrastructure.training.data.store.examples import TokenizedExample
from infrastructure.training.data.store.token_store import CheckedFile, TokenStore, damage_explained

ENCODED_TOGETHER = 32


class ExampleSource(Protocol):
    """Training examples, epoch by epoch."""

    def __len__(self) -> int:
        """Examples in an epoch."""

    def iterate(self, epoch: int, start: int) -> Iterator[TokenizedExample]:
        """The examples of an epoch from position `start` on."""

    def places(self, epoch: int, start: int, count: int) -> list[str]:
        """file:line of `count` examples of an epoch, from position `start` on."""


class Order:
    """Which row of the store stands at which position of an epoch.

    Attributes:
        all_rows: an example's id is its place among them.
        selected: ids of those that are trained on, ascending: all, or the selected ones.
        is_filled: an epoch has a place for every example, those that are not selected included.
    """

    def __init__(self, rows: Indices, seed: int, groups: Indices | None = None) -> None:
        self.all_rows, self.all_groups = rows, groups
        self.seed = seed
        self.select(np.arange(len(rows)))

    def select(self, ids: Indices, *, is_filled: bool = False) -> None:
        """Let epochs that begin from now on hold these examples only, in an order that depends on
        (seed, epoch, ids): each once, or, `is_filled`, in the order of all, where some of them come
        again in the places of the others."""
        self.selected, self.is_filled = ids, is_filled
        self._epoch = -1
        self._order = np.zeros(0, dtype=np.int64)

    @property
    def num_examples(self) -> int:
        """In an epoch."""
        return len(self.all_rows if self.is_filled else self.selected)

    def of(self, epoch: int) -> Indices:
        """The rows of an epoch, in order; the last epoch asked for is remembered."""
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self.all_rows[self._ids_of(epoch)]
        return self._order

    def part(self, epoch: int, start: int, count: int) -> list[int]:
        """A few rows of an epoch; safe beside a thread that walks through another one."""
        return [int(row) for row in self.all_rows[self._ids_of(epoch)[start : start + count]]]

    def _ids_of(self, epoch: int) -> Indices:
        if not self.is_filled:
            return self.selected[self._shuffled(self.selected, epoch)]
        order = self._shuffled(np.arange(len(self.all_rows)), epoch)
        return with_replacements(order, self.selected, self.all_groups, self.seed, epoch)

    def _shuffled(self, ids: Indices, epoch: int) -> Indices:
        """Places of `ids` in the order of an epoch that has only them."""
        if self.all_groups is None:
            return epoch_order(len(ids), self.seed, epoch)
        return balanced_order(self.all_groups[ids], self.seed, epoch)


class StoredExamples:
    """Examples that were tokenised before.

    Args:
        place_of: file:line of each of some rows.
    """

    def __init__(
        self, store: TokenStore, order: Order, place_of: Callable[[list[int]], list[str]]
    ) -> None:
        self.store = store
        self.order = order
        self.place_of = place_of

    def __len__(self) -> int:
        return self.order.num_examples

    def iterate(self, epoch: int, start: int) -> Iterator[TokenizedExample]:
        for row in self.order.of(epoch)[start:]:
            yield self.store.example(int(row))

    def lengths(self, epoch: int) -> Indices:
        """Tokens of each example of an epoch, in its order."""
        return self.store.lengths()[self.order.of(epoch)]

    def places(self, epoch: int, start: int, count: int) -> list[str]:
        return self.place_of(self.order.part(epoch, start, count))


class StoredConversations:
    """Texts that the store keeps beside the tokens, by row number."""

    def __init__(self, store: TokenStore, name: str, ends: str) -> None:
        self._path: Path = store.folder / name
        self._file = CheckedFile(self._path, store.meta["files"][name])
        self._ends = np.concatenate([[0], store.array(ends)])

    def get(self, row: int) -> Conversation:
        """The text of row number `row`.

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
    """Tokenises conversations on the way, augmented if there is an augmentation."""

    encoder: ConversationEncoder
    seed: int
    augment: Augmentation | None = None

    def examples(
        self, conversations: Iterable[Conversation], epoch: int, start: int
    ) -> Iterator[TokenizedExample]:
        """The examples of the conversations, whose first one stands at position `start`."""
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
        """The row as it is, where its augmentation cannot be used."""
        (result,) = self.encoder.encode([conversation])
        if isinstance(result, BadRow):
            raise DataError("data.row_no_longer_usable", row=result)
        return result.example


class AugmentedExamples:
    """Examples that are changed each time they are seen."""

    def __init__(
        self, conversations: StoredConversations, order: Order, tokenizer: TextTokenizer
    ) -> None:
        self.conversations = conversations
        self.order = order
        self.tokenizer = tokenizer

    def __len__(self) -> int:
        return self.order.num_examples

    def iterate(self, epoch: int, start: int) -> Iterator[TokenizedExample]:
        rows = self.order.of(epoch)[start:]
        texts = (self.conversations.get(int(row)) for row in rows)
        return self.tokenizer.examples(texts, epoch, start)

    def places(self, epoch: int, start: int, count: int) -> list[str]:
        return [self.conversations.get(r).place for r in self.order.part(epoch, start, count)]


class StreamedExamples:
    """Examples of files that are read while they are trained on."""

    def __init__(self, dataset: StreamingDataset, tokenizer: TextTokenizer) -> None:
        self.dataset = dataset
        self.tokenizer = tokenizer

    def __len__(self) -> int:
        return len(self.dataset)

    def iterate(self, epoch: int, start: int) -> Iterator[TokenizedExample]:
        return self.tokenizer.examples(self.dataset.iterate(epoch, start), epoch, start)

    def places(self, epoch: int, start: int, count: int) -> list[str]:
        """Reads their window once more, beside the thread that reads on."""
        texts = copy.copy(self.dataset).iterate(epoch, start)
        return [text.place for text in itertools.islice(texts, count)]
