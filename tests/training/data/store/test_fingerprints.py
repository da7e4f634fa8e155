"""Hashes change with what matters and with nothing else."""

import numpy as np

from infrastructure.training.data.store.examples import TokenizedExample
from infrastructure.training.data.store.fingerprints import (
    ExampleHash,
    content_number,
    tokenizer_hash,
)
from tests.training.data.builders import (
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
    ]
    assert len({tokenizer_hash(tokenizer) for tokenizer in tokenizers}) == len(tokenizers)


def test_equal_turns_have_an_equal_content_number() -> None:
    assert content_number([["user", "a"]]) == content_number([["user", "a"]])
    others = [[["user", "a"]], [["user", "b"]], [["text", "a"]], [["user", "a"], ["user", "a"]]]
    assert len({content_number(turns) for turns in others}) == 4
    assert 0 <= content_number([]) < 1 << 64


def example(*tokens: int, learnt: bool = True) -> TokenizedExample:
    return TokenizedExample(np.array(tokens, dtype=np.int32), np.full(len(tokens), learnt))


def test_example_hashes_see_tokens_masks_borders_and_order() -> None:
    lists = [
        [],
        [example(1, 2), example(3)],
        [example(3), example(1, 2)],
        [example(1), example(2, 3)],
        [example(1, 2), example(3, learnt=False)],
        [example(1, 2), example(4)],
    ]
    found = set()
    for examples in lists:
        for _ in range(2):
            digest = ExampleHash()
            for one in examples:
                digest.add(one)
            found.add(digest.hexdigest())
    assert len(found) == len(lists)
