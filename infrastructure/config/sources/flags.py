"""A command-line flag for every field of the configuration.

The flag of a field in the root, `model`, `data` or `training` is named like the field
(`--batch-size`). For any other field, the name of its section comes first (`--cache-disk-size`,
`--lora-r`). A leading `enable_` is dropped (`--backups`). `NAMES` lists the exceptions. Booleans
are switched by `--x` and `--no-x`; every other flag takes a value. If a flag is given twice, the
last value applies, except that a list gets the items of both, and a mapping may be given only once.
"""

import argparse
import json
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_origin

from infrastructure.config.base import ConfigurationError, kinds, owners
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.elsewhere import SAME
from infrastructure.config.field_help import allowed_values, choices, leaves, placeholder, plain
from infrastructure.config.merging.precedence import GivenValue, Layer, Source, flatten
from infrastructure.config.merging.presets import NO_PRESET, PRESET, PRESETS
from infrastructure.config.schema import FieldSpec, Schema, schema_of
from infrastructure.config.types import split_commas
from infrastructure.core.features import merged
from infrastructure.core.lookup import unknown_name
from infrastructure.core.messages import ARGUMENTS, as_key, phrase, spelled, spelled_by

# Names that are too general to stand alone, and names that the specifications prescribe.
NAMES: dict[str, tuple[str, ...]] = {
    "model.name": ("--model", "--model-name"),
    "model.adapter": ("--model-adapter",),
    "model.lora_config": ("--lora",),
    "data.path": ("--data-path",),
    "data.eval_path": ("--eval-data",),
    "data.format": ("--data-format",),
    "data.shape": ("--data-shape",),
    "training.num_epochs": ("--epochs", "--num-epochs"),
    "training.rewards": ("--reward", "--rewards"),
    "training.checkpoint_frequency": ("--save-steps", "--checkpoint-frequency"),
    "training.checkpoint_interval": ("--save-epochs", "--checkpoint-interval"),
    "training.checkpoint_seconds": ("--save-seconds", "--checkpoint-seconds"),
    "training.validation_frequency": ("--eval-steps", "--validation-frequency"),
    "training.validation_interval": ("--eval-epochs", "--validation-interval"),
    "training.log_frequency": ("--log-steps", "--log-frequency"),
    "backup.allow_missing_place": ("--allow-missing-place",),
    "output_dir": ("--output", "--output-dir"),
    "run_name": ("--name", "--run-name"),
}
# Names of other tools that are taken as flags, too; what they mean is in `config.elsewhere`.
TYPED = (
    *("seq_length", "seq_len", "max_seq_length", "cutoff_len", "lora_rank", "base_model"),
    *("model_name_or_path", "bs", "per_device_train_batch_size", "save_every", "logging_steps"),
    *("gradient_accumulation_steps", "grad_accum", "lr", "report_to", "num_train_epochs", "optim"),
    *("lr_scheduler", "lr_scheduler_type"),
)
ALIASES: dict[str, list[str]] = {}
for _name in TYPED:
    ALIASES.setdefault(SAME[_name][0], []).append(f"--{_name.replace('_', '-')}")
PRESET_FLAG = f"--{PRESET}"
_AS_ARGUMENT = {"data": "data.path"}  # of functions, where the name of the flag is another one

_OWN_NAME = {"", "model", "data", "training"}
SETTINGS_DEST = "config_flags"


def flag_names(key: str) -> tuple[str, ...]:
    """Return all flags of a canonical key; for a boolean, those that switch it on."""
    if (names := _names().get(key)) is not None:
        return names
    section, _, name = key.rpartition(".")
    inner = section.rpartition(".")[2].removesuffix("_config")
    own = name.removeprefix("enable_") if section in _OWN_NAME else f"{inner}_{name}"
    return ("--" + own.replace("_", "-"),)


@cache
def _names() -> Mapping[str, tuple[str, ...]]:
    return NAMES | merged("flags")


def key_of_keyword(name: str) -> str:
    """Return the canonical key of a flag's Python name: `max_steps`, `lora`, `backup_place`.

    Any other name is returned unchanged, and so is a negated name (`no_lora`), because
    `no_lora=True` would otherwise enable LoRA.
    """
    key = key_of_flag("--" + name.replace("_", "-"))
    is_off = name.startswith("no_") and key_of_flag("--" + name[3:].replace("_", "-")) == key
    return name if key is None or is_off else key


