"""Loading of user-defined classes and functions by their address, `module:name`.

Modules are searched for in Python's path, and then in the current folder. The `temper` command does
not have the current folder in its path, so a file in that folder cannot hide an installed module.
"""

import importlib
import re
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from infrastructure.core.errors import InputError
from infrastructure.core.lookup import meant_hint, nearest
from infrastructure.core.messages import phrase

ADDRESS = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
MAIN = "__main__"


def is_address(text: str) -> bool:
    """Return whether a text has the form `module:name`."""
    return ADDRESS.fullmatch(text) is not None


def load_object(what: str, address: str) -> Any:
    """Import the module of `module:name` and return the object.

    Args:
        what: the kind of object, for error messages.

    Raises:
        ValueError: if there is no such module, it cannot be imported, or it has no such name; the
            text says where it was searched for.
    """
    module_name, _, name = address.partition(":")
    if missing := missing_module(what, address):
        raise InputError(missing)
    here = str(Path.cwd())
    if not _is_known(module_name) and here not in sys.path:
        sys.path.append(here)  # permanently: the module may import its neighbors later
    try:
        target: object = importlib.import_module(module_name)
    except Exception as error:  # whatever the module raises on import
        raise InputError(
            "core.plugin_import_failed",
            kind=what,
            address=address,
            module=module_name,
            error_type=type(error).__name__,
            error=error,
        ) from error
    file = getattr(target, "__file__", None) or module_name
    for part in name.split("."):
        if not hasattr(target, part):
            names = [known for known in vars(target) if not known.startswith("_")]
            meant = nearest(part, names)
            hint = meant_hint(meant)
            raise InputError(
                "core.plugin_attribute_missing",
                kind=what,
                address=address,
                file=file,
                attribute=part,
                hint=hint,
            )
        target = getattr(target, part)
    return target


def missing_module(what: str, address: str) -> str | None:
    """Return an error text if `address` has no valid form or its module is missing; otherwise None.

    Nothing is imported.
    """
    if not is_address(address):
        return phrase("core.plugin_address_invalid", kind=what, address=address)
    top = address.partition(":")[0].partition(".")[0]
    if _is_known(top) or _is_here(top):
        return None
    entries = (entry for entry in sys.path if entry not in ("", str(Path.cwd())))
    return phrase(
        "core.plugin_module_not_found",
        kind=what,
        address=address,
        module=top,
        folder=Path.cwd(),
        search_path=", ".join(dict.fromkeys(entries)),
    )


def address_of(target: object) -> str | None:
    """Return the `module:name` by which another process can import a class or function.

    Return None if no other process can import it, because it is defined in a notebook, in the
    script itself or inside a function.
    """
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == MAIN:
        return None
    address = f"{module}:{name}"
    if not is_address(address):
        return None
    there: Any = sys.modules.get(module)
    for part in name.split("."):
        there = getattr(there, part, None)
    return address if there is target else None


def module_file(module_name: str) -> Path | None:
    """Return the file from which a module is or would be imported; None if there is none.

    The module itself is not imported.
    """
    try:
        spec = find_spec(module_name)
    except (ImportError, ValueError):
        return None
    places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
    return next((Path(place) for place in places if place and Path(place).exists()), None)


def source_file(module_name: str) -> Path | None:
    """Return the source file from which a module was or would be imported; None if there is none.

    Nothing is imported, not even the packages that contain the module.
    """
    loaded = getattr(sys.modules.get(module_name), "__file__", None)
    file = loaded or _file_of_spec(module_name)
    return Path(file) if file and Path(file).suffix == ".py" and Path(file).is_file() else None


def look_in_folder_of(file: Path, module_name: str) -> None:
    """Add the folder from which `file` is imported as `module_name` to the end of Python's path."""
    depth = len(module_name.split(".")) + (file.name == "__init__.py")
    folder = str(file.parents[depth - 1])
    if folder not in sys.path:
        sys.path.append(folder)


def _file_of_spec(module_name: str) -> str | None:
    places: list[str] = [*sys.path, str(Path.cwd())]
    names = module_name.split(".")
    for name in names[:-1]:
        # The last part of a name alone: that of a namespace package in a package that is not
        # imported raises KeyError.
        spec = PathFinder.find_spec(name, places)
        places = list(spec.submodule_search_locations or ()) if spec else []
    spec = PathFinder.find_spec(names[-1], places)
    return spec.origin if spec else None


def _is_known(module_name: str) -> bool:
    """Return whether Python can find a module outside the current folder."""
    top = module_name.partition(".")[0]
    if top in sys.modules:
        return True
    try:
        return find_spec(top) is not None
    except (ImportError, ValueError):
        return False


def _is_here(top: str) -> bool:
    return PathFinder.find_spec(top, [str(Path.cwd())]) is not None
