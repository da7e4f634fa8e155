"""Layers of settings, and their merge into one configuration in a single pass.

`flatten` makes a layer: a list of settings under canonical keys, each with its source. `merge`
checks each value once, and chooses the value of the highest layer for each key. Inside one layer,
two values for one key must be equal, even if the key is spelled in two ways. `nested` builds the
sections from the chosen values. This module does not depend on files, the environment or the
command line.
"""

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, is_dataclass
from enum import StrEnum
from typing import Any

from infrastructure.config.aliases import canonical
from infrastructure.config.base import ConfigSection, ConfigurationError
from infrastructure.config.elsewhere import SAME, known_elsewhere, plain_name
from infrastructure.config.field_help import format_value
from infrastructure.config.merging.presets import NO_PRESET, PRESET, PRESETS
from infrastructure.config.schema import Schema
from infrastructure.config.sections.training_config import EPOCHS_OR_STEPS
from infrastructure.core.errors import InputError
from infrastructure.core.lookup import unknown_name
from infrastructure.core.messages import (
    ARGUMENTS,
    INTERRUPT,
    Speller,
    as_key,
    phrase,
    spelled_by,
    speller,
)
from infrastructure.core.messages import Setting as Named

_RHYTHMS = {f"training.{a}": f"training.{b}" for a, b in EPOCHS_OR_STEPS.items()}
# Maps each of these settings to the one that it switches off, by key.
EXCLUDING = _RHYTHMS | {b: a for a, b in _RHYTHMS.items()}
_ARGUMENTS = {"data.path": "DATA", "model.name": "MODEL"}  # positional arguments of a command line
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Layer(StrEnum):
    """The layers of settings, lowest first. A preset is just below the layer that names it."""

    DEFAULT = "default"
    FILE = "file"
    PRESET = "preset"
    CELL = "cell"
    ENVIRONMENT = "environment"
    FLAG = "flag"
    KEYWORD = "keyword"
    FORM = "form"


# For these, the source says more than the name of a setting: file and line, the preset.
_PLACED = (Layer.FILE, Layer.PRESET, Layer.CELL, Layer.FORM)


@dataclass(frozen=True)
class Source:
    """The source of a value, such as a flag or a file, in words for the user."""

    layer: Layer
    place: str


def where(source: Source) -> str:
    """Return the source of a value as a suffix for messages.

    Return "" if the spelling of the setting already shows the source.
    """
    return f" ({source.place})" if source.layer in _PLACED else ""


def place_of(source: Source, key: str) -> str:
    """Return the source of a value as the subject of a sentence."""
    return source.place if source.layer in _PLACED else spelled_as(source, key)


@contextmanager
def spelled_as_given(source_of: Callable[[str], Source]) -> Iterator[None]:
    """Inside the block, spell each setting in messages as the user gave it.

    Settings that the user did not give are spelled as before.
    """
    door = speller()

    def spell(key: str, value: str) -> str:
        if key in ARGUMENTS or key == INTERRUPT:  # nothing that a configuration has a source of
            return door(key, value)
        return spelled_as(source_of(key), key, value, door)

    with spelled_by(spell):
        yield


def spelled_as(source: Source, key: str, value: str = "", door: Speller | None = None) -> str:
    """Return a setting, spelled in the way in which the user gave its value.

    Args:
        door: the function that spells the setting if the user did not give it.
    """
    match source.layer, source.place:
        case Layer.FLAG, place if place.startswith("--"):
            takes_none = place.startswith("--no-") or value in ("", "true", "false")
            return place if takes_none else f"{place} {shlex.quote(value)}"
        case Layer.FLAG, place:
            return _ARGUMENTS.get(place.removeprefix("argument "), key)
        case Layer.ENVIRONMENT, place:
            return place.removeprefix("environment ") + (f"={value}" if value else "")
        case Layer.FILE, _:
            return as_key(key, value)
    return (door or speller())(key, value)


@dataclass(frozen=True)
class GivenValue:
    """The value that one layer gives for a canonical key, with its source."""

    key: str
    value: Any
    source: Source


def parse_truth(text: str) -> bool:
    """Parse `true`, `yes`, `1`, `false`, `no` or `0`, in any case.

    Raises:
        ValueError: if the text is anything else.
    """
    if text.strip().lower() not in _TRUTH:
        raise InputError("config.not_a_boolean", value=format_value(text))
    return _TRUTH[text.strip().lower()]


