"""Registries of plug-ins.

A plug-in can be registered by a call or by an entry point of an installed package, or can be given
by its address, `module:name`. Registered plug-ins take precedence over built-in ones, and built-in
ones over installed ones. An entry point is loaded when its name is first requested, so unused
packages are never imported. Helper processes know the plug-ins that were registered in this
process, and import them from the modules that define them.
"""

import inspect
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from importlib.metadata import distribution, entry_points, packages_distributions
from pathlib import Path
from typing import Any, Generic, TypeVar

from infrastructure.core.callbacks import do_nothing
from infrastructure.core.errors import InputError
from infrastructure.core.features import plugins_of
from infrastructure.core.lookup import unknown_name
from infrastructure.core.messages import phrase
from infrastructure.core.named_object import (
    MAIN,
    address_of,
    is_address,
    load_object,
    missing_module,
    module_file,
)

Plugin = TypeVar("Plugin")

PLUGINS_VARIABLE = "_TEMPER_PLUGINS"  # set for a helper: what its parent has registered
MOST_LISTED = 8  # names in an error text

_REGISTRIES: "list[Registry[Any]]" = []


@dataclass(frozen=True)
class Origin:
    """The source of a plug-in that is not built in. A run records it to resume on another machine.

    Attributes:
        address: `module:name`, or None if the plug-in was defined in a notebook or in the script
            itself, so that no other process can import it.
        package: the installed package that contains the plug-in, as pip accepts it, or None.
        file, sha256: the file of its module and the checksum of that file, unless a package
            contains it. They are ignored when two origins are compared.
    """

    address: str | None
    package: str | None = None
    file: str | None = field(default=None, compare=False)
    sha256: str | None = field(default=None, compare=False)


