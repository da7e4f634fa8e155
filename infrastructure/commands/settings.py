"""The configuration of a command."""

import argparse
from collections.abc import Collection, Mapping
from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.process_wide import take_effect
from infrastructure.config.sources.flags import flags_given, key_of_flag
from infrastructure.config.sources.load import load_config
from infrastructure.core.features import models_of_features
from infrastructure.monitoring.records.run_list import names_version, run_or_model


def configure(
    options: argparse.Namespace, arguments: Mapping[str, object] | None = None
) -> DeploymentConfig:
    """Merge flags, environment and file into a configuration, and apply settings that must precede
    the import of torch.

    Args:
        arguments: settings, by key, that are positional arguments instead of flags; a value of None
            was not given.

    Raises:
        ConfigurationError: if a value is wrong.
    """
    given = {key: value for key, value in (arguments or {}).items() if value is not None}
    config = load_config(options.config, flags={**flags_given(options), **given})
    take_effect(config)
    return config


def resolve_model(name: str, output_dir: Path) -> str:
    """Return the folder or Hub name of a model that the user named in any form.

    If the name refers to a checkpoint, torch is loaded to export its model first.
    """
    if not names_version(name):
        return run_or_model(name, output_dir)
    from infrastructure.deployment.version_model import named_model

    return named_model(name, output_dir)


def use_versions(config: DeploymentConfig) -> None:
    """Replace checkpoints that are given as models by exported models, which needs torch."""
    if any(names_version(config.value(key) or "") for key in ("model.name", *models_of_features())):
        from infrastructure.deployment import version_model

        version_model.use_versions(config)


def training_words(options: argparse.Namespace, without: Collection[str] = ()) -> list[str]:
    """Return a `temper train` command line with the data, flags and file of `options`.

    Args:
        without: the keys of settings whose flags are left out.
    """
    words = ["temper", "train", *([options.data] if options.data is not None else [])]
    for flag, value in flags_given(options).items():
        if key_of_flag(flag) not in without:
            words += [flag] if isinstance(value, bool) else [flag, str(value)]
    return [*words, *(["--config", options.config] if options.config else [])]