def flatten(
    values: Mapping[Any, Any], schema: Schema, source: Callable[[str], Source], prefix: str = ""
) -> Iterator[GivenValue]:
    """Yield the settings in nested sections, each with its source.

    Args:
        source: returns the source of a value, given its path as the user wrote it.

    Raises:
        ConfigurationError: if the value of a section is not a mapping.
    """
    for name, value in values.items():
        path = f"{prefix}{name}"
        section = schema.section_spellings.get(path)
        if section is None:
            yield GivenValue(schema.spellings.get(path) or canonical(path), value, source(path))
            continue
        inner, switch = _open(section, value, schema, source(path))
        if switch is not None:
            yield switch
        yield from flatten(inner, schema, source, f"{path}.")


def _open(
    section: str, value: object, schema: Schema, source: Source
) -> tuple[Mapping[object, object], GivenValue | None]:
    """Return the contents of a section's value and, for an optional section, its on/off setting."""
    if isinstance(value, ConfigSection):
        value = {name: getattr(value, name) for name in value.model_fields_set}
    elif is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if section in schema.fields and (isinstance(value, bool | str) or value is None):
        return {}, GivenValue(section, _truth_of(section, value, source), source)
    if value is None:
        return {}, None
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            "config.value_for_a_section",
            rstrip=section.rstrip("_"),
            value=format_value(value),
            where=where(source),
            section=_meant(section),
        )
    return value, GivenValue(section, True, source) if section in schema.fields else None


def _meant(section: str) -> str:
    """Return a hint if other tools have a setting with the name of this section, else ""."""
    name = plain_name(section.rstrip("_"))
    return f"; {known_elsewhere(name)}" if name in SAME else ""


def _truth_of(section: str, value: bool | str | None, source: Source) -> bool:
    if not isinstance(value, str):
        return bool(value)
    if value.strip().lower() in ("none", "null"):
        return False
    try:
        return parse_truth(value)
    except ValueError:
        with spelled_as_given(lambda _: source):
            text = phrase(
                "config.wrong_value",
                setting=Named(section),
                allowed="true or false",
                value=format_value(value),
                hint="",
            )
        raise ConfigurationError(f"{text}{where(source)}") from None


def merge(
    layers: list[list[GivenValue]], schema: Schema, not_by_preset: Collection[str] = ()
) -> dict[str, GivenValue]:
    """Return canonical key → the checked setting that applies; `layers` begins with the lowest.

    Args:
        not_by_preset: keys that no preset may set.

    Raises:
        ConfigurationError: if keys or a preset are unknown, or values are wrong or contradictory
            inside a layer. All errors are reported together.
    """
    problems: list[ConfigurationError] = []
    merged: dict[str, GivenValue] = {}
    for layer in _with_preset(layers):
        left = [s for s in layer if not (is_of_preset(s) and s.key in not_by_preset)]
        one = _one_layer(left, schema, problems)
        off = _switched_off(one)
        for key in [key for key in merged if key.startswith(off)]:
            del merged[key]
        merged |= one
    if problems:
        raise ConfigurationError("\n".join(dict.fromkeys(map(str, problems)))) from problems[0]
    return merged


def is_of_preset(setting: GivenValue) -> bool:
    """Return whether a preset set this setting."""
    return setting.source.layer is Layer.PRESET


def overridden_by_preset(
    layers: list[list[GivenValue]], merged: Mapping[str, GivenValue]
) -> list[str]:
    """Return a sentence for each preset that overrides values that the user gave."""
    places: dict[str, list[str]] = {}
    for setting in (setting for layer in layers for setting in layer):
        holds = merged.get(setting.key)
        if holds is None or not is_of_preset(holds):
            continue
        if not is_of_preset(setting) and setting.value != holds.value:
            places.setdefault(holds.source.place, []).append(setting.source.place)
    return [
        phrase("config.preset_overrides", preset=preset, others=", ".join(dict.fromkeys(others)))
        for preset, others in places.items()
    ]


def _with_preset(layers: list[list[GivenValue]]) -> list[list[GivenValue]]:
    """Return the layers, with the settings of the chosen preset inserted as a further layer.

    If several layers name a preset, the one in the highest layer is chosen.
    """
    levels = [level for level, one in enumerate(layers) if any(s.key == PRESET for s in one)]
    if not levels:
        return layers
    plain = [[s for s in layer if s.key != PRESET] for layer in layers]
    # of a configuration that was made before: without what its own preset set
    below = [[s for s in one if not is_of_preset(s)] for one in plain[: levels[-1]]]
    named = [s for s in layers[levels[-1]] if s.key == PRESET]
    return [*below, _settings_of(named), *plain[levels[-1] :]]


