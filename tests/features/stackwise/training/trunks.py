"""A small trunk whose values depend on the page that they were computed in, as a real one's do."""

from collections.abc import Sequence
from types import SimpleNamespace

import torch

from infrastructure.features.stackwise.training.activation_cache import Pages, example_id

HIDDEN = 16
VOCABULARY = 50


def examples(count: int = 20, seed: int = 0, longest: int = 9) -> list[SimpleNamespace]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, longest + 1, (count,), generator=generator).tolist()
    rows = [torch.randint(1, VOCABULARY, (length,), generator=generator) for length in lengths]
    return [SimpleNamespace(input_ids=row) for row in rows]


def id_of(row: SimpleNamespace) -> bytes:
    return example_id(row.input_ids)


def ids_of(rows: Sequence[SimpleNamespace]) -> list[bytes]:
    return [id_of(row) for row in rows]


class Trunk(torch.nn.Module):
    """Embedding and a layer whose sums go over the whole page: another page, other values."""

    def __init__(self, seed: int = 0, hidden_size: int = HIDDEN) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = torch.nn.Embedding(VOCABULARY, hidden_size)
        self.layer = torch.nn.Linear(hidden_size, hidden_size)
        self.num_calls = 0

    def forward(self, page: Sequence[SimpleNamespace]) -> list[torch.Tensor]:
        self.num_calls += 1
        lengths = [len(example.input_ids) for example in page]
        rows = [example.input_ids for example in page]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        hidden = self.layer(self.embedding(padded))
        hidden = torch.tanh(hidden + 1e-3 * hidden.mean())
        return [row[:length] for row, length in zip(hidden, lengths, strict=True)]


def expected(trunk: Trunk, pages: Pages) -> dict[bytes, torch.Tensor]:
    """What a cache of these pages holds, by id, computed without it."""
    calls = trunk.num_calls
    with torch.no_grad():
        found = {
            identity: value
            for number in range(len(pages))
            for identity, value in zip(
                pages.ids(number), trunk(pages.examples(number)), strict=True
            )
        }
    trunk.num_calls = calls
    return found
