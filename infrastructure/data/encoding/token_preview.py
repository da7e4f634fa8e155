"""Display of an example's tokens that marks trained tokens and the ends of answers.

It is plain text, with or without terminal colors.
"""

from collections.abc import Sequence
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from infrastructure.core.messages import phrase
from infrastructure.data.encoding.chat_format import special_tokens
from infrastructure.data.store.examples import TokenizedExample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TokenUse(Enum):
    """How a token is used in training.

    - MASKED: the model reads it and is not trained on it. - TRAINED: the model learns to generate
    it. - STOP: the model learns to generate it, and it ends an answer.
    """

    MASKED = "masked"
    TRAINED = "trained"
    STOP = "stop"


COLOURS = {TokenUse.MASKED: "2", TokenUse.TRAINED: "32", TokenUse.STOP: "7;32"}
HALF, MOST_BYTES = "\ufffd", 4  # decoded from a part of a character; bytes per character
MOST_TOKENS = 2000  # shown of an example; the rest is counted


def kinds_of(example: TokenizedExample, tokenizer: "PreTrainedTokenizerBase") -> list[TokenUse]:
    """Return the kind of each token.

    A STOP is the last special token in a run of trained tokens.
    """
    trained = example.supervised
    is_special = np.isin(example.input_ids, list(special_tokens(tokenizer)))
    kinds = [TokenUse.TRAINED if is_trained else TokenUse.MASKED for is_trained in trained]
    is_open = True  # to the right, this stretch has only white space
    for place in range(len(kinds) - 1, -1, -1):
        if not trained[place]:
            is_open = True
        elif is_open:
            if is_special[place]:
                kinds[place] = TokenUse.STOP
            is_open = not is_special[place] and not _text(tokenizer, example, place).strip()
    return kinds


def counts_line(kinds: Sequence[TokenUse]) -> str:
    """Return a summary such as `45 tokens: 12 trained, 2 of them end an answer, 33 masked`."""
    stops = kinds.count(TokenUse.STOP)
    trained = kinds.count(TokenUse.TRAINED) + stops
    return phrase(
        "data.token_counts",
        total=len(kinds),
        trained=trained,
        num_ends=stops,
        masked=len(kinds) - trained,
    )


def token_preview(
    example: TokenizedExample,
    tokenizer: "PreTrainedTokenizerBase",
    has_colour: bool = False,
    left_out: Sequence[str] = (),
) -> str:
    """Return the tokens as text, separated by `|`.

    Trained tokens are in ⟦ ⟧, ■ follows each token that ends an answer, and ⏎ is a newline.

    Args:
        has_colour: use terminal colors: masked tokens are dim, trained ones green, and those that
            end an answer reversed.
        left_out: descriptions of texts of the row that the model never reads, shown one per line.
    """
    parts = []
    tokens = _tokens(example, tokenizer)
    for is_masked, run in groupby(tokens, lambda token: token[1] is TokenUse.MASKED):
        shown = [_in_text(text, kind, has_colour) for text, kind in run]
        joined = "|".join(shown)
        parts.append(joined if is_masked else f"⟦{joined}⟧")
    below = "".join("\n" + phrase("data.left_out", text=one) for one in left_out)
    return "".join(parts) + _rest(example) + below


def _in_text(text: str, kind: TokenUse, has_colour: bool) -> str:
    ended = text.replace("\n", "⏎") + ("■" if kind is TokenUse.STOP else "")
    return f"\033[{COLOURS[kind]}m{ended}\033[0m" if has_colour else ended


def _tokens(
    example: TokenizedExample, tokenizer: "PreTrainedTokenizerBase"
) -> list[tuple[str, TokenUse]]:
    """Return the text and kind of each of the first MOST_TOKENS tokens.

    Tokens that hold only a part of a character are joined.
    """
    kinds = kinds_of(example, tokenizer)[:MOST_TOKENS]
    tokens, place = [], 0
    while place < len(kinds):
        length = _length_of_piece(tokenizer, example, kinds, place)
        tokens.append((_text(tokenizer, example, place, length), kinds[place]))
        place += length
    return tokens


def _length_of_piece(
    tokenizer: "PreTrainedTokenizerBase",
    example: TokenizedExample,
    kinds: list[TokenUse],
    place: int,
) -> int:
    """Return how many tokens, starting at `place`, decode to complete characters; 1 if that never
    happens.
    """
    if HALF not in _text(tokenizer, example, place):
        return 1
    for length in range(2, MOST_BYTES + 1):
        if kinds[place : place + length] != [kinds[place]] * length:
            return 1
        if HALF not in _text(tokenizer, example, place, length):
            return length
    return 1


def _text(
    tokenizer: "PreTrainedTokenizerBase", example: TokenizedExample, place: int, length: int = 1
) -> str:
    return str(tokenizer.decode([int(i) for i in example.input_ids[place : place + length]]))


def _rest(example: TokenizedExample) -> str:
    more = len(example.input_ids) - MOST_TOKENS
    return phrase("data.more_tokens", count=more) if more > 0 else ""
