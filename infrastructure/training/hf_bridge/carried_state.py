"""State of a Trainer and its callbacks besides model, optimizer and schedule.

A Trainer's own checkpoints lack the sum of its losses, TRL's counts since its last log, generated
answers for later steps, and the patience counter of early stopping. Temper's checkpoints contain
all such state that has changed since the Trainer was created.
"""

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from infrastructure.backup.state.optimizer_state import Tensors
from infrastructure.backup.state.random_state import capture_random, restore_random
from infrastructure.core.errors import CheckpointError, InputError
from infrastructure.core.exact_json import from_json, to_json
from infrastructure.core.json_text import JsonObject, JsonValue
from infrastructure.core.messages import phrase

LOSS_SUM = "_total_loss_scalar"
# A Trainer sets these at its start, so a change since then is not informative.
ALWAYS = (LOSS_SUM, "_tr_loss", "_globalstep_last_logged", "current_flos")
# Facts of one process, state that is kept elsewhere, and data.
NEVER = frozenset(
    {
        *(
            "train_dataset",
            "eval_dataset",
            "is_in_train",
            "_train_batch_size",
            "_signature_columns",
        ),
        *("_initial_num_input_tokens_seen", "_last_loaded_step", "_current_train_step_time"),
        *("processing_class", "tokenizer", "_tokenizer", "_processor"),
    }
)
TENSOR, GENERATOR = "tensor of the version", "state of a generator"
# Callbacks of TRL with their own weights, which no version holds.
LOST = {
    "SyncRefModelCallback": "trainer.moved_reference_model",
    "BEMACallback": "trainer.averaged_weights",
}
GENERATORS = "generators"  # the samplers' generators at the start of the epoch
SAMPLERS = ("batch_sampler", "sampler", "base_dataloader", "generator")

_made: "WeakKeyDictionary[object, dict[str, _Plain]]" = WeakKeyDictionary()


class _Plain:
    """A value converted to JSON values and tensors; it may contain numbers, strings, tensors,
    generators and containers.

    Raises:
        ValueError: the value contains another type.
    """

    def __init__(self, value: object, *, keeps_copies: bool = False) -> None:
        self.tensors: list[torch.Tensor] = []
        self.keeps_copies = keeps_copies
        self.json = to_json(self._without_tensors(value), "the Trainer")

    def _without_tensors(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            self.tensors.append(value.detach().clone() if self.keeps_copies else value.detach())
            return {TENSOR: len(self.tensors) - 1, "device": value.device.type}
        if isinstance(value, torch.Generator):
            return {GENERATOR: self._without_tensors(value.get_state())}
        if isinstance(value, np.random.Generator):
            return {GENERATOR: dict(value.bit_generator.state)}
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, list | deque):
            return [*map(self._without_tensors, value)]
        if isinstance(value, tuple):
            return tuple(map(self._without_tensors, value))
        if isinstance(value, dict):
            return {key: self._without_tensors(one) for key, one in value.items()}
        return value

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Plain)
            and self.json == other.json
            and all(map(_is_same, self.tensors, other.tensors))
        )

    __hash__ = None  # type: ignore[assignment]


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


