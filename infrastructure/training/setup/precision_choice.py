"""The number format of a new run, by measurement, where the configuration leaves it open.

A CPU with bf16 instructions multiplies faster in bf16, and converts more: small models may train
faster in fp32. With the format goes the form of attention: products for short examples in bf16, one
call an example in fp32 (see `packed_attention`). Decided once in the life of a run: checkpoints and
run.json hold it, and whoever goes on computes in the same format.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from infrastructure.run.record_types import DecidedSetting
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.sizing.batch_plan import USUAL_STEP
from infrastructure.training.strategies.stackwise_strategy import StackwiseStrategy
from infrastructure.training.strategies.trial import is_own

USUAL, OTHER = CANDIDATES = ("bf16", "fp32")
LEAST_GAIN = 0.1  # a smaller one may be chance: then runs of the same kind compute alike
TIMED_MICRO_BATCHES = 3  # in each format, after one that does not count
# What is measured may take half a hundredth of the run.
WORTH_IT = 200 * len(CANDIDATES) * (1 + TIMED_MICRO_BATCHES)
SETTING = "training.mixed_precision"


@dataclass(frozen=True)
class PrecisionChoice:
    """What was measured.

    Attributes:
        seconds: of a micro-batch in each format, median.
    """

    seconds: dict[str, float]

    @property
    def name(self) -> str:
        """The format to train in."""
        is_faster = self.seconds[OTHER] < (1 - LEAST_GAIN) * self.seconds[USUAL]
        return OTHER if is_faster else USUAL

    def decided(self) -> dict[str, DecidedSetting]:
        """For run.json, by key."""
        measured = ", ".join(f"{name} {value:.3g} s" for name, value in self.seconds.items())
        origin = f"measured on this machine: a forward and backward pass takes {measured}"
        return {SETTING: {"value": self.name, "origin": origin}}

    def lines(self) -> list[str]:
        """For people; nothing where it is what everybody expects."""
        if self.name == USUAL:
            return []
        return [f"{SETTING}: {self.name} ({self.decided()[SETTING]['origin']})"]


def choose_measured(trainer: EnhancedTrainer) -> PrecisionChoice | None:
    """Let a trainer that has not begun compute in the format that is the fastest for it.

    Returns:
        What was measured; None: there was nothing to choose, or it was not worth measuring.
    """
    if not _is_open(trainer) or _num_micro_batches(trainer) < WORTH_IT:
        return None
    choice = PrecisionChoice(_measured(trainer))
    trainer.use_precision(choice.name)
    return choice


def _is_open(trainer: EnhancedTrainer) -> bool:
    """Whether nobody has said it, this device can do both, and all of the training is here."""
    config = trainer.training_config
    return (
        config.mixed_precision is True
        and trainer.device.type == "cpu"
        and trainer.precision.name == USUAL
        and config.compile_mode is None
        and trainer.num_processes == 1
        and not isinstance(trainer.strategy, StackwiseStrategy)
        and not is_own(trainer.strategy)
    )


def _num_micro_batches(trainer: EnhancedTrainer) -> int:
    config = trainer.training_config
    if config.batch_size != "auto":
        return trainer.check_length() * trainer.batch_plan().gradient_accumulation
    num_epochs = 1 if config.num_epochs == "auto" else config.num_epochs
    return trainer.initialize_data().num_examples * num_epochs // USUAL_STEP


def _measured(trainer: EnhancedTrainer) -> dict[str, float]:
    """Seconds of a usual micro-batch in each format, which take turns."""
    fit, size = trainer.cost_measurement(), trainer.training_config.batch_size
    examples = fit.usual[: USUAL_STEP if size == "auto" else size]
    seconds: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    with fit.strategy.measuring(fit.model), fit.probing(accumulates=False) as probe:
        for name in _in_turns():
            trainer.use_precision(name)
            seconds[name].append(probe.micro_batch(examples).seconds)
    return {name: median(of[1:]) for name, of in seconds.items()}


def _in_turns() -> Iterable[str]:
    for _ in range(1 + TIMED_MICRO_BATCHES):
        yield from CANDIDATES
