"""Extensions and observers that the configuration lists by name, and their creation.

There are three ways to add one: `register_extension(name, factory)`, an entry point in the group
"temper.extensions", or its address in `training.enabled_extensions: [module:Class]`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import Any

import torch

from infrastructure.config import registries
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.errors import InputError
from infrastructure.core.registry import Registry
from infrastructure.models.model_manager import own_random_state
from infrastructure.training.extensions.extension_hooks import Extension, Hook, HookRunner

# Receives the trainer, whose model, data and loop are made later: it keeps what it needs of it.
ExtensionFactory = Callable[[Any], Hook]

EXTENSIONS: Registry[ExtensionFactory] = registries.EXTENSIONS
EXTENSIONS.provide({}, Hook)


def register_extension(name: str, factory: ExtensionFactory) -> None:
    """Register a name for `training.enabled_extensions` that creates `factory(trainer)`.

    The factory returns an extension or an observer. It takes precedence over a built-in one of that
    name, including those of future releases.

    Raises:
        ValueError: another user-defined extension has the name, or `factory` lacks a method.
    """
    EXTENSIONS.register(name, factory)


def create_extensions(
    names: Iterable[str],
    trainer: object,
    own: Mapping[str, ExtensionFactory] = MappingProxyType({}),
) -> list[Hook]:
    """Create an extension for each name, in the given order, but after those that it requires.

    Args:
        trainer: the trainer that they extend.
        own: factories of the extensions that this trainer provides, by name.

    Raises:
        ValueError: a name is unknown (the message suggests the nearest one), an extension cannot be
            used or needs one that is not enabled, or the required order is circular.
    """
    made = {
        name: own[name](trainer)
        if name in own and not EXTENSIONS.is_own(name)
        else EXTENSIONS.make(name, trainer)
        for name in names
    }
    return [made[name] for name in ordered({name: _before(name, made) for name in made})]


def _before(name: str, made: Mapping[str, Hook]) -> list[str]:
    """Return the names of the extensions that must be called before extension `name`.

    Raises:
        ValueError: a required extension is not enabled.
    """
    hook = made[name]
    if not isinstance(hook, Extension):
        return []
    missing = [other for other in hook.requires if other not in made]
    if missing:
        raise InputError("training.required_extension_missing", name=name, missing=missing[0])
    return [*hook.requires, *(other for other in hook.after if other in made)]


def ordered(before: Mapping[str, Collection[str]]) -> list[str]:
    """Sort names so that each comes after the names that `before` lists for it.

    Otherwise the given order is kept.

    Args:
        before: for each name, the names that must come before it.

    Raises:
        ValueError: the order is circular. The message names the cycle.
    """
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        raise InputError(
            "training.extension_order_circular", names=" and ".join(error.args[1][:-1])
        ) from error
    left, order = dict(before), list[str]()
    while left:  # the sorter does not keep the given order
        ready = next(name for name in left if not set(left[name]) & left.keys())
        order.append(ready)
        del left[ready]
    return order


def own_extensions(names: Iterable[str], own: Collection[str] = ()) -> list[ExtensionFactory]:
    """Return the factories for those `names` that the trainer's own extensions do not include.

    Raises:
        ValueError: as in `create_extensions`.
    """
    others = (name for name in names if name not in own or EXTENSIONS.is_own(name))
    return [EXTENSIONS.get(name) for name in others]


class ExtensionManager(HookRunner):
    """The extensions and observers of one trainer; its attribute `hooks`.

    The loop fires events through this object, extensions first. Checkpoints contain their state.
    """

    register = staticmethod(register_extension)

    @property
    def extensions(self) -> list[Extension]:
        """The extensions, in the order in which they are called."""
        return [hook for hook in self.hooks if isinstance(hook, Extension)]

    @property
    def adding_weights(self) -> list[str]:
        """Names of the extensions that add weights to the model."""
        return [extension.name for extension in self.extensions if extension.adds_weights]

    def attach(self, model: torch.nn.Module, config: TrainingConfig) -> None:
        """Let each extension add its weights, without changing torch's random state.

        Raises:
            ValueError: the model or the training cannot have these weights.
        """
        for extension in self.extensions:
            with own_random_state(config.seed, next(model.parameters()).device):
                extension.attach(model)

    def detach(self, model: torch.nn.Module) -> None:
        """Remove the weights that the extensions have added to `model`, in reverse order."""
        for extension in reversed(self.extensions):
            extension.detach(model)
