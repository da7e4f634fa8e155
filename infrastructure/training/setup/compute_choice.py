"""The choice of CPU threads and precision for a new run, by measurement.

Threads wait for each other after every operation, and a small model has many small operations. If
threads are slow to wake up, as on many virtual machines, one thread trains such a model faster than
two. A CPU with bf16 instructions multiplies faster in bf16 but also converts more, so small models
may train faster in fp32. If it multiplies more slowly in bf16, bf16 is not tried
(`product_choice`). The attention implementation depends on the precision (see `packed_attention`).

Both choices affect rounding, so they are made once per run. Checkpoints and run.json contain them,
and a resumed run repeats them.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from infrastructure.core.messages import Setting, phrase
from infrastructure.core.shared_cores import THREADS_VARIABLE
from infrastructure.run.record_types import DecidedSetting
from infrastructure.training.core.product_choice import (
    OTHER,
    PRECISION,
    USUAL,
    ProductChoice,
    measured_choice,
)
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.sizing.batch_plan import USUAL_STEP
from infrastructure.training.strategies.trial import is_own

LEAST_GAIN = 0.1  # a smaller gain may be chance, and then similar runs compute alike
# A program that is currently busy slows two threads down, and may end long before the training.
LEAST_GAIN_OF_FEWER_THREADS = 0.2
# Operations of a longer micro-batch are large, and waiting for other threads is a small part of it.
LONG_SECONDS = 0.5
TIMED_MICRO_BATCHES = 2  # of each candidate, after one that loads kernels
# The measurement may take a fiftieth of the run: two formats, each with all threads and with half.
WORTH_IT = 50 * 4 * (1 + TIMED_MICRO_BATCHES)
NUM_THREADS = "num_threads"

Candidate = tuple[str, int]  # the format, and the number of threads


@dataclass(frozen=True)
class ComputeChoice:
    """The measured candidates for precision and number of threads, and the fastest of them.

    Attributes:
        seconds: (precision, threads) → shortest time of a micro-batch. Sorted by number of threads,
            the largest first; for equal numbers, the default precision comes first.
    """

    seconds: Mapping[Candidate, float]

    @property
    def num_threads(self) -> int:
        """The chosen number of threads."""
        best, *fewer = dict.fromkeys(count for _, count in self.seconds)
        for count in fewer:
            if self._least(count) < (1 - LEAST_GAIN_OF_FEWER_THREADS) * self._least(best):
                best = count
        return best

    @property
    def precision(self) -> str:
        """The chosen precision."""
        return self._precision_with(self.num_threads)

    def _precision_with(self, count: int) -> str:
        usual, *others = (name for name, threads in self.seconds if threads == count)
        for other in others:
            if self.seconds[other, count] < (1 - LEAST_GAIN) * self.seconds[usual, count]:
                return other
        return usual

    def _least(self, count: int) -> float:
        return self.seconds[self._precision_with(count), count]

    def decided(self) -> dict[str, DecidedSetting]:
        """Return the measured decisions for run.json, by key."""
        measured = ", ".join(
            f"{each:.3g} s in {name} with {_threads(count)}"
            for (name, count), each in self.seconds.items()
        )
        origin = phrase(
            "training.compute_choice_origin",
            origin=phrase("training.measured_here"),
            measured=measured,
        )
        decisions: dict[str, DecidedSetting] = {}
        if len({name for name, _ in self.seconds}) > 1:
            decisions[PRECISION] = {"value": self.precision, "origin": origin}
        if len({count for _, count in self.seconds}) > 1:
            decisions[NUM_THREADS] = {"value": self.num_threads, "origin": origin}
        return decisions

    def lines(self) -> list[str]:
        """Return the choice as lines of text; empty if it is the default."""
        precision, count = self.precision, self.num_threads
        usual, most = next(iter(self.seconds))
        shown = []
        if count != most:
            shown.append(phrase("training.cpu_threads", count=count, most=most))
        if precision != usual:
            shown.append(format(Setting(PRECISION, precision)))
        if not shown:
            return []
        in_usual = f" in {usual}" if precision != usual else ""
        return [
            phrase(
                "training.compute_choice_measured",
                chosen=", ".join(shown),
                seconds=self.seconds[precision, count],
                usual_seconds=self.seconds[usual, most],
                in_usual=in_usual,
                threads=_threads(most),
            )
        ]


def choose_by_product(trainer: EnhancedTrainer) -> ProductChoice | None:
    """Switch a trainer to fp32, before its model is loaded, if bf16 products are slower.

    Returns:
        The measurement, or None if the precision is unchanged.
    """
    if not (_precision_is_open(trainer) and _multiplies_fp32(trainer)):
        return None
    choice = measured_choice()
    if choice is not None:
        trainer.use_precision(OTHER)
    return choice


def choose_by_trial(trainer: EnhancedTrainer) -> ComputeChoice | None:
    """Switch a trainer to the fastest precision and number of threads, measured on its own model.

    Returns:
        The measurement, or None if there was only one candidate or a measurement would take too
        long.
    """
    most = torch.get_num_threads()
    is_open = _precision_is_open(trainer)
    precisions = (USUAL, OTHER) if is_open else (trainer.precision.name,)
    threads_are_open = most > 1 and not os.environ.get(THREADS_VARIABLE)
    if not (threads_are_open or is_open) or not _is_alone(trainer):
        return None
    if _num_micro_batches(trainer) < WORTH_IT:
        return None
    with _timing(trainer) as seconds:
        halves = threads_are_open and not _is_long(seconds)
        if not (halves or is_open):
            return None
        if not threads_are_open:
            seconds()  # loads kernels, as `_is_long` does
        choice = ComputeChoice(_compared(trainer, seconds, precisions, most, halves=halves))
    torch.set_num_threads(choice.num_threads)
    trainer.use_precision(choice.precision)
    return choice


def _precision_is_open(trainer: EnhancedTrainer) -> bool:
    return trainer.training_config.mixed_precision is True and trainer.precision.name == USUAL


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def _is_alone(trainer: EnhancedTrainer) -> bool:
    """Return whether a single process trains on the CPU, without compiled or changing layers."""
    return (
        trainer.device.type == "cpu"
        and trainer.training_config.compile_mode is None
        and trainer.placement.size == 1
        and not trainer.strategy.has_forms
        and not is_own(trainer.strategy)
    )


def _multiplies_fp32(trainer: EnhancedTrainer) -> bool:
    """Return whether the model runs on a CPU and its weights are all in fp32."""
    model, holds_others = trainer.model_config, trainer.training_config.holds_half_weights
    has_fp32 = model.quantization is None and model.dtype in ("auto", OTHER) and not holds_others
    return trainer.device.type == "cpu" and has_fp32


def _num_micro_batches(trainer: EnhancedTrainer) -> int:
    config = trainer.training_config
    if config.batch_size != "auto":
        return trainer.length().total_steps * trainer.batch_plan().gradient_accumulation
    num_epochs = 1 if config.num_epochs == "auto" else config.num_epochs
    return trainer.initialize_data().num_examples * num_epochs // USUAL_STEP


@contextmanager
def _timing(trainer: EnhancedTrainer) -> Iterator[Callable[[], float]]:
    """Yield a function that times a typical micro-batch as a dry run and returns seconds."""
    fit, size = trainer.cost_measurement(), trainer.training_config.batch_size
    examples = fit.usual[: USUAL_STEP if size == "auto" else size]
    with fit.strategy.measuring(fit.model), fit.probing(accumulates=False) as probe:
        yield lambda: probe.micro_batch(examples).seconds


def _is_long(seconds: Callable[[], float]) -> bool:
    return seconds() > LONG_SECONDS and seconds() > LONG_SECONDS  # the first one loads kernels


def _compared(
    trainer: EnhancedTrainer,
    seconds: Callable[[], float],
    precisions: Sequence[str],
    most: int,
    *,
    halves: bool,
) -> dict[Candidate, float]:
    """Time micro-batches in each precision, with all threads and, if `halves` is True, with half of
    them.

    The number of threads is halved again as long as halving makes the micro-batch clearly faster.
    """
    counts = [most, most // 2] if halves else [most]
    compared = [(name, count) for count in counts for name in precisions]
    measured = _in_turns(trainer, compared, seconds)
    while counts[-1] > 1 and ComputeChoice(measured).num_threads == counts[-1] < most:
        best = (ComputeChoice(measured).precision, counts[-1])
        counts.append(counts[-1] // 2)
        fewer = best[0], counts[-1]
        of_now = _in_turns(trainer, [best, fewer], seconds)
        # Scale by the current pair: the earlier measurement is from another minute.
        measured[fewer] = of_now[fewer] * measured[best] / of_now[best]
    return measured


def _in_turns(
    trainer: EnhancedTrainer, candidates: list[Candidate], seconds: Callable[[], float]
) -> dict[Candidate, float]:
    """Return the shortest time of a micro-batch for each candidate, measured alternately.

    The first result of each candidate is dropped, except for the first candidate, whose kernels are
    already loaded.
    """
    measured: dict[Candidate, list[float]] = {candidate: [] for candidate in candidates}
    first, *others = candidates
    for precision, num_threads in (*others, *candidates * TIMED_MICRO_BATCHES):
        torch.set_num_threads(num_threads)
        trainer.use_precision(precision)
        measured[precision, num_threads].append(seconds())
    return {
        candidate: min(of if candidate == first else of[1:]) for candidate, of in measured.items()
    }
