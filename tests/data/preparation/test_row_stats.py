"""The numbers of a report are those of the rows that are trained on."""

import hashlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from infrastructure.data.encoding.tokenization import Encoded
from infrastructure.data.preparation.data_report import DataReport
from infrastructure.data.preparation.row_stats import RowFacts, SharedSystemPrompt
from infrastructure.data.store.examples import TokenizedExample
from tests.data.builders import byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
END, OTHER_END, WORD = TOKENIZER.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>", "A"])
# content, tokens, learned ones, the last one, cut, task, held out
ROWS: list[tuple[int, int, int, int, bool, str, bool]] = [
    (11, 10, 3, END, False, "a", False),
    (12, 20, 4, END, False, "b", False),
    (2**64 - 1, 90, 80, OTHER_END, False, "c", True),
    (11, 10, 3, END, False, "a", False),
    (13, 30, 30, WORD, True, "b", False),
    (2**64 - 1, 90, 80, OTHER_END, False, "c", False),  # leaked
    (14, 7, 1, END, False, "", True),
    (14, 7, 1, END, False, "", True),
    (11, 10, 3, END, False, "a", False),
]


def row_of(facts: tuple[int, int, int, int, bool, str, bool]) -> Any:
    content, num_tokens, num_learned, end_token, is_truncated, task, _ = facts
    supervised = np.arange(num_tokens) < num_learned
    return SimpleNamespace(
        content=content,
        encoded=Encoded(
            TokenizedExample(np.zeros(num_tokens, np.int32), supervised), end_token, is_truncated
        ),
        conversation=SimpleNamespace(task=task),
    )


def facts_of(rows: list[tuple[int, int, int, int, bool, str, bool]]) -> RowFacts:
    facts = RowFacts()
    for one in rows:
        facts.add(row_of(one), one[-1])
    return facts


def report_of(rows: list[tuple[int, int, int, int, bool, str, bool]]) -> DataReport:
    facts, report = facts_of(rows), DataReport()
    facts.fill(report, np.array(facts.is_evaluation, dtype=bool), TOKENIZER)
    return report


def test_what_is_counted() -> None:
    report = report_of(ROWS)
    assert (report.num_train, report.num_evaluation) == (6, 3)
    assert (report.tokens, report.supervised_tokens) == (170, 123)
    assert report.longest == 90
    assert report.length_quantiles == {"5%": 10, "50%": 20, "95%": 90}  # lengths that there are
    assert (report.duplicates, report.leaked) == (2, 1)
    assert list(report.task_counts.items()) == [("a", 3), ("b", 2), ("c", 1)]
    assert report.end_tokens == {"<|endoftext|>": 6, "<|im_end|>": 2}  # of all that are not cut


def test_the_most_frequent_ends_are_shown() -> None:
    ends = TOKENIZER.convert_tokens_to_ids(["<s>", "</s>", "<|endoftext|>", "<|im_end|>"])
    drawn = [end for count, end in enumerate(ends, 1) for _ in range(count)]
    rows = [(n, 5, 2, end, False, "", False) for n, end in enumerate(drawn)]
    expected = [("<|im_end|>", 4), ("<|endoftext|>", 3), ("</s>", 2)]
    assert [*report_of(rows).end_tokens.items()] == expected


def test_where_all_are_cut_only_real_ends_are_shown() -> None:
    rows = [(n, 5, 2, end, True, "", False) for n, end in enumerate((WORD, END, WORD, WORD))]
    assert report_of(rows).end_tokens == {"<|endoftext|>": 1}


def test_of_no_rows_there_are_no_numbers() -> None:
    report = report_of([])
    assert (report.num_train, report.tokens, report.longest) == (0, 0, 0)
    assert (report.length_quantiles, report.end_tokens) == ({}, {})


def test_the_content_hash_is_of_the_chosen_rows_in_their_order() -> None:
    facts = facts_of(ROWS)
    for chosen in ([0, 1], [1, 2, 8], []):
        mask = np.isin(np.arange(len(ROWS)), chosen)
        content = b"".join(ROWS[n][0].to_bytes(8, "little") for n in chosen)
        assert facts.content_hash(mask) == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("texts", "shared"),
    [([], None), ([""], None), (["a"] * 3, "a"), (["a", "b", "a"], None), (["a", ""], None)],
)
def test_a_system_prompt_is_that_of_all_rows(texts: list[str], shared: str | None) -> None:
    prompts = SharedSystemPrompt()
    for text in texts:
        prompts.add(text)
    assert prompts.text == shared
