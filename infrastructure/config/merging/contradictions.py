"""Tables of settings that are valid by themselves but contradict each other.

A row consists of a message code and the facts that contradict each other. A fact is one of: a key,
which is true if the setting is set and not off; `key=a|b`, which is true for these values; or `not`
and a fact. A few facts that follow from several settings have names of their own. The message can
use the last part of each key as a placeholder: `{quantization}`.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from infrastructure.config.field_help import as_typed
from infrastructure.config.sections.model_config import variants_of
from infrastructure.core.features import all_of, loaded, merged
from infrastructure.core.messages import Setting, phrase

Table = tuple[tuple[str, ...], ...]


def _strategy(config: Any) -> str:
    return str(config.training.strategy_for(config.model))


def _lora_variant(config: Any) -> Setting | None:
    lora = config.model.lora_config
    named = [name for name, is_on in variants_of(lora).items() if is_on] if lora else []
    return Setting(f"model.lora_config.{named[0]}") if named else None


_OWN_FACTS: Mapping[str, Callable[[Any], object]] = MappingProxyType(
    {
        "strategy": _strategy,
        "lora_variant": _lora_variant,
    }
)

CONTRADICTIONS: Table = (
    (
        "config.auto_compile_not_measured",
        "training.compile_mode=auto",
        "not enable_gpu_optimization",
    ),
    (
        "config.best_metric_needs_answers",
        "training.best_metric",
        "training.best_needs_answers",
        "not training.validation_prompts",
    ),
    # Variants of LoRA.
    ("config.lora_variant_with_unsloth", "lora_variant", "model.backend=unsloth"),
)

# Weights that an extension adds to the model. The caller gives `key`: where they come from.
ADDED_WEIGHTS: Table = (
    ("config.added_weights_with_unsloth", "model.backend=unsloth"),
    ("config.added_weights_with_fp8", "training.mixed_precision=fp8"),
)
ADDING_EXTENSION: Table = (
    ("config.added_weights_with_trl", "not training.method=sft"),
    ("config.added_weights_with_compile", "training.compile_mode"),
    *ADDED_WEIGHTS,
)

# A model that is sharded over processes (`training.shard`).
SHARDED: Table = (
    ("config.shard_with_quantization", "model.quantization"),
    ("config.shard_with_unsloth", "model.backend=unsloth"),
    ("config.shard_with_compile", "training.compile_mode"),
    ("config.shard_with_fp8", "training.mixed_precision=fp8"),
    (
        "config.shard_with_8bit_optimizer",
        "training.optimizer=adamw_8bit|paged_adamw|paged_adamw_8bit",
    ),
    ("config.shard_with_offloaded_adamw", "training.optimizer=adamw_offload"),
    ("config.shard_with_trl_method", "not training.method=sft"),
    ("config.shard_with_strategy", "not strategy=standard|finetune"),
    ("config.shard_with_extensions", "training.extensions"),
    ("config.shard_with_adapter", "not model.adapter=auto|standard|dialogue"),
    ("config.shard_with_answer_metric", "training.best_metric", "training.best_needs_answers"),
    ("config.shard_with_auto_batch_size", "training.batch_size=auto"),
)


def contradictions_in(table: Table, config: Any, **about: object) -> Iterator[str]:
    """Yield the message of each row of a table whose facts are all true.

    Args:
        config: an object with the sections that the table names.
        about: further values for the placeholders of the messages.
    """
    for code, *facts in table:
        if all(_holds(fact, config) for fact in facts):
            yield phrase(code, **about, **dict(_about(facts, config)))


def contradicting(fact: str, config: Any) -> Iterator[Setting]:
    """Yield, for each row of the whole table that contradicts `fact`, the setting that does."""
    for _, *facts in all_contradictions():
        others = [other for other in facts if other != fact]
        if fact in facts and all(_holds(other, config) for other in others):
            key = key_of(others[0])
            value = _value(key, config)
            yield value if isinstance(value, Setting) else Setting(key)


@cache
def named_facts() -> Mapping[str, Callable[[Any], object]]:
    """Return name → function, for facts with names of their own, including those of features."""
    return {**_OWN_FACTS} | {name: loaded(address) for name, address in merged("facts").items()}


@cache
def all_contradictions() -> Table:
    """Return the whole table: the core's rows and those of all features."""
    return with_rows_of_features(CONTRADICTIONS, "contradictions")


def with_rows_of_features(table: Table, attribute: str) -> Table:
    """Return a table, extended by the rows of all features in their attribute of that name."""
    return (*table, *(row for rows in all_of(attribute) for row in rows))


def key_of(fact: str) -> str:
    """Return the key, or the fact's own name, without `not` and values."""
    return fact.removeprefix("not ").partition("=")[0]


def _holds(fact: str, config: Any) -> bool:
    value = _value(key_of(fact), config)
    _, is_compared, values = fact.partition("=")
    holds = as_typed(value) in values.split("|") if is_compared else bool(value)
    return holds is not fact.startswith("not ")


def _value(key: str, config: Any) -> Any:
    if key in named_facts():
        return named_facts()[key](config)
    for name in key.split("."):
        config = None if config is None else getattr(config, name)
    return config


def _about(facts: list[str], config: Any) -> Iterator[tuple[str, str]]:
    for fact in facts:
        key = key_of(fact)
        value = _value(key, config)
        if isinstance(value, Setting):
            yield key, value
        elif "=" in fact or (isinstance(value, str | int | float | list) and value is not True):
            yield key.rpartition(".")[2], as_typed(value)
