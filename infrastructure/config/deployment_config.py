"""The root of the configuration: its sections, settings of the whole run, and each value's source.

Names of models, strategies, formats and plug-ins are plain text in the configuration. They are
resolved later, by the code that uses them.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, StringConstraints

from infrastructure.config.aliases import KEYS
from infrastructure.config.base import (
    ConfigSection,
    ConfigurationError,
    with_fields_of_features,
)
from infrastructure.config.merging import plugin_names
from infrastructure.config.merging.cross_checks import (
    contradictions,
    lora_beside_new_weights,
    lora_in_passing,
    place_among_runs,
    several_processes,
)
from infrastructure.config.merging.effect import (
    has_effect,
    noted_without_effect,
    refused_without_effect,
)
from infrastructure.config.merging.precedence import (
    GivenValue,
    Layer,
    Source,
    flatten,
    is_of_preset,
    merge,
    nested,
    overridden_by_preset,
    place_of,
    spelled_as_given,
)
from infrastructure.config.merging.presets import OWN_LOOP_ONLY
from infrastructure.config.merging.sharding import sharding_refusals
from infrastructure.config.methods import SFT
from infrastructure.config.schema import schema_of, value_at
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import (
    OPTIMIZES_MEMORY,
    CacheConfig,
    MemoryConfig,
    MonitorConfig,
    ResourcesConfig,
)
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.config.serialize import (
    PATHS,
    absolute_place,
    refuse_masked,
    without_gone_defaults,
    without_masked_place,
    without_secrets,
)
from infrastructure.config.types import (
    Allowed,
    Auto,
    Count,
    Duration,
    LogLevel,
    PathText,
    Percent,
    PriceText,
)
from infrastructure.core.errors import InputError
from infrastructure.core.features import all_of, fields_of_features
from infrastructure.core.launcher import launched_process
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact, redact_mapping
from infrastructure.core.registry import adopt_origins, note_origins

PLUGINS = "plugins"  # key in the dictionary: where plug-ins that are not built in come from
DEFAULT_SOURCE = Source(Layer.DEFAULT, "default")
ASSIGNED_SOURCE = Source(Layer.KEYWORD, "assigned in Python")


def _device_list(value: object) -> object:
    """Convert device numbers such as `0` and `[0, 1]` to CUDA's form: "0" and "0,1"."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return ",".join(map(str, value)) if isinstance(value, list) else value


def _no_secret(value: str | None) -> str | None:
    """Refuse a run name that contains a secret, because it becomes the name of a visible folder."""
    if value is not None and redact(value) != value:
        raise InputError("config.secret_in_run_name")
    return value


if TYPE_CHECKING:  # the core reads no field of a feature
    FieldsOfFeatures = ConfigSection
else:
    FieldsOfFeatures = with_fields_of_features("")


def _flat(key: str) -> Any:
    """Return a property of the root that reads and writes a field of a section."""
    section, _, name = key.partition(".")
    return property(
        lambda self: getattr(getattr(self, section), name),
        lambda self, value: setattr(getattr(self, section), name, value),
        doc=f"The same as `{key}`.",
    )


