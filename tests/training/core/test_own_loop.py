"""Functions for custom training loops find the only such run of the process."""

import gc
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest

from infrastructure.training.core import own_loop as module
from infrastructure.training.core.own_loop import own_loop, remember_own_loop


class Context(SimpleNamespace):
    """A run with a loop of its own."""

    __hash__ = object.__hash__


def test_the_only_run_is_meant_and_of_none_or_several_one_has_to_be_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_OWN_LOOPS", WeakSet())

    def refusal() -> str:
        with pytest.raises(ValueError, match=r"training\.own_loop_ambiguous") as caught:
            own_loop(None, "gradients()")
        return str(caught.value)

    assert "trainings=training.no_own_loop(), caller=gradients()" in refusal()
    first: Any = Context()
    remember_own_loop(first)
    assert own_loop(None, "gradients()") is first
    second: Any = Context()
    assert own_loop(second, "gradients()") is second
    remember_own_loop(second)
    remember_own_loop(second)
    assert "trainings=training.several_own_loops(count=2), caller=gradients()" in refusal()
    assert own_loop(first, "gradients()") is first
    del second
    gc.collect()  # what has caught the refusal holds it still
    assert own_loop(None, "gradients()") is first, "the other one is over"
