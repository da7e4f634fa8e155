"""The options of an evaluation. Impossible requests are refused before torch is loaded."""

from dataclasses import dataclass

from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.measures import MEASURES
from infrastructure.config.merging.precedence import Layer
from infrastructure.core.errors import InputError
from infrastructure.core.features import fields_for
from infrastructure.core.lookup import look_up
from infrastructure.core.messages import Setting, phrase
from infrastructure.evaluation.text_scores import refuse_missing_package

UNUSED = {
    "data.eval_path": "evaluation.data_is_evaluated",
    "data.validation_split": "evaluation.nothing_held_out",
    "model.lora_config": "evaluation.model_has_own_lora",
    "model.embedded": "evaluation.model_has_own_shape",
}
# Settings below `training.` that only affect how a model learns, is saved or is monitored.
OF_LEARNING = (
    *("method", "rewards", "beta", "num_generations", "max_completion_length"),
    *("temperature", "method_settings", "num_epochs", "max_steps", "gradient_accumulation"),
    *("learning_rate", "weight_decay", "warmup_steps", "scheduler_type", "max_grad_norm"),
    *("optimizer", "gradient_checkpointing"),
    *("gradient_checkpointing_mode", "shard", "checkpoint_interval", "checkpoint_frequency"),
    *("keep_checkpoints", "checkpoint_seconds", "keep_best", "best_metric", "best_metric_mode"),
    *("deadline", "validation_interval"),
    *("validation_frequency", "log_frequency", "early_stopping_patience"),
    *("layerwise_lr_decay", "extension_learning_rate", "metrics_sinks"),
    *(
        name
        for kind in fields_for("training")
        for name in kind.model_fields
        if name not in getattr(kind, "measured", ())
    ),
)


def unused_because(key: str) -> str | None:
    """Return the reason why an evaluation does not use a setting; None if the setting is used."""
    codes = (code for part, code in UNUSED.items() if f"{key}.".startswith(f"{part}."))
    return next(map(phrase, codes), None)


def refuse_flags_without_effect(config: DeploymentConfig) -> None:
    """Refuse flags and keywords that have no effect on an evaluation.

    Raises:
        ConfigurationError: there are such flags; the message has a sentence for each.
    """
    sentences = []
    for key, source in config.sources().items():
        section, _, name = key.partition(".")
        is_of_learning = section == "training" and name.partition(".")[0] in OF_LEARNING
        reason = phrase("evaluation.nothing_trained") if is_of_learning else unused_because(key)
        if source.layer in (Layer.FLAG, Layer.KEYWORD) and reason is not None:
            sentences.append(phrase("evaluation.flag_no_effect", key=Setting(key), reason=reason))
    if sentences:
        raise ConfigurationError("\n".join(sentences))


@dataclass(frozen=True)
class Request:
    """The options of an evaluation: a second model, measures, and the length of answers.

    Attributes:
        against: a second model, measured on the same rows.
        measures: names from `infrastructure.config.measures`; None: those that suit the rows and
            can be computed on this machine.
        max_tokens: the maximum length of an answer; None: a few tokens more than the longest
            expected one.

    Raises:
        ValueError: there is no such measure, or `max_tokens` is below 1.
        MissingPackageError: a measure needs a package that is not installed.
    """

    against: str | None = None
    measures: tuple[str, ...] | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in self.measures or ():
            look_up("measure", name, MEASURES)
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InputError("evaluation.max_tokens_too_small", max_tokens=self.max_tokens)
        refuse_missing_package(self.measures or ())
