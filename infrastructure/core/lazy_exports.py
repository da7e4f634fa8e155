"""Lazily loaded names of a package, so that importing it stays light."""

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from infrastructure.core.importing import importing
from infrastructure.core.messages import phrase


def lazy_names(
    package: str,
    places: Mapping[str, str],
    elsewhere: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[str], Any]:
    """Return a `__getattr__` for the module `package`.

    Args:
        places: the module that holds each name.
        elsewhere: for names in the specifications that do not exist here, what to use instead: the
            code of a message, or a finished text.

    Returns:
        A function that raises ImportError for a name in `elsewhere`, because Python drops the text
        of an AttributeError in `from package import name`; AttributeError for any other unknown
        name.
    """

    def get(name: str) -> Any:
        if name in places:
            with importing():
                module = importlib.import_module(places[name])
            return getattr(module, name)
        if name in elsewhere:
            raise ImportError(f"there is no {name} here: {phrase(elsewhere[name])}", name=package)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
