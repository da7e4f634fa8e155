"""The thirteen events of a run and the hooks that they call.

A hook has one method for each event that it handles, named like the event. Extensions are called
first, in their order, and may change the training state. Observers are called after all extensions
and must not change it. Defining a hook class with a misspelled event name raises TypeError.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

import torch

from infrastructure.core.error_place import named
from infrastructure.core.errors import InputError
from infrastructure.core.json_text import JsonObject
from infrastructure.data.serving.example_order import Indices
from infrastructure.training.core.state import Phase, TrainingState


class Event(StrEnum):
    """The events of a run, at which hooks are called.

    ```
    # <TRAIN_START>
    for phase in strategy.phases(model):            # <PHASE_START>
        for epoch in phase:                         # <EPOCH_START>
            for batch in data.from_(state.position):# <STEP_START>
                for micro in split(batch):
                    loss = train_step(micro)        # <AFTER_LOSS>       once per micro-batch
                                                    # <AFTER_BACKWARD>   gradients are final
                optimizer.step()                    # <STEP_END>
                every N: evaluate                   # <EVAL_END>
                                                    # <EPOCH_END>
                                                    # <PHASE_END>
                every N: save                       # <CHECKPOINT_SAVED>
    # <ERROR>      an exception is on its way out; state.error holds it
    # <TRAIN_END>  always, after ERROR too
    ```
    """

    TRAIN_START = "train_start"
    PHASE_START = "phase_start"
    EPOCH_START = "epoch_start"
    STEP_START = "step_start"
    AFTER_LOSS = "after_loss"
    AFTER_BACKWARD = "after_backward"
    STEP_END = "step_end"
    EVAL_END = "eval_end"
    CHECKPOINT_SAVED = "checkpoint_saved"
    EPOCH_END = "epoch_end"
    PHASE_END = "phase_end"
    ERROR = "error"
    TRAIN_END = "train_end"


def _looks_like_an_event(name: str) -> bool:
    endings = ("_start", "_end", "_saved")
    return name.startswith(("after_", "before_", "on_")) or name.endswith(endings)


class Hook:
    """Base class of extensions and observers, with one empty method `(self, state)` for
    each event.
    """

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        for name in vars(cls):
            if _looks_like_an_event(name) and name not in set(Event):
                known = ", ".join(Event)
                raise TypeError(f"{cls.__name__}.{name} is no event; events are: {known}")

    @property
    def name(self) -> str:
        """The key of this hook's state in a checkpoint."""
        return type(self).__name__

    def train_start(self, state: TrainingState) -> None: ...

    def phase_start(self, state: TrainingState) -> None: ...

    def epoch_start(self, state: TrainingState) -> None: ...

    def step_start(self, state: TrainingState) -> None: ...

    def after_loss(self, state: TrainingState) -> None: ...

    def after_backward(self, state: TrainingState) -> None: ...

    def step_end(self, state: TrainingState) -> None: ...

    def eval_end(self, state: TrainingState) -> None: ...

    def checkpoint_saved(self, state: TrainingState) -> None: ...

    def epoch_end(self, state: TrainingState) -> None: ...

    def phase_end(self, state: TrainingState) -> None: ...

    def error(self, state: TrainingState) -> None: ...

    def train_end(self, state: TrainingState) -> None: ...

    def state_dict(self) -> Mapping[str, object]:
        """Return the state of this hook that must survive a restart, as JSON values."""
        return {}

    def load_state_dict(self, saved: JsonObject) -> None:
        """Restore what `state_dict` returned."""


