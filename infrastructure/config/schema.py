"""The schema of the configuration: all fields by canonical key, found by walking the sections."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic.fields import FieldInfo

from infrastructure.config.aliases import KEYS, PREFIXES, VIEWS, spellings
from infrastructure.config.base import ConfigSection, kinds
from infrastructure.config.elsewhere import SAME, as_settings, known_elsewhere, plain_name
from infrastructure.core.lookup import nearest
from infrastructure.core.messages import Setting, phrase, spelled


@dataclass(frozen=True)
class FieldSpec:
    """The specification of one setting of the configuration.

    Attributes:
        key: the canonical key, such as "training.batch_size".
        section: the class that holds the field.
        is_switch: True if the field is a whole section that may be absent (`model.lora_config`).
    """

    key: str
    section: type[ConfigSection]
    info: FieldInfo
    is_switch: bool

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]

    @property
    def default(self) -> Any:
        return self.info.get_default(call_default_factory=True)

    @property
    def description(self) -> str:
        """The description of the setting, in which other settings are spelled as the reader types
        them.
        """
        return spelled(str(self.info.description))


@dataclass(frozen=True, eq=False)
class Schema:
    """All fields and all sections below a root section, by canonical key.

    Attributes:
        spellings: accepted spelling of a key → canonical key.
        section_spellings: accepted spelling of a section's path → canonical path; also for groups
            of fields that can be nested like a section.
    """

    fields: dict[str, FieldSpec]
    sections: dict[str, type[ConfigSection]]
    spellings: dict[str, str]
    section_spellings: dict[str, str]

    def unknown_key(self, key: str) -> str:
        """Return the error for an unknown key, which suggests a similar one.

        A key that ends with the same name is preferred.
        """
        leaf = key.rpartition(".")[2]
        if (known := known_elsewhere(key)) is not None:
            return phrase("config.key_of_another_tool", key=key, advice=known)
        same = [known for known in self.fields if known.rpartition(".")[2] == leaf]
        names = {known.rpartition(".")[2]: known for known in self.fields}
        sections = {prefix.split(".")[0] for prefix in PREFIXES} | self.sections.keys()
        spelled = {format(Setting(known)): known for known in self.fields}
        close = nearest(key, [*self.fields, *KEYS, *spelled, *sections])
        close = spelled.get(close or "", close)
        close = close or names.get(nearest(leaf, names) or "")
        meant = same[0] if same else close
        if meant is None and (of_others := nearest(plain_name(key), SAME)):
            settings = as_settings(SAME[of_others])
            return phrase("config.unknown_key_meant", key=key, meant=settings)
        if meant is None:
            return phrase("config.unknown_key_list", key=key)
        shown = repr(format(Setting(meant))) if meant in self.fields else repr(meant)
        return phrase("config.unknown_key_meant", key=key, meant=shown)


@cache
def schema_of(root: type[ConfigSection]) -> Schema:
    """Return the schema of a root section. The result is cached."""
    fields: dict[str, FieldSpec] = {}
    sections: dict[str, type[ConfigSection]] = {}
    for spec, section in _walk(root, ""):
        if section is not None:
            sections[spec.key] = section
        if section is None or spec.is_switch:
            fields[spec.key] = spec
    paths = spellings([*(f"{path}." for path in sections), *VIEWS])
    return Schema(
        fields,
        sections,
        spellings(fields),
        {s.removesuffix("."): path.removesuffix(".") for s, path in paths.items() if s[-1] == "."},
    )


def value_at(config: ConfigSection, key: str) -> Any:
    """Return the value of a canonical key; None in an absent section.

    If the key is that of an optional section, return whether the section is on.
    """
    value: object = config
    for name in key.split("."):
        value = None if value is None else getattr(value, name)
    spec = schema_of(type(config)).fields.get(key)
    is_section = isinstance(value, ConfigSection) or (spec is not None and spec.is_switch)
    return value is not None if is_section else value


def _walk(
    section: type[ConfigSection], prefix: str
) -> Iterator[tuple[FieldSpec, type[ConfigSection] | None]]:
    own_first = sorted(section.model_fields, key=lambda name: name not in section.__annotations__)
    for name in own_first:
        info = section.model_fields[name]
        types = kinds(info.annotation)
        inner = next(
            (t for t in types if isinstance(t, type) and issubclass(t, ConfigSection)), None
        )
        is_switch = inner is not None and type(None) in types
        spec = FieldSpec(f"{prefix}{name}", section, info, is_switch)
        yield spec, inner
        if inner is not None:
            yield from _walk(inner, f"{spec.key}.")
