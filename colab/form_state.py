"""The state of a form: a configuration, the user's changes, and the errors in them.

This module does not depend on widgets. A typed value is accepted or refused with an error message,
but never changed to the nearest valid one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infrastructure.config.base import ConfigurationError, kinds
from infrastructure.config.deployment_config import DEFAULT_SOURCE, DeploymentConfig
from infrastructure.config.field_help import plain
from infrastructure.config.merging.effect import has_effect
from infrastructure.config.merging.precedence import GivenValue, Layer, Source, flatten
from infrastructure.config.merging.presets import PRESET
from infrastructure.config.schema import FieldSpec, schema_of
from infrastructure.config.sources.environment import EMPTY_COUNTS
from infrastructure.core.messages import Setting as Named
from infrastructure.core.redact import MASK, redact
from infrastructure.data.defaults import problems_of
from infrastructure.data.readers.sources import HUGGINGFACE, refuse_missing_data
from infrastructure.models.model_path import refuse_missing

SCHEMA = schema_of(DeploymentConfig)


@dataclass
class FormState:
    """A configuration, and the user's changes to it in a form.

    Attributes:
        base: the configuration with which the form began.
        preset: the preset that was chosen in the form, or None.
        edits: the values that were set in the form, by canonical key.
        wrong: for each key with a wrong value, the typed text and the error message.
        refusal: the error message if the edits contradict each other, or None.
        config: `base` with the newest preset and edits that do not contradict each other.
    """

    base: DeploymentConfig
    preset: str | None = None
    edits: dict[str, object] = field(default_factory=dict)
    wrong: dict[str, tuple[str, str]] = field(default_factory=dict)
    refusal: str | None = None

    def __post_init__(self) -> None:
        self.config = self.base
        self._rebuild()

    def text(self, key: str) -> str:
        """Return the text that the form shows for a setting, with secrets masked."""
        if key in self.wrong:
            return self.wrong[key][0]
        if self.refusal is not None and key in self.edits:
            return redact(_as_text(self.edits[key]))
        value = self.config.value(key)
        if self.is_absent(key):
            value = SCHEMA.fields[key].default
        return redact(_as_text(value))

    def source(self, key: str) -> Source:
        """Return the source of a setting's value."""
        return DEFAULT_SOURCE if self.is_absent(key) else self.config.source(key)

    def is_absent(self, key: str) -> bool:
        """Return whether a key is in a section that is switched off, e.g. model.lora_config."""
        switch = key.rpartition(".")[0]
        return switch in SCHEMA.fields and not self.config.value(switch)

    def is_shown(self, key: str) -> bool:
        """Return whether a setting is shown, because it could have an effect or the user has set
        it.
        """
        if key in self.wrong or self.source(key).layer is not Layer.DEFAULT:
            return True
        return not self.is_absent(key) and has_effect(self.config, SCHEMA.fields[key])

    def enter(self, key: str, text: str) -> None:
        """Apply the text that the user entered for a setting."""
        if text == self.text(key):
            return
        self.wrong.pop(key, None)
        try:
            self._take(key, _value_of(SCHEMA.fields[key], text))
        except ConfigurationError as error:
            self.wrong[key] = (redact(text), str(error))

    def choose(self, preset: str | None) -> None:
        """Apply a preset. The user's own values take precedence. None removes the preset."""
        self.preset = preset
        self._rebuild()

    def update(self, settings: Mapping[str, object]) -> None:
        """Set values from Python. Any spelling of the keys is accepted, and also `preset`.

        Raises:
            ConfigurationError: if a value is wrong, or the values contradict each other. Nothing is
                changed then.
        """
        before = self.preset, dict(self.edits)
        given = [(s.key, s.value) for s in flatten(settings, SCHEMA, lambda _: _source("form"))]
        try:
            for key, value in given:
                self._put(key, value)
            self.config, self.refusal = self._built(), None
        except ConfigurationError:
            self.preset, self.edits = before
            raise
        for key, _ in given:
            self.wrong.pop(key, None)

    def reset(self) -> None:
        """Drop all changes, so that the form has the configuration with which it began."""
        self.preset = None
        self.edits.clear()
        self.wrong.clear()
        self._rebuild()

    def problems(self) -> list[str]:
        """Return all problems that keep a run from starting, one sentence each."""
        sentences = [sentence for _, sentence in self.wrong.values()]
        if self.refusal is not None:
            return [*sentences, self.refusal]
        return [*sentences, *problems_of(self.config), *self._missing().values()]

    def _missing(self) -> dict[str, str]:
        """Return an error message for each path of the model and the data that does not exist."""
        model, data = self.config.model.name, self.config.data
        of_files = {"data.path": data.path, "data.eval_path": data.eval_path}
        missing: dict[str, str] = {}
        for key, place in {"model.name": model, **of_files}.items():
            try:
                if key == "model.name" and not Path(model).expanduser().exists():
                    refuse_missing(model)
                elif key in of_files and place and data.format != HUGGINGFACE:
                    refuse_missing_data(place)
            except ValueError as error:
                missing[key] = redact(str(error))
        return missing

    def messages(self) -> dict[str, str]:
        """Return the error to show next to each field, by the key of its setting.

        Values that contradict each other are in `problems` only.
        """
        return {key: sentence for key, (_, sentence) in self.wrong.items()} | self._missing()

    def checked(self) -> DeploymentConfig:
        """Return the configuration, if a run can start with it.

        Raises:
            ConfigurationError: if there are problems; the message has a sentence for each.
        """
        if problems := self.problems():
            raise ConfigurationError("; ".join(problems))
        return self.config

    def changes(self) -> dict[str, object]:
        """Return the user's changes as arguments for `configure`."""
        return {setting.key: setting.value for setting in self._settings()}

    def _put(self, key: str, value: Any) -> None:
        """Set one value from Python, after checking it on its own."""
        if key == PRESET:
            self.preset = value
            return
        if key not in SCHEMA.fields:
            raise ConfigurationError(SCHEMA.unknown_key(key))
        spec = SCHEMA.fields[key]
        self.edits[key] = value if spec.is_switch else spec.section.check_value(spec.name, value)

    def _take(self, key: str, value: object) -> None:
        """Store the user's value for a setting, unless the setting has this value anyway."""
        self.edits.pop(key, None)
        self._rebuild()
        if self.refusal is not None or self.config.value(key) != value:
            self.edits[key] = value
            self._rebuild()

    def _rebuild(self) -> None:
        try:
            self.config, self.refusal = self._built(), None
        except ConfigurationError as error:
            self.refusal = str(error)

    def _built(self) -> DeploymentConfig:
        return self.base.changed(list(self._settings()))

    def _settings(self) -> Iterator[GivenValue]:
        if self.preset is not None:
            yield GivenValue(PRESET, self.preset, _source("form"))
        off = tuple(f"{key}." for key, value in self.edits.items() if value is False)
        for key, value in self.edits.items():
            if not key.startswith(off):  # in a section that was switched off since
                yield GivenValue(key, value, _source(f"form {key}"))


def _source(place: str) -> Source:
    return Source(Layer.FORM, place)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else plain(value)


def _value_of(spec: FieldSpec, text: str) -> object:
    """Convert a text to the value of a field.

    Raises:
        ConfigurationError: if the field does not accept the text, or it looks like a secret.
    """
    if MASK in text or redact(text) != text:
        raise ConfigurationError("notebook.secret_in_form", setting=Named(spec.key))
    if spec.is_switch:
        return text == "true"
    may_be_none = type(None) in kinds(spec.info.annotation)
    is_empty = not text.strip() and may_be_none and spec.key != EMPTY_COUNTS
    return spec.section.check_value(spec.name, None if is_empty else text)
