"""Registries that plug-ins add to: by a call, or by an entry point of an installed package.

An entry point is loaded when its name is first asked for, so an installed package that nobody asks
for costs nothing and can break nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from infrastructure.core.lookup import unknown_name

Plugin = TypeVar("Plugin")


class Registry(Generic[Plugin]):
    """Names → plug-ins of one kind.

    Args:
        what: the kind in words, for error messages.
        group: entry point group of installed packages, such as "temper.formats".
        built_in: names that the module registers which implements them. They are known before it
            is imported.
    """

    def __init__(self, what: str, group: str, built_in: tuple[str, ...] = ()) -> None:
        self.what = what
        self.group = group
        self.built_in = built_in
        self._plugins: dict[str, Plugin] = {}

    def register(self, name: str, plugin: Plugin) -> None:
        """Add a plug-in.

        Raises:
            ValueError: the name is taken by another plug-in.
        """
        if self._plugins.get(name, plugin) is not plugin:
            raise ValueError(f"{self.what} {name!r} is registered already: choose another name")
        self._plugins[name] = plugin

    def unregister(self, name: str) -> None:
        """Remove a plug-in that was added by a call."""
        del self._plugins[name]

    @contextmanager
    def registered(self, name: str, plugin: Plugin) -> Iterator[None]:
        """Inside, there is one more plug-in.

        Raises:
            ValueError: the name is taken by another one.
        """
        self.register(name, plugin)
        try:
            yield
        finally:
            self.unregister(name)

    def names(self) -> list[str]:
        """Built-in, registered and installed names."""
        installed = (point.name for point in entry_points(group=self.group))
        return sorted({*self.built_in, *self._plugins, *installed})

    def has(self, name: str) -> bool:
        """Whether there is such a plug-in; nothing is imported."""
        return name in self.built_in or name in self._plugins or name in self.names()

    def get(self, name: str) -> Plugin:
        """The plug-in of that name, loaded from its package if need be.

        Raises:
            ValueError: there is none; the text suggests the nearest one.
        """
        if name not in self._plugins:
            found = entry_points(group=self.group, name=name)
            if not found:
                raise ValueError(self._unknown(name))
            self._plugins[name] = next(iter(found)).load()
        return self._plugins[name]

    def _unknown(self, name: str) -> str:
        known = self.names()
        if known:
            return unknown_name(self.what, name, known)
        return (
            f"unknown {self.what} {name!r}, and there is no other: register it, or install a"
            f" package that brings it (entry points in the group {self.group!r})"
        )
