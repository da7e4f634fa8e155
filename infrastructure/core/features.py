"""Discovery of features: optional parts of Temper, or of installed packages.

A feature of Temper is a folder of `infrastructure/features/` whose module `feature` defines
`FEATURE`. A feature of an installed package is a `Feature` object that an entry point in the group
"temper.features" names. Everything that a feature adds is given by its address, `module:name`, and
is loaded when it is first needed. So finding all features imports only their `feature` modules,
which import nothing but this module.
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
        module: the address of a module with the functions `add_arguments(parser)` and
            `run(options)`.
        help: one line of help.
        group: the heading in `temper --help`.
        resuming: subcommands that resume their work if the user gives them again after an
            interruption, such as `("queue run",)`.
    """

    module: str
    help: str
    group: str
    resuming: tuple[str, ...] = ()


@dataclass(frozen=True)
class Feature:
    """All parts that a feature adds to Temper. An address is `module:name`.

    Attributes:
        name: the name of its folder, and the topic of its messages in `messages.toml`.
        fields: section of the configuration ("" is the root) → address of the `ConfigSection` class
            whose fields that section gets.
        flags: canonical key → its flags, if they do not follow the rule in `config.sources.flags`.
        aliases: alternative prefix of keys → the canonical prefix. If the latter ends with "_", the
            fields can also be given as a section.
        enables: extension → the name of the training setting that enables it.
        needs_own_loop: whether its extensions work only in Temper's own training loop.
        adds_weights: whether its extensions add weights to the model.
        plugins: entry point group of a registry ("temper.strategies") → name → address of a
            plug-in. In the group "temper.models", a plug-in builds a model, and the model's adapter
            has the same name.
        commands: name → the command.
        additions: command → module that adds flags to it. The module's `run(options)` either does
            the work and returns the exit code, or returns None, so that the command itself runs.
        contradictions: address of a table of settings that contradict each other, as in
            `config.merging.contradictions`.
        added_weights: address of a table of facts that contradict weights which an extension adds
            to the model.
        sharded: address of a table of facts that contradict a model sharded over processes.
        facts: name of a fact in these tables → address of a function that gets the configuration.
        checks: address of a function that yields a message for each setting that cannot be applied.
        check_files: address of a function that gets a configuration and raises if a file, folder or
            package that its settings need cannot be used. It does not import torch.
        model_change: address of a function that gets an object with the sections `model` and
            `training`, and returns a `models.model_change.ModelChange`, or None.
        elsewhere: name of a setting in other tools → the settings here, as in `config.elsewhere`.
        advice: address of a function that yields a note for each setting that costs more than it
            seems to. It gets a configuration, and a function that returns whether the user has set
            a key.
        objective: address of a function that returns an objective which masks tokens, or None. It
            gets the section `training`, a tokenizer and its number of tokens.
        default_plugins: entry point group of a registry → plug-ins that are chosen by default.
        watchers: addresses of functions that get a configuration and a run's directory, and return
            a `Watcher` of the monitor, an `Observer` of the training, or None.
        report: addresses of functions that return a section of the report for a `RunView`.
        live: addresses of those functions whose sections are also on the live page.
        models: keys of settings that name another model: a run, a folder or a Hub name. Its weights
            are compared themselves when a run resumes.
        folders: keys of settings whose values are folders on this machine.
        own_code: address of a function that yields the entry point group and the address of each
            user-defined part in the feature's own settings.
        run_files: files that it writes into a run directory and that are backed up with the run.
        outputs: name of an output in a run directory → code of the text that describes it.
        export_files: addresses of functions that write files into the folder of an exported model.
            They get the run, the folder, the name that it will have, the step, and lines about the
            export.
        notebook: names that `import colab` offers → module.
        on_samples: address of a function that is called when a run uses the sample data. It gets a
            configuration and the text that names the source, and may change settings that the user
            has not set.
        names: name that can be imported from `infrastructure.training` → module that defines it.
        instead: name that does not exist in `infrastructure.training` → code of the message that
            names its replacement.
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
    sharded: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    checks: str | None = None
    check_files: str | None = None
    model_change: str | None = None
    elsewhere: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    advice: str | None = None
    objective: str | None = None
    default_plugins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    watchers: tuple[str, ...] = ()
    report: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    own_code: str | None = None
    run_files: tuple[str, ...] = ()
    outputs: Mapping[str, str] = field(default_factory=dict)
    export_files: tuple[str, ...] = ()
    notebook: Mapping[str, str] = field(default_factory=dict)
    on_samples: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)

    @property
    def extensions(self) -> list[str]:
        """The names of the extensions that this feature adds."""
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
    """Yield all objects whose addresses the features have in `attribute`."""
    for feature in features():
        value = getattr(feature, attribute)
        for address in (value,) if isinstance(value, str) else value or ():
            yield loaded(address)


def merged(attribute: str) -> dict[str, Any]:
    """Return the union of a mapping attribute over all features."""
    return {k: value for f in features() for k, value in getattr(f, attribute).items()}


def plugins_of(group: str) -> dict[str, str]:
    """Return the plug-ins that features add to the registry `group`: name → address."""
    return {n: address for f in features() for n, address in f.plugins.get(group, {}).items()}


def default_plugins(group: str) -> list[str]:
    """Return the names of plug-ins in the registry `group` that features choose by default."""
    return [name for feature in features() for name in feature.default_plugins.get(group, ())]


def fields_for(section: str) -> tuple[Any, ...]:
    """Return the classes with the fields that features add to a section of the configuration."""
    return tuple(loaded(f.fields[section]) for f in features() if section in f.fields)


def fields_of_features(section: str) -> frozenset[str]:
    """Return the names of the fields that features add to a section of the configuration."""
    kinds = fields_for(section)
    return frozenset(name for kind in kinds for name in getattr(kind, "model_fields", ()))


def extensions_with(attribute: str, *, value: bool = True) -> set[str]:
    """Return the names of features' extensions whose `attribute` (such as `adds_weights`) is
    `value`.
    """
    return {name for f in features() if getattr(f, attribute) is value for name in f.extensions}


def models_of_features(*, in_base: bool = False) -> tuple[str, ...]:
    """Return the keys of features' settings that name another model.

    Args:
        in_base: only those whose weights become weights of the trained model.
    """
    from_features = (f for f in features() if f.model_change is not None or not in_base)
    return tuple(key for feature in from_features for key in feature.models)


def run_files_of_features() -> list[str]:
    """Return the names of the files that features write into a run directory."""
    return [name for feature in features() for name in feature.run_files]


def prefixes_of_features() -> tuple[str, ...]:
    """Return the prefixes of the metrics that features add, such as `quantum_`."""
    return tuple(f"{feature.name}_" for feature in features())
