"""The training methods: what a method is, and those that TRL has.

`sft` is Temper's own loop, and no method of this registry. Nothing here imports TRL.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from infrastructure.config.registries import METHODS
from infrastructure.core.errors import InputError

SFT = "sft"  # Temper's own loop; every other method is a trainer of TRL


class RowKind(Enum):
    """The kinds of rows that a method trains on. The values are message codes of their names."""

    PAIRS = "methods.pairs"
    JUDGED = "methods.judged_answers"
    PROMPTS = "methods.prompts"


@dataclass(frozen=True)
class Method:
    """A method of TRL, such as DPO or GRPO, or of your own.

    Attributes:
        title: the name shown to users.
        class_name: the common prefix of the class names of its trainer and its configuration.
        rows: the kind of rows that it trains on. With PROMPTS, the model generates the answers.
        modules: possible locations of its trainer in TRL, as (module, name of its files). The first
            existing one is used.
        trainer, config: addresses of its classes, if TRL does not have them. They are subclasses of
            a trainer of TRL and of its configuration.
        head: the transformers auto class of its model.
        reads: the inputs of the chat template besides messages that a row may have.
        has_beta: whether its configuration has the argument `beta`.
        needs_beta: whether nothing is learned if `beta` is 0.
        has_rewards: whether it learns from rewards.
        least_batch: the least number of rows in a batch.
        settings: keys of settings that only this method uses.
        refused: argument of its configuration → code of the reason why it cannot be given.
    """

    title: str
    class_name: str
    rows: RowKind
    modules: tuple[tuple[str, str], ...] = ()
    trainer: str = ""
    config: str = ""
    head: str = "AutoModelForCausalLM"
    reads: frozenset[str] = frozenset()
    has_beta: bool = True
    needs_beta: bool = False
    has_rewards: bool = False
    least_batch: int = 1
    settings: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def generates(self) -> bool:
        """Whether the model generates the answers that it learns from."""
        return self.rows is RowKind.PROMPTS

    def check(self, config: Any) -> None:
        """Check a configuration, before TRL is imported.

        Raises:
            ValueError: this method cannot train with these settings.
        """

    def parts(self, training: Any) -> tuple[dict[str, object], dict[str, object]]:
        """Return more arguments of its configuration, and more arguments of its trainer.

        Args:
            training: a `TrlTraining`, whose tokenizer is loaded.

        Raises:
            ValueError: the models do not fit together.
        """
        return {}, {}

    def adapted(self, training: Any, trainer_class: Any) -> Any:
        """Return the class of the trainer for these models: that of TRL, or a subclass.

        Args:
            training: a `TrlTraining` that was checked.
        """
        return trainer_class


def method_named(name: str) -> Method | None:
    """Return a method by its name or address. None for `sft`, and if there is no such method."""
    try:
        method: Method | None = None if name == SFT else METHODS.get(name)
    except InputError:  # another check reports it
        return None
    return method


def stable(name: str) -> tuple[str, str]:
    """Return the location in TRL of a method's trainer."""
    return "trl", f"trainer/{name}"


def _experimental(name: str) -> tuple[str, str]:
    return f"trl.experimental.{name}", f"experimental/{name}/{name}"


TOOLS, OPTIONS = "tools", "chat_template_kwargs"
BOTH = frozenset({TOOLS, OPTIONS})
METHODS.provide(
    {
        "dpo": Method("DPO", "DPO", RowKind.PAIRS, (stable("dpo"),), reads=BOTH, needs_beta=True),
        # 0.29.1 has a stub of it in trl that warns, 1.14.2 one in trl.experimental without this
        # file
        "kto": Method(
            "KTO",
            "KTO",
            RowKind.JUDGED,
            (_experimental("kto"), stable("kto")),
            reads=BOTH,
            needs_beta=True,
            least_batch=2,
        ),
        "orpo": Method(
            "ORPO", "ORPO", RowKind.PAIRS, (_experimental("orpo"),), reads=frozenset({OPTIONS})
        ),
        "grpo": Method("GRPO", "GRPO", RowKind.PROMPTS, (stable("grpo"),), has_rewards=True),
        "rloo": Method("RLOO", "RLOO", RowKind.PROMPTS, (stable("rloo"),), has_rewards=True),
        "reward": Method(
            "reward modelling",
            "Reward",
            RowKind.PAIRS,
            (stable("reward"),),
            head="AutoModelForSequenceClassification",
            reads=BOTH,
            has_beta=False,
        ),
    },
    Method,
    makes=False,
)
