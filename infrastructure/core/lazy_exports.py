"""Names of a package that are loaded on first use, so that importing the package stays fast."""

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
        places: the module that defines each name.
        elsewhere: advice for names that other libraries have but not Temper: the code of a message,
            or the text itself.

    Returns:
        A function that raises ImportError for a name in `elsewhere`, and AttributeError for any
        other unknown name. ImportError is used for the former because `from package import name`
        discards the text of an AttributeError.
    """

    def get(name: str) -> Any:
        if name in places:
            with importing():
                module = importlib.import_module(places[name])
            return getattr(module, name)
        if name in elsewhere:
            text = phrase("core.name_does_not_exist", name=name, instead=phrase(elsewhere[name]))
            raise ImportError(text, name=package)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
