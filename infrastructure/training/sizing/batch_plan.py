"""The choice of micro-batch size and gradient accumulation.

The configuration sets them, or with `batch_size: auto` a measurement: it finds the fastest
micro-batch that fits, and the accumulation that gives an optimizer step of the usual size. The
choice is made once per run, and a resumed run repeats it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.integers import ceil_div
from infrastructure.core.json_cache import JsonCache, Key
from infrastructure.core.messages import phrase
from infrastructure.optimization.batch_size import LARGEST, BatchChoice
from infrastructure.run.record_types import DecidedSetting

# An optimizer step of the default batch_size, for which the default learning rates are made.
USUAL_STEP = int(TrainingConfig().batch_size)
USUAL_EPOCHS = 3
# A run of fewer optimizer steps learns little, however fast each of them is.
FEWEST_STEPS = 50

TUNING_FILE = "tuning.json"

BATCH_SIZE = "training.batch_size"
ACCUMULATION = "training.gradient_accumulation"


@dataclass(frozen=True)
class BatchPlan:
    """The micro-batch size and gradient accumulation of a run.

    Attributes:
        origin: text about how they were chosen; empty if the configuration sets size and
            accumulation.
        trials: a line of text for each size that was measured.
    """

    micro_batch_size: int
    gradient_accumulation: int
    origin: str = ""
    trials: tuple[str, ...] = ()

    @property
    def global_batch_size(self) -> int:
        return self.micro_batch_size * self.gradient_accumulation

    def of_one_process(self, num_processes: int) -> "BatchPlan":
        """Return the plan for one process: the largest share of a batch divided among
        `num_processes`.
        """
        share = ceil_div(self.global_batch_size, num_processes)
        micro_batch_size = min(self.micro_batch_size, share)
        return BatchPlan(micro_batch_size, ceil_div(share, micro_batch_size))

    def resolved(self) -> dict[str, int]:
        """Return micro-batch size and accumulation by setting, in the form that checkpoints
        contain.
        """
        return {BATCH_SIZE: self.micro_batch_size, ACCUMULATION: self.gradient_accumulation}

    def decided(self) -> dict[str, DecidedSetting]:
        """Return micro-batch size and accumulation with their origin, for run.json; empty if
        configured.
        """
        if not self.origin:
            return {}
        return {key: {"value": n, "origin": self.origin} for key, n in self.resolved().items()}

    def lines(self) -> list[str]:
        """Return the choice as lines of text; empty if the configuration sets both numbers."""
        if not self.origin:
            return []
        decided = phrase(
            "training.batch_size_chosen",
            micro_batch=self.micro_batch_size,
            global_batch=self.global_batch_size,
            origin=self.origin,
        )
        return [decided, *(f"  {line}" for line in self.trials)]


def configured(config: TrainingConfig) -> BatchPlan | None:
    """Return the plan that the configuration sets; None if `batch_size` is `auto`."""
    if config.batch_size == "auto":
        return None
    return BatchPlan(config.batch_size, config.gradient_accumulation)


def repeated(config: TrainingConfig, resolved: Mapping[str, int]) -> BatchPlan | None:
    """Return the plan stored in a checkpoint, if the configuration has `batch_size: auto`."""
    if config.batch_size != "auto" or BATCH_SIZE not in resolved:
        return None
    return BatchPlan(
        resolved[BATCH_SIZE], resolved[ACCUMULATION], phrase("training.batch_size_from_checkpoint")
    )


def largest_size(config: TrainingConfig, num_examples: int) -> int:
    """Return the largest micro-batch with which the run has enough optimizer steps."""
    epochs = USUAL_EPOCHS if config.num_epochs == "auto" else config.num_epochs
    by_steps = num_examples * epochs // FEWEST_STEPS // given_accumulation(config)
    return max(1, min(LARGEST, num_examples, by_steps))


def why_largest(config: TrainingConfig, num_examples: int) -> str:
    """Return the reason why no size above `largest_size` was tried."""
    largest = largest_size(config, num_examples)
    if largest in (LARGEST, num_examples):
        return phrase("training.largest_batch_size_tried", largest=largest)
    return phrase(
        "training.batch_size_leaves_few_steps",
        size=1 << largest.bit_length(),
        fewest=FEWEST_STEPS,
    )


def given_accumulation(config: TrainingConfig) -> int:
    """Return the configured gradient accumulation, or 1 if it is not configured."""
    return config.gradient_accumulation if _is_given(config) else 1


def accumulation_for(config: TrainingConfig, size: int, largest: int) -> int:
    """Return the gradient accumulation for micro-batches of `size`.

    This is the configured value, or else the value that gives an optimizer step of the usual size.
    """
    if _is_given(config):
        return config.gradient_accumulation
    return max(1, min(USUAL_STEP, largest) // size)


def measured(
    config: TrainingConfig,
    num_examples: int,
    search: Callable[[int], BatchChoice],
    cache: JsonCache[dict[str, int]],
    key: Key,
    budget_bytes: int,
) -> BatchPlan:
    """Return the plan with the fastest micro-batch size, from a new or a cached measurement.

    Args:
        search: finds the fastest size, given the largest allowed one.
        budget_bytes: the memory that may be used now. A cached result must fit into it.

    Raises:
        DoesNotFitError: not even one example fits.
    """
    largest = largest_size(config, num_examples)
    known = cache.get({**key, "largest": largest})
    if known is not None and known["peak_bytes"] <= budget_bytes:
        size = known["size"]
        accumulation = accumulation_for(config, size, largest)
        return BatchPlan(size, accumulation, phrase("training.batch_size_measured_earlier"))
    choice = search(largest)
    result = {"size": choice.size, "peak_bytes": choice.peak_bytes}
    cache.put({**key, "largest": largest}, result)
    return BatchPlan(
        choice.size,
        accumulation_for(config, choice.size, largest),
        phrase(
            "training.batch_size_measured_now",
            reason=choice.reason or why_largest(config, num_examples),
        ),
        tuple(choice.lines()),
    )


def measured_before(cache_directory: Path) -> JsonCache[dict[str, int]]:
    """Return the cache of measured sizes, by hardware, versions, model, length and largest size."""
    return JsonCache(cache_directory / TUNING_FILE, "what was measured", _is_result)


def _is_result(value: object) -> TypeGuard[dict[str, int]]:
    return isinstance(value, dict) and all(
        type(value.get(name)) is int and value[name] >= 1 for name in ("size", "peak_bytes")
    )


def _is_given(config: TrainingConfig) -> bool:
    return "gradient_accumulation" in config.model_fields_set