class DeploymentConfig(FieldsOfFeatures):
    """The configuration of one run.

    The constructor accepts sections (`training=TrainingConfig(...)` or a mapping), the flat names
    of `infrastructure.config.aliases.KEYS` (`batch_size=4`), canonical keys, and a `preset`. It
    does not read files or the environment; `infrastructure.config.sources.load.load_config` does.
    """

    model: ModelConfig = Field(default=ModelConfig(), description="The model and how it is loaded.")
    data: DataConfig = Field(
        default=DataConfig(), description="The data and how it becomes batches."
    )
    training: TrainingConfig = Field(
        default=TrainingConfig(), description="How the model is trained."
    )
    backup: BackupConfig = Field(
        default=BackupConfig(), description="Where checkpoints are backed up."
    )
    cache: CacheConfig = Field(default=CacheConfig(), description="The cache of tokenized data.")
    memory: MemoryConfig = Field(default=MemoryConfig(), description="Memory limits.")
    monitor: MonitorConfig = Field(
        default=MonitorConfig(), description="Monitoring of the machine and the run."
    )
    resources: ResourcesConfig = Field(default=ResourcesConfig(), description="Machine limits.")

    output_dir: PathText = Field(
        default="runs",
        description="Folder that contains the runs; each run has its own folder there.",
    )
    new_run: bool = Field(
        default=False,
        description="Start a new run even if an unfinished run with the same settings exists.",
    )
    run_name: Annotated[
        str | None,
        AfterValidator(_no_secret),
        Allowed("a name that contains no access token or password"),
    ] = Field(
        default=None,
        description="Name of the run; none: the model's; the run's folder also has the start time.",
    )
    log_level: LogLevel = Field(
        default="INFO", description="Lowest severity of messages that are logged."
    )
    verbose: bool = Field(
        default=False,
        description="Print all details before the first step; the report contains them in any"
        " case.",
    )
    device: Annotated[
        Literal["auto", "cpu", "cuda"] | Annotated[str, StringConstraints(pattern=r"^cuda:\d+$")],
        Allowed('"auto", "cpu", "cuda" or a GPU such as "cuda:0"'),
    ] = Field(
        default="auto", description="Device to run the model on; auto: a GPU if one is available."
    )
    cuda_visible_devices: Annotated[str | None, BeforeValidator(_device_list)] = Field(
        default=None,
        description='GPUs that this run may use, such as "0"; an empty string: no GPU;'
        " none: no limit.",
    )
    num_processes: Count | Auto = Field(
        default=1,
        description="Processes that train together, each with its own GPU; auto: one per GPU.",
    )
    process_timeout: Duration = Field(
        default=600.0,
        description="Time without progress after which a process counts as lost, and the"
        " others stop.",
    )
    price_per_hour: PriceText | None = Field(
        default=None,
        description="Price per hour of this machine, for the cost forecast.",
    )
    enable_gpu_optimization: bool = Field(
        default=True,
        description="Use TF32 on GPUs that have it.",
    )
    enable_memory_optimization: bool = Field(
        default=True,
        description="Enforce memory limits, collect garbage, and reject runs that cannot fit.",
    )
    enable_monitoring: bool = Field(
        default=True, description="Monitor the machine and raise alerts during training."
    )
    enable_backups: bool = Field(
        default=True,
        description="Back up checkpoints to {=backup.place}, if it is set; false: never.",
    )
    enable_testing: bool = Field(
        default=True,
        description="Testing: check model, data and machine before training, which"
        " takes a few seconds.",
    )
    max_memory_percent: Annotated[Percent, OPTIMIZES_MEMORY] = Field(
        default=85.0,
        description="Release memory if more than this percentage of system memory is in use.",
    )

    model_name = _flat(KEYS["model_name"])
    data_path = _flat(KEYS["data_path"])
    batch_size = _flat(KEYS["batch_size"])
    learning_rate = _flat(KEYS["learning_rate"])
    checkpoint_interval = _flat(KEYS["checkpoint_interval"])
    validation_interval = _flat(KEYS["validation_interval"])
    enable_mixed_precision = _flat(KEYS["enable_mixed_precision"])

    _num_epochs: int | None = PrivateAttr(default=None)
    _settings: dict[str, GivenValue] = PrivateAttr(default_factory=dict)
    _environment_notes: list[str] = PrivateAttr(default_factory=list)
    _plugins: plugin_names.Origins = PrivateAttr(default_factory=dict)
    _preset_notes: list[str] = PrivateAttr(default_factory=list)
    _further_notes: list[str] = PrivateAttr(default_factory=list)
    _model_names: frozenset[str] = PrivateAttr(default=frozenset({"embedded"}))

    def __init__(self, /, **keywords: Any) -> None:
        self._merge([list(flatten(keywords, schema_of(type(self)), _keyword_source))])

    @property
    def num_epochs(self) -> Any:
        """The value of `training.num_epochs`, or the resolved number if the setting is "auto".

        The number is resolved when a run with this configuration is assembled.
        """
        given = self.training.num_epochs
        return given if given != "auto" or self._num_epochs is None else self._num_epochs

    @num_epochs.setter
    def num_epochs(self, value: Any) -> None:
        self.training.num_epochs = value

    def note_num_epochs(self, num_epochs: int) -> None:
        """Record the number of epochs that "auto" stands for. The setting itself stays "auto"."""
        self._num_epochs = num_epochs

    @classmethod
    def from_layers(cls, layers: list[list[GivenValue]]) -> "DeploymentConfig":
        """Build the configuration from layers of settings, lowest first.

        Raises:
            ConfigurationError: if keys are unknown, or values are wrong or contradictory; the
                message names their sources.
        """
        config = cls.__new__(cls)
        config._merge(layers)
        return config

    def _merge(self, layers: list[list[GivenValue]]) -> None:
        """Merge the layers, and set the fields of this configuration to the result."""
        dropped: set[str] = set()
        settings = self._become(layers, dropped)
        while more := self._inapplicable(layers, settings, dropped):
            dropped |= more
            settings = self._become(layers, dropped)
        self._preset_notes = overridden_by_preset(layers, settings)

    def _become(
        self, layers: list[list[GivenValue]], not_by_preset: Collection[str]
    ) -> dict[str, GivenValue]:
        schema = schema_of(type(self))
        settings = merge(layers, schema, not_by_preset)
        self.__setstate__(self.of_checked(nested(settings, schema)).__getstate__())
        self._settings = settings
        return settings

    def _inapplicable(
        self, layers: list[list[GivenValue]], settings: Mapping[str, GivenValue], dropped: set[str]
    ) -> set[str]:
        """Return the keys that a preset set but that do not apply to this configuration.

        They are dropped, so that the user gets no message about a setting that was never given. A
        setting does not apply if it has no effect, if TRL's trainers do not support it, or if
        dropping it removes a contradiction.
        """
        schema = schema_of(type(self))
        proposed = [setting for setting in settings.values() if is_of_preset(setting)]
        vain = {
            setting.key
            for setting in proposed
            if not has_effect(self, schema.fields[setting.key])
            or (self.training.method != SFT and _is_own_loops(setting))
        }
        if vain or not proposed or not (before := len([*contradictions(self)])):
            return vain
        for setting in proposed:
            other = type(self).__new__(type(self))
            other._become(layers, {*dropped, setting.key})
            if len([*contradictions(other)]) < before:
                return {setting.key}
        return set()

    def sections_of_features(self) -> dict[str, ConfigSection]:
        """Return the sections that features have added, by name."""
        return {name: getattr(self, name) for name in fields_of_features("")}

    def value(self, key: str) -> Any:
        """Return the value of a canonical key; False for an optional section that is off."""
        return value_at(self, key)

    def assign(self, key: str, value: object) -> None:
        """Set the value of a canonical key."""
        section, _, name = key.rpartition(".")
        setattr(attrgetter(section)(self), name, value)

    def source(self, key: str) -> Source:
        """Return the source of the value of a canonical key."""
        setting = self._settings.get(key)
        if setting is not None and setting.value == self.value(key):
            return setting.source
        if self.is_default(key):
            return DEFAULT_SOURCE
        return self._source_inside(key) or ASSIGNED_SOURCE

    def _source_inside(self, section: str) -> Source | None:
        """Return the source of the field whose value enabled an optional section, or None."""
        inside = [s for k, s in self._settings.items() if k.startswith(f"{section}.")]
        held = [s.source for s in inside if s.value == self.value(s.key)]
        return max(held, key=lambda source: list(Layer).index(source.layer), default=None)

    def sources(self) -> dict[str, Source]:
        """Return canonical key → source of its value, except for keys in absent sections."""
        return {key: self.source(key) for key in self.present_keys()}

    def present_keys(self) -> list[str]:
        """Return all canonical keys, except those inside absent optional sections."""
        fields = schema_of(type(self)).fields
        absent = tuple(f"{k}." for k, s in fields.items() if s.is_switch and not self.value(k))
        return [key for key in fields if not key.startswith(absent)]

    def check_supported(self) -> None:
        """Check, when a run starts, that all plug-ins exist and that the sections fit together.

        Raises:
            ConfigurationError: if a setting cannot be applied; the message has a sentence for each
                such setting.
        """
        if problems := self.problems():
            raise ConfigurationError("\n".join(problems))

    def problems(self) -> list[str]:
        """Return a sentence for each setting that cannot be applied, as `check_supported` reports
        them.
        """
        with spelled_as_given(self.source):
            return [
                *plugin_names.unknown_plugins(self, self.source, self._plugins),
                *contradictions(self),
                *refused_without_effect(self, self.source),
                *several_processes(self.num_processes, self.device, self.cuda_visible_devices),
                *sharding_refusals(self.model, self.training, has_others=self.has_others),
                *place_among_runs(self.backup.place, self.output_dir),
                *self._lora_in_passing(),
            ]

    @property
    def has_others(self) -> bool:
        """True if several processes may train. The GPUs are not queried for this."""
        return self.num_processes != 1 or launched_process() is not None

    def _lora_in_passing(self) -> Iterable[str]:
        """Yield an error if LoRA would train new weights, unless a preset chose the model."""
        if self.source("model.name").layer is Layer.PRESET:
            return []
        source, switch = self.source("model.lora_config"), "model.lora_config"
        given = [key for key, setting in self._settings.items() if setting.source == source]
        place = place_of(source, next((key for key in given if key.startswith(switch)), switch))
        return lora_in_passing(self.model, self._settings, place)

    def notes(self) -> list[str]:
        """Return notes to show when a run starts, such as on settings without effect."""
        is_model_named = self.source("model.name") != DEFAULT_SOURCE
        with spelled_as_given(self.source):
            of_settings = [
                *noted_without_effect(self, self.source),
                *lora_beside_new_weights(self.model, is_model_named),
                *(note for advice in all_of("advice") for note in advice(self, self._is_given)),
            ]
        return [*of_settings, *self._preset_notes, *self._environment_notes, *self._further_notes]

    def _is_given(self, key: str) -> bool:
        return self.source(key) != DEFAULT_SOURCE

    def note(self, sentence: str) -> None:
        """Add a sentence to the notes, unless it is already there."""
        if sentence not in self._further_notes:
            self._further_notes.append(sentence)

    @property
    def environment_notes(self) -> list[str]:
        """The sentences about environment variables that look like settings but set nothing."""
        return list(self._environment_notes)

    def note_environment(self, sentences: Iterable[str]) -> None:
        """Store the sentences for `environment_notes`, which are shown with the other notes."""
        self._environment_notes = list(sentences)

    def to_dict(self) -> dict[str, Any]:
        """Return values and their sources as JSON values, for `run.json`.

        Local paths are absolute, so that the run can resume from another working directory. Secrets
        are masked, and `masked` lists their keys.
        """
        sources = {
            key: {"layer": source.layer.value, "place": source.place}
            for key, source in self.sources().items()
            if source.layer is not Layer.DEFAULT
        }
        masked: list[str] = []
        values = without_secrets(self._values_found_anywhere(), masked)
        saved = {"values": values, "sources": redact_mapping(sources), "masked": masked}
        return saved | self.plugins_to_dict()

    def plugins_to_dict(self) -> dict[str, object]:
        """Return the part of `to_dict` with the origins of plug-ins; {} without plug-ins."""
        origins = plugin_names.origins_of(self, self._plugins)
        return {PLUGINS: plugin_names.as_json(origins)} if origins else {}

    def adopt_plugins(self) -> None:
        """Make plug-in names refer to the same plug-ins as when the resumed run began."""
        adopt_origins(self._plugins)
        for sentence in plugin_names.find_where_they_were(self._plugins):
            self.note(sentence)

    def _values_found_anywhere(self) -> dict[str, object]:
        values = self.model_dump(mode="json")
        for key in PATHS:
            *sections, name = key.split(".")
            inside = values
            for section in sections:
                inside = inside[section]
            if inside[name] is not None and self.source(key).layer is not Layer.DEFAULT:
                inside[name] = absolute_place(key, inside[name], self._model_names)
        return values

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "DeploymentConfig":
        """Build the configuration that `to_dict` wrote, with its original sources.

        Raises:
            ConfigurationError: if keys are unknown, values are wrong, or a value was masked as a
                secret.
        """
        refuse_masked(saved)
        plugins = plugin_names.from_json(saved.get(PLUGINS, {}))
        note_origins(plugins)
        values = without_gone_defaults(
            without_masked_place(saved), schema_of(DeploymentConfig).fields, saved["sources"]
        )
        config = cls(**values)
        config._plugins = plugins
        sources = {
            key: Source(Layer(s["layer"]), s["place"]) for key, s in saved["sources"].items()
        }
        changed = [key for key in config.present_keys() if not config.is_default(key)]
        defaults = dict.fromkeys(changed, DEFAULT_SOURCE)  # of the version that has written this
        config._settings = {
            key: GivenValue(key, config.value(key), source)
            for key, source in {**defaults, **sources}.items()
        }
        return config

    def changed(self, changes: list[GivenValue]) -> "DeploymentConfig":
        """Return a copy with `changes` applied, each with its source.

        A preset among the changes replaces the previous preset, whose settings then no longer
        apply.

        Raises:
            ConfigurationError: if keys are unknown, or values are wrong or contradictory; the
                message names their sources.
        """
        own = [
            GivenValue(key, self.value(key), source)
            for key, source in self.sources().items()
            if source.layer is not Layer.DEFAULT  # a default remains a default
        ]
        config = self.from_layers([own, changes])
        config._model_names = self._model_names
        config._plugins = self._plugins
        config._environment_notes = self._environment_notes
        config._further_notes = [*self._further_notes]
        config._preset_notes = [*self._preset_notes, *config._preset_notes]
        return config

    def came_from(self, key: str, place: str) -> None:
        """Record the source of the value that was assigned to a canonical key."""
        source = Source(Layer.KEYWORD, place)
        self._settings = self._settings | {key: GivenValue(key, self.value(key), source)}

    def know_models(self, names: Iterable[str]) -> None:
        """Register names that mean a model even if there is a folder with the same name."""
        self._model_names |= frozenset(names)

    def short_warmup(self, total_steps: int) -> list[str]:
        """Return a note if the requested warmup is shortened to half of all steps.

        The default warmup is meant for long runs and is shortened without a note.
        """
        wanted, used = self.training.warmup_steps, self.training.warmup_within(total_steps)
        if wanted == used or self.source("training.warmup_steps").layer is Layer.DEFAULT:
            return []
        return [
            phrase(
                "config.warmup_too_long",
                wanted=wanted,
                total_steps=total_steps,
                used=used,
            )
        ]

    def is_default(self, key: str) -> bool:
        """Return whether the value of a canonical key equals its default, even if it was set."""
        return bool(self.value(key) == _defaults(type(self))[key])


@cache
def _defaults(root: type[ConfigSection]) -> dict[str, object]:
    """Return the default of every key. The result is cached, because computing it takes time."""
    fields = schema_of(root).fields
    return {key: s.default is not None if s.is_switch else s.default for key, s in fields.items()}


def _is_own_loops(setting: GivenValue) -> bool:
    values = OWN_LOOP_ONLY.get(setting.key)
    return values is not None and (not values or setting.value in values)


def check_sections(
    model: ModelConfig,
    training: TrainingConfig,
    data: DataConfig,
    others: Mapping[str, ConfigSection] = MappingProxyType({}),
) -> None:
    """Check that the settings of these sections can be applied together, without a whole
    configuration.

    Args:
        others: sections of features, by name.

    Raises:
        ConfigurationError: if a setting cannot be applied; the message has a sentence for each such
            setting.
    """
    used = {name: one for name, one in others.items() if name in training.extensions}
    sections = {"model": model, "training": training, "data": data, **used}
    # The number of processes is not part of these sections.
    DeploymentConfig(**sections, num_processes="auto").check_supported()


def _keyword_source(path: str) -> Source:
    return Source(Layer.KEYWORD, f"keyword {path}")
