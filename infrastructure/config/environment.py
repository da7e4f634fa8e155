"""Environment variables that set the configuration.

The variables with a plain name are those of the first specification; every field has one named
`TEMPER_<SECTION>__<FIELD>` besides. An empty variable counts as not set, except
CUDA_VISIBLE_DEVICES, where empty means no GPU.
"""

from collections.abc import Iterator, Mapping

from infrastructure.config.layers import Layer, Setting, Source, flatten, parse_truth
from infrastructure.config.presets import PRESET
from infrastructure.config.schema import Schema
from infrastructure.config.section import ConfigurationError
from infrastructure.config.spellings import KEYS
from infrastructure.core.lookup import nearest

PREFIX = "TEMPER_"
VARIABLES = {
    "MODEL_NAME": "model.name",
    "BATCH_SIZE": "training.batch_size",
    "LEARNING_RATE": "training.learning_rate",
    "NUM_EPOCHS": "training.num_epochs",
    "CUDA_VISIBLE_DEVICES": "cuda_visible_devices",
    "LOG_LEVEL": "log_level",
    "OUTPUT_DIR": "output_dir",
}
# The one key whose empty text is a value: no GPU may be seen.
EMPTY_COUNTS = "cuda_visible_devices"
DISABLING = {
    "DISABLE_GPU": "device",
    "DISABLE_MONITORING": "enable_monitoring",
    "DISABLE_BACKUPS": "enable_backups",
    "DISABLE_TESTING": "enable_testing",
}
# Read elsewhere; not part of the configuration.
OTHER_VARIABLES = {
    "TEMPER_PYTHON": "environment.sh makes .venv with it",
    "TEMPER_PLATFORM": "where a notebook runs, for those who know better",
    "TEMPER_SESSION_HOURS": "how long a notebook's session lasts, for those who know better",
    "ALERT_WEBHOOK_URL": "the webhook of monitor.alert_sinks; a secret, so no setting",
}


def variable_of(key: str) -> str:
    """The environment variable of a canonical key: `TEMPER_TRAINING__BATCH_SIZE`."""
    return PREFIX + key.upper().replace(".", "__")


def read_environment(environment: Mapping[str, str], schema: Schema) -> list[Setting]:
    """The settings that the environment holds.

    Raises:
        ConfigurationError: an unknown `TEMPER_*` variable, or a `DISABLE_*` that is no truth value.
    """
    return [*_plain(environment, schema), *_disabling(environment), *_prefixed(environment, schema)]


def _source(variable: str) -> Source:
    return Source(Layer.ENVIRONMENT, f"environment {variable}")


def _plain(environment: Mapping[str, str], schema: Schema) -> Iterator[Setting]:
    for variable, key in VARIABLES.items():
        text = environment.get(variable)
        if text or (text == "" and key == EMPTY_COUNTS):
            yield Setting(key, text, _source(variable))


def _disabling(environment: Mapping[str, str]) -> Iterator[Setting]:
    for variable, key in DISABLING.items():
        if not environment.get(variable):
            continue
        try:
            disabled = parse_truth(environment[variable])
        except ValueError as error:
            raise ConfigurationError(f"{variable} {error} (environment {variable})") from None
        if key != "device":
            yield Setting(key, not disabled, _source(variable))
        elif disabled:
            yield Setting(key, "cpu", _source(variable))


def _prefixed(environment: Mapping[str, str], schema: Schema) -> Iterator[Setting]:
    known = {variable_of(key) for key in [*schema.fields, *KEYS, PRESET]}
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES:
            continue
        if variable not in known:
            meant = nearest(variable, known)
            hint = f"did you mean {meant}?" if meant else "`temper config` lists all keys"
            raise ConfigurationError(f"unknown environment variable {variable}; {hint}")
        if text:
            key = variable.removeprefix(PREFIX).lower().replace("__", ".")
            source = _source(variable)
            yield from flatten({key: text}, schema, lambda _, source=source: source)  # type: ignore[misc]
