"""The tokenizer made from training texts: any text survives, answers are marked, no chance."""

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from infrastructure.data.samples import SAMPLE_TRAIN
from infrastructure.models.tokenizer import (
    MAX_RUN,
    SPECIAL_TOKENS,
    _in_short_words,
    train_tokenizer,
)
from tests.slow import slow

NUM_BYTES = 256
VOCAB_SIZE = 800

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Which one is a fruit: dog, pear?"},
    {"role": "assistant", "content": "pear"},
    {"role": "user", "content": "And a colour in red, cow?"},
    {"role": "assistant", "content": "red, of course"},
]

# Without PyTorch, which transformers would import, for seconds, and no tokenizer needs.
FINGERPRINT_PROBE = """
import sys
sys.modules["torch"] = None
import hashlib, json
from infrastructure.data.samples import SAMPLE_TRAIN
from infrastructure.models.tokenizer import train_tokenizer
texts = [json.loads(line)["prompt"] for line in SAMPLE_TRAIN.read_text("utf-8").splitlines()]
tokenizer = train_tokenizer(texts, 800)
print(hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest())
"""


def sample_texts() -> list[str]:
    rows = map(json.loads, SAMPLE_TRAIN.read_text("utf-8").splitlines())
    return [row[part] for row in rows for part in ("prompt", "completion")]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(sample_texts(), VOCAB_SIZE)


def ids(tokenizer: Any, text: str) -> list[int]:
    result: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return result


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "  two  spaces\tand\n\n\nlines \n",
        "it's 3.50 €, isn't it ?",
        "Ünïcödé 漢字 кириллица العربية 👩‍👩‍👧",
        "a , b . c ! don 't",
        "\x00\x01\x7f\u200b\ufeff",
        "def f(x):\n    return x**2  # ²\n",
        "1234567890 ½ ٣٤ 1e-5",
        "<| user |> <|nobody|> <b>&amp;</b>",
    ],
)
def test_any_text_survives_the_way_there_and_back(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(ids(tokenizer, text)) == text


def test_every_character_of_the_first_plane_survives(tokenizer: Any) -> None:
    characters = [chr(c) for c in range(0x10000) if not 0xD800 <= c < 0xE000]
    for start in range(0, len(characters), 512):
        text = "".join(characters[start : start + 512])
        assert tokenizer.decode(ids(tokenizer, text)) == text


def test_digits_stand_alone(tokenizer: Any) -> None:
    pieces = tokenizer.convert_ids_to_tokens(ids(tokenizer, "1987 of 42, 1987-03-12"))
    assert [piece for piece in pieces if any(c.isdigit() for c in piece)] == list("19874219870312")


def test_a_common_word_is_one_token_and_the_same_at_the_start_of_an_answer(tokenizer: Any) -> None:
    (word,) = ids(tokenizer, " hammer")
    chat = [{"role": "user", "content": "hammer, saw"}, {"role": "assistant", "content": "hammer"}]
    written = tokenizer.apply_chat_template(chat, return_dict=True)["input_ids"]
    assert written.count(word) == 2


def test_answers_and_their_ends_are_marked(tokenizer: Any) -> None:
    chat = tokenizer.apply_chat_template(
        MESSAGES, return_dict=True, return_assistant_tokens_mask=True
    )
    marked: list[list[int]] = [[]]
    for token, is_answer in zip(chat["input_ids"], chat["assistant_masks"], strict=True):
        if is_answer:
            marked[-1].append(token)
        elif marked[-1]:
            marked.append([])
    end = tokenizer.eos_token_id
    assert marked == [
        [*ids(tokenizer, " pear"), end],
        [*ids(tokenizer, " red, of course"), end],
    ]


def test_a_prompt_for_generation_is_how_the_conversation_begins(tokenizer: Any) -> None:
    whole = tokenizer.apply_chat_template(MESSAGES[:3], return_dict=True)["input_ids"]
    prompt = tokenizer.apply_chat_template(
        MESSAGES[:2], add_generation_prompt=True, return_dict=True
    )["input_ids"]
    assert whole[: len(prompt)] == prompt
    assert prompt[0] == tokenizer.bos_token_id
    assert prompt[-1] == tokenizer.convert_tokens_to_ids("<|assistant|>")


def test_markers_are_one_token_each_and_no_part_of_the_text(tokenizer: Any) -> None:
    for token in SPECIAL_TOKENS:
        assert len(ids(tokenizer, token)) == 1
    written = tokenizer.apply_chat_template(MESSAGES[1:3], return_dict=True)["input_ids"]
    assert tokenizer.decode(written, skip_special_tokens=True) == (
        " Which one is a fruit: dog, pear? pear"
    )


def test_it_is_saved_and_loaded_whole(tokenizer: Any, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert loaded.chat_template == tokenizer.chat_template
    assert loaded.special_tokens_map == tokenizer.special_tokens_map
    assert len(loaded) == len(tokenizer)
    text = "  Grüße , don 't\n"
    assert loaded.decode(ids(loaded, text)) == text


@slow  # a new Python takes seconds to import what trains it
def test_the_same_texts_give_the_same_tokenizer_in_every_process() -> None:
    command = [sys.executable, "-c", FINGERPRINT_PROBE]
    there = subprocess.check_output(command, text=True)
    here = train_tokenizer(sample_texts()[::2], VOCAB_SIZE)
    found = hashlib.sha256(here.backend_tokenizer.to_str().encode()).hexdigest()
    assert there.strip() == found


def test_the_vocabulary_is_as_large_as_requested_or_as_the_texts_need() -> None:
    texts = sample_texts()[:200]
    smallest = NUM_BYTES + len(SPECIAL_TOKENS)
    assert len(train_tokenizer(texts, smallest)) == smallest
    assert len(train_tokenizer(texts, smallest + 10)) == smallest + 10
    assert len(train_tokenizer(texts, 100_000)) < 1000


def test_a_vocabulary_without_room_for_the_bytes_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"models\.vocab_size_too_small.*vocab_size=261.*smallest=262"
    ):
        train_tokenizer(["a"], 261)


def test_texts_are_read_once_and_may_be_a_generator() -> None:
    expected = train_tokenizer(sample_texts()[:300], 400)
    found = train_tokenizer((text for text in sample_texts()[:300]), 400)
    assert found.backend_tokenizer.to_str() == expected.backend_tokenizer.to_str()


def test_words_that_only_begin_texts_are_learnt_as_they_stand_inside_one() -> None:
    found = train_tokenizer(["zebra"] * 20, 400)
    assert len(ids(found, " zebra")) == 1


@pytest.mark.parametrize("character", ["a", "你", ".", " ", "\n"])
def test_an_endless_word_does_not_stop_the_training(character: str) -> None:
    texts = sample_texts()[:300]
    started = time.monotonic()
    found = train_tokenizer([*texts, character * 300_000], 400)
    assert time.monotonic() - started < 60  # it was minutes
    assert found.decode(found(character * 3000)["input_ids"]) == character * 3000


def test_a_word_is_cut_only_if_it_is_longer_than_others_are() -> None:
    kept = ["a b", "a" * MAX_RUN, " " * MAX_RUN, f"{'a' * MAX_RUN} {'b' * MAX_RUN}"]
    assert list(_in_short_words(kept)) == [f" {text}" for text in kept]
    long = "x" + "a" * MAX_RUN + " b"
    assert list(_in_short_words([long])) == ["x" + "a" * (MAX_RUN - 1), "a b"]
    spaces = " \n" * MAX_RUN
    assert list(_in_short_words([spaces + "a"])) == [spaces[:MAX_RUN], spaces[MAX_RUN:], "a"]
