"""Rewards are counted step by step, and passed on as they are."""

import asyncio
import math
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.training.core.state import StepRewards
from infrastructure.training.hf_bridge.reward_watch import RewardWatch, reward_watch

ANSWERS = ["a", "b", "c", "d", "e", "f"]  # of three prompts


def trainer_with(*functions: Any, **more: Any) -> Any:
    model, args = torch.nn.Linear(1, 1), SimpleNamespace(num_generations=2)
    return SimpleNamespace(reward_funcs=list(functions), model=model, args=args, **more)


def giving(*values: Any) -> Any:
    """A function that gives these values for each call in turn."""
    calls = iter(values)
    return lambda completions, **_: next(calls)


def step(trainer: Any, watch: RewardWatch) -> StepRewards:
    watch.begin_step()
    for function in trainer.reward_funcs:
        function(prompts=[], completions=ANSWERS)
    return watch.end_step()


def watched(*functions: Any) -> tuple[Any, RewardWatch]:
    trainer = trainer_with(*functions)
    watch = RewardWatch(trainer)
    watch.watch(ExitStack())
    return trainer, watch


def test_steps_without_any_number_are_counted_in_a_row() -> None:
    none, nan = [None] * 6, [math.nan] * 6
    one = [None, None, 0.5, None, None, math.nan]
    trainer, watch = watched(giving(none, nan, none, none), giving(nan, none, one, none))
    counts = [step(trainer, watch).num_without for _ in range(4)]
    assert counts == [1, 2, 0, 1]


def test_a_step_is_tied_if_no_answer_is_better_than_another_to_its_prompt() -> None:
    tied = [1.0, 1.0, 2.0, 2.0, 0.0, 0.0]
    untied = [1.0, 1.0, 2.0, 2.0, 0.0, 1.0]
    across = [1.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    trainer, watch = watched(giving(tied, tied, untied, tied, across), giving(*[[3.0] * 6] * 5))
    assert [step(trainer, watch).num_tied for _ in range(5)] == [1, 2, 0, 1, 0]


def test_a_step_that_reuses_answers_has_their_rewards() -> None:
    trainer, watch = watched(giving([None] * 6, [1.0] * 6))
    assert step(trainer, watch).num_without == 1
    watch.begin_step()
    assert watch.end_step().num_without == 1


def test_an_evaluation_is_no_step() -> None:
    trainer, watch = watched(giving([1.0] * 6, [None] * 6))
    assert step(trainer, watch) == StepRewards(num_tied=1)
    trainer.model.eval()
    assert step(trainer, watch) == StepRewards(num_tied=1)


def test_functions_of_any_kind_give_what_they_gave_and_are_put_back() -> None:
    class Judge:
        def __call__(self, completions: list[str], **_: Any) -> list[float]:
            return [float(len(one)) for one in completions]

    async def slow(completions: list[str], **_: Any) -> list[float]:
        return [2.0] * len(completions)

    model, judge = torch.nn.Linear(1, 1), Judge()
    trainer = trainer_with(judge, slow, model)
    with ExitStack() as stack:
        assert reward_watch(trainer, stack) is not None
        assert trainer.reward_funcs[0](completions=ANSWERS) == [1.0] * 6
        assert asyncio.run(trainer.reward_funcs[1](completions=ANSWERS)) == [2.0] * 6
        assert trainer.reward_funcs[0]("positional") == [1.0] * 10, "their number is not known"
        assert trainer.reward_funcs[1].__name__ == "slow"
        assert trainer.reward_funcs[2] is model
    assert trainer.reward_funcs == [judge, slow, model]


def test_a_model_that_judges_always_gives_numbers() -> None:
    trainer, watch = watched(giving(*[[None] * 6] * 2))
    assert step(trainer, watch).num_without == 1
    trainer, watch = watched(giving([None] * 6), torch.nn.Identity())
    watch.begin_step()
    trainer.reward_funcs[0](completions=ANSWERS)
    assert watch.end_step() == StepRewards()


def test_answers_of_one_step_may_come_in_parts() -> None:
    trainer, watch = watched(giving([1.0, 1.0], [2.0, 3.0], [2.0, 2.0], [None, None]))
    counts = []
    for _ in range(2):
        watch.begin_step()
        for _ in range(2):
            trainer.reward_funcs[0](completions=ANSWERS[:2])
        counts.append(watch.end_step())
    assert counts == [StepRewards(), StepRewards(num_tied=1)], "the second holds no number twice"


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_a_list_of_another_length_is_refused(is_asynchronous: bool) -> None:
    class Short:
        async def __call__(self, completions: Any, **_: Any) -> list[float]:
            return [1.0]

    def short(completions: Any) -> list[float]:
        return [1.0]

    trainer, _ = watched(Short() if is_asynchronous else short)
    name = "Short" if is_asynchronous else "short"
    about = rf"\(name={name}, num_rewards=1, num_completions=6\)"
    run = asyncio.run if is_asynchronous else list
    with pytest.raises(ValueError, match=rf"trainer\.reward_count_mismatch{about}"):
        run(trainer.reward_funcs[0](completions=ANSWERS))  # type: ignore[operator]


def test_what_is_added_to_the_rewards_meanwhile_stays() -> None:
    first, second = giving(), giving()
    trainer = trainer_with(first)
    with ExitStack() as stack:
        reward_watch(trainer, stack)
        trainer.reward_funcs.append(second)
    assert trainer.reward_funcs == [first, second]


def test_a_trainer_without_rewards_has_none() -> None:
    assert reward_watch(SimpleNamespace(), ExitStack()) is None
    assert reward_watch(SimpleNamespace(reward_funcs=[]), ExitStack()) is None
    assert reward_watch(None, ExitStack()) is None
