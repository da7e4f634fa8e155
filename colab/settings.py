"""The configuration of a notebook, from a cell, the environment, a file and the defaults."""

from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.presets import PRESET
from infrastructure.config.sources.environment import EMPTY_COUNTS
from infrastructure.config.sources.load import load_config
from infrastructure.config.sources.spelling import as_keyword, speaking


@speaking(as_keyword)
def configure(
    preset: str | None = None, *, config_file: Path | str | None = None, **settings: object
) -> DeploymentConfig:
    """Build a configuration, for `show_form` or `train`.

    Later sources take precedence: defaults, file, preset, cell, environment, form. So a notebook
    can be run with different values without changing it: `TEMPER_PRESET=ci`, `BATCH_SIZE=4`.

    Args:
        preset: a name in `infrastructure.config.merging.presets.PRESETS`.
        config_file: a YAML file; by default, `.config/training_config.yaml` if it exists.
        settings: settings by the names of the flags (`max_steps`, `lora`, `backup_place`), as for
            `temper.train`, or as for `DeploymentConfig`. An empty text is ignored, because it is
            the value of an empty `#@param` field.

    Raises:
        ConfigurationError: if settings are wrong; the message names each problem and its source.
    """
    cell = {PRESET: preset or "", **settings}
    given = {key: value for key, value in cell.items() if value != "" or key == EMPTY_COUNTS}
    return load_config(config_file, cell=given)