class CarriedState:
    """The state of one Trainer that Temper saves in addition to what every Trainer saves.

    Args:
        trainer: the Trainer. None: unknown; then its attributes are not saved.
        loader: the data loader of its training rows.
        device: the device on which it trains.

    Attributes:
        awaits_evaluation: the evaluation of the last step is due and not done.
    """

    def __init__(self, trainer: Any, loader: object, device: torch.device) -> None:
        self.trainer, self.loader, self.device = trainer, loader, device
        self.awaits_evaluation = False
        self.seconds_before = 0.0  # of earlier processes, until their last version
        self._began = time.monotonic()
        self._loss_sum: float | None = None
        self._epoch: Tensors = {}
        self._epoch_to_restore: Tensors = {}
        if trainer is not None and trainer not in _made:
            _made[trainer] = dict(_plain_attributes(trainer, keeps_copies=True))

    @property
    def seconds(self) -> float:
        """The training time in seconds, including earlier processes of the run."""
        return self.seconds_before + time.monotonic() - self._began

    def epoch_begins(self) -> None:
        """Record the random state that determines an epoch's order, or restore it on resume."""
        if self._epoch_to_restore:
            restore_random(self._epoch_to_restore, self.device)
            for name, generator in _generators(self.loader):
                if (state := self._epoch_to_restore.get(name)) is not None:
                    generator.set_state(state)
            self._epoch_to_restore = {}
        states = {name: one.get_state() for name, one in _generators(self.loader)}
        self._epoch = {**capture_random(self.device), **states}

    def steps_end(self, awaits_evaluation: bool) -> None:
        """Record the sum of the losses after the last step, before the Trainer resets it."""
        self._loss_sum = getattr(self.trainer, LOSS_SUM, None)
        self.awaits_evaluation = awaits_evaluation

    def take(self) -> tuple[dict[str, Tensors], JsonObject]:
        """Return the current state as tensors by group, and as JSON values."""
        tensors: Tensors = {}
        values: dict[str, JsonValue] = {}
        made = {} if self.trainer is None else _made[self.trainer]
        attributes = [] if self.trainer is None else _plain_attributes(self.trainer)
        for name, plain in attributes:
            if name in ALWAYS or plain != made.get(name):
                values[name] = plain.json  # type: ignore[assignment]
                tensors |= {f"{name}/{n}": tensor for n, tensor in enumerate(plain.tensors)}
        if self._loss_sum is not None:
            values[LOSS_SUM] = self._loss_sum
        groups = {"carried": tensors, "epoch": self._epoch}
        return groups, {
            "attributes": values,
            "seconds": self.seconds,
            "awaits_evaluation": self.awaits_evaluation,
        }

    def restore(self, tensors: Mapping[str, Tensors], values: Mapping[str, Any]) -> None:
        """Restore the state that `take` returned.

        Other attributes are reset to their values when the Trainer was created.

        Raises:
            CheckpointError: the checkpoint has state of a part that the Trainer lacks.
        """
        self.seconds_before = values["seconds"]
        self._epoch_to_restore = tensors.get("epoch", {})
        if self.trainer is None:
            return
        made, saved = _made[self.trainer], values["attributes"]
        for name, plain in _plain_attributes(self.trainer):
            if name in made and name not in saved and plain != made[name]:
                self._set(name, made[name].json, dict(enumerate(made[name].tensors)))
        for name, value in saved.items():
            prefix = f"{name}/"
            held = tensors.get("carried", {}).items()
            own = {int(n.removeprefix(prefix)): t for n, t in held if n.startswith(prefix)}
            self._set(name, value, own)

    def _set(self, path: str, value: object, tensors: Mapping[int, torch.Tensor]) -> None:
        whole = self._with_tensors(from_json(value), tensors)
        before, dot, name = path.rpartition(".")
        owner = _owners(self.trainer).get(before + dot)
        if owner is None:
            raise CheckpointError("trainer.part_missing", part=before, name=name)
        setattr(owner, name, _filled(getattr(owner, name, None), whole))

    def _with_tensors(self, value: Any, tensors: Mapping[int, torch.Tensor]) -> Any:
        if isinstance(value, dict) and TENSOR in value:
            tensor = tensors[value[TENSOR]].clone()
            return tensor if value["device"] == "cpu" else tensor.to(self.device)
        if isinstance(value, dict) and GENERATOR in value:
            return _generator_of(self._with_tensors(value[GENERATOR], tensors))
        if isinstance(value, dict):
            return {key: self._with_tensors(one, tensors) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._with_tensors(one, tensors) for one in value)
        return value


def _generator_of(state: Any) -> torch.Generator | np.random.Generator:
    if isinstance(state, torch.Tensor):
        drawn = torch.Generator()
        drawn.set_state(state)
        return drawn
    bits = getattr(np.random, state["bit_generator"])()
    bits.state = state
    return np.random.Generator(bits)


def _plain_attributes(trainer: Any, *, keeps_copies: bool = False) -> Iterator[tuple[str, _Plain]]:
    """Yield attributes of the Trainer, its losses, collators etc. that can be saved, by path.

    Only values that consist of JSON values, tensors and random generators can be saved.
    """
    for path, owner in _owners(trainer).items():
        for name, value in vars(owner).items():
            if name in NEVER or callable(value):
                continue
            try:
                plain = _Plain(value, keeps_copies=keeps_copies)
            except ValueError:
                continue  # an object, which is saved elsewhere or not at all
            yield f"{path}{name}", plain


