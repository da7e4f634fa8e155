"""Extensions and observers by name: the configuration lists them, this makes them and calls them.

To add one: `register_extension(name, factory)`, an entry point in the group "temper.extensions", or
its address, `training.enabled_extensions: [module:Class]`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from infrastructure.config import registries
from infrastructure.core.registry import Registry
from infrastructure.training.extensions.extension_hooks import Extension, Hook, HookRunner

# Is given the trainer, whose model, data and loop are made later: it keeps what it needs of it.
ExtensionFactory = Callable[[Any], Hook]

EXTENSIONS: Registry[ExtensionFactory] = registries.EXTENSIONS
EXTENSIONS.provide({}, Hook)  # `quantum` is brought by the trainer


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
    """One new extension for each name, in order.

    Args:
        trainer: what they extend.
        own: those that this trainer brings itself.

    Raises:
        ValueError: a name is unknown (suggests the nearest one), or it cannot be used.
    """
    return [
        own[name](trainer)
        if name in own and not EXTENSIONS.is_own(name)
        else EXTENSIONS.make(name, trainer)
        for name in names
    ]


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
