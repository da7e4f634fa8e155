"""Hashes change with what matters and with nothing else."""

import importlib.metadata
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from infrastructure.data.store.examples import Picture, TokenizedExample
from infrastructure.data.store.fingerprints import (
    ExampleHash,
    content_number,
    tokenizer_hash,
)
from tests.data.builders import (
    CHATML,
    byte_level_tokenizer,
    metaspace_tokenizer,
    slow_tokenizer,
)


def test_using_a_tokenizer_does_not_change_its_hash() -> None:
    tokenizer = byte_level_tokenizer()
    before = tokenizer_hash(tokenizer)
    tokenizer(["a", "b c d"], padding=True, truncation=True, max_length=2)
    assert tokenizer_hash(tokenizer) == before == tokenizer_hash(byte_level_tokenizer())


def test_tokenizers_that_differ_have_other_hashes() -> None:
    more = byte_level_tokenizer()
    more.add_tokens(["<new>"])
    tokenizers = [
        byte_level_tokenizer(),
        byte_level_tokenizer(CHATML),
        byte_level_tokenizer(eos_token="</s>"),
        more,
        metaspace_tokenizer(),
        slow_tokenizer(),
        byte_level_tokenizer(),
    ]
    tokenizers[-1].backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(use_regex=False)
    assert len({tokenizer_hash(tokenizer) for tokenizer in tokenizers}) == len(tokenizers)


@pytest.mark.parametrize("package", ["transformers", "tokenizers"])
def test_another_release_of_a_library_may_tokenise_otherwise(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    before, version = tokenizer_hash(byte_level_tokenizer()), importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "99" if name == package else version(name)
    )
    assert tokenizer_hash(byte_level_tokenizer()) != before


def test_the_words_of_a_slow_tokenizer_count(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = slow_tokenizer()
    before, words = tokenizer_hash(tokenizer), tokenizer.get_vocab()
    first, second = list(words)[:2]
    swapped = {**words, first: words[second], second: words[first]}
    monkeypatch.setattr(tokenizer, "get_vocab", lambda: swapped)
    assert tokenizer_hash(tokenizer) != before


def test_equal_turns_have_an_equal_content_number() -> None:
    assert content_number([["user", "a"]]) == content_number([["user", "a"]])
    others = [[["user", "a"]], [["user", "b"]], [["text", "a"]], [["user", "a"], ["user", "a"]]]
    assert len({content_number(turns) for turns in others}) == 4
    assert 0 <= content_number([]) < 1 << 64


def example(*tokens: int, learnt: bool = True) -> TokenizedExample:
    return TokenizedExample(np.array(tokens, dtype=np.int32), np.full(len(tokens), learnt))


PICTURE, OTHER_PICTURE = Picture("ab" * 32, 3), Picture("cd" * 32, 3)


def test_example_hashes_see_tokens_masks_borders_and_order() -> None:
    lists = [
        [],
        [example(1, 2), example(3)],
        [example(3), example(1, 2)],
        [example(1), example(2, 3)],
        [example(1, 2), example(3, learnt=False)],
        [example(1, 2), example(4)],
        [example(1, 2), replace(example(3), pictures=(PICTURE,))],
        [example(1, 2), replace(example(3), pictures=(OTHER_PICTURE,))],
        [replace(example(1, 2), pictures=(PICTURE,)), example(3)],
        [replace(example(1, 2), pictures=(PICTURE, OTHER_PICTURE)), example(3)],
        [replace(example(1, 2), pictures=(OTHER_PICTURE, PICTURE)), example(3)],
    ]
    found = set()
    for examples in lists:
        for _ in range(2):
            digest = ExampleHash()
            for one in examples:
                digest.add(one)
            found.add(digest.hexdigest())
    assert len(found) == len(lists)


def test_hashes_of_content_are_the_same_in_every_version() -> None:
    """So prepared data, and the runs that it was trained in, are recognized."""
    assert content_number([["user", "ä"], ["assistant", "b"]]) == 18137508637390460774
    digest = ExampleHash()
    digest.add(replace(example(1, 70_000), pictures=(PICTURE,)))
    assert digest.hexdigest() == DIGEST


DIGEST = "32f9c9067cd62b617eed9be9ef3e4dfda88523b0416624b700195f4b1ba5e093"
