"""The base of all configuration sections: a pydantic model whose errors are readable sentences.

Every wrong value that a user can write raises a `ConfigurationError` (a `ValueError`) that names
the field, what it accepts and what was given. Unknown names are refused, and the most similar
name is suggested. Values are checked when a section is created and when a field is assigned.
"""

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from infrastructure.config.aliases import spelt_in_section
from infrastructure.config.elsewhere import SAME_WORDS, known_elsewhere, plain_name
from infrastructure.config.field_help import (
    allowed_values,
    choices,
    format_value,
    metadata_of,
    words_taken,
)
from infrastructure.config.types import (
    LARGEST,
    Allowed,
    RegisteredName,
    UnknownNameError,
    UsedWhen,
)
from infrastructure.core.errors import InputError
from infrastructure.core.features import features, fields_for, loaded
from infrastructure.core.lookup import did_you_mean, nearest
from infrastructure.core.messages import Setting, phrase


class ConfigurationError(InputError):
    """An error for wrong settings. Its text has one sentence per problem, ready for the user."""


class ConfigSection(BaseModel):
    """The base class of all sections.

    Attributes:
        prefix: the section's path in the configuration, such as "training".
        used_when: conditions that apply to all fields of the section.
        help_note: the text that introduces the section's flags in help.
        heading: the heading, in help and forms, of fields that a feature adds to another section;
            "" for the heading of that section.
    """

    prefix: ClassVar[str] = ""
    used_when: ClassVar[tuple[UsedWhen, ...]] = ()
    help_note: ClassVar[str] = ""
    heading: ClassVar[str] = ""
    model_config = ConfigDict(extra="forbid", validate_assignment=True, allow_inf_nan=False)

    def __init__(self, /, **values: object) -> None:
        values = self._canonical(values)
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigurationError(sentences(type(self), error, values)) from None
        self.check_together()

    def __setattr__(self, name: str, value: object) -> None:
        if name not in type(self).model_fields:
            if not name.startswith("_") and not hasattr(type(self), name):
                raise ConfigurationError(unknown_field(type(self), name))
            super().__setattr__(name, value)
            return
        before, was_set = self.__dict__[name], name in self.model_fields_set
        try:
            super().__setattr__(name, value)
        except ValidationError as error:
            raise ConfigurationError(sentences(type(self), error, {name: value})) from None
        try:
            self.check_together()
        except ConfigurationError:
            self.__dict__[name] = before
            if not was_set:
                self.model_fields_set.discard(name)
            raise

    def check_together(self) -> None:
        """Check the fields against each other after every change; raise `ConfigurationError`."""

    @classmethod
    def check_value(cls, name: str, value: object) -> object:
        """Check the value of one field independently of the others, and return it converted.

        Raises:
            ConfigurationError: if the field does not accept this value.
        """
        try:
            probe = cls.__pydantic_validator__.validate_assignment(_empty(cls), name, value)
        except ValidationError as error:
            raise ConfigurationError(sentences(cls, error, {name: value})) from None
        return getattr(probe, name)

    @classmethod
    def of_checked(cls, values: Mapping[str, Any]) -> Self:
        """Build the section from values that `check_value` returned. Other fields get defaults.

        Raises:
            ConfigurationError: if the values contradict each other.
        """
        section = cls.model_construct(**values)
        section.check_together()
        return section

    @field_validator("*", mode="before")
    @classmethod
    def _plain_value(cls, value: object, info: ValidationInfo) -> object:
        """Normalize a value before it is validated.

        The text `none` becomes None if the field allows it. A word may be capitalized, or be
        another tool's word for the same value. A boolean is never accepted as a number.
        """
        field = cls.model_fields[str(info.field_name)]
        types = kinds(field.annotation)
        if isinstance(value, str):
            value = value.strip()
            if value.lower() in ("none", "null") and type(None) in types:
                return None
            words = choices(field) or (
                words_taken(field) if metadata_of(field, RegisteredName) else []
            )
            value = _word_of(words, value)
        if isinstance(value, bool) and bool not in types and types & {int, float}:
            raise InputError("config.boolean_for_a_number")
        return value

    @classmethod
    def _canonical(cls, values: Mapping[str, object]) -> dict[str, object]:
        """Return keywords with canonical names; two spellings of a field must have equal values."""
        given: dict[str, tuple[str, object]] = {}
        for spelt, key, value in spelt_in_section(cls.prefix, values):
            section, _, name = key.rpartition(".")
            if section != cls.prefix:
                raise ConfigurationError(
                    "config.key_in_another_section", prefix=cls.prefix, given=spelt, key=key
                )
            if name in given and given[name][1] != value:
                raise ConfigurationError(
                    "config.two_names_for_one_key",
                    first=given[name][0],
                    first_value=format_value(given[name][1]),
                    second=spelt,
                    second_value=format_value(value),
                    key=key,
                )
            given[name] = (spelt, value)
        return {name: value for name, (_, value) in given.items()}

    def copy_with(self, **changes: object) -> Self:
        """Return a copy with some fields changed and checked."""
        changed = self.model_copy(deep=True)
        for name, value in changes.items():
            setattr(changed, name, value)
        return changed