def keyword_settings(
    keywords: Mapping[str, object], schema: Schema, layer: Layer
) -> Iterator[GivenValue]:
    """Yield the settings of keyword arguments, named like flags or as for `DeploymentConfig`.

    `model` and `data` can be the name of a model and the path of data, or mappings with a section.
    """
    for name, value in keywords.items():
        is_section = name in schema.section_spellings and not isinstance(value, str | Path)
        key = _AS_ARGUMENT.get(name) or key_of_keyword(name)
        key = name if is_section and key not in schema.sections else key

        def source(path: str, name: str = name, key: str = key) -> Source:
            return Source(layer, f"{layer} {name}{path.removeprefix(key)}")

        given = str(value) if isinstance(value, Path) else value
        yield from flatten({key: given}, schema, source)


def keyword_of(key: str) -> str:
    """Return the Python keyword for a canonical key's flag, such as `max_steps`."""
    return flag_names(key)[0].removeprefix("--").replace("-", "_")


def key_of_flag(flag: str) -> str | None:
    """Return the canonical key that a flag sets; None if there is no such flag."""
    return _keys_by_flag(schema_of(DeploymentConfig)).get(flag)


def as_flag(key: str, value: str = "") -> str:
    """Return a setting as on a command line: `--batch-size 4`, `--no-lora`."""
    if key in ARGUMENTS:
        return f"{ARGUMENTS[key]} {value}".rstrip()
    spec = schema_of(DeploymentConfig).fields.get(key)
    if spec is None:
        return as_key(key, value)
    name = flag_names(key)[0]
    if is_truth(spec):
        return f"--no-{name.removeprefix('--')}" if value in ("false", "none") else name
    return f"{name} {shlex.quote(value)}" if value else name


def as_flags(settings: Mapping[str, object]) -> str:
    """Return settings as on a command line, with each value as a user types it."""
    pairs = ((key, plain(value)) for key, value in settings.items())
    return " ".join(as_flag(key, value) if value else f"{as_flag(key)} ''" for key, value in pairs)


def add_config_flags(
    parser: argparse.ArgumentParser,
    keys: Collection[str] | None = None,
    inherited: Collection[str] = (),
    default_of_inherited: str = "",
) -> None:
    """Add `--config` and flags for all or for some fields, in one group for each section.

    Abbreviated flags are disabled on this parser: only the names that the help shows are accepted.

    Args:
        inherited: the keys of settings that the command takes from a run by default.
        default_of_inherited: the text in the help for the default of these settings.
    """
    parser.allow_abbrev = False
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=phrase("config.config_flag_help"),
    )
    groups: dict[str, object] = {}
    for key, spec in schema_of(DeploymentConfig).fields.items():
        if keys is not None and key not in keys:
            continue
        section, note = (
            spec.key.rpartition(".")[0] or "run",
            vars(spec.section).get("help_note", ""),
        )
        if key in owners():
            section, note = f"{section}, {owners()[key].heading}", owners()[key].help_note
        if section not in groups:
            groups[section] = parser.add_argument_group(section, _in_flags(note).replace("%", "%%"))
        _add_flag(groups[section], spec, default_of_inherited if key in inherited else "")


def add_preset_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag `--preset` to a parser."""
    purposes = "; ".join(f"{name}: {preset.purpose}" for name, preset in PRESETS.items())
    parser.add_argument(
        PRESET_FLAG,
        action=_Remember,
        dest=SETTINGS_DEST,
        default=argparse.SUPPRESS,
        metavar="NAME",
        help=phrase(
            "config.preset_flag_help", names=[*PRESETS], purposes=purposes, no_preset=NO_PRESET
        ),
    )


def flags_given(namespace: argparse.Namespace) -> dict[str, Any]:
    """Return the flags that were typed, with their values; empty if there were none."""
    return dict(getattr(namespace, SETTINGS_DEST, {}))


def flag_settings(flags: Mapping[str, object], schema: Schema) -> list[GivenValue]:
    """Return the settings that flags (`--batch-size`) or canonical keys (`data.path`) give.

    Raises:
        ConfigurationError: if there is no such flag.
    """
    keys = _keys_by_flag(schema)
    settings: list[GivenValue] = []
    for given, value in flags.items():
        if given.startswith("--") and given not in keys:
            raise ConfigurationError(unknown_name("flag", given, keys))
        source = Source(Layer.FLAG, given if given.startswith("--") else f"argument {given}")
        settings += flatten({keys.get(given, given): value}, schema, lambda _, s=source: s)  # type: ignore[misc]
    return settings


@cache
def _keys_by_flag(schema: Schema) -> dict[str, str]:
    keys = {flag: key for key, spec in schema.fields.items() for flag in _all_flags(spec)}
    return {**keys, PRESET_FLAG: PRESET}


class _Remember(argparse.Action):
    """An argparse action that stores the value under the flag as typed, for use in messages."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        flag = str(option_string)
        is_off = self.nargs == 0 and flag.startswith("--no-")
        value = not is_off if self.nargs == 0 else values
        given = getattr(namespace, SETTINGS_DEST, {})
        setattr(namespace, SETTINGS_DEST, {**given, flag: self._after(given.get(flag), value)})

    def _after(self, earlier: Any, value: Any) -> Any:
        """Return the value to store, given the earlier value of the same flag, if any."""
        return value


