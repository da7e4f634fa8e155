"""A key-value memory that a language model reads by cross-attention after one of its layers.

The attention covers two kinds of entries. *Slots* are trained keys and values, as in Lample et al.
2019 (arXiv 1907.05242), but all of them are read. The *store* holds tokens from training, each with
the hidden state that should have predicted it, as in kNN-LM (Khandelwal et al. 2020, arXiv
1911.00172). Its entries have no gradient and are read inside the model, as in Memorizing
Transformers (Wu et al. 2022, arXiv 2203.08913). The output is multiplied by a gate that starts at
zero, so a new memory changes nothing.

During training, a row does not read entries from a row with the same tokens, so it never reads its
own targets from an earlier epoch. (The covariance of the stored keys includes those entries, but
contains no tokens.)
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch.utils.hooks import RemovableHandle

from infrastructure.core.errors import InputError
from infrastructure.core.json_text import JsonObject
from infrastructure.models.added_modules import (
    AddedModule,
    decoder,
    decoder_layers,
    hidden_size,
    inner_model,
    register_added_module,
)
from infrastructure.models.model_inputs import language_model

FIRST_SCALE = 16.0  # of cosines before the softmax; one near entry outweighs a thousand others
LEAST_SPREAD = 1e-3  # of a direction, relative to the mean of all
NO_ROW = 0
_HASH_FACTOR = 6364136223846793005  # from Knuth's generator; products wrap modulo 2**64
_LARGEST = (1 << 63) - 1


@register_added_module
class KeyValueMemory(AddedModule):
    """Attention over `slots` trained entries and `capacity` stored ones, with `heads` heads.

    Args:
        hidden: width of the model's hidden states.
        layer: the layer after which the memory is read, counted from 0.
        width: width of the keys and values, over all heads.
        capacity: entries of the store. 0: no store.
    """

    kind = "memory"

    def __init__(
        self, hidden: int, *, layer: int, slots: int, heads: int, width: int, capacity: int
    ) -> None:
        super().__init__()
        self.layer, self.num_heads = layer, heads
        self.norm = torch.nn.RMSNorm(hidden)
        self.query = torch.nn.Linear(hidden, width, bias=False)
        self.slot_keys = torch.nn.Parameter(torch.randn(slots, width) / math.sqrt(width))
        self.slot_values = torch.nn.Parameter(torch.randn(slots, width) / math.sqrt(width))
        self.log_scale = torch.nn.Parameter(torch.full((heads,), math.log(FIRST_SCALE)))
        self.output = torch.nn.Linear(width, hidden, bias=False)
        self.gate = torch.nn.Parameter(torch.zeros(hidden))
        self.capacity = capacity
        if capacity:
            self.value = torch.nn.Linear(hidden, width, bias=False)
            self.register_buffer("store_keys", torch.zeros(capacity, hidden))
            self.register_buffer("store_tokens", torch.zeros(capacity, dtype=torch.int64))
            self.register_buffer("store_rows", torch.full((capacity,), NO_ROW, dtype=torch.int64))
            self.register_buffer("num_stored", torch.zeros((), dtype=torch.int64))
        self.store_keys: torch.Tensor
        self.store_tokens: torch.Tensor
        self.store_rows: torch.Tensor
        self.num_stored: torch.Tensor
        # From the newest forward pass in training: normed hidden states and rows, one for each
        # token.
        self.seen: tuple[torch.Tensor, torch.Tensor] | None = None
        self._rows: torch.Tensor | None = None
        self._embeddings: list[torch.nn.Embedding] = []  # a list, so it is not registered here

    @classmethod
    def build(cls, model: torch.nn.Module, facts: JsonObject) -> Self:
        numbers = {name: cast(int, value) for name, value in facts.items()}
        heads, width = numbers["heads"], numbers["width"]
        if width % heads:
            raise InputError("key_value_memory.heads_not_divisor", heads=heads, width=width)
        count = len(decoder_layers(model))
        if numbers["layer"] >= count:
            raise InputError(
                "key_value_memory.layer_out_of_range", layer=numbers["layer"], last=count - 1
            )
        return cls(
            hidden_size(model),
            layer=numbers["layer"],
            slots=numbers["slots"],
            heads=heads,
            width=width,
            capacity=numbers["store"],
        )

    @property
    def facts(self) -> JsonObject:
        return {
            "layer": self.layer,
            "slots": len(self.slot_keys),
            "heads": self.num_heads,
            "width": self.query.out_features,
            "store": self.capacity,
        }

    def connect(self, model: torch.nn.Module) -> Sequence[RemovableHandle]:
        self._embeddings = [language_model(model).get_input_embeddings()]
        layer = decoder_layers(model)[self.layer]
        # In a vision-language model the decoder gets embeddings, and the module around it gets the
        # tokens.
        around = {id(one): one for one in (_around(model), decoder(model))}
        return [
            *(
                part.register_forward_pre_hook(self._note_rows, with_kwargs=True)
                for part in around.values()
            ),
            layer.register_forward_hook(self._after_layer),
        ]

    def _note_rows(
        self, _part: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        """Record the row to which each token of this forward pass belongs. `forward` reads the
        record.

        A row never reads what it has stored itself. Rows with the same tokens but different images
        count as one row, so neither reads what the other has stored.
        """
        ids = named.get("input_ids", given[0] if given else None)
        if ids is None and named.get("inputs_embeds") is not None:
            return
        self._rows = None
        if self.capacity and self.training and ids is not None:
            self._rows = rows_of(ids, named.get("attention_mask"), named.get("position_ids"))

    def _after_layer(self, _layer: torch.nn.Module, _given: object, output: Any) -> Any:
        if isinstance(output, tuple):
            return (self(output[0]), *output[1:])
        return self(output)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Add the memory's output to hidden states (B, L, H), and return the sum in their dtype."""
        with torch.autocast(hidden.device.type, enabled=False):  # distances need full precision
            return self._with_memory(hidden)

    def _with_memory(self, hidden: torch.Tensor) -> torch.Tensor:
        states = self.norm(hidden.to(self.norm.weight.dtype))
        rows = self._rows
        if rows is None or rows.shape != hidden.shape[:2]:
            rows = hidden.new_full(hidden.shape[:2], NO_ROW, dtype=torch.int64)
        if self.training and self.capacity:
            self.seen = (states.detach().flatten(0, 1), rows.flatten())
        read = self._read(states.flatten(0, 1), rows.flatten()).view_as(states)
        return hidden + (self.gate * read).to(hidden.dtype)

    def _read(self, states: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return the memory's output (T, H) for states (T, H).

        Args:
            rows: the row of each state, (T,); see `rows_of`.
        """
        queries = self._heads(self.query(states))
        keys = self._heads(self.slot_keys)
        values: torch.Tensor = self.slot_values
        mask = None
        if self.capacity:
            # Stored states use the queries' projection, so similar states are near from the start,
            # and stay so.
            stored = self._heads(self.query(self.store_keys))
            queries, stored = self._whitened(queries, stored)
            keys = torch.cat([keys, stored], dim=1)
            tokens = self._embeddings[0](self.store_tokens).detach().to(states.dtype)
            tokens = F.rms_norm(tokens, tokens.shape[-1:])
            values = torch.cat([values, self.value(tokens)])
            mask = self._may_read(rows)
        queries = F.normalize(queries, dim=-1) * self.log_scale.exp()[:, None, None]
        read = F.scaled_dot_product_attention(
            queries[None],
            F.normalize(keys, dim=-1)[None],
            self._heads(values)[None],
            attn_mask=mask,
            scale=1.0,
        )
        return self.output(read[0].transpose(0, 1).flatten(1))

    def _heads(self, rows: torch.Tensor) -> torch.Tensor:
        """Split the width into heads: (N, width) to (heads, N, width / heads)."""
        return rows.unflatten(1, (self.num_heads, -1)).transpose(0, 1)

    def _whitened(
        self, queries: torch.Tensor, stored: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Whiten queries and stored keys by the covariance of the stored keys.

        Without this, a few large components that all hidden states share would make all entries
        similar.
        """
        with torch.no_grad():
            is_filled = (self.store_rows != NO_ROW)[:, None].to(stored.dtype)
            count = is_filled.sum().clamp_min(1)
            mean = (stored * is_filled).sum(1, keepdim=True) / count
            centred = (stored - mean) * is_filled
            spread = centred.transpose(1, 2) @ centred / count
            diagonal = torch.diagonal(spread, dim1=1, dim2=2)
            diagonal += LEAST_SPREAD * diagonal.mean(1, keepdim=True) + 1e-12
            root = torch.linalg.cholesky_ex(spread).L  # no error if not finite
        whiten = partial(torch.linalg.solve_triangular, root, upper=False)
        return tuple(
            whiten((one - mean).transpose(1, 2)).transpose(1, 2) for one in (queries, stored)
        )

    def _may_read(self, rows: torch.Tensor) -> torch.Tensor:
        """Return which entries each token may read, bool (T, slots + capacity).

        These are all slots, and the stored entries of other rows.
        """
        stored = (self.store_rows != NO_ROW) & (self.store_rows != rows[:, None])
        return F.pad(stored, (len(self.slot_keys), 0), value=True)

    @torch.no_grad()
    def store(self, states: torch.Tensor, tokens: torch.Tensor, rows: torch.Tensor) -> None:
        """Add N entries to the store. If the store is full, they replace its oldest entries.

        Args:
            states: normalized hidden states that should have predicted the tokens, (N, H).
            tokens: (N,) int64.
            rows: the row of each token, (N,) int64; see `rows_of`.
        """
        last = slice(max(0, len(tokens) - self.capacity), None)
        states, tokens, rows = states[last], tokens[last], rows[last]
        places = (self.num_stored + torch.arange(len(tokens), device=rows.device)) % self.capacity
        self.store_keys[places] = states.to(self.store_keys.dtype)
        self.store_tokens[places] = tokens
        self.store_rows[places] = rows
        self.num_stored += len(tokens)


def _around(model: torch.nn.Module) -> torch.nn.Module:
    """Return the module that computes hidden states from tokens and images.

    For a text model, this is the decoder.
    """
    inner: Any = inner_model(model)
    return cast(torch.nn.Module, getattr(inner, "model", inner))


def rows_of(ids: torch.Tensor, is_real: Any, positions: torch.Tensor | None) -> torch.Tensor:
    """Return, for each token, a hash of all tokens of its row, (B, L) int64.

    The hash is never `NO_ROW`. The computation does not synchronize with the GPU.

    Args:
        ids: (B, L).
        is_real: the attention mask, (B, L): 1 for tokens and 0 for padding. With any other type or
            shape, all ids count as tokens.
        positions: positions in a packed row, (1, L), where each 0 starts a row of the data. None:
            each line of `ids` is a row.
    """
    if positions is not None and positions.dim() == 3:  # images: time, height, width
        positions = positions[0]
    is_mask = isinstance(is_real, torch.Tensor) and is_real.shape == ids.shape
    if positions is None or ids.shape[0] != 1:
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        segments = torch.arange(ids.shape[0], device=ids.device)[:, None].expand_as(ids)
    else:
        places = positions.expand_as(ids)
        segments = (places == 0).cumsum(1)
    terms = _mixed((ids + 1) * _HASH_FACTOR + places)
    if is_mask:
        terms = terms * is_real
    sums = torch.zeros(ids.numel() + 1, dtype=torch.int64, device=ids.device)
    sums.index_add_(0, segments.flatten(), terms.flatten())
    return (_mixed(sums)[segments] & _LARGEST).clamp_min(1)


def _mixed(numbers: torch.Tensor) -> torch.Tensor:
    """Hash numbers, so that their sums differ for different tokens and for different orders."""
    numbers = (numbers ^ (numbers >> 29)) * _HASH_FACTOR
    return numbers ^ (numbers >> 32)
