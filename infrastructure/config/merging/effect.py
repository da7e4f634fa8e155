"""Detection of settings that have no effect in a configuration, by the `UsedWhen` marks of fields.

A setting without effect is refused if its value is not the default. A default that was given
explicitly is only noted, because files are shared between runs.
"""

from collections.abc import Callable, Collection, Iterator

from infrastructure.config.base import ConfigSection
from infrastructure.config.field_help import as_typed
from infrastructure.config.merging.precedence import Layer, Source, where
from infrastructure.config.schema import FieldSpec, schema_of, value_at
from infrastructure.config.types import UsedWhen
from infrastructure.core.messages import Setting, phrase

SourceOf = Callable[[str], Source]


def conditions_of(spec: FieldSpec) -> list[UsedWhen]:
    """Return the conditions under which a field has an effect: its section's and its own."""
    own = [item for item in spec.info.metadata if isinstance(item, UsedWhen)]
    return [*spec.section.used_when, *own]


def refused_without_effect(
    config: ConfigSection, source_of: SourceOf, keys: Collection[str] | None = None
) -> Iterator[str]:
    """Yield an error, with the remedy, for each given setting that has no effect.

    Args:
        keys: the keys of the settings to check; by default, all.
    """
    for spec, condition, value in _without_effect(config):
        if value != spec.default and (keys is None or spec.key in keys):
            yield f"{_sentence(spec, condition, value, source_of)}. {phrase(condition.remedy)}"


def noted_without_effect(config: ConfigSection, source_of: SourceOf) -> Iterator[str]:
    """Yield a note for each setting without effect that was explicitly given its default.

    Defaults that switch something off are left out.
    """
    for spec, condition, value in _without_effect(config):
        is_given = source_of(spec.key).layer is not Layer.DEFAULT
        if value and value == spec.default and is_given:
            yield _sentence(spec, condition, value, source_of)


def has_effect(config: ConfigSection, spec: FieldSpec) -> bool:
    """Return whether a field has an effect in this configuration."""
    return _unmet(config, spec) is None


def _without_effect(config: ConfigSection) -> Iterator[tuple[FieldSpec, UsedWhen, object]]:
    for spec in schema_of(type(config)).fields.values():
        unmet = _unmet(config, spec)
        if unmet is not None:
            yield spec, unmet, value_at(config, spec.key)


def _unmet(config: ConfigSection, spec: FieldSpec) -> UsedWhen | None:
    return next((one for one in conditions_of(spec) if not one.holds(config)), None)


def _sentence(spec: FieldSpec, unmet: UsedWhen, value: object, source_of: SourceOf) -> str:
    return phrase(
        "config.setting_without_effect",
        setting=Setting(spec.key, as_typed(value)),
        where=where(source_of(spec.key)),
        otherwise=unmet.reason(),
    )
