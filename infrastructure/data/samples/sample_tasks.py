"""Generator of instruction examples that a small model learns to generalize from.

`python -m infrastructure.data.samples.sample_tasks` writes `train.jsonl` and
`heldout.jsonl` next to this file, with the same bytes on every machine.

The things that an example asks about (the words of a list, a pair of numbers, a person and a city),
regardless of their order and of the phrasing, are its *key*. A hash of the key decides whether an
example is reserved for the held-out file, so that no held-out question occurs in training in other
words or in another order.
"""

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from infrastructure.core.files import write_text
from infrastructure.data.samples import SAMPLE_HELDOUT, SAMPLE_TRAIN
from infrastructure.data.samples.words import (
    CITIES,
    DRINKS,
    ITEMS,
    JOBS,
    KINDS,
    MONTHS,
    NAMES,
)

NUM_HELDOUT_PER_TASK = 50
RESERVED_ONE_IN = 8

Random = np.random.RandomState  # numpy guarantees that this stream never changes
Key = tuple[str, ...]


@dataclass(frozen=True)
class Example:
    """A prompt with its only correct answer."""

    prompt: str
    completion: str
    task: str


def pick(rng: Random, pool: Sequence[str]) -> str:
    """Return a random member of `pool`."""
    return pool[rng.randint(len(pool))]


def draw(rng: Random, pool: Sequence[str], count: int) -> list[str]:
    """Return `count` different members of `pool`, in random order."""
    return [pool[i] for i in rng.permutation(len(pool))[:count]]


def answer_question(rng: Random) -> tuple[Key, str, str]:
    """Return a question about one of four facts of a person, as (key, prompt, answer)."""
    name, city, job, drink = (pick(rng, pool) for pool in (NAMES, CITIES, JOBS, DRINKS))
    age = str(rng.randint(18, 90))
    text = pick(
        rng,
        [
            f"{name} is {age} years old, lives in {city}, works as a {job} and likes {drink}.",
            f"{name} works as a {job} in {city}, is {age} years old and likes {drink}.",
            f"At the age of {age}, {name} likes {drink}, lives in {city} and works as a {job}.",
        ],
    )
    question, answer = (
        (f"Where does {name} live?", city),
        (f"What is the job of {name}?", job),
        (f"What does {name} like?", drink),
        (f"How old is {name}?", age),
    )[rng.randint(4)]
    layout = pick(rng, ["{text} {question}", "Read this: {text} {question}"])
    return (name, city, job, drink), layout.format(text=text, question=question), answer


def write_sentence(rng: Random) -> tuple[Key, str, str]:
    """Return a task to write the fields of a form as a sentence; the inverse of `write_json`."""
    name, city, age = pick(rng, NAMES), pick(rng, CITIES), rng.randint(18, 90)
    form = pick(
        rng, [f"name: {name}, age: {age}, city: {city}", f"city: {city}, age: {age}, name: {name}"]
    )
    layout = pick(
        rng, ["Write a sentence. {}", "Make a sentence of this form: {}", "{} Say it in words."]
    )
    return (name, city), layout.format(form), f"{name} is {age} years old and lives in {city}."


def pick_end(rng: Random) -> tuple[Key, str, str]:
    """Return a task to name the first or the last word of a list."""
    words = draw(rng, ITEMS, rng.randint(3, 6))
    which = pick(rng, ["first", "last"])
    layout = pick(
        rng,
        [
            "What is the {o} item of this list: {w}?",
            "Give me the {o} word: {w}",
            "From the list {w}, take the {o} one.",
            "Which word comes {o} in {w}?",
        ],
    )
    answer = words[0] if which == "first" else words[-1]
    return tuple(sorted(words)), layout.format(o=which, w=", ".join(words)), answer


def write_json(rng: Random) -> tuple[Key, str, str]:
    """Return a task to write a sentence about a person as a JSON object."""
    name, city, age = pick(rng, NAMES), pick(rng, CITIES), str(rng.randint(18, 90))
    sentence = pick(
        rng,
        [
            f"{name} is {age} years old and lives in {city}.",
            f"{name} lives in {city} and is {age} years old.",
            f"In {city} lives {name}, aged {age}.",
        ],
    )
    layout = pick(
        rng,
        ["Turn this into JSON: {}", "{} Write it as JSON.", "Give me JSON for this sentence. {}"],
    )
    answer = json.dumps({"name": name, "age": int(age), "city": city})
    return (name, city), layout.format(sentence), answer