class Registry(Generic[Plugin]):
    """A registry of plug-ins of one kind, by name.

    Args:
        what: the kind of plug-in, for error messages.
        group: the entry point group of installed packages, such as "temper.formats".
        built_in: the names that the implementing module will pass to `provide`. They are known
            before that module is imported.
        decides: whether these plug-ins affect the result of a run. If False, they only observe,
            write or copy.
    """

    def __init__(
        self, what: str, group: str, built_in: tuple[str, ...] = (), *, decides: bool = False
    ) -> None:
        self.what = what
        self.group = group
        self.decides = decides
        self._built_in = built_in
        self.contract: type | None = None
        self._makes = True
        self._registered: dict[str, Plugin] = {}
        self._provided: dict[str, Plugin] = {}
        self._adopted: dict[str, Origin] = {}  # of the run that this process resumes
        self._noted: dict[str, Origin] = {}  # of runs whose records this process has read
        _REGISTRIES.append(self)

    @cached_property
    def _of_features(self) -> dict[str, str]:
        """The plug-ins that features add: name → address."""
        return plugins_of(self.group)

    @cached_property
    def built_in(self) -> tuple[str, ...]:
        """The names of the built-in plug-ins: those of Temper itself, then those of features."""
        return (*self._built_in, *self._of_features)

    def provide(
        self, plugins: Mapping[str, Plugin], contract: type | None = None, *, makes: bool = True
    ) -> None:
        """Set the built-in plug-ins. The module that implements them calls this once.

        Args:
            contract: a class whose methods and attributes each object of this kind must have. A
                plug-in is such a class, or a function that creates such an object. With None, a
                plug-in is any function.
            makes: whether a plug-in creates an object. If False, the plug-in itself is the object.
        """
        self._provided = dict(plugins)
        self.contract, self._makes = contract, makes

    def register(self, name: str, plugin: Plugin) -> None:
        """Add a plug-in, which takes precedence over a built-in one.

        If a plug-in is defined again, for example because a notebook cell runs again, it replaces
        its earlier definition.

        Raises:
            ValueError: if the name is empty, is an address or is taken by another plug-in, or the
                plug-in does not fulfill the contract.
        """
        if not name or is_address(name):
            raise InputError("core.plugin_name_invalid", kind=self.what, name=name)
        known = self._registered.get(name, plugin)
        if known is not plugin and not _is_defined_again(known, plugin):
            raise InputError("core.plugin_name_taken", kind=self.what, name=name)
        self._check(name, plugin)
        self._registered[name] = plugin

    def unregister(self, name: str) -> None:
        """Remove a plug-in that `register` added."""
        del self._registered[name]

    @contextmanager
    def registered(self, name: str, plugin: Plugin) -> Iterator[None]:
        """Add a plug-in for the duration of the block.

        Raises:
            ValueError: as in `register`.
        """
        self.register(name, plugin)
        try:
            yield
        finally:
            self.unregister(name)

    def names(self) -> list[str]:
        """Return the names of all built-in, registered and installed plug-ins."""
        installed = (point.name for point in _entry_points(group=self.group))
        own = {*self._own_names(), *self._adopted}
        return sorted({*self.built_in, *self._provided, *own, *installed})

    def is_here(self, name: str) -> bool:
        """Return whether this process has a plug-in called `name`. Nothing is imported."""
        return name in self.built_in or self.is_own(name) or name in self.names()

    def has(self, name: str) -> bool:
        """Return whether a plug-in `name` is registered in this process or named in a run's
        record.
        """
        return self.is_here(name) or name in self._noted

    def is_own(self, name: str) -> bool:
        """Return whether a user-defined plug-in was registered as `name`.

        It may have been registered in this process, in its parent process, or by the run that is
        resumed.
        """
        return name in self._own_names() or name in self._adopted

    def get(self, name: str) -> Plugin:
        """Return the plug-in with this name or address. Import it if necessary.

        Raises:
            ValueError: if there is no such plug-in (the message suggests the nearest one), it
                cannot be loaded, or it does not fulfill the contract.
        """
        if name in self._registered:
            plugin = self._registered[name]
        elif (address := self._address(name)) is not None:
            plugin = load_object(self.what, address)  # a notebook may have reloaded the module
        elif name in self._provided:
            return self._provided[name]
        elif name in self._of_features:
            plugin = load_object(self.what, self._of_features[name])
        else:
            plugin = self._load(name)
        self._check(name, plugin)  # again, because the contract may have been set since
        return plugin

    def make(self, name: str, *arguments: object, **keywords: object) -> Any:
        """Create an object with the plug-in of this name or address, and return the object.

        Raises:
            ValueError: as in `get`, or if the arguments do not fit, or the result does not fulfill
                the contract.
        """
        plugin: Any = self.get(name)
        self._check_call(name, plugin, arguments, keywords)
        made = plugin(*arguments, **keywords)
        if self.contract is not None and (lacking := _lacking_in_object(made, self.contract)):
            raise InputError(
                "core.created_part_incomplete",
                plugin=self._shown(name, plugin),
                contract=self.contract.__name__,
                type=type(made).__name__,
                missing=_listed(lacking, self.contract),
                hint=_init_hint(made, self.contract),
            )
        return made

    def check_usable(self, names: Iterable[str]) -> None:
        """Check that the plug-ins with these names or addresses can be used on this machine.

        If a plug-in has a function `check_usable`, it is called without arguments.

        Raises:
            ValueError: as in `get`, or if a plug-in cannot be used.
        """
        for name in names:
            getattr(self.get(name), "check_usable", do_nothing)()

    def require_shareable(self, name: str) -> None:
        """Check that other processes can import a plug-in.

        Raises:
            ValueError: if the plug-in is defined in a notebook, in the script itself or inside a
                function.
        """
        plugin = self._registered.get(name)
        is_hidden = name in self._registered and address_of(plugin) is None
        if is_hidden or name.startswith(f"{MAIN}:"):
            shown = self._shown(name, plugin) if is_hidden else f"{self.what} {name!r}"
            raise InputError("core.plugin_not_importable", plugin=shown)

    def addresses(self) -> dict[str, str]:
        """Return name → address of the plug-ins that were registered in this process or by the
        resumed run.

        Plug-ins that no other process can import are left out.
        """
        address_of_name = {name: origin.address for name, origin in self._adopted.items()}
        address_of_name |= _inherited(self.group)
        address_of_name |= {name: address_of(plugin) for name, plugin in self._registered.items()}
        return {name: address for name, address in address_of_name.items() if address is not None}

    def origin(self, name: str) -> Origin | None:
        """Return the origin of the plug-in with this name or address, without importing it.

        Return None if the plug-in is built in or unknown.
        """
        if name in self._registered:
            address = address_of(self._registered[name])
            return Origin(address, package_of(address))
        if (address := self._address(name)) is not None:
            return Origin(address, package_of(address))
        if name in self._provided or name in self.built_in:
            return None
        for point in _entry_points(group=self.group, name=name):
            dist = point.dist
            return Origin(point.value, f"{dist.name}=={dist.version}" if dist else None)
        return None

    def problem(self, name: str, recorded: Origin | None = None) -> str | None:
        """Return an error text if a plug-in is not available on this machine; otherwise None.

        Nothing is imported.

        Args:
            recorded: the plug-in's origin as the run recorded it, if a run is resumed.
        """
        is_name = not is_address(name)
        if recorded is None and is_name:
            return None if self.is_here(name) else self._unknown(name)
        if name in self._own_names() or (is_name and self._is_installed(name)):
            return None
        address = name if recorded is None else recorded.address
        if address is None:
            return phrase("core.plugin_of_another_script", kind=self.what, name=name)
        return missing_module(self.what, address)

    def _own_names(self) -> list[str]:
        return [*self._registered, *_inherited(self.group)]

    def _is_installed(self, name: str) -> bool:
        return bool(_entry_points(group=self.group, name=name))

    def _address(self, name: str) -> str | None:
        """Return the address from which to import a plug-in that this process has not registered.

        Return None if the plug-in comes from an installed package, or is unknown.
        """
        if (inherited := _inherited(self.group).get(name)) is not None:
            return inherited
        if is_address(name):
            return name
        adopted = self._adopted.get(name)
        if adopted is None and name in self._noted and not self.is_here(name):
            adopted = self._noted[name]
        return adopted.address if adopted and not self._is_installed(name) else None

    def _load(self, name: str) -> Plugin:
        points = _entry_points(group=self.group, name=name)
        if not points:
            raise InputError(self._unknown(name))
        point = next(iter(points))
        try:
            loaded: Plugin = point.load()
        except Exception as error:  # whatever the package raises on import
            raise InputError(
                "core.plugin_package_failed",
                kind=self.what,
                name=name,
                entry_point=point.value,
                error_type=type(error).__name__,
                error=error,
            ) from error
        return loaded

    def _check(self, name: str, plugin: object) -> None:
        lacking: list[str] = []
        if not self._makes and self.contract is not None:
            lacking = _lacking_in_object(plugin, self.contract)
        elif not callable(plugin):
            raise InputError(
                "core.plugin_not_a_function"
                if self.contract is None
                else "core.plugin_not_a_class_or_function",
                plugin=self._shown(name, plugin),
            )
        elif isinstance(plugin, type) and self.contract is not None:
            lacking = _lacking_in_class(plugin, self.contract)
        if lacking and self.contract is not None:  # what a function makes is checked later
            raise InputError(
                "core.plugin_incomplete",
                plugin=self._shown(name, plugin),
                contract=self.contract.__name__,
                missing=_listed(lacking, self.contract),
            )

    def _check_call(
        self, name: str, plugin: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> None:
        """Raise an error if a plug-in does not accept these arguments, without calling it."""
        try:
            inspect.signature(plugin).bind(*arguments, **keywords)
        except TypeError as error:
            given = ", ".join([*(type(one).__name__ for one in arguments), *keywords])
            raise InputError(
                "core.plugin_call_mismatch",
                plugin=self._shown(name, plugin),
                arguments=given,
                error=error,
            ) from None
        except ValueError:  # built-in functions of Python may have no signature
            return

    def _shown(self, name: str, plugin: Any) -> str:
        place = _place_of(plugin) or repr(plugin)
        return f"{self.what} {name!r}" + ("" if place == name else f" ({place})")

    def _unknown(self, name: str) -> str:
        known = self.names()
        if known:
            return phrase("core.unknown_plugin", unknown=unknown_name(self.what, name, known))
        return phrase("core.no_plugin_registered", kind=self.what, name=name, group=self.group)


def registered_addresses() -> str:
    """Return the registered plug-ins that helpers can import, as the value of `PLUGINS_VARIABLE`.

    The value is empty if there are none.
    """
    by_group = {registry.group: registry.addresses() for registry in _REGISTRIES}
    addresses = {group: known for group, known in by_group.items() if known}
    return json.dumps(addresses) if addresses else ""


def note_origins(origins: Mapping[str, Mapping[str, Origin]]) -> None:
    """Treat the plug-ins in a run's record as known, without using them (group → name → origin)."""
    for registry in _REGISTRIES:
        registry._noted.update(origins.get(registry.group, {}))


def adopt_origins(origins: Mapping[str, Mapping[str, Origin]]) -> None:
    """Use the plug-ins of the run that this process is going to train (group → name → origin).

    They take precedence over built-in plug-ins. Plug-ins adopted from an earlier run in this
    process are removed.
    """
    for registry in _REGISTRIES:
        registry._adopted = dict(origins.get(registry.group, {}))


@cache
def package_of(address: str | None) -> str | None:
    """Return the installed package that contains a module, as `name==version`; None if there is
    none.
    """
    if address is None:
        return None
    top = address.partition(":")[0].partition(".")[0]
    file = module_file(top)
    if file is None:
        return None
    for name in _distributions(_installed_at()).get(top, ()):
        package = distribution(name)
        if file.is_relative_to(str(package.locate_file(""))):  # not another package of this name
            return f"{name}=={package.version}"
    return None


def _installed_at() -> tuple[tuple[str, float], ...]:
    """Return each folder of Python's path, with its time of modification, as a cache key.

    The time changes when a package is installed or removed in the folder.
    """
    folders = [folder for folder in map(Path, sys.path) if folder.is_dir()]
    return tuple((str(folder), folder.stat().st_mtime) for folder in folders)


@cache
def _distributions(_places: tuple[tuple[str, float], ...]) -> Mapping[str, list[str]]:
    """Return the installed packages of each top-level module, which takes a second."""
    return packages_distributions()


def _entry_points(**by: str) -> Any:
    return _selected(_installed_at(), **by)


@lru_cache(maxsize=64)
def _selected(places: tuple[tuple[str, float], ...], **by: str) -> Any:
    """Return the entry points that match, which takes longer than to check a value with them."""
    return _all_entry_points(places).select(**by)


@lru_cache(maxsize=2)
def _all_entry_points(_places: tuple[tuple[str, float], ...]) -> Any:
    """Return the entry points of all installed packages, whose files take 0.04 s to read."""
    return entry_points()


def _inherited(group: str) -> dict[str, str]:
    """Return the plug-ins that were registered in the parent process: name → address."""
    text = os.environ.get(PLUGINS_VARIABLE)
    inherited: dict[str, str] = json.loads(text).get(group, {}) if text else {}
    return inherited


def _place_of(plugin: object) -> str | None:
    """Return the `module:name` at which a plug-in is defined; None if it is unknown."""
    module, name = getattr(plugin, "__module__", None), getattr(plugin, "__qualname__", None)
    return f"{module}:{name}" if module and name else None


def _is_defined_again(known: object, plugin: object) -> bool:
    place = _place_of(plugin)
    return place is not None and "<" not in place and place == _place_of(known)


def _public(contract: type) -> list[str]:
    return [name for name in dir(contract) if not name.startswith("_")]


def _lacking_in_class(plugin: type, contract: type) -> list[str]:
    abstract: frozenset[str] = getattr(plugin, "__abstractmethods__", frozenset())
    return sorted(abstract | {name for name in _public(contract) if not hasattr(plugin, name)})


def _lacking_in_object(made: object, contract: type) -> list[str]:
    annotated = {name for kind in contract.__mro__ for name in inspect.get_annotations(kind)}
    return sorted(name for name in {*_public(contract), *annotated} if not hasattr(made, name))


def _listed(lacking: list[str], contract: type) -> str:
    """Return a list of missing attributes as text, required methods first; a long list is cut."""
    abstract: frozenset[str] = getattr(contract, "__abstractmethods__", frozenset())
    ordered = sorted(lacking, key=lambda name: (name not in abstract, name))
    more = len(ordered) - MOST_LISTED
    return ", ".join(ordered[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def _init_hint(made: object, contract: type) -> str:
    """Return a hint for a subclass whose `__init__` does not call `super().__init__`."""
    is_own = isinstance(made, contract) and "__init__" in vars(type(made))
    return phrase("core.init_may_not_call_super") if is_own else ""
