"""The settings of training. Settings named "interval" count epochs, "frequency" optimizer steps."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import Field, JsonValue, PrivateAttr

from infrastructure.config.base import ConfigurationError, with_fields_of_features
from infrastructure.config.measures import (
    LOSS,
    MEASURES,
    TOKEN_ACCURACY,
    Of,
    is_greater_better,
)
from infrastructure.config.methods import SFT, method_named
from infrastructure.config.registries import (
    EXTENSIONS,
    LOSSES,
    METHODS,
    METRICS,
    OPTIMIZERS,
    SCHEDULERS,
    SINKS,
    STRATEGIES,
)
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.recovery_config import RecoveryConfig
from infrastructure.config.sections.training_fields import TrainingFields
from infrastructure.config.types import (
    LARGEST,
    SAME_RESULT,
    Allowed,
    Auto,
    Count,
    CountOrZero,
    Duration,
    EachOnce,
    FromJson,
    Names,
    NotNegative,
    Positive,
    RegisteredName,
    Share,
    SplitCommas,
    TimeLimit,
    UsedWhen,
)
from infrastructure.core.features import default_plugins, extensions_with, merged
from infrastructure.core.messages import Setting, phrase

# The same setting in two units: giving one of a pair switches the other off.
EPOCHS_OR_STEPS = {
    "checkpoint_interval": "checkpoint_frequency",
    "validation_interval": "validation_frequency",
}


_ADDS_WEIGHTS = UsedWhen(
    lambda config: set(config.training.extensions) - extensions_with("adds_weights", value=False),
    "config.unused_nothing_adds_weights",
    "config.unused_add_extension",
)
_CHECKPOINTED = UsedWhen(
    lambda config: config.training.gradient_checkpointing,
    "config.unused_checkpointing_is_off",
    "config.unused_switch_it_on",
)
_TRANSFORMERS = UsedWhen(
    lambda config: config.model.backend != "unsloth", "config.unused_unsloth_checkpoints"
)
_HOLDS_OUT = UsedWhen(
    lambda config: config.data.holds_out,
    "config.unused_nothing_held_out",
    "config.unused_hold_rows_out",
)
_OWN_METRIC = UsedWhen(
    lambda config: config.training.best_metric not in MEASURES,
    "config.unused_metric_is_built_in",
    "config.leave_out",
)


def _method_has(attribute: str, otherwise: str) -> UsedWhen:
    """Return a mark for settings that have an effect only with methods of this kind."""
    return UsedWhen(
        lambda config: getattr(method_named(config.training.method), attribute, False), otherwise
    )


_BY_REWARD = _method_has("has_rewards", "config.unused_method_has_no_rewards")
_GENERATES = _method_has("generates", "config.unused_method_generates_nothing")
_HAS_BETA = _method_has("has_beta", "config.unused_method_has_no_beta")
_BY_TRL = UsedWhen(lambda config: config.training.method != SFT, "config.unused_method_is_sft")
_FINETUNES = UsedWhen(
    lambda config: config.training.strategy != "standard",
    "config.unused_trains_all_layers_alike",
    "config.unused_use_finetune",
)


if TYPE_CHECKING:  # the core reads no field of a feature
    FieldsOfFeatures = TrainingFields
else:

    class FieldsOfFeatures(with_fields_of_features("training"), TrainingFields):
        """The fields and properties that features add to the training section."""


class TrainingConfig(FieldsOfFeatures):
    """The settings of the loop and of the training strategies."""

    prefix: ClassVar[str] = "training"
    help_note: ClassVar[str] = (
        "{=training.strategy} says how the layers are trained. standard: all of them alike."
        " finetune: the same, but {=training.layerwise_lr_decay} can give each layer its own rate."
        " curriculum: easy rows first."
        " progressive and end_to_end: block-wise, which has its own section below. auto: the"
        " strategy that other settings require; otherwise, finetune if {=model.lora_config} is set"
        " or {=training.layerwise_lr_decay} is below 1, and standard if not."
    )

    method: Annotated[str, RegisteredName(METHODS, (SFT,))] = Field(
        default=SFT,
        description="Training method: sft uses Temper's loop, all others use TRL's trainers.",
    )
    rewards: Annotated[
        list[str],
        SplitCommas,
        EachOnce,
        Allowed(
            "a list of exact_answer, format=REGEX, json_schema=FILE or"
            " module:function, without duplicates"
        ),
        _BY_REWARD,
    ] = Field(
        default=[],
        description="Rewards of grpo and rloo.",
    )
    beta: Annotated[NotNegative | Auto, _HAS_BETA] = Field(
        default="auto",
        description="TRL's beta, in most methods the weight of the KL term; auto: TRL's default.",
    )
    num_generations: Annotated[
        Annotated[int, Ge(2), Le(1024)] | Auto,
        Allowed('a whole number from 2 to 1024, or "auto"'),
        _BY_REWARD,
    ] = Field(
        default="auto",
        description="Answers generated for each prompt in grpo and rloo; auto: TRL's default.",
    )
    max_completion_length: Annotated[Count, _GENERATES] = Field(
        default=256, description="Longest answer that is generated during training, in tokens."
    )
    temperature: Annotated[Positive, _GENERATES] = Field(
        default=1.0,
        description="Sampling temperature of answers that are generated during training.",
    )
    method_settings: Annotated[
        dict[str, JsonValue],
        FromJson,
        Allowed('a mapping from name to value, such as {"loss_type": "ipo"}'),
        _BY_TRL,
    ] = Field(
        default={},
        description="More arguments of the method's configuration in TRL, by their TRL names.",
    )
    strategy: Annotated[str, RegisteredName(STRATEGIES, ("auto",))] = Field(
        default="auto",
        description="How layers train; standard: all alike; finetune: with rates by"
        " layer; auto: as needed.",
    )
    num_epochs: Count | Auto = Field(
        default="auto",
        description="Passes over the data; auto: 3, or 4 for a new model, or what"
        " {=training.max_steps} needs.",
    )
    max_steps: Count | None = Field(
        default=None,
        description="Stop after this many optimizer steps; none: after {=training.num_epochs}.",
    )
    batch_size: Count | Auto = Field(
        default=32,
        description="Examples per forward pass; auto: the fastest number that fits, measured.",
    )
    gradient_accumulation: Count = Field(
        default=1,
        description="Forward passes whose gradients are accumulated for one optimizer step.",
    )
    learning_rate: Annotated[float, Gt(0), Le(10)] | Auto = Field(
        default="auto",
        description="Peak learning rate; auto: 2e-5; LoRA: 2e-4; embedded model:"
        " depends on its width.",
    )
    weight_decay: Share = Field(
        default=0.01, description="Decoupled weight decay of matrices; biases and norms have none."
    )
    warmup_steps: CountOrZero = Field(
        default=50,
        description="Optimizer steps over which the learning rate rises from 0 to its peak.",
    )
    scheduler_type: Annotated[str, RegisteredName(SCHEDULERS)] = Field(
        default="cosine", description="Learning-rate schedule after the warm-up."
    )
    max_grad_norm: Positive | None = Field(
        default=1.0, description="Clip gradients to this norm; none: no clipping."
    )
    optimizer: Annotated[str, RegisteredName(OPTIMIZERS)] = Field(
        default="adamw",
        description="Optimizer; the 8bit, paged (both bitsandbytes) and offload variants save"
        " GPU memory.",
    )
    mixed_precision: bool | Literal["bf16", "fp16", "fp32", "fp8"] = Field(
        default=True,
        description="Precision of the forward pass; true: the fastest safe one on this machine;"
        " false: fp32.",
    )
    gradient_checkpointing: bool = Field(
        default=False,
        description="Recompute activations in the backward pass: less memory, more time.",
    )
    gradient_checkpointing_mode: Annotated[
        Literal["all", "selective", "offload"], SAME_RESULT, _CHECKPOINTED, _TRANSFORMERS
    ] = Field(
        default="all",
        description="Blocks to recompute; selective: every other; offload: all, inputs"
        " kept in CPU memory.",
    )
    compile_mode: Literal["default", "reduce-overhead", "max-autotune", "auto"] | None = Field(
        default=None,
        description="torch.compile mode; auto: compile if a measurement shows a gain; none: never.",
    )
    shard: Annotated[Literal["auto", "no", "yes", "offload"], SAME_RESULT] = Field(
        default="auto",
        description="Shard the model across processes; auto: only if it must; offload:"
        " shards in CPU memory.",
    )
    memory_efficient_attention: bool | None = Field(
        default=None,
        description="Use SDPA attention; false: eager attention; not set: {=model.attention}"
        " decides.",
    )
    seed: Annotated[int, Ge(0), Lt(1 << 32)] = Field(
        default=0, description="Random seed of everything: order of data, dropout, new weights."
    )
    checkpoint_interval: Annotated[Count | None, SAME_RESULT] = Field(
        default=1, description="Save a checkpoint every N epochs; none: only at the end."
    )
    checkpoint_frequency: Annotated[Count | None, SAME_RESULT] = Field(
        default=None,
        description="Save a checkpoint every N optimizer steps, instead of"
        " {=training.checkpoint_interval}.",
    )
    keep_checkpoints: Annotated[
        int,
        Ge(2),
        Le(LARGEST),
        Allowed("a whole number of at least 2, in case the newest one is damaged"),
        SAME_RESULT,
    ] = Field(
        default=2,
        description="Number of newest checkpoints to keep, besides those of {=training.keep_best}.",
    )
    checkpoint_seconds: Annotated[Duration | Auto | None, SAME_RESULT] = Field(
        default="auto",
        description="Also save a checkpoint this often; auto: based on how long a save takes; none:"
        " off.",
    )
    keep_best: Annotated[CountOrZero, SAME_RESULT, _HOLDS_OUT] = Field(
        default=1,
        description="Best checkpoints to keep in addition, by {=training.best_metric}.",
    )
    best_metric: Annotated[str, _HOLDS_OUT] = Field(
        default=LOSS,
        description="Held-out metric that decides which checkpoint is best and when to stop early.",
    )
    best_metric_mode: Annotated[Literal["auto", "min", "max"], _OWN_METRIC] = Field(
        default="auto",
        description="For a metric of your own: whether lower (min) or higher (max) values are"
        " better.",
    )
    deadline: Annotated[TimeLimit | None, SAME_RESULT] = Field(
        default=None,
        description="Save and stop before this command has run for this long; none: never.",
    )
    validation_interval: Count | None = Field(
        default=1, description="Evaluate on held-out data every N epochs; none: only at the end."
    )
    validation_frequency: Count | None = Field(
        default=None,
        description="Evaluate on held-out data every N steps, instead of"
        " {=training.validation_interval}.",
    )
    validation_prompts: CountOrZero = Field(
        default=320,
        description="Maximum number of held-out prompts to answer before and again"
        " after training; 0: none.",
    )
    log_frequency: Annotated[Count, SAME_RESULT] = Field(
        default=1,
        description="Log metrics every N optimizer steps; on a GPU, training waits for"
        " the device each time.",
    )
    early_stopping_patience: Annotated[Count | None, _HOLDS_OUT] = Field(
        default=None,
        description="Stop after N evaluations without improvement, and use the best model;"
        " none: never.",
    )
    layerwise_lr_decay: Annotated[float, Gt(0), Le(1), _FINETUNES] = Field(
        default=1.0,
        description="Learning rate of a layer, relative to that of the layer above; 1: all equal.",
    )
    enabled_extensions: Annotated[
        Names,
        RegisteredName(EXTENSIONS, is_late=True),
    ] = Field(
        default=[],
        description="Extensions to enable, in this order, such as memory,quantum; your"
        " own and observers too.",
    )
    extension_learning_rate: Annotated[Annotated[float, Gt(0), Le(10)] | Auto, _ADDS_WEIGHTS] = (
        Field(
            default="auto",
            description="Peak learning rate of weights that extensions add; auto: 1e-3, or the"
            " model's if higher.",
        )
    )
    recovery: RecoveryConfig = Field(
        default=RecoveryConfig(), description="What is done about an error before giving up."
    )
    metrics_sinks: Annotated[
        list[str],
        SplitCommas,
        EachOnce,
        RegisteredName(SINKS),
        Allowed(
            f"a list of {', '.join(SINKS.built_in)}, or a name of your own, without duplicates"
        ),
        SAME_RESULT,
    ] = Field(
        default=["console", "jsonl", "csv", *default_plugins(SINKS.group)],
        description="Where metrics are written; jsonl: always.",
    )
    loss: Annotated[str, RegisteredName(LOSSES)] = Field(
        default="cross_entropy",
        description="Loss of each trained token.",
    )
    metrics: Annotated[
        list[str],
        SplitCommas,
        EachOnce,
        RegisteredName(METRICS),
        Allowed(
            "a list of your own functions, as registered names or module:function, without"
            " duplicates"
        ),
        SAME_RESULT,
    ] = Field(default=[], description="Additional metrics, averaged over held-out tokens.")
    settings: Annotated[
        dict[str, JsonValue],
        FromJson,
        Allowed('a mapping from name to value, such as {"stages": 3}'),
    ] = Field(
        default={},
        description="Settings of your own strategy, adapter or extension, which reads them by"
        " name.",
    )
    _defaults: dict[str, Any] = PrivateAttr(default={})

    def declare(self, defaults: dict[str, Any]) -> None:
        """Set the defaults of user-defined settings. Values that the user gave take precedence.

        The defaults belong to the user's code, so they are neither recorded nor compared as
        settings.
        """
        self._defaults = defaults

    @property
    def best_metric_key(self) -> str:
        """The key of `best_metric` in the metrics of an evaluation."""
        return f"eval_{self.best_metric.rpartition(':')[2]}"

    @property
    def best_is_greater(self) -> bool:
        """True if higher values of `best_metric` are better."""
        if self.best_metric in MEASURES:
            return is_greater_better(self.best_metric)
        return self.best_metric_mode == "max"

    @property
    def ends_with_best(self) -> bool:
        """True if a run returns the model of its best checkpoint, not of its last step.

        This is so if early stopping is on, or if `best_metric` is not the loss.
        """
        return self.early_stopping_patience is not None or self.best_metric != LOSS

    @property
    def num_best_kept(self) -> int:
        """The number of best checkpoints to keep in addition to the newest ones."""
        return max(self.keep_best, int(self.ends_with_best))

    @property
    def best_needs_answers(self) -> bool:
        """True if `best_metric` needs generated answers at each evaluation."""
        return MEASURES.get(self.best_metric) is Of.ROWS

    @property
    def token_metrics(self) -> list[str]:
        """The names of the metrics that are computed on held-out tokens."""
        is_further = self.best_metric == TOKEN_ACCURACY and TOKEN_ACCURACY not in self.metrics
        return [*self.metrics, *([TOKEN_ACCURACY] if is_further else [])]

    @property
    def own_settings(self) -> dict[str, Any]:
        """The values of user-defined settings, including their declared defaults."""
        return {**self._defaults, **self.settings}

    def warmup_within(self, num_steps: int) -> int:
        """Return the number of warmup steps for a schedule of `num_steps`, at most half of them."""
        return min(self.warmup_steps, num_steps // 2)

    def strategy_for(self, model: ModelConfig) -> str:
        """Return the strategy's name; for "auto", the one that the other settings need."""
        if self.strategy != "auto":
            return self.strategy
        if self.needed_strategy is not None:
            return self.needed_strategy
        finetunes = model.lora_config or self.layerwise_lr_decay < 1
        return "finetune" if finetunes else "standard"

    def enables(self, name: str) -> bool:
        """Return whether Temper's own extension with this name is enabled.

        A user-defined extension with the same name does not count.
        """
        return name in self.enabled_extensions and not EXTENSIONS.is_own(name)

    @property
    def extensions(self) -> list[str]:
        """The active extensions: those that the user lists, and those that a setting enables."""
        enabling = merged("enables").items()
        by_setting = (name for name, key in enabling if getattr(self, key) is not None)
        return list(dict.fromkeys([*self.enabled_extensions, *by_setting]))

    def __getattr__(self, name: str) -> Any:
        """Return the value of a user-defined setting: `config.stages` reads like a built-in one."""
        if name.startswith("_"):  # pydantic's
            return super().__getattr__(name)  # type: ignore[misc]
        own = self.own_settings if "settings" in self.__dict__ else {}
        if name in own:
            return own[name]
        raise AttributeError(phrase("config.no_such_attribute", name=name, own=[*own] or "none"))

    @classmethod
    def check_own_name(cls, name: str) -> None:
        """Check that the name of a user-defined setting is not one of Temper's own names.

        Raises:
            ConfigurationError: if Temper uses the name; the message names the setting.
        """
        if hasattr(cls, name) or name in cls.model_fields:
            raise ConfigurationError("config.own_setting_name_taken", name=name)

    def check_together(self) -> None:
        """Refuse intervals given in both epochs and steps, and user-defined names that Temper uses.

        If only the interval in steps is given, the default interval in epochs is switched off.
        """
        for name in self.settings:
            self.check_own_name(name)
        for epochs, steps in EPOCHS_OR_STEPS.items():
            if getattr(self, epochs) is None or getattr(self, steps) is None:
                continue
            if {epochs, steps} <= self.model_fields_set:
                raise ConfigurationError(
                    "config.epochs_and_steps_given",
                    epochs_key=Setting(f"training.{epochs}"),
                    num_epochs=getattr(self, epochs),
                    steps_key=Setting(f"training.{steps}"),
                    num_steps=getattr(self, steps),
                )
            self.__dict__[epochs] = None
