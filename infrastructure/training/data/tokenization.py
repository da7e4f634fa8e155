"""From conversations to token ids with a mask of what is learnt.

By default the answers are learnt, each with the token that ends it, so that the model learns to
stop. What stands before an answer is tokenised exactly as at generation: where the tokens of the
whole text differ from those of the prompt alone, prompt and answer are tokenised apart.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from infrastructure.training.data.chat_format import (
    ChatFormat,
    FormatError,
    PlainFormat,
    TemplateFormat,
    Written,
    end_of_text,
    special_tokens,
)
from infrastructure.training.data.examples import TokenizedExample
from infrastructure.training.data.rows import (
    CHAT_TEMPLATE,
    NOT_SUPERVISED,
    OVER_LONG,
    BadRow,
    Conversation,
    Turn,
    excerpt,
)

PROBES = (("a b\n", "c d"), ("1.\n", "2 3"), ("é:\n", "é è"), ("a\n", "(b)"))

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A tokenised conversation; `is_truncated` tells that tokens were cut off."""

    example: TokenizedExample
    is_truncated: bool = False


class ConversationEncoder:
    """Tokenises conversations for training, and prompts for generation.

    Args:
        tokenizer: a transformers tokenizer, fast or slow, with or without a chat template.
        max_length: longest example, in tokens.
        over_length: "quarantine" refuses longer ones, "truncate" cuts them (see `truncate`).
        train_on: "answers", or "all" for every token but the first.

    Raises:
        ValueError: the tokenizer has no usable EOS token.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_length: int,
        over_length: str = "quarantine",
        train_on: str = "answers",
    ) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.over_length = over_length
        self.train_on = train_on
        self.template = TemplateFormat(tokenizer) if tokenizer.chat_template else None
        self.plain = None if self.template else PlainFormat(tokenizer)
        self.special_tokens = special_tokens(tokenizer)
        self.splits_cleanly = _splits_cleanly(tokenizer)

    def encode(self, conversations: Sequence[Conversation]) -> list[Encoded | BadRow]:
        """Each conversation as tokens, or why it cannot be used; in the given order."""
        results: dict[int, Encoded | BadRow] = {}
        written: dict[int, Written] = {}
        for index, conversation in enumerate(conversations):
            try:
                written[index] = self._format(conversation).write(conversation)
            except FormatError as error:
                results[index] = _bad(conversation, CHAT_TEMPLATE, str(error))
        tokens = self._tokenise(list(written.values()))
        for index, (ids, mask) in zip(written, tokens, strict=True):
            results[index] = self._finish(conversations[index], ids, mask)
        return [results[index] for index in range(len(conversations))]

    def prompt_ids(self, turns: Sequence[Turn]) -> list[int]:
        """The tokens after which the model is to answer: the same as in training.

        Raises:
            FormatError: the chat template refuses these messages.
        """
        written = (self.template or self._plain()).write_prompt(turns)
        return [*written.lead, *self._ids([written.text])[0]]

    def num_tokens(self, text: str) -> int:
        """Tokens of a bare text."""
        return len(self._ids([text])[0])

    def _format(self, conversation: Conversation) -> ChatFormat:
        if self.template and not conversation.is_text:
            return self.template
        return self._plain()

    def _plain(self) -> PlainFormat:
        self.plain = self.plain or PlainFormat(self.tokenizer)
        return self.plain

    def _ids(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        options = {"return_attention_mask": False, "return_token_type_ids": False}
        encoded = self.tokenizer(texts, add_special_tokens=False, verbose=False, **options)
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def _tokenise(self, written: list[Written]) -> list[tuple[list[int], Mask]]:
        pieces = [_pieces(w) for w in written]
        if not self.splits_cleanly:
            return self._tokenise_whole(written, pieces)
        parts = iter(self._ids([text for texts in pieces for text in texts]))
        return [
            _masked(one, [next(parts) for _ in texts])
            for one, texts in zip(written, pieces, strict=True)
        ]

    def _tokenise_whole(
        self, written: list[Written], pieces: list[list[str]]
    ) -> list[tuple[list[int], Mask]]:
        """For tokenizers that begin a piece otherwise than its middle: cut the whole's tokens."""
        whole = self._ids([w.text for w in written])
        parts = iter(self._ids([text for texts in pieces for text in texts[:-1]]))
        results = []
        for one, texts, ids in zip(written, pieces, whole, strict=True):
            heads = [next(parts) for _ in texts[:-1]]
            bounds = self._bounds(texts, heads, ids)
            if bounds is None:
                apart = [heads[0], *(self._continuation(text) for text in texts[1:])]
            else:
                apart = [ids[a:b] for a, b in itertools.pairwise([0, *bounds, len(ids)])]
            results.append(_masked(one, apart))
        return results

    def _continuation(self, text: str) -> list[int]:
        """The tokens of a text that goes on after a line break: no mark of a beginning."""
        lead, both = self._ids(["\n", "\n" + text])
        return both[len(lead) :] if both[: len(lead)] == lead else self._ids([text])[0]

    def _bounds(self, texts: list[str], heads: list[list[int]], ids: list[int]) -> list[int] | None:
        """Token positions between the pieces; None where tokens reach across, or differ alone."""
        bounds: list[int] = []
        position = 0
        for index, head in enumerate(heads):
            if ids[position : position + len(head)] == head:
                position += len(head)
            else:
                prefix = self._ids(["".join(texts[: index + 1])])[0]
                if ids[: len(prefix)] != prefix:
                    return None
                position = len(prefix)
            bounds.append(position)
        return bounds

    def _finish(self, conversation: Conversation, ids: list[int], mask: Mask) -> Encoded | BadRow:
        ids, mask = self._with_end(ids, mask)
        tokens = np.array(ids, dtype=np.int32)
        if self.train_on == "all":
            mask = np.ones(len(ids), dtype=bool)
        mask[:1] = False
        is_over_long = len(tokens) > self.max_length
        if is_over_long and self.over_length == "quarantine":
            detail = f"{len(tokens)} tokens, data.max_length is {self.max_length}"
            return _bad(conversation, OVER_LONG, detail)
        if is_over_long and mask.any():
            tokens, mask = truncate(tokens, mask, self.max_length, self.tokenizer.bos_token_id)
        if not mask.any():
            return _bad(conversation, NOT_SUPERVISED, "no token of an answer is left to learn")
        return Encoded(TokenizedExample(tokens, mask, conversation.task), is_over_long)

    def _with_end(self, ids: list[int], mask: Mask) -> tuple[list[int], Mask]:
        """Let the last answer end with a token that stops generation: EOS where there is none."""
        last = int(np.flatnonzero(mask)[-1]) if mask.any() else -1
        if last < 0 or self._is_special(ids[last]):
            return ids, mask
        end_of_text(self.tokenizer)  # raises where there is none
        return [*ids[: last + 1], int(self.tokenizer.eos_token_id)], np.append(
            mask[: last + 1], True
        )

    def _is_special(self, token: int) -> bool:
        return token in self.special_tokens


