"""A template of a configuration file with every setting, its description and its default."""

import json
from collections.abc import Iterator

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import allowed_values
from infrastructure.config.schema import FieldSpec, schema_of, value_at
from infrastructure.core.messages import as_key, phrase, spelled_by
from infrastructure.core.redact import redact


def yaml_template(config: DeploymentConfig) -> str:
    """Return the text of a YAML file that sets all values that differ from the defaults.

    All other settings are in comments.

    `load_config` reads the file as a configuration with the same values. Secrets are masked.
    """
    fields = schema_of(DeploymentConfig).fields
    lines = [f"# {phrase('config.template_head')}"]
    for section in dict.fromkeys(key.rpartition(".")[0] for key in fields):
        lines += ["", f"# {'-' * 20} {section or 'the run'}", ""]
        for key, spec in fields.items():
            if key.rpartition(".")[0] == section:
                lines += _lines_of(config, spec)
    return "\n".join([*lines, ""])


def _lines_of(config: DeploymentConfig, spec: FieldSpec) -> Iterator[str]:
    takes = "true or false" if spec.is_switch else allowed_values(spec.info)
    with spelled_by(as_key):
        description = spec.description
    yield f"# {description} ({takes})"
    is_default = spec.key not in config.present_keys() or config.is_default(spec.key)
    default = spec.default is not None if spec.is_switch else spec.default
    value = default if is_default else value_at(config, spec.key)
    shown = json.dumps(value, ensure_ascii=False, default=str)
    yield f"{'# ' if is_default else ''}{spec.key}: {redact(shown)}"
