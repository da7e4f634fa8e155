"""The configuration of a command."""

import argparse
from collections.abc import Collection, Mapping

from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.planned import unsupported
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


def refuse_unsupported(config: DeploymentConfig, keys: Collection[str] | None = None) -> None:
    """Where other settings may still change: what this version cannot carry out.

    Args:
        keys: those that are looked at; None: all.
    """
    if sentences := [*unsupported(config, config.source, keys)]:
        raise ConfigurationError("; ".join(sentences))
