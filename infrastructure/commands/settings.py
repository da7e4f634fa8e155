"""The configuration of a command."""

import argparse
from collections.abc import Mapping

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.process_wide import take_effect
from infrastructure.config.sources.flags import flags_given
from infrastructure.config.sources.load import load_config


def configure(
    options: argparse.Namespace, arguments: Mapping[str, object] | None = None
) -> DeploymentConfig:
    """Merge flags, environment and file; what must be set before torch is imported is set here.

    Args:
        arguments: settings, by key, that have no flag but a place on the command line; None where
            nothing stood there.

    Raises:
        ConfigurationError: a value is wrong.
    """
    given = {key: value for key, value in (arguments or {}).items() if value is not None}
    config = load_config(options.config, flags={**flags_given(options), **given})
    take_effect(config)
    return config
