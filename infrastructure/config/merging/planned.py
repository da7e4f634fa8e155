"""What the configuration knows already and the training cannot do yet.

A setting that waits for a later part loads and validates, so that every file can be written now;
`unsupported` refuses it when a run starts, and `notes` tells what has no effect yet.
"""

from collections.abc import Callable, Collection, Iterator

from infrastructure.config.base import ConfigSection
from infrastructure.config.field_help import format_value, metadata_of
from infrastructure.config.merging.precedence import Layer, Source
from infrastructure.config.schema import FieldSpec, schema_of, value_at
from infrastructure.config.types import Planned, RegisteredName
from infrastructure.core.parts import PARTS as PARTS

SourceOf = Callable[[str], Source]


def later_of(spec: FieldSpec) -> Planned | None:
    """The mark of a field whose feature comes later."""
    mark: Planned | None = metadata_of(spec.info, Planned)
    return mark


def unsupported(
    config: ConfigSection, source_of: SourceOf, keys: Collection[str] | None = None
) -> Iterator[str]:
    """A sentence for each setting (of `keys`; None: of all) that this version cannot carry out."""
    for spec, later, value in _waiting(config):
        if _waits(spec, later, value) and (keys is None or spec.key in keys):
            yield (
                f"{spec.key} = {format_value(value)} ({source_of(spec.key).place}) is not there"
                f" yet: it comes with {PARTS[later.part]};"
                f" {later.today or 'leave it out until then'}"
            )


def notes(config: ConfigSection, source_of: SourceOf) -> Iterator[str]:
    """A sentence for each setting that somebody gave and that has no effect yet."""
    for spec, later, value in _waiting(config):
        given = source_of(spec.key).layer is not Layer.DEFAULT
        if not given or later.values or _waits(spec, later, value):
            continue
        yield (
            f"{spec.key} = {format_value(value)} ({source_of(spec.key).place}) has no effect yet: "
            f"it comes with {PARTS[later.part]}"
        )


def _waiting(config: ConfigSection) -> Iterator[tuple[FieldSpec, Planned, object]]:
    for spec in schema_of(type(config)).fields.values():
        later = later_of(spec)
        if later is not None:
            yield spec, later, value_at(config, spec.key)


def _waits(spec: FieldSpec, later: Planned, value: object) -> bool:
    """Whether the value, or one of a list's, waits for a later part. What somebody has added under
    a name that is kept for one is there."""
    if not later.values:
        return bool(value != spec.default)
    values = value if isinstance(value, list) else [value]
    named = metadata_of(spec.info, RegisteredName)
    waiting = [one for one in values if one in later.values]
    return any(not (named and named.registry.is_here(one)) for one in waiting)