def _owners(trainer: Any) -> dict[str, Any]:
    """Return the Trainer and its callable attributes (rewards, collators, ...), by path.

    Such objects may have state of their own.
    """
    owners = {"": trainer}
    for name, value in vars(trainer).items():
        if name in NEVER:
            continue
        parts = (
            {f"{name}.{n}.": one for n, one in enumerate(value)} if isinstance(value, list) else {}
        )
        for path, one in {f"{name}.": value, **parts}.items():
            is_model = isinstance(one, torch.nn.Module | type)
            if callable(one) and not is_model and hasattr(one, "__dict__"):
                owners[path] = one
    return owners


def _filled(container: Any, value: Any) -> Any:
    """Copy `value` into the existing `container`, or return `value` if there is no container.

    The existing container may know how to create missing items, as a defaultdict does.
    """
    if isinstance(container, dict) and isinstance(value, dict):
        before = dict(container)
        container.clear()
        make = getattr(container, "default_factory", None) or bool
        for key, one in value.items():
            container[key] = _filled(before[key] if key in before else make(), one)
        return container
    if isinstance(container, deque) and isinstance(value, list):
        container.clear()
        container.extend(value)
        return container
    return value


def _generators(loader: object) -> Iterator[tuple[str, torch.Generator]]:
    """Yield the random generators of a data loader's samplers, each with its path."""
    parts: list[tuple[str, object]] = [(GENERATORS, loader)]
    seen: set[int] = set()
    for path, part in parts:
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, torch.Generator):
            yield path, part
            continue
        inside = [(name, getattr(part, name, None)) for name in SAMPLERS]
        parts += [(f"{path}/{name}", one) for name, one in inside if one is not None]


def callback_states(trainer: Any) -> dict[str, JsonValue] | None:
    """Return the states of stateful callbacks, in the format of a `TrainerState`.

    None if the Trainer is unknown.

    Raises:
        ValueError: a state does not consist of JSON values.
    """
    if trainer is None:
        return None
    states: dict[str, Any] = {}
    for callback in [*_stateful(trainer), trainer.control]:
        name = type(callback).__name__
        state = json.loads(json.dumps(_checked(callback)))
        if name not in states:
            states[name] = state
        elif isinstance(states[name], list):
            states[name].append(state)
        else:
            states[name] = [states[name], state]
    return states


def restore_callbacks(trainer: Any, states: Mapping[str, Any]) -> None:
    """Restore the states in a checkpoint to the Trainer's callbacks, in their order.

    Raises:
        CheckpointError: a callback does not accept its state.
    """
    if trainer is None:
        return
    left = {
        name: [*saved] if isinstance(saved, list) else [saved] for name, saved in states.items()
    }
    for callback in _stateful(trainer):
        saved = left.get(type(callback).__name__)
        if not saved:
            continue
        attributes = saved.pop(0).get("attributes", {})
        for name, value in attributes.items():
            setattr(callback, name, value)
        if json.loads(json.dumps(_checked(callback))).get("attributes", {}) != attributes:
            raise CheckpointError("trainer.callback_not_restored", name=type(callback).__name__)


def _checked(callback: Any) -> JsonObject:
    state = callback.state()
    plain = _Plain(state)
    if plain.tensors:
        raise InputError("trainer.callback_state_has_tensors", name=type(callback).__name__)
    return dict(state)


def _stateful(trainer: Any) -> list[Any]:
    return [
        one
        for one in trainer.callback_handler.callbacks
        if callable(getattr(one, "state", None)) and hasattr(type(one), "from_state")
    ]


def lost_state(trainer: Any) -> str:
    """Describe the state of callbacks that checkpoints do not contain; "" if they contain all of
    it.
    """
    callbacks = [] if trainer is None else trainer.callback_handler.callbacks
    lost = {type(one).__name__ for one in callbacks} & LOST.keys()
    return " and ".join(f"{phrase(LOST[name])} ({name})" for name in sorted(lost))
