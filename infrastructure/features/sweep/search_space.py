"""The search space of a sweep: the dimensions of `--search KEY=VALUES`, with validated values.

    training.learning_rate=1e-5..1e-3:log      a range with a logarithmic scale
    model.embedded.num_layers=2..8             a range of whole numbers; 2..8:2 is 2, 4, 6, 8
    model.lora_config.r=4,8,16                 a list of values
    training.settings.stages=1..3              an entry of a setting that is a mapping
    model.lora_config.target_modules=[["q_proj"], "all-linear"]     JSON, for values that are lists

This module loads neither torch nor Optuna.
"""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_origin

from infrastructure.config.base import ConfigurationError, kinds
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import allowed_values, leaves, plain
from infrastructure.config.fingerprint import affects_result
from infrastructure.config.merging.precedence import (
    GivenValue,
    Layer,
    Source,
    parse_truth,
    place_of,
)
from infrastructure.config.schema import FieldSpec, schema_of
from infrastructure.config.sources.flags import key_of_flag
from infrastructure.core.comma_list import join_items, split_items
from infrastructure.core.json_text import parse_json
from infrastructure.monitoring.drawing.formatting import format_number

SEARCH = Source(Layer.FLAG, "--search")
MOST_VALUES = 1000  # combinations of a grid
_RANGE = re.compile(r"(?P<low>[^.,\s]\S*?)\.\.(?P<high>[^:\s]+)(?::(?P<how>\S+))?")
# These decide which rows are held out, or what is measured: trials would not be comparable.
OTHER_ROWS = (
    *("data.eval_path", "data.validation_split", "data.format", "data.encoding", "data.shape"),
    *("data.prompt_column", "data.answer_column", "data.context_column", "data.text_column"),
    *("data.streaming", "training.seed", "training.method"),
    *("training.best_metric", "training.best_metric_mode"),
)
# These decide which tokens of the rows are measured, or how: losses would not be comparable.
OTHER_TOKENS = (
    *("model.name", "model.revision", "model.adapter", "model.embedded.vocab_size"),
    *("data.max_length", "data.over_length", "data.train_on", "data.chat_template"),
    "training.loss",
)


@dataclass(frozen=True)
class Dimension:
    """A setting to search, with the values to try.

    Attributes:
        key: the setting's canonical key.
        entry: the searched key inside a setting that is a mapping; None: the setting itself.
        choices: the values to try; empty for a range.
        low, high: the ends of a range, both included.
        step: the distance between two values of a range; None: 1 for whole numbers, else a
            continuous range.
    """

    key: str
    entry: str | None = None
    choices: tuple[Any, ...] = ()
    low: float = 0
    high: float = 0
    step: float | None = None
    is_log: bool = False
    is_whole: bool = False

    @property
    def name(self) -> str:
        """The name of the dimension in tables and in Optuna's journal."""
        return self.key if self.entry is None else f"{self.key}.{self.entry}"

    def suggest(self, trial: Any) -> Any:
        """Return the value that Optuna suggests for `trial`."""
        if self.choices:
            stored = [_stored(value) for value in self.choices]
            return self.value_of(trial.suggest_categorical(self.name, stored))
        if self.is_whole:
            step = int(self.step or 1)
            return trial.suggest_int(
                self.name, int(self.low), int(self.high), step=step, log=self.is_log
            )
        return trial.suggest_float(self.name, self.low, self.high, step=self.step, log=self.is_log)

    def value_of(self, stored: Any) -> Any:
        """Convert a value from Optuna's journal to a value of the setting."""
        return next((value for value in self.choices if _stored(value) == stored), stored)

    def values(self) -> list[Any] | None:
        """Return all values of the dimension, or None if there are infinitely many."""
        if self.choices:
            return [*self.choices]
        step = self.step or (1 if self.is_whole else None)
        if step is None:
            return None
        number = math.floor((self.high - self.low) / step + 1e-9) + 1
        return [self.low + n * step for n in range(number)]

    def stored_values(self) -> list[Any] | None:
        """Return all values of the dimension in the form that Optuna's journal stores, or None."""
        values = self.values()
        return None if values is None else [_stored(value) for value in values]

    def describe(self) -> str:
        """Return the dimension as users type it after `--search`."""
        if not self.choices:
            how = ":log" if self.is_log else f":{plain(self.step)}" if self.step else ""
            return f"{self.name}={plain(self.low)}..{plain(self.high)}{how}"
        if all(isinstance(value, int | float | str | None) for value in self.choices):
            return f"{self.name}={join_items(map(plain, self.choices))}"
        return f"{self.name}={json.dumps(self.choices)}"