def with_fields_of_features(section: str) -> type[ConfigSection]:
    """Return a base class for a section, with all fields that features add to the section.

    Args:
        section: the path of the section; "" is the root.
    """
    return type("FieldsOfFeatures", fields_for(section) or (ConfigSection,), {"prefix": section})


@cache
def owners() -> Mapping[str, type[ConfigSection]]:
    """Return key → the feature's class, for each field under its feature's own heading."""
    kinds_of_features = (loaded(place) for f in features() for place in f.fields.values())
    headed = [kind for kind in kinds_of_features if kind.heading]
    return {f"{kind.prefix}.{name}": kind for kind in headed for name in kind.model_fields}


def _word_of(words: Collection[str], given: str) -> str:
    """Return the accepted word with the same meaning as `given`; `given` if there is none."""
    if not words or given in words:
        return given
    meant = SAME_WORDS.get(plain_name(given), plain_name(given))
    return next((word for word in words if plain_name(word) == meant), given)


def _empty(section: type[ConfigSection]) -> ConfigSection:
    """Create a section without values, in which a single value can be checked."""
    empty = section.__new__(section)
    empty.__setstate__(
        {
            "__dict__": {},
            "__pydantic_fields_set__": set(),
            "__pydantic_extra__": None,
            "__pydantic_private__": None,
        }
    )
    return empty


def sentences(
    section: type[ConfigSection], error: ValidationError, values: Mapping[str, object]
) -> str:
    """Return one sentence for each wrong field, joined by semicolons."""
    texts: dict[str, str] = {}
    details = error.errors(include_url=False)
    uncountable = {d["loc"][0] for d in details if d.get("ctx", {}).get("le") == LARGEST}
    for detail in details:
        name = str(detail["loc"][0])
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, ConfigurationError):
            texts[name] = str(cause)
        elif name not in section.model_fields:
            texts[name] = unknown_field(section, name)
        else:
            info = section.model_fields[name]
            key = f"{section.prefix}.{name}".removeprefix(".")
            hint = cause.hint if isinstance(cause, UnknownNameError) else None
            if hint is not None and not metadata_of(info, Allowed):
                texts[name] = phrase("config.setting_says", setting=Setting(key), reason=cause)
                continue
            value = values.get(name)
            if name in uncountable:
                hint = phrase("config.largest_number", largest=LARGEST)
            elif not hint:
                hint = did_you_mean(value, choices(info)) if isinstance(value, str) else ""
            texts[name] = phrase(
                "config.wrong_value",
                setting=Setting(key),
                allowed=allowed_values(info),
                value=format_value(value),
                hint=hint or "",
            )
    return "\n".join(texts.values())


def unknown_field(section: type[ConfigSection], name: str) -> str:
    """Return the message for a name that a section does not have."""
    where = section.__name__
    if (known := known_elsewhere(name)) is not None:
        return phrase("config.unknown_key_in", key=name, section=where, advice=known)
    meant = nearest(name, section.model_fields)
    if meant:
        return phrase("config.unknown_key_in_meant", key=name, section=where, meant=meant)
    own = phrase("config.own_settings") if section.prefix == "training" else ""
    return phrase("config.unknown_key_in_list", key=name, section=where, own=own)


def kinds(annotation: Any) -> set[object]:
    """Return the basic types in an annotation, at any depth of unions and `Annotated`."""
    arguments = getattr(annotation, "__args__", None)
    if arguments is None:
        return {annotation}
    if hasattr(annotation, "__metadata__"):
        return kinds(annotation.__origin__)
    return {kind for argument in arguments for kind in kinds(argument)}
