"""The conformance suite of hooks, which are extensions and observers.

Every checkpoint contains the hook's state, from which a resumed run must restore an equal hook.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from infrastructure.backup.state.random_state import capture_random
from infrastructure.core.messages import phrase
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Event, Extension, Hook

CPU = torch.device("cpu")
BEGINNING = (Event.TRAIN_START, Event.PHASE_START, Event.EPOCH_START)
ENDING = (Event.EPOCH_END, Event.PHASE_END)


class HookSuite:
    """A suite for hooks: subclass it and define `make`, and if needed `state` and `step`."""

    def make(self, folder: Path) -> Hook:
        """Return a new hook; it may write into `folder`."""
        raise NotImplementedError

    def state(self, folder: Path) -> TrainingState:
        """Return the training state at the start of a run."""
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        state = TrainingState(model, total_steps=8)
        state.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        return state

    def step(self, hook: Hook, state: TrainingState) -> None:
        """Take one optimizer step with an evaluation; call the hook as the training loop does."""
        hook.step_start(state)
        model, optimizer = state.model, state.optimizer
        assert optimizer is not None
        torch.manual_seed(state.step)
        loss = model(torch.randn(8, 4)).square().mean()
        hook.after_loss(state)
        loss.backward()
        hook.after_backward(state)
        optimizer.step()
        optimizer.zero_grad()
        state.step += 1
        state.loss = float(loss.detach())
        rate = optimizer.param_groups[0]["lr"]
        state.metrics = {"loss": state.loss, "learning_rate": rate, "tokens": 8.0 * state.step}
        hook.step_end(state)
        state.evaluation = {"eval_loss": 2.0 + (state.step % 3) / 10}
        state.evaluated_step = state.step
        hook.eval_end(state)
        hook.checkpoint_saved(state)

    def test_its_state_is_json(self, tmp_path: Path) -> None:
        with self._trained(tmp_path / "one", 3) as (hook, _):
            saved = hook.state_dict()
        try:
            again = json.loads(json.dumps(saved))
        except TypeError as error:
            raise AssertionError(phrase("conformance.state_not_json", error=error)) from error
        assert again == saved, "state_dict() changes on its way through JSON: keys are texts"

    def test_its_state_comes_back(self, tmp_path: Path) -> None:
        """Check that a hook restored from its state ends like one that was never interrupted."""
        with self._trained(tmp_path / "whole", 3) as (whole, state):
            saved = json.loads(json.dumps(whole.state_dict()))
            for _ in range(3):
                self.step(whole, state)
            expected = whole.state_dict()
        with self._trained(tmp_path / "other", 3) as (_, other):
            again = self.make(_made(tmp_path / "again"))
            again.load_state_dict(saved)
            assert again.state_dict() == saved, "load_state_dict does not take back what was saved"
            again.train_start(other)
            for _ in range(3):
                self.step(again, other)
            resumed_state = again.state_dict()
            again.train_end(other)
        assert resumed_state == expected, (
            f"after going on its state is {resumed_state} instead of {expected}"
        )
        assert other.stop_message == state.stop_message, (
            f"after going on it stops the training for {other.stop_message!r} instead of"
            f" {state.stop_message!r}"
        )
        assert _weights_equal(other, state), "after going on the weights are others"

    def test_what_was_saved_stays_as_it_was(self, tmp_path: Path) -> None:
        """Check that a saved state does not change while the training continues."""
        with self._trained(tmp_path / "one", 2) as (hook, state):
            saved = hook.state_dict()
            then = json.dumps(saved)
            for _ in range(2):
                self.step(hook, state)
            assert json.dumps(saved) == then, "a state that was given away changes: give a copy"

    def test_an_observer_changes_nothing(self, tmp_path: Path) -> None:
        hook, state = self.make(_made(tmp_path / "one")), self.state(tmp_path / "one")
        if isinstance(hook, Extension):
            return  # an extension may change things
        watched: Any = _Watched(hook)
        for event in BEGINNING:
            getattr(watched, event.value)(state)
        for _ in range(2):
            self.step(watched, state)
        for event in (*ENDING, Event.TRAIN_END):
            getattr(watched, event.value)(state)

    def test_every_event_may_come_in_the_order_of_the_loop(self, tmp_path: Path) -> None:
        with self._trained(tmp_path / "one", 1) as (hook, state):
            for event in ENDING:
                getattr(hook, event.value)(state)
            state.error = RuntimeError("planted")
            hook.error(state)

    def test_it_has_the_same_name_each_time(self, tmp_path: Path) -> None:
        one, other = (self.make(_made(tmp_path / name)).name for name in ("one", "other"))
        assert one, "its name is empty: its state is kept under it"
        assert one == other, f"its name is {one!r} and then {other!r}: its state is kept under it"

    @contextmanager
    def _trained(self, folder: Path, num_steps: int) -> Iterator[tuple[Hook, TrainingState]]:
        """Yield a hook after some steps; its training ends with the block."""
        hook, state = self.make(_made(folder)), self.state(folder)
        for event in BEGINNING:
            getattr(hook, event.value)(state)
        for _ in range(num_steps):
            self.step(hook, state)
        try:
            yield hook, state
        finally:
            hook.train_end(state)


class _Watched:
    """A wrapper that passes events to an observer, and checks that the observer changes nothing."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook

    def __getattr__(self, name: str) -> Callable[[TrainingState], None]:
        def call(state: TrainingState) -> None:
            before = _traces(state)
            getattr(self.hook, name)(state)
            changed = [what for what, trace in _traces(state).items() if trace != before[what]]
            assert not changed, f"in {name} it changes {', '.join(changed)}: be an Extension"

        return call


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _weights_equal(one: TrainingState, other: TrainingState) -> bool:
    weights = one.model.state_dict(), other.model.state_dict()
    return all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def _traces(state: TrainingState) -> dict[str, object]:
    """Return all state that an observer must not change, in a comparable form."""
    tensors = {n: t.detach().numpy().tobytes() for n, t in state.model.state_dict().items()}
    modes = [module.training for module in state.model.modules()]
    trained = [parameter.requires_grad for parameter in state.model.parameters()]
    groups = state.optimizer.state_dict()["param_groups"] if state.optimizer else None
    position = (state.step, vars(state.position).copy(), state.micro_batch_size)
    return {
        "weights": tensors,
        "modes": modes,
        "what trains": trained,
        "the optimizer": repr(groups),
        "the position": position,
        "its numbers": (dict(state.metrics), dict(state.evaluation)),
        "random numbers": {n: t.numpy().tobytes() for n, t in capture_random(CPU).items()},
    }
