"""Checks of the training speed on this machine, compared with earlier measurements."""

import statistics
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TypeGuard

import torch

from infrastructure.core.cache_folder import cache_directory
from infrastructure.core.hardware import processor
from infrastructure.core.json_cache import JsonCache
from infrastructure.core.messages import phrase
from infrastructure.testing.results import CheckResult
from infrastructure.testing.subject import NUM_CANDIDATES, Subject, disable_randomness, undone
from infrastructure.training.forward.gradient_accumulation import one_step
from infrastructure.training.sizing.micro_batch_memory import describe_device
from infrastructure.training.strategies.trial import first_step

# Timings of earlier checks, kept in a cache file, and their comparison with today's timings.
#
# A measurement is compared with earlier ones of the same work on the same machine. The median of
# the earlier ones is the baseline, and their spread determines which differences are chance. A slow
# measurement is not added to the baseline, so that a gradual slowdown is detected, too.

FILE = "baselines.json"
MOST_KEPT = 20
# A slowdown below this is never reported, nor one within this many deviations of earlier times.
MIN_SLOWDOWN = 0.25
NUM_DEVIATIONS = 4.0
TO_STANDARD_DEVIATION = 1.4826  # of the median absolute deviation, for normal noise

Numbers = dict[str, float]


@dataclass(frozen=True)
class SpeedComparison:
    """A time measured now, relative to the baseline.

    Attributes:
        baseline: the median of the earlier measurements.
        ratio: the current time divided by the baseline; above 1 is slower.
        allowed: the ratio above which the slowdown is no longer chance.
    """

    name: str
    baseline: float
    ratio: float
    allowed: float

    @property
    def is_slower(self) -> bool:
        return self.ratio > self.allowed


def _are_measurements(value: object) -> TypeGuard[list[Numbers]]:
    return isinstance(value, list) and all(
        isinstance(numbers, dict)
        and all(isinstance(n, int | float) and n > 0 for n in numbers.values())
        for numbers in value
    )


def compare(earlier: list[Numbers], numbers: Numbers) -> list[SpeedComparison]:
    """Compare each time in `numbers` with its earlier values; times without earlier values are left
    out.
    """
    comparisons = []
    for name, value in numbers.items():
        before = [taken[name] for taken in earlier if name in taken]
        if not before:
            continue
        middle = statistics.median(before)
        apart = statistics.median(abs(one - middle) for one in before) / middle
        chance = max(MIN_SLOWDOWN, NUM_DEVIATIONS * TO_STANDARD_DEVIATION * apart)
        comparisons.append(SpeedComparison(name, middle, value / middle, 1 + chance))
    return comparisons


NUM_WARM_UPS = 2
NUM_REPEATS = 5
MAX_MEASUREMENTS = 3


def check_speed(subject: Subject, *, rebaseline: bool = False) -> CheckResult:
    """Time a step, a forward pass and reading the data, and compare with earlier times.

    The fastest of five repeats counts, and a time that is slower than before is measured again, so
    that other load on the machine is not taken for a regression.
    """
    file = cache_directory(subject.trainer.cache_config.directory) / FILE
    kept, key = JsonCache(file, "the baseline", _are_measurements), work_of(subject)
    earlier = [] if rebaseline else kept.get(key) or []
    numbers = measure_times(subject)
    for _ in range(MAX_MEASUREMENTS - 1):
        if not _slower(earlier, numbers):
            break
        again = measure_times(subject)
        numbers = {name: min(value, again[name]) for name, value in numbers.items()}
    shown = {**numbers, "tokens_per_second": _num_tokens(subject) / numbers["seconds_per_step"]}
    if slower := _slower(earlier, numbers):
        return CheckResult(
            "speed",
            "warn",
            _described(slower),
            phrase("testing.slower_than_baseline"),
            "performance",
            shown,
        )
    kept.put(key, [*earlier, numbers][-MOST_KEPT:])
    text = phrase(
        "testing.training_speed",
        tokens_per_second=shown["tokens_per_second"],
        num_tokens=_num_tokens(subject),
    )
    if earlier:
        text += ", " + ", ".join(f"{c.name} {c.ratio:.2f} x" for c in compare(earlier, numbers))
        text += phrase("testing.compared_with_baseline", num_earlier=len(earlier))
    else:
        text += phrase("testing.kept_as_baseline")
    return CheckResult("speed", "pass", text, "", "performance", shown)


def _slower(earlier: list[dict[str, float]], numbers: dict[str, float]) -> list[SpeedComparison]:
    return [c for c in compare(earlier, numbers) if c.is_slower]


def _described(slower: list[SpeedComparison]) -> str:
    parts = [
        phrase(
            "testing.measure_slower",
            name=c.name,
            ratio=c.ratio,
            baseline=c.baseline,
            allowed=c.allowed,
        )
        for c in slower
    ]
    return "; ".join(parts)


def _num_tokens(subject: Subject) -> int:
    return subject.adapter.count_tokens(subject.sample)


def work_of(subject: Subject) -> dict[str, object]:
    """Return everything that affects the time, as a key for comparable measurements.

    Package versions are left out, because the check should detect their effect.
    """
    described = subject.adapter.describe()
    keys = ("name", "num_parameters", "num_trainable", "dtype", "quantization", "packing")
    return {
        **describe_device(subject.device),
        "num_cores": processor().num_cores,
        "num_threads": torch.get_num_threads(),
        "precision": subject.trainer.precision.name,
        "num_examples": len(subject.sample),
        "num_tokens": _num_tokens(subject),
        **{name: described.get(name) for name in keys},
    }


def measure_times(subject: Subject) -> dict[str, float]:
    """Return name → seconds, the fastest of a few repeats for each; the weights are restored."""
    strategy, optimizer = subject.bound_strategy(), subject.optimizer()
    begun = first_step(strategy, subject.model, optimizer, subject.sample)
    with undone(subject), begun as strategy:
        step = partial(
            one_step,
            subject.model,
            subject.adapter,
            strategy,
            optimizer,
            subject.sample,
            scaler=subject.scaler(),
            total_items=max(1, subject.adapter.count_items(subject.sample)),
            update_gradients=True,
        )
        times = {"seconds_per_step": _fastest(subject, step)}
        disable_randomness(subject)
        with torch.no_grad():
            times["seconds_per_forward"] = _fastest(subject, lambda: subject.loss(subject.sample))
    times["seconds_per_data_batch"] = _fastest(subject, lambda: _read_data(subject))
    return times


def _read_data(subject: Subject) -> None:
    with closing(subject.data.train_batches(0, 0, NUM_CANDIDATES)) as batches:
        next(batches, None)


def _fastest(subject: Subject, work: Callable[[], object]) -> float:
    """Return the seconds of the fastest repeat of `work`, including pending work of a GPU."""
    times = []
    for repeat in range(NUM_WARM_UPS + NUM_REPEATS):
        started = time.perf_counter()
        work()
        if subject.device.type == "cuda":
            torch.cuda.synchronize(subject.device)
        if repeat >= NUM_WARM_UPS:
            times.append(time.perf_counter() - started)
    return min(times)