class Extension(Hook):
    """A hook that may change the training state and add weights to the model.

    An extension is created with its trainer. `attach` is called once the model is loaded, before
    the optimizer exists, and then the events of the training. `detach` removes the weights that
    `attach` has added.

    Attributes:
        requires: names of extensions that must also be enabled, and are called before this one.
        after: names of extensions that are called before this one if they are enabled.
        adds_weights: True if `attach` adds weights. See `models.added_modules`.
        is_of_first_rank: with several processes, only rank 0 has this extension, and its changes
            (the micro-batch size, compiling) are sent to the other ranks.
    """

    requires: ClassVar[tuple[str, ...]] = ()
    after: ClassVar[tuple[str, ...]] = ()
    adds_weights: ClassVar[bool] = False
    is_of_first_rank: ClassVar[bool] = False

    def attach(self, model: torch.nn.Module) -> None:
        """Add weights to `model`, or use added weights that were loaded with the model.

        Raises:
            ValueError: the model cannot have these weights. The message says why.
        """

    def detach(self, model: torch.nn.Module) -> None:
        """Remove the weights that `attach` has added to `model`."""

    def inspect(self, data: Any, model: torch.nn.Module) -> None:
        """Inspect the data and the model before the training's length is computed.

        Raises:
            ValueError: this extension cannot work with them.
        """

    def first_phases(self, model: torch.nn.Module) -> list[Phase]:
        """Return phases to train before those of the strategy.

        They have a learning-rate schedule of their own, with the peak of added weights.
        """
        return []

    def recorders(self, run_directory: Path, report: Callable[[str], None]) -> "list[Observer]":
        """Return observers that write this extension's own files into the run directory.

        Args:
            report: prints a line on the console.
        """
        return []

    def probes(self) -> dict[str, Callable[[], float | None]]:
        """Return functions by name. The monitor regularly records their values."""
        return {}

    def forecast_known(self, step_seconds: float) -> None:
        """Receive the predicted duration of an optimizer step."""

    def epoch_lengths(self) -> list[Indices] | None:
        """Return, for each phase, the token counts of the examples of one epoch, in order.

        None if the extension does not select examples by phase, or has not selected them yet.
        """
        return None

    def seconds_beside_steps(self) -> float:
        """Return the estimated seconds that the extension needs besides the optimizer steps."""
        return 0.0

    def carry_out(self, state: TrainingState) -> None:
        """Apply decisions that were made between two steps of a custom training loop."""

    def gradients_forgotten(self) -> None:
        """Release memory, and handle the loss of gradients, when a step that ran out of memory is
        repeated.
        """

    def weights_updated(self) -> None:
        """Change weights in other ways than by gradients, immediately after the optimizer step.

        A checkpoint therefore contains either both the step and these changes, or neither.
        """


class Observer(Hook):
    """A hook that must not change the training state. It may only request a stop."""


class HookRunner:
    """A list of hooks that is called in order: extensions first, then observers."""

    def __init__(self, hooks: Iterable[Hook]) -> None:
        hooks = list(hooks)
        extensions = [hook for hook in hooks if isinstance(hook, Extension)]
        observers = [hook for hook in hooks if not isinstance(hook, Extension)]
        self.hooks: list[Hook] = extensions + observers
        names = [hook.name for hook in self.hooks]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise InputError("training.duplicate_hook_names", names=sorted(twice))

    def fire(self, event: Event, state: TrainingState) -> None:
        for hook in self.hooks:
            getattr(hook, event.value)(state)

    def gradients_forgotten(self) -> None:
        """Call `gradients_forgotten` of all extensions before a step is repeated."""
        for hook in self.hooks:
            if isinstance(hook, Extension):
                hook.gradients_forgotten()

    def weights_updated(self) -> None:
        """Call `weights_updated` of all extensions after an optimizer step."""
        for hook in self.hooks:
            if isinstance(hook, Extension):
                hook.weights_updated()

    def fire_to_all(self, event: Event, state: TrainingState) -> None:
        """Call every hook for an event, even if one of them raises.

        Raises:
            Exception: the first exception of a hook, after all hooks were called. If the event is
                fired because of another error, the exception becomes a note on that error instead.
        """
        failures: list[Exception] = []
        for hook in self.hooks:
            try:
                getattr(hook, event.value)(state)
            except Exception as error:
                failures.append(error)
                if state.error is not None:
                    state.error.add_note(f"{hook.name}.{event} failed too: {named(error)}")
        if failures and state.error is None:
            raise failures[0]

    def state_dict(self) -> dict[str, Mapping[str, object]]:
        return {hook.name: saved for hook in self.hooks if (saved := hook.state_dict())}

    def load_state_dict(self, saved: dict[str, JsonObject]) -> None:
        for hook in self.hooks:
            if hook.name in saved:
                hook.load_state_dict(saved[hook.name])