class _Gather(_Remember):
    """An argparse action for lists: `--reward a --reward b` is the same as `--reward a,b`."""

    def _after(self, earlier: Any, value: Any) -> Any:
        if earlier is None:
            return value
        try:
            items = [item for text in (earlier, value) for item in split_commas(text)]
        except ValueError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        return plain(items) if all(isinstance(item, str) for item in items) else json.dumps(items)


class _Once(_Remember):
    """An argparse action for mappings, which may be given only once."""

    def _after(self, earlier: Any, value: Any) -> Any:
        if earlier is not None and earlier != value:
            raise argparse.ArgumentError(self, phrase("config.mapping_given_twice"))
        return value


def is_truth(spec: FieldSpec) -> bool:
    """Return whether a setting's flag takes no value, as for booleans."""
    return spec.is_switch or kinds(spec.info.annotation) <= {bool, type(None)}


def _all_flags(spec: FieldSpec) -> list[str]:
    flags = [*flag_names(spec.key), *ALIASES.get(spec.key, [])]
    off = ["--no-" + flag.removeprefix("--") for flag in flags]
    return flags + off if is_truth(spec) else flags


def _add_flag(group: Any, spec: FieldSpec, default: str) -> None:
    names, takes, text = _words_of(spec.key, default)
    group.add_argument(
        *names,
        action=_action(spec),
        dest=SETTINGS_DEST,
        default=argparse.SUPPRESS,
        help=text,
        **takes,
    )


def _action(spec: FieldSpec) -> type[_Remember]:
    if _is_list(spec):
        return _Gather
    return _Once if dict in _kinds_held(spec) else _Remember


def _is_list(spec: FieldSpec) -> bool:
    return list in _kinds_held(spec)


def _kinds_held(spec: FieldSpec) -> set[Any]:
    return {get_origin(leaf) for leaf in leaves(spec.info.annotation)}


@cache
def _words_of(key: str, default: str) -> tuple[list[str], dict[str, Any], str]:
    """Return the names of a setting's flag, its arguments for argparse, and its help."""
    spec = schema_of(DeploymentConfig).fields[key]
    takes = {"nargs": 0} if is_truth(spec) else {"metavar": _metavar(spec)}
    return _all_flags(spec), takes, help_text(spec, default).replace("%", "%%")


def _metavar(spec: FieldSpec) -> str:
    if words := choices(spec.info):
        return "{" + ",".join(words) + "}"
    if dict in _kinds_held(spec):
        return "JSON"
    if _is_list(spec):
        return "LIST"
    types = kinds(spec.info.annotation)
    usual = "N" if int in types else "X" if float in types else "TEXT"
    return placeholder(spec.info.annotation, spec.info.metadata) or usual


def help_text(spec: FieldSpec, default: str = "") -> str:
    """Return the help of a flag: description, accepted values, how to give several values, default.

    Args:
        default: a description of the default, if it is not that of the field.
    """
    if not default:
        off = "off" if spec.is_switch else "not set"
        is_unset = is_truth(spec) and spec.default is None
        default = f"default: {off if is_unset else plain(spec.default)}"
    allowed = allowed_values(spec.info)
    has_no_words = is_truth(spec) or choices(spec.info) or allowed.startswith(("a text", "a path"))
    takes = "" if has_no_words else f" Takes {allowed}."
    several = phrase("config.list_flag_help") if _is_list(spec) else ""
    return f"{_in_flags(str(spec.info.description))}{takes}{several} ({default})"


def _in_flags(text: str) -> str:
    """Return a text in which settings are spelled as flags."""
    with spelled_by(as_flag):
        return spelled(text)