def reverse_list(rng: Random) -> tuple[Key, str, str]:
    """Return a task to reverse a list."""
    words = draw(rng, ITEMS, rng.randint(3, 5))
    layout = pick(
        rng,
        [
            "Reverse this list: {}",
            "Write these words in reverse order: {}",
            "Put the list {} in the opposite order.",
            "Read this list backwards: {}",
        ],
    )
    return tuple(sorted(words)), layout.format(", ".join(words)), ", ".join(words[::-1])


def write_date(rng: Random) -> tuple[Key, str, str]:
    """Return a task to write a date in ISO format."""
    day, month, year = rng.randint(1, 29), rng.randint(12), rng.randint(1950, 2030)
    date = pick(rng, [f"{day} {MONTHS[month]} {year}", f"{MONTHS[month]} {day}, {year}"])
    layout = pick(
        rng,
        [
            "Write {} as an ISO date.",
            "Convert {} to year-month-day.",
            "What is {} in the form YYYY-MM-DD?",
        ],
    )
    return (str(day), MONTHS[month]), layout.format(date), f"{year}-{month + 1:02}-{day:02}"


def write_capitals(rng: Random) -> tuple[Key, str, str]:
    """Return a task to write words in capital letters."""
    words = draw(rng, ITEMS, rng.randint(2, 4))
    layout = pick(
        rng,
        [
            "Write in capital letters: {}",
            "Put {} in upper case.",
            "Make every letter a capital: {}",
        ],
    )
    return tuple(sorted(words)), layout.format(" ".join(words)), " ".join(words).upper()


def find_kind(rng: Random) -> tuple[Key, str, str]:
    """Return a task to find the word of a given kind among several words."""
    kinds = draw(rng, list(KINDS), 3)
    words = [pick(rng, KINDS[kind]) for kind in kinds]
    target = rng.randint(3)
    layout = pick(
        rng,
        [
            "Which of these is {}: {}?",
            "Find the word for {}: {}",
            "In the list {1}, which one is {0}?",
        ],
    )
    if "{1}" not in layout:
        layout = layout.replace("{}", "{0}", 1).replace("{}", "{1}", 1)
    kind = kinds[target]
    article = "an" if kind[0] in "aeiou" else "a"
    return tuple(sorted(words)), layout.format(f"{article} {kind}", ", ".join(words)), words[target]


Task = Callable[[Random], tuple[Key, str, str]]

# Number of training examples per task; harder tasks have more.
TASKS: dict[Task, int] = {
    answer_question: 1600,
    find_kind: 2250,
    pick_end: 1100,
    reverse_list: 1250,
    write_capitals: 2100,
    write_date: 1050,
    write_json: 650,
    write_sentence: 656,
}


def is_reserved(task: str, key: Key) -> bool:
    """Return whether examples with this key belong to the held-out file."""
    return zlib.crc32("|".join((task, *key)).encode()) % RESERVED_ONE_IN == 0


def examples(task: Task, count: int, *, reserved: bool, seed: int) -> list[Example]:
    """Return `count` different examples of a task, for the held-out file if `reserved`."""
    name = task.__name__
    rng = Random(zlib.crc32(f"{name}|{reserved}|{seed}".encode()))
    by_prompt: dict[str, Example] = {}
    while len(by_prompt) < count:
        key, prompt, completion = task(rng)
        if is_reserved(name, key) == reserved:
            by_prompt[prompt] = Example(prompt, completion, name)
    return list(by_prompt.values())


def training_examples() -> list[Example]:
    """Return all training examples, task by task."""
    return [
        e for task, count in TASKS.items() for e in examples(task, count, reserved=False, seed=0)
    ]


def heldout_examples() -> list[Example]:
    """Return all held-out examples, the same number for each task."""
    return [
        e for task in TASKS for e in examples(task, NUM_HELDOUT_PER_TASK, reserved=True, seed=0)
    ]


def write_shuffled(rows: Sequence[Example], path: Path) -> None:
    """Write the examples as JSON lines, shuffled in an order that depends only on their number."""
    lines = [
        json.dumps(asdict(rows[i]), ensure_ascii=False) for i in Random(0).permutation(len(rows))
    ]
    write_text(path, "\n".join(lines) + "\n")


if __name__ == "__main__":
    write_shuffled(training_examples(), SAMPLE_TRAIN)
    write_shuffled(heldout_examples(), SAMPLE_HELDOUT)
