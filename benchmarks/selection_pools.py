"""Rows for the ablation of data selection: questions with answers, and what spoils such data."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from infrastructure.data.store.examples import TokenizedExample

NUM_TARGET, NUM_HELD_OUT = 64, 96
CLEAN, NOISE = 0.5, 1 / 3  # of a dirty pool; the rest are copies of its clean rows


@dataclass(frozen=True)
class Row:
    """`kind` is clean, copy, off topic, scrambled or mismatched: to be told apart."""

    prompt: str
    answer: str
    kind: str = "clean"


@dataclass(frozen=True)
class Rows:
    """What one seed trains on and is measured by: no row is in two of them."""

    pool: list[Row]
    target: list[Row]
    held_out: list[Row]


def read_questions(path: Path) -> list[Row]:
    """Rows of a .jsonl file with `question` and `answer`, as GSM8K has them.

    Raises:
        ValueError: a line is not such a row.
    """
    rows = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            rows.append(Row(str(row["question"]), str(row["answer"])))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: no question with an answer") from error
    return rows


def off_topic_rows() -> list[Row]:
    """English that every Python carries with it: the topics of its own help, cut into rows."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    words = text.split()
    pieces = [" ".join(words[i : i + 40]) for i in range(0, len(words) - 40, 40)]
    return [Row(p[: len(p) // 3], p[len(p) // 3 :], "off topic") for p in pieces]


def make_rows(
    questions: Sequence[Row], others: Sequence[Row], *, size: int, is_dirty: bool, seed: int
) -> Rows:
    """A pool of `size` rows, target rows and held-out rows."""
    chance = random.Random(seed)
    drawn = chance.sample(list(questions), NUM_TARGET + NUM_HELD_OUT + size)
    target, held_out = drawn[:NUM_TARGET], drawn[NUM_TARGET : NUM_TARGET + NUM_HELD_OUT]
    good = drawn[NUM_TARGET + NUM_HELD_OUT :]
    if not is_dirty:
        return Rows(good, target, held_out)
    num_clean, num_noise = round(CLEAN * size), round(NOISE * size)
    clean, rest = good[:num_clean], good[num_clean : num_clean + num_noise]
    noise = list(_spoiled(rest, others, chance))
    copies = [
        Row(row.prompt, row.answer, "copy")
        for row in chance.choices(clean[: size // 20], k=size - num_clean - num_noise)
    ]
    pool = [*clean, *noise, *copies]
    chance.shuffle(pool)
    return Rows(pool, target, held_out)


def _spoiled(rows: Sequence[Row], others: Sequence[Row], chance: random.Random) -> Iterator[Row]:
    """A third off topic, a third with its answer's words in disorder, a third with another's."""
    for i, row in enumerate(rows):
        if i % 3 == 0:
            yield chance.choice(list(others))
        elif i % 3 == 1:
            words = row.answer.split(" ")
            yield Row(row.prompt, " ".join(chance.sample(words, len(words))), "scrambled")
        else:
            yield Row(row.prompt, rows[i - 1].answer, "mismatched")


def tokenized(rows: Sequence[Row], tokenizer: Any, max_length: int) -> list[TokenizedExample]:
    """The answers are supervised; long rows are cut."""
    made = []
    for row in rows:
        prompt = tokenizer(row.prompt, add_special_tokens=False)["input_ids"][: max_length // 2]
        answer = tokenizer(" " + row.answer, add_special_tokens=False)["input_ids"]
        ids = [tokenizer.bos_token_id, *prompt, *answer, tokenizer.eos_token_id][:max_length]
        supervised = np.arange(len(ids)) > len(prompt)
        made.append(TokenizedExample(np.array(ids, dtype=np.int32), supervised))
    return made
