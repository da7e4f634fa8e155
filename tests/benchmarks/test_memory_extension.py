"""The rows of the benchmark, its models' sizes, and in a long form what it finds."""

import json
from pathlib import Path

from benchmarks.memory_extension import LEAST_GAP, measure, trainer_of, write_rows
from tests.slow import slow


def test_a_question_comes_long_after_its_fact(tmp_path: Path) -> None:
    stream, held_out = (
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in write_rows(tmp_path, 0, 300)
    )
    place = {row["prompt"]: index for index, row in enumerate(stream)}
    assert len(place) == len(stream)
    letters = {row["prompt"]: row["completion"] for row in stream}
    for prompt, index in place.items():
        if prompt.startswith("get"):
            fact = prompt.replace("get", "set")
            assert letters[prompt] == letters[fact]
            assert LEAST_GAP / 2 <= index - place[fact] <= 2.2 * LEAST_GAP
    for row in held_out:
        assert row["prompt"] not in place
        assert letters[row["prompt"].replace("get", "set")] == row["completion"]


def test_no_arm_has_more_weights_than_the_one_with_a_perceptron(tmp_path: Path) -> None:
    sizes = {}
    for arm in ("memory", "perceptron"):
        (tmp_path / arm).mkdir()
        model = trainer_of(tmp_path / arm, arm, 0, 40).initialize_model()
        sizes[arm] = sum(p.numel() for p in model.parameters())
    assert 0 <= sizes["perceptron"] - sizes["memory"] < 128


@slow
def test_a_memory_answers_what_as_many_other_weights_cannot() -> None:
    results = measure(0, arms=("memory", "perceptron"))
    right = {arm: facts["right_percent"] for arm, facts in results.items()}  # type: ignore[index,call-overload]
    assert right["memory"] - right["perceptron"] >= 30
    assert right["memory exchanged"] < 20
