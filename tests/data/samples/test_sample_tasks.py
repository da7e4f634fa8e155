"""The sample data is what its script makes, is right, and asks nothing twice across the split.

Answers are checked by programs of their own, which read the prompt as a person would.
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from infrastructure.data.samples import SAMPLE_HELDOUT, SAMPLE_TRAIN
from infrastructure.data.samples.sample_tasks import (
    NUM_HELDOUT_PER_TASK,
    TASKS,
    Task,
    examples,
    heldout_examples,
    training_examples,
    write_shuffled,
)
from infrastructure.data.samples.words import (
    CITIES,
    DRINKS,
    ITEMS,
    JOBS,
    KINDS,
    MONTHS,
    NAMES,
)

MAX_BYTES = 1_500_000

Row = dict[str, str]


def rows_of(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


TRAIN, HELDOUT = rows_of(SAMPLE_TRAIN), rows_of(SAMPLE_HELDOUT)


def found(prompt: str, pool: tuple[str, ...]) -> list[str]:
    """The members of `pool` in a prompt, in their order."""
    return [word for word in re.findall(r"[A-Za-z]+", prompt) if word in pool]


def only(prompt: str, pool: tuple[str, ...]) -> str:
    (word,) = found(prompt, pool)
    return word


def number(prompt: str) -> str:
    (digits,) = re.findall(r"\d+", prompt)
    return digits


def answer_to_question(prompt: str) -> str:
    question = re.split(r"[.:] ", prompt)[-1]
    (answer,) = [
        answer
        for words, answer in (
            ("Where does", only(prompt, CITIES)),
            ("What is the job", only(prompt, JOBS)),
            ("What does", only(prompt, DRINKS)),
            ("How old", number(prompt)),
        )
        if question.startswith(words)
    ]
    return answer


def word_of_kind(prompt: str) -> str:
    (kind,) = [kind for kind in KINDS if re.search(rf"\ban? {kind}\b", prompt)]
    (word,) = [word for word in found(prompt, ITEMS) if word in KINDS[kind]]
    return word


def end_of_list(prompt: str) -> str:
    assert ("first" in prompt) != ("last" in prompt)
    return found(prompt, ITEMS)[0 if "first" in prompt else -1]


def iso_date(prompt: str) -> str:
    day, year = sorted(re.findall(r"\d+", prompt), key=int)
    return f"{year}-{MONTHS.index(only(prompt, MONTHS)) + 1:02d}-{int(day):02d}"


def json_object(prompt: str) -> str:
    name, city = only(prompt, NAMES), only(prompt, CITIES)
    return f'{{"name": "{name}", "age": {number(prompt)}, "city": "{city}"}}'


def sentence(prompt: str) -> str:
    name, city = only(prompt, NAMES), only(prompt, CITIES)
    return f"{name} is {number(prompt)} years old and lives in {city}."


ANSWERS: dict[str, Callable[[str], str]] = {
    "answer_question": answer_to_question,
    "find_kind": word_of_kind,
    "pick_end": end_of_list,
    "reverse_list": lambda prompt: ", ".join(found(prompt, ITEMS)[::-1]),
    "write_capitals": lambda prompt: " ".join(found(prompt, ITEMS)).upper(),
    "write_date": iso_date,
    "write_json": json_object,
    "write_sentence": sentence,
}


def subject_of(row: Row) -> tuple[str, frozenset[str]]:
    """What a prompt asks about, without its phrasing, order, age and year."""
    words = frozenset(found(row["prompt"], (*NAMES, *CITIES, *JOBS, *DRINKS, *ITEMS, *MONTHS)))
    if row["task"] == "write_date":
        words |= {str(min(map(int, re.findall(r"\d+", row["prompt"]))))}
    return row["task"], words


def test_the_files_are_what_the_script_makes(tmp_path: Path) -> None:
    write_shuffled(training_examples(), tmp_path / "train.jsonl")
    write_shuffled(heldout_examples(), tmp_path / "heldout.jsonl")
    remedy = "run python -m infrastructure.data.samples.sample_tasks"
    assert (tmp_path / "train.jsonl").read_bytes() == SAMPLE_TRAIN.read_bytes(), remedy
    assert (tmp_path / "heldout.jsonl").read_bytes() == SAMPLE_HELDOUT.read_bytes(), remedy


def test_each_task_has_its_number_of_examples() -> None:
    names = {task.__name__: count for task, count in TASKS.items()}
    assert Counter(row["task"] for row in TRAIN) == names
    assert Counter(row["task"] for row in HELDOUT) == dict.fromkeys(names, NUM_HELDOUT_PER_TASK)
    assert ANSWERS.keys() == names.keys()


def test_the_files_stay_small() -> None:
    assert SAMPLE_TRAIN.stat().st_size + SAMPLE_HELDOUT.stat().st_size < MAX_BYTES


@pytest.mark.parametrize("task", ANSWERS)
def test_every_answer_is_right(task: str) -> None:
    wrong = [
        (row, expected)
        for row in (*TRAIN, *HELDOUT)
        if row["task"] == task and row["completion"] != (expected := ANSWERS[task](row["prompt"]))
    ]
    assert wrong == []


def test_no_prompt_stands_twice() -> None:
    counts = Counter(row["prompt"] for row in (*TRAIN, *HELDOUT))
    assert [prompt for prompt, count in counts.items() if count > 1] == []


def test_what_is_held_out_is_not_trained_on_in_other_words_or_order() -> None:
    trained = {subject_of(row) for row in TRAIN}
    assert [row for row in HELDOUT if subject_of(row) in trained] == []


def test_every_word_of_an_answer_is_trained_on_in_its_task() -> None:
    """Held out are combinations, not words: no model could know an unseen word's capitals."""
    trained = {
        (row["task"], word) for row in TRAIN for word in re.findall("[A-Za-z]+", row["completion"])
    }
    words = {
        (row["task"], word)
        for row in HELDOUT
        for word in re.findall("[A-Za-z]+", row["completion"])
    }
    assert words <= trained


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_one_seed_gives_one_set_of_examples(task: Task) -> None:
    first = examples(task, 20, reserved=True, seed=7)
    assert examples(task, 20, reserved=True, seed=7) == first
    assert examples(task, 20, reserved=True, seed=8) != first
