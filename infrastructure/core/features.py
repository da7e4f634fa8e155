"""The doors for features: parts that the core finds, but never names.

A feature of Temper is a folder of `infrastructure/features/` whose module `feature` has a
`FEATURE`. A feature of an installed package is an entry point in the group "temper.features" whose
object is a `Feature`. Everything that a feature adds is an address, `module:name`, and is loaded
when it is first needed: finding all features imports only their `feature` modules, which import
nothing but this one.
"""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from infrastructure.core.errors import InputError
from infrastructure.core.importing import importing
from infrastructure.core.messages import FEATURES

GROUP = "temper.features"
PACKAGE = "infrastructure.features"


@dataclass(frozen=True)
class Command:
    """A command of `temper`.

    Attributes:
        module: has `add_arguments(parser)` and `run(options)`.
        help: one line.
        group: the heading in `temper --help`.
        resuming: beginnings of its command lines that resume if they are given again after an
            interruption: `("queue run",)`.
    """

    module: str
    help: str
    group: str
    resuming: tuple[str, ...] = ()


@dataclass(frozen=True)
class Feature:
    """All that a feature adds. An address is `module:name`.

    Attributes:
        name: its folder; also the topic of its messages, which are in `messages.toml` beside it.
        fields: section of the configuration ("" is the root) → address of the `ConfigSection` class
            whose fields that section gets.
        flags: canonical key → its flags, where the rule in `config.sources.flags` gives others.
        aliases: other beginnings of keys → the canonical beginning; if this one ends with "_", the
            fields can also be given as a section.
        enables: extension → the name of the training setting that enables it.
        needs_own_loop: whether its extensions work only in Temper's own training loop.
        adds_weights: whether its extensions add weights to the model.
        plugins: entry point group of a registry ("temper.strategies") → name → address. In the
            group "temper.models", it is that of what builds a model; its adapter has its name.
        commands: by name.
        additions: command → module that adds flags to it. Its `run(options)` does the work instead
            of the command and returns the exit code, or returns None to leave the work to it.
        contradictions: address of a table as in `config.merging.contradictions`.
        added_weights: address of such a table, whose facts contradict weights that an extension
            adds to the model.
        facts: names that such tables use → address of a function of the configuration.
        checks: address of a function that yields a message for each setting that cannot be applied.
        advice: address of a function of a configuration, and of a function that returns whether a
            key was given, that yields a note for each setting that costs more than it seems to.
        objective: address of a function of the section `training`, a tokenizer and its number of
            tokens that returns an objective that hides tokens, or None.
        report: addresses of report sections, functions of a `RunView`.
        live: addresses of those that the live page shows, too.
        folders: keys of settings whose values are folders on this machine.
        own_code: address of a function that yields the entry point group and the address of each
            part of a user that a configuration names in the feature's own settings.
        run_files: files that it writes into a run directory, which travel with the run.
        outputs: what it leaves in a run directory, by name → code of the words for it.
        notebook: names that `import colab` offers → module.
        on_samples: address of a function of a configuration and a source (text), called when a run
            uses the sample data; it may change settings that the user has not set.
        names: names that the specifications import from `infrastructure.training` → module.
        instead: names of the specifications that do not exist → code of the message that names
            what to use instead.
    """

    name: str
    fields: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    enables: Mapping[str, str] = field(default_factory=dict)
    needs_own_loop: bool = False
    adds_weights: bool = True
    plugins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    commands: Mapping[str, Command] = field(default_factory=dict)
    additions: Mapping[str, str] = field(default_factory=dict)
    contradictions: str | None = None
    added_weights: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    checks: str | None = None
    advice: str | None = None
    objective: str | None = None
    report: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    own_code: str | None = None
    run_files: tuple[str, ...] = ()
    outputs: Mapping[str, str] = field(default_factory=dict)
    notebook: Mapping[str, str] = field(default_factory=dict)
    on_samples: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)

    @property
    def extensions(self) -> list[str]:
        """The names of its extensions."""
        return [*self.plugins.get("temper.extensions", {})]


@cache
def features() -> tuple[Feature, ...]:
    """Return all features, those of Temper first, by name.

    Raises:
        InputError: the feature of an installed package cannot be loaded.
    """
    folders = sorted(path.parent.name for path in FEATURES.glob("*/feature.py"))
    built_in = [importlib.import_module(f"{PACKAGE}.{name}.feature").FEATURE for name in folders]
    return (*built_in, *_installed())


def _installed() -> Iterator[Feature]:
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            feature = point.load()
        except Exception as error:  # whatever the package raises on import
            raise InputError(
                "core.feature_failed",
                name=point.name,
                entry_point=point.value,
                error_type=type(error).__name__,
                error=error,
            ) from error
        yield feature


def loaded(address: str) -> Any:
    """Return the object at an address, `module:name`."""
    module, _, name = address.partition(":")
    with importing():
        owner = importlib.import_module(module)
    return getattr(owner, name)


def all_of(attribute: str) -> Iterator[Any]:
    """Yield the loaded object of an attribute that holds one address, or several, per feature."""
    for feature in features():
        value = getattr(feature, attribute)
        for address in (value,) if isinstance(value, str) else value or ():
            yield loaded(address)


def merged(attribute: str) -> dict[str, Any]:
    """Return an attribute that is a mapping, of all features together."""
    return {k: value for f in features() for k, value in getattr(f, attribute).items()}


def plugins_of(group: str) -> dict[str, str]:
    """Return name → address of the plug-ins that features add to a registry."""
    return {n: address for f in features() for n, address in f.plugins.get(group, {}).items()}


def fields_for(section: str) -> tuple[Any, ...]:
    """Return the classes whose fields features add to a section of the configuration."""
    return tuple(loaded(f.fields[section]) for f in features() if section in f.fields)


def fields_of_features(section: str) -> frozenset[str]:
    """Return the names of the fields that features add to a section of the configuration."""
    kinds = fields_for(section)
    return frozenset(name for kind in kinds for name in getattr(kind, "model_fields", ()))


def extensions_with(attribute: str, *, value: bool = True) -> set[str]:
    """Return the extensions of features whose attribute, such as `adds_weights`, is `value`."""
    return {name for f in features() if getattr(f, attribute) is value for name in f.extensions}


def run_files_of_features() -> list[str]:
    """Return the files that features write into a run directory."""
    return [name for feature in features() for name in feature.run_files]


def prefixes_of_features() -> tuple[str, ...]:
    """Return the beginnings of the metrics that features add: `quantum_`."""
    return tuple(f"{feature.name}_" for feature in features())
