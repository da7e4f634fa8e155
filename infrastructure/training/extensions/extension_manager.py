"""Extensions by name: the configuration lists them, this makes them and calls them.

To add one from outside, call `register_extension`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from infrastructure.core.lookup import look_up
from infrastructure.training.extensions.extension_hooks import Extension, HookRunner

# Is given the trainer, whose model, data and loop are made later: it keeps what it needs of it.
ExtensionFactory = Callable[[Any], Extension]

EXTENSIONS: dict[str, ExtensionFactory] = {}


def register_extension(name: str, factory: ExtensionFactory) -> None:
    """Make `training.enabled_extensions: [name]` use what `factory(trainer)` returns.

    Raises:
        ValueError: the name is taken.
    """
    if name in EXTENSIONS:
        raise ValueError(f"an extension called {name!r} is registered already")
    EXTENSIONS[name] = factory


def create_extensions(
    names: Iterable[str], trainer: Any, own: Mapping[str, ExtensionFactory]
) -> list[Extension]:
    """One new extension for each name, in order.

    Args:
        trainer: what they extend.
        own: those that this trainer brings itself.

    Raises:
        ValueError: a name is unknown; suggests the nearest one.
    """
    known = {**EXTENSIONS, **own}
    return [look_up("extension", name, known)(trainer) for name in names]


class ExtensionManager(HookRunner):
    """The extensions and observers of one training: `trainer.hooks`.

    The loop fires events through it, extensions first, and their state travels in checkpoints.
    """

    register = staticmethod(register_extension)

    @property
    def extensions(self) -> list[Extension]:
        """Those that may change the training, in the order in which they are called."""
        return [hook for hook in self.hooks if isinstance(hook, Extension)]
