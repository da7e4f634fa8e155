"""Which tokens of an example carry loss, to look at: as text, or as HTML."""

import html
from typing import TYPE_CHECKING

from infrastructure.training.data.store.examples import TokenizedExample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def token_preview(example: TokenizedExample, tokenizer: "PreTrainedTokenizerBase") -> str:
    """The tokens as text: `|` between them, learnt ones in ⟦ ⟧."""
    parts = []
    for tokens, is_learnt in _runs(example, tokenizer):
        joined = "|".join(tokens)
        parts.append(f"⟦{joined}⟧" if is_learnt else joined)
    return "".join(parts)


def token_preview_html(example: TokenizedExample, tokenizer: "PreTrainedTokenizerBase") -> str:
    """The tokens as an HTML element: learnt ones are marked, and say so when pointed at."""
    spans = []
    for tokens, is_learnt in _runs(example, tokenizer):
        tag, title = ("mark", "learnt") if is_learnt else ("span", "given")
        shown = (html.escape(token).replace("\n", "⏎\n") for token in tokens)
        spans += [f'<{tag} title="{title}">{token}</{tag}>' for token in shown]
    return f"<pre>{'&#8203;'.join(spans)}</pre>"


def _runs(
    example: TokenizedExample, tokenizer: "PreTrainedTokenizerBase"
) -> list[tuple[list[str], bool]]:
    runs: list[tuple[list[str], bool]] = []
    for token, is_learnt in zip(example.input_ids, example.supervised, strict=True):
        if not runs or runs[-1][1] != bool(is_learnt):
            runs.append(([], bool(is_learnt)))
        runs[-1][0].append(str(tokenizer.decode([int(token)])))
    return runs
