"""Environment variables that set the configuration.

Every field has a variable named `TEMPER_<SECTION>__<FIELD>`. A few settings also have a variable
without this prefix. Any other variable with the plain name of a setting (`SEED`, `DATA_PATH`) may
belong to another program on a shared machine, so it sets nothing, and a run reports the variable
that would set the field. An empty variable counts as not set, except CUDA_VISIBLE_DEVICES, where
empty means no GPU.
"""

from collections.abc import Iterator, Mapping
from functools import cache

from infrastructure.config.aliases import KEYS
from infrastructure.config.base import ConfigurationError
from infrastructure.config.merging.precedence import GivenValue, Layer, Source, flatten, parse_truth
from infrastructure.config.merging.presets import PRESET
from infrastructure.config.schema import Schema
from infrastructure.config.sources.flags import flag_names
from infrastructure.core.lookup import nearest
from infrastructure.core.messages import phrase

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
# The only key whose empty text is a value: no GPU is visible.
EMPTY_COUNTS = "cuda_visible_devices"
DISABLING = {
    "DISABLE_GPU": "device",
    "DISABLE_MONITORING": "enable_monitoring",
    "DISABLE_BACKUPS": "enable_backups",
    "DISABLE_TESTING": "enable_testing",
}
# Settings have these names, but every shell, or WSL, sets them to something else.
SET_BY_SYSTEMS = frozenset({"PATH", "NAME"})
# Read elsewhere; not part of the configuration.
OTHER_VARIABLES = {
    "TEMPER_PYTHON": "the Python with which environment.sh creates .venv",
    "TEMPER_INSTALLER": "the installer that environment.sh and colab.install() use",
    "TEMPER_PLATFORM": "where a notebook runs, if it is not recognized",
    "TEMPER_MESSAGES": "`codes` shows the codes of messages instead of their words",
    "TEMPER_SESSION_HOURS": "how long a notebook's session lasts, if the default is wrong",
}


def variable_of(key: str) -> str:
    """Return the environment variable of a canonical key, such as `TEMPER_TRAINING__BATCH_SIZE`."""
    return PREFIX + key.upper().replace(".", "__")


def read_environment(environment: Mapping[str, str], schema: Schema) -> list[GivenValue]:
    """Return the settings that environment variables give.

    Raises:
        ConfigurationError: if a `TEMPER_*` variable is unknown, or a `DISABLE_*` is not a boolean.
    """
    return [*_plain(environment, schema), *_disabling(environment), *_prefixed(environment, schema)]


def unused_variables(environment: Mapping[str, str], schema: Schema) -> list[str]:
    """Return a sentence for each variable that is named like a setting but sets none."""
    names = _plain_names(schema)
    known = {*VARIABLES, *DISABLING, *OTHER_VARIABLES, *SET_BY_SYSTEMS}
    return [
        phrase(
            "config.unused_environment_variable", variable=variable, alternatives=" or ".join(right)
        )
        for variable, text in sorted(environment.items())
        if text and variable in names and variable not in known
        for right in [[_right_name(key) for key in names[variable]]]
        if not any(name.partition("=")[0] in environment for name in right)
    ]


@cache
def _plain_names(schema: Schema) -> dict[str, list[str]]:
    """Return name of a variable without prefix → the keys that it may mean.

    A key that the variable would disable ends in "=".
    """
    names: dict[str, list[str]] = {}
    meant = schema.fields
    spelt = [(key, key) for key in meant]
    spelt += [(key.rpartition(".")[2], key) for key in meant]
    spelt += [(flag.removeprefix("--"), key) for key in meant for flag in flag_names(key)]
    spelt += [(other, key) for other, key in KEYS.items() if key in meant]
    for key in meant:
        if key.startswith("enable_"):
            spelt.append((key.replace("enable_", "disable_"), f"{key}="))
    for name, key in spelt:
        for dot in ("_", "__"):
            variable = name.upper().replace(".", dot).replace("-", "_")
            if key not in names.setdefault(variable, []):
                names[variable].append(key)
    return names


def _right_name(key: str) -> str:
    plain = next((variable for variable, one in VARIABLES.items() if one == key), None)
    if key.endswith("="):
        return f"{variable_of(key.removesuffix('='))}=false"
    return plain or variable_of(key)


def _source(variable: str) -> Source:
    return Source(Layer.ENVIRONMENT, f"environment {variable}")


def _plain(environment: Mapping[str, str], _schema: Schema) -> Iterator[GivenValue]:
    for variable, key in VARIABLES.items():
        text = environment.get(variable)
        if text or (text == "" and key == EMPTY_COUNTS):
            yield GivenValue(key, text, _source(variable))


def _disabling(environment: Mapping[str, str]) -> Iterator[GivenValue]:
    for variable, key in DISABLING.items():
        if not environment.get(variable):
            continue
        try:
            disabled = parse_truth(environment[variable])
        except ValueError as error:
            raise ConfigurationError(
                "config.invalid_environment_variable", variable=variable, reason=error
            ) from None
        if key != "device":
            yield GivenValue(key, not disabled, _source(variable))
        elif disabled:
            yield GivenValue(key, "cpu", _source(variable))


def _prefixed(environment: Mapping[str, str], schema: Schema) -> Iterator[GivenValue]:
    known = _variables(schema)
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES:
            continue
        if variable not in known:
            meant = nearest(variable, known)
            hint = phrase("config.config_lists_all_keys")
            if meant:
                hint = phrase("config.meant_variable", meant=meant)
            raise ConfigurationError(
                "config.unknown_environment_variable", variable=variable, hint=hint
            )
        if text:
            key, source = known[variable], _source(variable)
            yield from flatten({key: text}, schema, lambda _, source=source: source)  # type: ignore[misc]


@cache
def _variables(schema: Schema) -> dict[str, str]:
    """Return name of a `TEMPER_*` variable → key, for every spelling of each key."""
    spellings = {**schema.spellings, PRESET: PRESET}
    return {variable_of(spelt): key for spelt, key in spellings.items()}