def _stored(value: Any) -> Any:
    """Convert a value for Optuna's journal, which stores lists and mappings as JSON text."""
    is_plain = value is None or isinstance(value, bool | int | float | str)
    return value if is_plain else json.dumps(value, sort_keys=True)


def short_value(value: Any) -> str:
    """Format a value for progress lines and tables."""
    return format_number(value) if isinstance(value, float) else plain(value)


def parse_search(texts: Sequence[str]) -> list[Dimension]:
    """Parse all `--search` arguments of a command line.

    Raises:
        ConfigurationError: if there is no dimension, a setting is unknown or given twice, or a
            value is not valid for its setting.
    """
    if not texts:
        raise ConfigurationError("sweep.without_search")
    dimensions = [_parse(text) for text in texts]
    names = [dimension.name for dimension in dimensions]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError("sweep.search_given_twice", name=name)
    return dimensions


def _parse(text: str) -> Dimension:
    given, equals, values = text.partition("=")
    if not equals or not values.strip():
        raise ConfigurationError(
            "sweep.search_not_key_values",
            text=text,
            list_key=given or "lora_r",
            range_key=given or "learning_rate",
        )
    spec, entry = _field_of(given.strip())
    if not affects_result(spec.key):
        raise ConfigurationError("sweep.search_setting_no_effect", key=given)
    match = _RANGE.fullmatch(values.strip())
    if match is not None:
        return _range(spec, entry, text, match)
    choices = tuple(_checked(spec, entry, value) for value in _listed(values.strip(), text))
    if len({_stored(choice) for choice in choices}) < max(2, len(choices)):
        raise ConfigurationError("sweep.search_too_few_values", text=text)
    return Dimension(spec.key, entry, choices)


def _field_of(given: str) -> tuple[FieldSpec, str | None]:
    """Return the setting that a key or the name of a flag refers to.

    For an entry of a setting that is a mapping, also return the key of the entry.
    """
    schema = schema_of(DeploymentConfig)
    parts = given.split(".")
    for count in range(len(parts), 0, -1):
        name, entry = ".".join(parts[:count]), ".".join(parts[count:])
        flag = key_of_flag("--" + name.removeprefix("--").replace("_", "-"))
        key = schema.spellings.get(name) or flag
        if key is None or key not in schema.fields:
            continue
        spec = schema.fields[key]
        if not entry:
            return spec, None
        if any(get_origin(leaf) is dict for leaf in leaves(spec.info.annotation)):
            return spec, entry
    raise ConfigurationError(
        "sweep.search_unknown_key", key=given, reason=schema.unknown_key(given)
    )


