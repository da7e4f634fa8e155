"""User-defined settings, which a user's class declares with defaults: `settings = {"stages": 3}`.

A value that is given for such a setting must have the type of the default.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy

from infrastructure.config.base import ConfigurationError
from infrastructure.config.field_help import format_value
from infrastructure.config.merging.plugin_names import OUR_PACKAGES
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.lookup import meant_hint, nearest

KINDS: dict[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a text"),
    list: ((list,), "a list"),
    dict: ((dict,), "a mapping"),
}


def declare_settings(training: TrainingConfig, parts: Iterable[object]) -> None:
    """Set the defaults that user-defined parts declare, and check the values given for their
    settings.

    If every part declares its settings, an undeclared name is refused. If a part declares nothing,
    an undeclared name is refused only if it looks like a misspelling of a declared one.

    Args:
        parts: classes, or functions that create an object; Temper's own are ignored.

    Raises:
        ConfigurationError: if a given setting is wrong; the message names the setting and the part
            that declares it.
    """
    by_part = {_shown(part): _declared_by(part) for part in parts if not _is_ours(part)}
    defaults: dict[str, object] = {}
    declared_by: dict[str, str] = {}
    for part, settings in by_part.items():
        for name, default in settings.items():
            if name in defaults and defaults[name] != default:
                raise ConfigurationError(
                    "config.setting_declared_twice",
                    name=name,
                    first_part=declared_by[name],
                    second_part=part,
                    first_default=format_value(defaults[name]),
                    second_default=format_value(default),
                )
            defaults[name], declared_by[name] = default, part
    for name, value in training.settings.items():
        if name in defaults:
            _check_type(name, value, defaults[name], declared_by[name])
        elif defaults:
            _refuse_slip(name, declared_by, is_complete=all(by_part.values()))
    training.declare(deepcopy(defaults))


def _is_ours(part: object) -> bool:
    module = getattr(part, "__module__", None) or ""
    return module.partition(".")[0] in OUR_PACKAGES


def _shown(part: object) -> str:
    name = getattr(part, "__qualname__", None) or type(part).__qualname__
    return f"{getattr(part, '__module__', None)}:{name}"


def _declared_by(part: object) -> Mapping[str, object]:
    settings = getattr(part, "settings", None) if isinstance(part, type) else None
    if not isinstance(settings, Mapping):  # such as a property
        return {}
    for key, default in settings.items():
        if not (isinstance(key, str) and key.isidentifier()):
            raise ConfigurationError("config.invalid_setting_name", part=_shown(part), key=key)
        TrainingConfig.check_own_name(key)
        if default is not None and type(default) not in KINDS:
            raise ConfigurationError(
                "config.invalid_setting_default",
                part=_shown(part),
                key=key,
                type_name=type(default).__name__,
            )
    return settings


def _check_type(name: str, value: object, default: object, part: str) -> None:
    if default is None:
        return
    allowed, kind = KINDS[type(default)]
    is_right = isinstance(value, allowed) and (bool in allowed or not isinstance(value, bool))
    if not is_right:
        raise ConfigurationError(
            "config.setting_has_wrong_type",
            name=name,
            value=format_value(value),
            part=part,
            kind=kind,
            default=format_value(default),
        )


def _refuse_slip(name: str, declared_by: Mapping[str, str], *, is_complete: bool) -> None:
    meant = nearest(name, declared_by)
    if meant is None and not is_complete:
        return
    known = ", ".join(f"{known} ({part})" for known, part in sorted(declared_by.items()))
    hint = meant_hint(meant)
    raise ConfigurationError("config.setting_not_declared", name=name, hint=hint, known=known)
