"""What ends an answer is added to what a model knows, and changes nothing that is there."""

from types import SimpleNamespace
from typing import Any

import pytest

from infrastructure.models.answer_end import known_ends, teach_ends, teach_trainer


@pytest.mark.parametrize(
    ("known", "taught", "expected"),
    [
        (None, [], None),
        (None, [5], [5]),
        (2, [], 2),
        (2, [2], 2),
        (2, [5], [2, 5]),
        (2, [5, 2, 3], [2, 3, 5]),
        ([9, 2], [2], [9, 2]),
        ([9, 2], [2, 1, 7], [9, 2, 1, 7]),
        (0, [0], 0),
        (0, [1], [0, 1]),
        ([], [0], [0]),
        (2, [33, 5], [2, 5, 33]),
    ],
)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_ends_are_added_behind_those_that_are_known(
    known: Any, taught: list[int], expected: Any, is_compiled: bool
) -> None:
    config = SimpleNamespace(eos_token_id=known)
    model: Any = SimpleNamespace(generation_config=config)
    teach_ends(SimpleNamespace(_orig_mod=model) if is_compiled else model, taught)  # type: ignore[arg-type]
    assert config.eos_token_id == expected


def test_of_a_lora_the_model_below_learns_them() -> None:
    above, below = (SimpleNamespace(eos_token_id=2) for _ in range(2))
    base = SimpleNamespace(generation_config=below)
    lora: Any = SimpleNamespace(
        peft_config={}, get_base_model=lambda: base, generation_config=above
    )
    teach_ends(lora, [7])
    assert (above.eos_token_id, below.eos_token_id) == (2, [2, 7])


def test_a_model_that_generates_nothing_is_left_alone() -> None:
    model: Any = SimpleNamespace()
    teach_ends(model, [7])
    assert vars(model) == {}


def test_a_trainer_that_writes_answers_ends_them_where_it_was_taught() -> None:
    config, given = SimpleNamespace(eos_token_id=2), {"eos_token_id": 2, "top_k": 3}
    trainer = SimpleNamespace(eos_token_ids=[2], generation_config=config, generation_kwargs=given)
    teach_trainer(trainer, [9, 2, 7])
    assert (trainer.eos_token_ids, config.eos_token_id) == ([2, 7, 9], [2, 7, 9])
    assert given == {"eos_token_id": [2, 7, 9], "top_k": 3}


def test_a_trainer_that_knows_one_end_takes_that_of_the_template() -> None:
    config = SimpleNamespace(eos_token_id=2)
    trainer = SimpleNamespace(eos_token_id=2, generation_config=config)
    teach_trainer(trainer, [2])
    assert (trainer.eos_token_id, config.eos_token_id) == (2, 2)
    teach_trainer(trainer, [7, 2])
    assert (trainer.eos_token_id, config.eos_token_id) == (7, 7)


@pytest.mark.parametrize(
    ("known", "expected"), [(None, []), (0, [0]), (7, [7]), ([9, 2], [9, 2]), ([], [])]
)
def test_known_ends_are_a_list_of_their_own(known: Any, expected: list[int]) -> None:
    model: Any = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=known))
    assert known_ends(model) == expected
    assert known_ends(model) is not known
    assert known_ends(SimpleNamespace()) == []  # type: ignore[arg-type]


def test_a_trainer_that_generates_nothing_or_by_other_means_is_left_alone() -> None:
    trainer = SimpleNamespace(generation_config=None, eos_token_ids=[2])
    teach_trainer(trainer, [7])
    assert trainer.eos_token_ids == [2]
    config = SimpleNamespace(eos_token_id=2)
    other = SimpleNamespace(generation_config=config, eos_token_ids=[2], generation_kwargs=None)
    teach_trainer(other, [7])
    assert (config.eos_token_id, other.generation_kwargs) == ([2, 7], None)
