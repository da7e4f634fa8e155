"""The plug-ins that a configuration names, with their origins, and which of them are missing.

Missing plug-ins are reported before any work is done. The check does not import them: it finds
whether a module exists, not whether it works.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from infrastructure.config.base import ConfigSection
from infrastructure.config.field_help import metadata_of
from infrastructure.config.merging.own_imports import own_imports
from infrastructure.config.merging.precedence import Source, where
from infrastructure.config.registries import BACKENDS
from infrastructure.config.schema import schema_of, value_at
from infrastructure.config.types import RegisteredName, names_in
from infrastructure.core.errors import InputError
from infrastructure.core.features import all_of
from infrastructure.core.files import file_sha256
from infrastructure.core.messages import Setting, phrase
from infrastructure.core.named_object import (
    is_address,
    look_in_folder_of,
    missing_module,
    source_file,
)
from infrastructure.core.registry import Origin, Registry, package_of

Origins = Mapping[str, Mapping[str, Origin]]  # group → name → origin

PLACE = "backup.place"
OUR_PACKAGES = ("infrastructure", "temper")


class PartCode(TypedDict):
    """A record that identifies the code of a user-defined part.

    Attributes:
        file: the name of the part's source file.
        sha256: the hash of that file.
        imports: the hashes of the user's files that this file imports; missing in older
            checkpoints.
    """

    address: str
    file: str
    sha256: str
    imports: NotRequired[dict[str, str]]


CodeOfParts = dict[str, dict[str, PartCode]]  # group → name → its code


def plugins_in(config: ConfigSection) -> Iterator[tuple[str, Registry[object], str]]:
    """Yield (setting, registry, name or address) for each plug-in that a configuration names."""
    for spec in schema_of(type(config)).fields.values():
        named: RegisteredName | None = metadata_of(spec.info, RegisteredName)
        for name in names_in(value_at(config, spec.key)) if named else ():
            if named is not None and (name not in named.others or named.registry.is_own(name)):
                yield spec.key, named.registry, name
    scheme, separator, _ = (value_at(config, PLACE) or "").partition("://")
    if separator and (is_address(scheme) or BACKENDS.has(scheme)):
        yield PLACE, BACKENDS, scheme


def unknown_plugins(
    config: ConfigSection, source_of: Callable[[str], Source], recorded: Origins
) -> Iterator[str]:
    """Yield a message for each missing plug-in.

    A plug-in is missing if its name is not registered, if the module in its address does not exist,
    or if its package was installed when the run began but is not installed now.

    Args:
        recorded: the origins that were recorded when the resumed run began.
    """
    of_package: dict[str, list[str]] = {}
    for key, registry, name in plugins_in(config):
        origin = recorded.get(registry.group, {}).get(name)
        if (problem := registry.problem(name, origin)) is None:
            continue
        if origin is not None and origin.package is not None:
            of_package.setdefault(origin.package, []).append(f"{Setting(key)} ({name})")
        elif origin is not None and origin.file is not None and (lost := _lost_file(origin)):
            yield phrase(
                "config.plugin_file_lost",
                file=origin.file,
                key=Setting(key),
                name=name,
                problem=lost,
            )
        else:
            reason = f"{problem}{where(source_of(key))}"
            yield phrase("config.setting_says", setting=Setting(key), reason=reason)
    for package, needed_by in of_package.items():
        yield (
            phrase(
                "config.plugin_package_missing",
                package=package,
                needed_by=", ".join(needed_by),
            )
        )


def origins_of(config: ConfigSection, recorded: Origins) -> dict[str, dict[str, Origin]]:
    """Return the origins of the plug-ins that a configuration uses; built-in parts are left out."""
    by_group: dict[str, dict[str, Origin]] = {}
    for _, registry, name in plugins_in(config):
        was, origin = recorded.get(registry.group, {}).get(name), registry.origin(name)
        if was is not None and (origin is None or replace(origin, package=was.package) == was):
            origin = was  # the package may not be installed where only the record is read
        if origin is not None:
            by_group.setdefault(registry.group, {})[name] = origin
    return by_group


def code_of(config: ConfigSection) -> CodeOfParts:
    """Return hashes of the source files of user-defined parts that affect the result.

    Nothing is imported. Parts in an installed package are left out, because the version of the
    package identifies their code.
    """
    by_group: CodeOfParts = {}
    for _, registry, name in plugins_in(config):
        origin = registry.origin(name) if registry.decides else None
        if origin is None or origin.address is None or origin.package is not None:
            continue
        if (code := code_at(origin.address)) is not None:
            by_group.setdefault(registry.group, {})[name] = code
    for group, name in (one for own_code in all_of("own_code") for one in own_code(config)):
        if package_of(name) is None and (code := code_at(name)) is not None:
            by_group.setdefault(group, {})[name] = code
    return by_group


def code_at(address: str) -> PartCode | None:
    """Return hashes of the source file at an address; None for Temper's code or without a file."""
    module = address.partition(":")[0]
    file = None if module.partition(".")[0] in OUR_PACKAGES else source_file(module)
    if file is None:
        return None
    imports = {name: _sha256(path) for name, path in own_imports(module, OUR_PACKAGES).items()}
    code: PartCode = {"address": address, "file": file.name, "sha256": _sha256(file)}
    return {**code, "imports": imports} if imports else code


