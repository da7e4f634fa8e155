"""Names of a package that are loaded when somebody asks for them: importing it stays light."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from infrastructure.core.parts import PARTS


def lazy_names(
    package: str, places: Mapping[str, str], later: Mapping[str, str]
) -> Callable[[str], Any]:
    """A `__getattr__` for the module `package`.

    Args:
        places: the module that holds each name.
        later: the key in `PARTS` of the part that will bring each name.

    Returns:
        A function that raises ImportError for what comes later, AttributeError for what never does.
    """

    def get(name: str) -> Any:
        if name in places:
            return getattr(importlib.import_module(places[name]), name)
        if name in later:
            raise ImportError(f"{name} comes with {PARTS[later[name]]}", name=package)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
