"""The preview shows what is trained, masked, and ends an answer; it escapes all of it."""

import numpy as np
import pytest

from infrastructure.data.encoding.token_preview import (
    MOST_TOKENS,
    TokenUse,
    counts_line,
    kinds_of,
    token_preview,
)
from infrastructure.data.encoding.tokenization import ConversationEncoder, Encoded
from infrastructure.data.readers.rows import Conversation, Turn
from infrastructure.data.store.examples import TokenizedExample
from tests.data.builders import CHATML, byte_level_tokenizer

TALK = Conversation((Turn("user", "<b>"), Turn("assistant", "a"), Turn("user", "b")))


def preview_example(tokenizer: object) -> TokenizedExample:
    ids = tokenizer("<b> The")["input_ids"] + [tokenizer.eos_token_id]  # type: ignore[operator]
    return TokenizedExample(np.array(ids, dtype=np.int32), np.arange(len(ids)) >= len(ids) - 2)


def test_text() -> None:
    tokenizer = byte_level_tokenizer()
    shown = token_preview(preview_example(tokenizer), tokenizer)
    assert shown == "<|b|>⟦ The|<|endoftext|>■⟧"
    ids = np.array(tokenizer("b\n\nb")["input_ids"], dtype=np.int32)
    lines = TokenizedExample(ids, np.ones(len(ids), dtype=bool))
    shown = token_preview(lines, tokenizer)
    assert shown.count("⏎") == 2
    assert "\n" not in shown


def test_letters_of_several_tokens_are_whole() -> None:
    tokenizer = byte_level_tokenizer()
    ids = np.array(tokenizer("für 日")["input_ids"], dtype=np.int32)
    example = TokenizedExample(ids, np.ones(len(ids), dtype=bool))
    shown = token_preview(example, tokenizer)
    assert {"ü", "日"} <= set(shown.replace("⟦", "|").replace("⟧", "|").split("|"))
    assert "\ufffd" not in shown
    half = TokenizedExample(ids[:2], np.ones(2, dtype=bool))  # where the row was cut
    assert token_preview(half, tokenizer) == "⟦f|\ufffd⟧"
    letter = tokenizer("b")["input_ids"] * 5
    never = TokenizedExample(np.array([ids[1], *letter], dtype=np.int32), np.ones(6, dtype=bool))
    assert token_preview(never, tokenizer) == "⟦\ufffd|b|b|b|b|b⟧"


def test_colours() -> None:
    tokenizer = byte_level_tokenizer()
    shown = token_preview(preview_example(tokenizer), tokenizer, has_colour=True)
    masked = "|".join(f"\033[2m{one}\033[0m" for one in "<b>")
    assert shown == f"{masked}⟦\033[32m The\033[0m|\033[7;32m<|endoftext|>■\033[0m⟧"


def test_each_answer_has_its_stop_and_white_space_behind_it_is_none() -> None:
    marked = CHATML.replace(
        "{{ m['content'] }}<|im_end|>\n",
        "{% generation %}{{ m['content'] }}<|im_end|>\n{% endgeneration %}",
    )
    tokenizer = byte_level_tokenizer(marked)
    turns = Conversation((*TALK.turns, Turn("assistant", "c")))
    for template in (marked, CHATML):
        tokenizer.chat_template = template
        (encoded,) = ConversationEncoder(tokenizer, max_length=99).encode([turns])
        assert isinstance(encoded, Encoded)
        kinds = kinds_of(encoded.example, tokenizer)
        stops = [n for n, kind in enumerate(kinds) if kind is TokenUse.STOP]
        ends = encoded.example.input_ids == tokenizer.convert_tokens_to_ids("<|im_end|>")
        wanted = ends & encoded.example.supervised
        assert stops == np.flatnonzero(wanted).tolist()
        assert f"num_ends={len(stops)}," in counts_line(kinds)


@pytest.mark.parametrize(
    ("text", "trained", "expected"),
    [
        ("<s>b</s>", "111", "TTS"),
        ("</s>b", "11", "TT"),
        ("</s></s>", "11", "TS"),
        ("</s>\n\n", "11", "ST"),
        ("b</s>b</s>", "1101", "TS.S"),
        ("b</s>\nb", "1100", "TS.."),
        ("b</s>", "10", "T."),
    ],
)
def test_only_the_last_special_token_of_a_run_is_a_stop(
    text: str, trained: str, expected: str
) -> None:
    tokenizer = byte_level_tokenizer(additional_special_tokens=["<s>", "</s>"])
    ids = np.array(tokenizer(text)["input_ids"], dtype=np.int32)
    example = TokenizedExample(ids, np.array([one == "1" for one in trained]))
    letters = {TokenUse.MASKED: ".", TokenUse.TRAINED: "T", TokenUse.STOP: "S"}
    assert "".join(letters[kind] for kind in kinds_of(example, tokenizer)) == expected


def test_an_answer_that_was_cut_has_no_stop_and_a_long_one_is_cut_here() -> None:
    tokenizer = byte_level_tokenizer()
    example = preview_example(tokenizer)
    cut = TokenizedExample(example.input_ids[:-1], example.supervised[:-1])
    assert TokenUse.STOP not in kinds_of(cut, tokenizer)
    for more in (1, 7):
        ids = np.full(MOST_TOKENS + more, example.input_ids[1], dtype=np.int32)
        shown = token_preview(TokenizedExample(ids, np.arange(len(ids)) > 3), tokenizer)
        answer = "|".join("b" * (MOST_TOKENS - 4))
        assert shown == f"b|b|b|b⟦{answer}⟧data.more_tokens(count={more})"


def test_what_is_counted_adds_up() -> None:
    kinds = [TokenUse.MASKED] * 4 + [TokenUse.TRAINED] * 2 + [TokenUse.STOP]
    counts = "total={}, trained={}, num_ends={}, masked={})"
    for one, figures in (
        (kinds, (7, 3, 1, 4)),
        (kinds + kinds[3:], (11, 6, 2, 5)),
        (kinds[:6], (6, 2, 0, 4)),
    ):
        assert counts_line(one) == f"data.token_counts({counts.format(*figures)}"


def test_texts_that_are_never_read_stand_below() -> None:
    tokenizer = byte_level_tokenizer()
    example = preview_example(tokenizer)
    shown = token_preview(example, tokenizer, left_out=["one", "two"])
    assert shown.splitlines()[1:] == ["data.left_out(text=one)", "data.left_out(text=two)"]
    assert shown.splitlines()[0] == token_preview(example, tokenizer)
    whole = TokenizedExample(np.full(MOST_TOKENS, example.input_ids[1]), np.ones(MOST_TOKENS) > 0)
    assert "data.more_tokens" not in token_preview(whole, tokenizer)


def test_a_letter_of_four_tokens_is_whole_where_all_of_them_are_of_a_kind() -> None:
    tokenizer = byte_level_tokenizer()
    ids = np.array(tokenizer("a🙂b")["input_ids"], dtype=np.int32)
    assert len(ids) == 6
    whole = TokenizedExample(ids, np.arange(6) >= 1)
    assert token_preview(whole, tokenizer) == "a⟦🙂|b⟧"
    parted = TokenizedExample(ids, np.arange(6) >= 3)
    assert token_preview(parted, tokenizer).count("\ufffd") == 4