def _sha256(file: Path) -> str:
    with file.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def require_shareable(config: ConfigSection) -> None:
    """Check that other processes can import the plug-ins that they need.

    Raises:
        ValueError: if a plug-in cannot be imported; the message names the setting and a remedy.
    """
    for key, registry, name in plugins_in(config):
        try:
            registry.require_shareable(name)
        except ValueError as error:
            raise InputError("config.setting_says", setting=Setting(key), reason=error) from None


def find_where_they_were(recorded: Origins) -> list[str]:
    """Let Python import missing plug-ins from the folders that contained them when the run began.

    Only unchanged files are used. Return a sentence for each of these files.
    """
    sentences = []
    for origin in _origins_of_files(recorded):
        if missing_module("part", str(origin.address)) and _lost_file(origin) is None:
            look_in_folder_of(Path(str(origin.file)), str(origin.address).partition(":")[0])
            sentences.append(
                phrase(
                    "config.plugin_taken_from_original_file",
                    address=origin.address,
                    file=origin.file,
                )
            )
    return sentences


def _origins_of_files(recorded: Origins) -> Iterator[Origin]:
    for named in recorded.values():
        yield from (o for o in named.values() if o.address and o.file and o.package is None)


def _lost_file(origin: Origin) -> str | None:
    """Return why a plug-in's file from the start of the run cannot be used; None if it can
    be used.
    """
    file = Path(str(origin.file))
    try:
        if file_sha256(file) == origin.sha256:
            return None
    except OSError:
        return phrase("config.plugin_file_missing", file=file.name)
    return phrase("config.plugin_file_changed")


def as_json(origins: Origins) -> dict[str, object]:
    """Return the origins of plug-ins as JSON values for `run.json`."""
    return {
        group: {name: _origin_as_json(origin) for name, origin in named.items()}
        for group, named in origins.items()
    }


def _origin_as_json(origin: Origin) -> dict[str, object]:
    saved: dict[str, object] = {"address": origin.address, "package": origin.package}
    code: dict[str, object] = {}
    if origin.address is not None and origin.package is None:
        file = source_file(origin.address.partition(":")[0])
        if file is not None:
            code = {"file": str(file.absolute()), "sha256": file_sha256(file)}
        elif origin.file is not None:  # not found here, but where the run began
            code = {"file": origin.file, "sha256": origin.sha256}
    return saved | code


def from_json(saved: Mapping[str, Any]) -> dict[str, dict[str, Origin]]:
    """Restore the origins of plug-ins from the result of `as_json`."""
    return {
        group: {name: Origin(**origin) for name, origin in named.items()}
        for group, named in saved.items()
    }
