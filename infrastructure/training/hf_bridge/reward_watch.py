"""Detection of reward functions that return no usable rewards.

The reward functions' results are passed on unchanged. Reward models are not watched, because they
always return numbers.
"""

import inspect
import math
from collections.abc import Sequence
from contextlib import ExitStack
from functools import wraps
from typing import Any

import torch

from infrastructure.core.errors import InputError
from infrastructure.training.core.state import StepRewards


class RewardWatch:
    """A counter of consecutive steps in which the rewards are not finite or all equal.

    Args:
        trainer: has `reward_funcs`, and `args.num_generations` answers to each prompt.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.has_model = any(isinstance(f, torch.nn.Module) for f in trainer.reward_funcs)
        self._given: dict[int, list[float]] = {}  # of the newest step, by function
        self._newest = StepRewards()

    def watch(self, stack: ExitStack) -> None:
        """Record the results of the reward functions until `stack` closes."""
        functions = self.trainer.reward_funcs
        before = list(functions)

        def restore() -> None:
            functions[: len(before)] = before

        functions[:] = [self._watched(function, n) for n, function in enumerate(before)]
        stack.callback(restore)

    def begin_step(self) -> None:
        """Forget the rewards of the previous step."""
        self._given = {}

    def end_step(self) -> StepRewards:
        """Return the counts after this step.

        If the step reuses earlier answers, the counts are unchanged.
        """
        if not self._given or self.has_model:
            return self._newest
        rows = list(zip(*self._given.values(), strict=True))
        has_any = any(math.isfinite(value) for row in rows for value in row)
        size = int(self.trainer.args.num_generations)
        are_tied = has_any and all(
            len({*map(repr, rows[n : n + size])}) == 1 for n in range(0, len(rows), size)
        )
        before = self._newest
        self._newest = StepRewards(
            num_without=0 if has_any else before.num_without + 1,
            num_tied=before.num_tied + 1 if are_tied else 0,
        )
        return self._newest

    def _watched(self, function: Any, number: int) -> Any:
        if isinstance(function, torch.nn.Module):
            return function
        call = getattr(function, "__call__", function)  # noqa: B004 (its kind is what matters)
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):

            @wraps(function)
            async def asynchronous(*args: Any, **named: Any) -> Any:
                return self._noted(number, function, await function(*args, **named), named)

            return asynchronous

        @wraps(function)
        def synchronous(*args: Any, **named: Any) -> Any:
            return self._noted(number, function, function(*args, **named), named)

        return synchronous

    def _noted(self, number: int, function: Any, rewards: Any, given: dict[str, Any]) -> Any:
        completions = given.get("completions")
        if isinstance(completions, Sequence) and len(rewards) != len(completions):
            name = getattr(function, "__name__", type(function).__name__)
            raise InputError(
                "trainer.reward_count_mismatch",
                name=name,
                num_rewards=len(rewards),
                num_completions=len(completions),
            )
        if self.trainer.model.training:  # not during evaluation
            numbers = [math.nan if reward is None else float(reward) for reward in rewards]
            self._given.setdefault(number, []).extend(numbers)
        return rewards


def reward_watch(trainer: Any, stack: ExitStack) -> RewardWatch | None:
    """Start a `RewardWatch` for a Trainer; return None if it has no reward functions."""
    if not getattr(trainer, "reward_funcs", None):
        return None
    watch = RewardWatch(trainer)
    watch.watch(stack)
    return watch
