"""The preview shows which tokens are learnt, and escapes what it shows."""

import numpy as np

from infrastructure.training.data.encoding.token_preview import token_preview, token_preview_html
from infrastructure.training.data.store.examples import TokenizedExample
from tests.training.data.builders import byte_level_tokenizer


def preview_example(tokenizer: object) -> TokenizedExample:
    ids = tokenizer("<b> The")["input_ids"] + [tokenizer.eos_token_id]  # type: ignore[operator]
    return TokenizedExample(np.array(ids, dtype=np.int32), np.arange(len(ids)) >= len(ids) - 2)


def test_text() -> None:
    tokenizer = byte_level_tokenizer()
    assert token_preview(preview_example(tokenizer), tokenizer) == "<|b|>⟦ The|<|endoftext|>⟧"


def test_html() -> None:
    tokenizer = byte_level_tokenizer()
    shown = token_preview_html(preview_example(tokenizer), tokenizer)
    assert shown.count('title="learnt"') == 2
    assert shown.count('title="given"') == 3
    assert "&lt;|endoftext|&gt;" in shown
    assert "<b>" not in shown