def _pieces(written: Written) -> list[str]:
    """The text cut before and after each answer; empty pieces left out."""
    return [written.text[start:end] for start, end in itertools.pairwise(_edges(written))]


def _edges(written: Written) -> list[int]:
    return sorted({0, len(written.text), *(edge for span in written.spans for edge in span)})


def _masked(written: Written, parts: list[list[int]]) -> tuple[list[int], Mask]:
    """Join the tokens of the pieces; those of answers are learnt."""
    answers = {start for start, _ in written.spans}
    ids, mask = list(written.lead), [False] * len(written.lead)
    for start, part in zip(_edges(written), parts, strict=False):
        ids += part
        mask += [start in answers] * len(part)
    return ids, np.array(mask, dtype=bool)


def _splits_cleanly(tokenizer: Any) -> bool:
    """Whether a text tokenised in pieces, cut after a line break, gives the tokens of the whole.

    Tokenizers that put a mark before the first word, or whose special tokens swallow the space
    beside them, do not.
    """
    added = tokenizer.added_tokens_decoder.values()
    if any(getattr(token, side, False) for token in added for side in ("lstrip", "rstrip")):
        return False

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    return all(ids(left + right) == ids(left) + ids(right) for left, right in PROBES)


def _bad(conversation: Conversation, reason: str, detail: str) -> BadRow:
    shown = excerpt(conversation.turns[0].text)
    return BadRow(conversation.source, conversation.line, reason, detail, shown)


def truncate(
    tokens: npt.NDArray[np.int32], mask: Mask, max_length: int, bos_id: int | None = None
) -> tuple[npt.NDArray[np.int32], Mask]:
    """Cut an over-long example so that the last answer stays, whole if it can.

    The beginning of the prompt goes first (BOS stays). An answer that is itself too long loses its
    end, EOS with it, and keeps at least a quarter of the length for what stands before it. A plain
    document keeps its beginning.
    """
    last = int(np.flatnonzero(mask)[-1])
    unsupervised = np.flatnonzero(~mask[:last])
    start = int(unsupervised[-1]) + 1 if len(unsupervised) else 0
    num_answer = last + 1 - start
    num_before = min(start, max(max_length - num_answer, max_length // 4))
    kept = slice(start - num_before, start - num_before + max_length)
    cut_tokens, cut_mask = tokens[kept].copy(), mask[kept].copy()
    if tokens[0] == bos_id:
        cut_tokens[0] = tokens[0]
    cut_mask[0] = False
    return cut_tokens, cut_mask