def _settings_of(named: list[GivenValue]) -> list[GivenValue]:
    """Return the settings of the preset that a layer chooses.

    Args:
        named: the layer's settings of the key `preset`.
    """
    first, *others = named
    for other in others:
        if other.value != first.value:
            raise ConfigurationError(
                "config.two_presets",
                first_source=place_of(first.source, PRESET),
                first=format_value(first.value),
                second_source=place_of(other.source, PRESET),
                second=format_value(other.value),
            )
    if first.value is None or first.value == NO_PRESET:
        return []
    name = str(first.value)
    if name not in PRESETS:
        raise ConfigurationError(
            "config.setting_says",
            setting=place_of(first.source, PRESET),
            reason=unknown_name(PRESET, name, [*PRESETS, NO_PRESET]),
        )
    source = Source(Layer.PRESET, f"preset {name} ({first.source.place})")
    return [GivenValue(key, value, source) for key, value in PRESETS[name].settings.items()]


def _one_layer(
    layer: list[GivenValue], schema: Schema, problems: list[ConfigurationError]
) -> dict[str, GivenValue]:
    settings: dict[str, GivenValue] = {}
    for setting in layer:
        try:
            with spelled_as_given(lambda _, source=setting.source: source):  # type: ignore[misc]
                checked = _checked(setting, schema)
        except ConfigurationError as error:
            problem = ConfigurationError(f"{error}{where(setting.source)}")
            problem.__cause__ = error  # the line that refused the value
            problems.append(problem)
            continue
        other = settings.get(checked.key)
        if other and other.value != checked.value:
            why = phrase("config.both_mean", setting=Named(checked.key))
            problems.append(_disagreement(other, checked, why))
        settings[checked.key] = checked
    _switch_partners_off(settings, problems)
    off = _switched_off(settings)
    for key in [key for key in settings if key.startswith(off)]:
        switch = next(s for s in settings.values() if s.value is False and _inside(key, s.key))
        why = phrase("config.is_off", setting=Named(switch.key))
        problems.append(_disagreement(switch, settings[key], why))
    return settings


def _checked(setting: GivenValue, schema: Schema) -> GivenValue:
    spec = schema.fields.get(setting.key)
    if spec is None:
        raise ConfigurationError(schema.unknown_key(setting.key))
    if spec.is_switch:
        return setting
    value = spec.section.check_value(spec.name, setting.value)
    return GivenValue(setting.key, value, setting.source)


def _switch_partners_off(
    settings: dict[str, GivenValue], problems: list[ConfigurationError]
) -> None:
    """Clear the interval in epochs if the same interval is set in steps, and vice versa."""
    for key in [key for key in EXCLUDING if key in settings]:
        if settings[key].value is None:
            continue
        partner = settings.get(EXCLUDING[key])
        if partner is None:
            off = GivenValue(EXCLUDING[key], None, settings[key].source)
            settings[off.key] = off
        elif partner.value is not None and key in _RHYTHMS:
            why = phrase(
                "config.interval_in_epochs_and_steps",
                in_epochs=Named(key),
                in_steps=Named(partner.key),
            )
            problems.append(_disagreement(settings[key], partner, why))


def _disagreement(one: GivenValue, other: GivenValue, why: str) -> ConfigurationError:
    return ConfigurationError(
        "config.sources_disagree",
        first_source=place_of(one.source, one.key),
        first=format_value(one.value),
        second_source=place_of(other.source, other.key),
        second=format_value(other.value),
        reason=why,
    )


def _inside(key: str, switch: str) -> bool:
    return key.startswith(f"{switch}.")


def _switched_off(settings: dict[str, GivenValue]) -> tuple[str, ...]:
    """Return the key prefixes of optional sections that are switched off."""
    return tuple(f"{s.key}." for s in settings.values() if s.value is False)


def nested(merged: Mapping[str, GivenValue], schema: Schema) -> dict[str, Any]:
    """Convert merged settings to keyword arguments of the root section, with sections built."""
    keywords: dict[str, object] = {}
    inside: dict[str, dict[str, object]] = {path: {} for path in schema.sections}
    for setting in merged.values():
        if not schema.fields[setting.key].is_switch:
            section, _, name = setting.key.rpartition(".")
            value = deepcopy(setting.value)  # a later change of a list must not change the setting
            (inside[section] if section else keywords)[name] = value
    for path in sorted(schema.sections, key=lambda path: -path.count(".")):
        outer, _, name = path.rpartition(".")
        if path in schema.fields and not inside[path] and not _is_on(path, merged):
            built = None
        else:
            built = schema.sections[path].of_checked(inside[path])
        (inside[outer] if outer else keywords)[name] = built
    return keywords


def _is_on(path: str, merged: Mapping[str, GivenValue]) -> bool:
    return path in merged and merged[path].value is True
