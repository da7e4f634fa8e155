"""The loading of the configuration from its layers.

Later layers take precedence: defaults < YAML file < a notebook's cell < environment < command line
< keywords. A preset ranks just below the layer that names it.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import GivenValue, Layer, Source, flatten
from infrastructure.config.schema import Schema, schema_of
from infrastructure.config.sources.environment import read_environment, unused_variables
from infrastructure.config.sources.flags import flag_settings, keyword_settings
from infrastructure.config.sources.yaml_source import read_yaml

DEFAULT_YAML = Path(".config/training_config.yaml")


def load_config(
    yaml_path: Path | str | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    keywords: Mapping[str, Any] | None = None,
    cell: Mapping[str, Any] | None = None,
) -> DeploymentConfig:
    """Build the configuration from all layers, with the source of each value.

    Args:
        yaml_path: the configuration file; by default, `.config/training_config.yaml` if it exists.
        environment: the environment variables; by default, those of this process.
        flags: what `flags.flags_given` returned; canonical keys are also accepted.
        keywords: settings, as in `DeploymentConfig(...)`.
        cell: settings given in a notebook's cell; the environment takes precedence over them.

    Raises:
        ConfigurationError: if a setting is wrong; the message has a sentence for each problem, with
            the value's source.
    """
    schema = schema_of(DeploymentConfig)
    environment = os.environ if environment is None else environment
    config = DeploymentConfig.from_layers(
        [
            _file_settings(yaml_path, schema),
            list(keyword_settings(cell or {}, schema, Layer.CELL)),
            read_environment(environment, schema),
            flag_settings(flags or {}, schema),
            list(flatten(keywords or {}, schema, _source(Layer.KEYWORD, "keyword {}"))),
        ]
    )
    config.note_environment(unused_variables(environment, schema))
    return config


def _file_settings(yaml_path: Path | str | None, schema: Schema) -> list[GivenValue]:
    if yaml_path is None and not DEFAULT_YAML.exists():
        return []
    path = DEFAULT_YAML if yaml_path is None else Path(yaml_path).expanduser()
    values, lines = read_yaml(path)

    def source(where: str) -> Source:
        return Source(Layer.FILE, f"{path}:{lines[where]}: {where}")

    return list(flatten(values, schema, source))


def _source(layer: Layer, place: str) -> Callable[[str], Source]:
    return lambda path: Source(layer, place.format(path))
