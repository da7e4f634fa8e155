"""Extensions by name: the configuration lists them, this makes them.

To add one, either put a line in `EXTENSIONS` or, from outside, call `register_extension`.
"""

from collections.abc import Callable, Iterable

from infrastructure.core.lookup import look_up
from infrastructure.training.extensions.extension_hooks import Extension

ExtensionFactory = Callable[[], Extension]

EXTENSIONS: dict[str, ExtensionFactory] = {}


def register_extension(name: str, factory: ExtensionFactory) -> None:
    """Make `training.enabled_extensions: [name]` use what `factory()` returns.

    Raises:
        ValueError: the name is taken.
    """
    if name in EXTENSIONS:
        raise ValueError(f"an extension called {name!r} is registered already")
    EXTENSIONS[name] = factory


def create_extensions(names: Iterable[str]) -> list[Extension]:
    """One new extension for each name, in order.

    Raises:
        ValueError: a name is unknown; suggests the nearest one.
    """
    return [look_up("extension", name, EXTENSIONS)() for name in names]
