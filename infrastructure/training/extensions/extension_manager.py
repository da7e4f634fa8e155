"""Extensions and observers by name: the configuration lists them, this makes them and calls them.

To add one: `register_extension(name, factory)`, an entry point in the group "temper.extensions", or
its address, `training.enabled_extensions: [module:Class]`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

import torch

from infrastructure.config import registries
from infrastructure.config.sections.memory_settings import MEMORY
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.errors import InputError
from infrastructure.core.registry import Registry
from infrastructure.training.extensions.extension_hooks import Extension, Hook, HookRunner
from infrastructure.training.extensions.key_value_memory import KeyValueMemoryExtension
from infrastructure.training.models.added_modules import train_added_alone
from infrastructure.training.models.model_manager import own_random_state

# Is given the trainer, whose model, data and loop are made later: it keeps what it needs of it.
ExtensionFactory = Callable[[Any], Hook]

EXTENSIONS: Registry[ExtensionFactory] = registries.EXTENSIONS
# `quantum` is brought by the trainer
EXTENSIONS.provide({MEMORY: KeyValueMemoryExtension}, Hook)


def register_extension(name: str, factory: ExtensionFactory) -> None:
    """Make `training.enabled_extensions: [name]` use what `factory(trainer)` returns: an extension
    or an observer. It goes before a built-in one of that name, and one that is still to come.

    Raises:
        ValueError: the name is taken by another one's own, or `factory` lacks a method.
    """
    EXTENSIONS.register(name, factory)


def create_extensions(
    names: Iterable[str], trainer: object, own: Mapping[str, ExtensionFactory]
) -> list[Hook]:
    """One new extension for each name, in their order as far as they leave it open themselves.

    Args:
        trainer: what they extend.
        own: those that this trainer brings itself.

    Raises:
        ValueError: a name is unknown (suggests the nearest one), it cannot be used, it needs one
            that is not enabled, or some would each have to come before the other.
    """
    made = {
        name: own[name](trainer)
        if name in own and not EXTENSIONS.is_own(name)
        else EXTENSIONS.make(name, trainer)
        for name in names
    }
    return [made[name] for name in ordered({name: _before(name, made) for name in made})]


def _before(name: str, made: Mapping[str, Hook]) -> list[str]:
    """The extensions that are called before this one.

    Raises:
        ValueError: one that it needs is not enabled.
    """
    hook = made[name]
    if not isinstance(hook, Extension):
        return []
    missing = [other for other in hook.requires if other not in made]
    if missing:
        raise InputError("training.required_extension_missing", name=name, missing=missing[0])
    return [*hook.requires, *(other for other in hook.after if other in made)]


def ordered(before: Mapping[str, Collection[str]]) -> list[str]:
    """Names so that each comes after those it is called after; else in the order given.

    Args:
        before: for each name, those that come before it.

    Raises:
        ValueError: that is a circle; names those in it.
    """
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        raise InputError(
            "training.extension_order_circular", names=" and ".join(error.args[1][:-1])
        ) from error
    left, order = dict(before), list[str]()
    while left:  # the sorter's own order is not the one given
        ready = next(name for name in left if not set(left[name]) & left.keys())
        order.append(ready)
        del left[ready]
    return order


def own_extensions(names: Iterable[str], own: Collection[str]) -> list[ExtensionFactory]:
    """What makes those that the trainer does not bring itself.

    Raises:
        ValueError: as `create_extensions`.
    """
    others = (name for name in names if name not in own or EXTENSIONS.is_own(name))
    return [EXTENSIONS.get(name) for name in others]


class ExtensionManager(HookRunner):
    """The extensions and observers of one training: `trainer.hooks`.

    The loop fires events through it, extensions first, and their state travels in checkpoints.
    """

    register = staticmethod(register_extension)

    @property
    def extensions(self) -> list[Extension]:
        """Those that may change the training, in the order in which they are called."""
        return [hook for hook in self.hooks if isinstance(hook, Extension)]

    @property
    def adding_weights(self) -> list[str]:
        """Names of those that add weights to the model."""
        return [extension.name for extension in self.extensions if extension.adds_weights]

    def attach(self, model: torch.nn.Module, config: TrainingConfig) -> None:
        """Let each add its weights; torch's random state stays as it was.

        Raises:
            ValueError: the model, or the training, cannot have them.
        """
        for extension in self.extensions:
            with own_random_state(config.seed, next(model.parameters()).device):
                extension.attach(model)
        if config.train_extensions_only:
            train_added_alone(model)

    def detach(self, model: torch.nn.Module) -> None:
        """Take what they have added off the model, the last one first."""
        for extension in reversed(self.extensions):
            extension.detach(model)