def _range(spec: FieldSpec, entry: str | None, text: str, match: re.Match[str]) -> Dimension:
    types = kinds(spec.info.annotation)
    if spec.is_switch or (entry is None and not types & {int, float}):
        raise ConfigurationError(
            "sweep.search_range_not_numeric", text=text, allowed=allowed_values(spec.info)
        )
    low, high = (_number(match[name], text) for name in ("low", "high"))
    if low >= high:
        raise ConfigurationError(
            "sweep.search_range_empty", text=text, low=plain(low), high=plain(high)
        )
    is_whole = isinstance(low, int) and isinstance(high, int) and (entry or float not in types)
    how = match["how"]
    is_log = how == "log"
    step = None if how is None or is_log else _number(how, text)
    if step is not None and not 0 < step <= high - low:
        raise ConfigurationError(
            "sweep.search_step_out_of_range", text=text, width=plain(high - low)
        )
    if is_whole and isinstance(step, float) and not step.is_integer():
        raise ConfigurationError("sweep.search_step_not_whole", text=text, step=plain(step))
    if is_log and low <= 0:
        raise ConfigurationError("sweep.search_log_range_not_positive", text=text)
    for value in (low, high):
        _checked(spec, entry, value)
    return Dimension(spec.key, entry, (), low, high, step, is_log, bool(is_whole))


def _number(text: str, given: str) -> int | float:
    for read in (int, float):
        try:
            value = read(text)
        except ValueError:
            continue
        if math.isfinite(value):
            return value
    raise ConfigurationError("sweep.search_not_a_number", search=given, value=text)


def _listed(values: str, text: str) -> list[Any]:
    """Split comma-separated values, or parse a JSON list."""
    is_json = values.startswith("[")
    try:
        if not is_json:
            return [*split_items(values)]
        listed = parse_json(values)
    except ValueError as error:
        kind = "JSON list" if is_json else "list"
        raise ConfigurationError(
            "sweep.search_list_unreadable", text=text, kind=kind, error=error
        ) from error
    assert isinstance(listed, list)  # it starts with a bracket
    return listed


def _checked(spec: FieldSpec, entry: str | None, value: Any) -> Any:
    """Validate a value, and return it as the configuration stores it.

    Raises:
        ConfigurationError: if the field does not accept the value.
    """
    try:
        if spec.is_switch:
            return value if isinstance(value, bool) else parse_truth(str(value))
        if entry is None:
            return spec.section.check_value(spec.name, value)
        inside: Any = spec.section.check_value(spec.name, {entry: _scalar(value)})
        return inside[entry]
    except ValueError as error:
        raise ConfigurationError("sweep.search_value_invalid", error=error) from error


def _scalar(value: Any) -> Any:
    """Parse a text as JSON if possible, because entries of mappings may be numbers or booleans."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value)
    except ValueError:
        return value


def check_comparable(dimensions: Collection[Dimension], config: DeploymentConfig) -> None:
    """Check that trials with different values of the searched settings can be compared.

    Raises:
        ConfigurationError: if the trials cannot be compared; the message names the setting and the
            reason.
    """
    for dimension in dimensions:
        given = config.source(dimension.key)
        if given.layer is Layer.FLAG and dimension.entry is None:
            raise ConfigurationError(
                "sweep.search_conflicts_with_flag",
                flag=place_of(given, dimension.key),
                name=dimension.name,
            )
        other_rows = dimension.key in OTHER_ROWS
        if other_rows or (dimension.key == "data.path" and config.data.eval_path is None):
            raise ConfigurationError("sweep.search_changes_held_out_rows", name=dimension.name)
        if dimension.key in OTHER_TOKENS and not config.training.best_needs_answers:
            raise ConfigurationError(
                "sweep.search_changes_measured_tokens",
                name=dimension.name,
                metric=config.training.best_metric,
            )


def settings_of(
    dimensions: Sequence[Dimension], values: Mapping[str, Any], config: DeploymentConfig
) -> list[GivenValue]:
    """Return the settings that a trial changes in `config`.

    Args:
        values: the trial's value of each dimension, by the dimension's name.
    """
    settings: list[GivenValue] = []
    mappings: dict[str, dict[str, Any]] = {}
    for dimension in dimensions:
        if dimension.entry is None:
            settings.append(GivenValue(dimension.key, values[dimension.name], SEARCH))
            continue
        inside = mappings.setdefault(dimension.key, dict(config.value(dimension.key) or {}))
        inside[dimension.entry] = values[dimension.name]
    return [*settings, *(GivenValue(key, value, SEARCH) for key, value in mappings.items())]
