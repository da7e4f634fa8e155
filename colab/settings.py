"""The configuration of a notebook: the values of a cell, above the file, below the environment."""

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
    """Build the configuration of a cell, to be shown (`show_form`) or trained (`train`).

    defaults < file < preset < cell < environment < form, so that a notebook can be run with other
    values without changing it: `TEMPER_PRESET=ci`, `BATCH_SIZE=4`.

    Args:
        preset: a name in `infrastructure.config.merging.presets.PRESETS`.
        config_file: a YAML file; by default, `.config/training_config.yaml` if it exists.
        settings: settings by the names of the flags (`max_steps`, `lora`, `backup_place`), as for
            `temper.train`, or as for `DeploymentConfig`. An empty text counts as not given, because
            it is the value of a `#@param` that was not filled in.

    Raises:
        ConfigurationError: if settings are wrong; with a sentence for each problem and its source.
    """
    cell = {PRESET: preset or "", **settings}
    given = {key: value for key, value in cell.items() if value != "" or key == EMPTY_COUNTS}
    return load_config(config_file, cell=given)
