"""A description of the configuration, with every value and its source."""

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import plain
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact


def describe(config: DeploymentConfig, only_changed: bool = False) -> str:
    """Return one line per key, `key = value   (source)`, with secrets masked.

    The last lines are about environment variables that look like settings but set nothing.

    Args:
        only_changed: leave out values that equal their default, even if they were set.
    """
    rows = [
        (f"{key} = {_shown(config, key)}", f"({source.place})")
        for key, source in config.sources().items()
        if not (only_changed and config.is_default(key))
    ]
    width = min(max((len(left) for left, _ in rows), default=0), 60)
    lines = [f"{left:<{width}}   {right}" for left, right in rows] or [
        phrase("config.all_settings_at_default")
    ]
    return "\n".join(map(redact, [*lines, *(f"note: {n}" for n in config.environment_notes)]))


def _shown(config: DeploymentConfig, key: str) -> str:
    value = config.value(key)
    if isinstance(value, str) and (not value or value != value.strip() or "\n" in value):
        return repr(value)
    return plain(value)
