"""Short trials of a configuration with some settings changed, for `temper tune`.

Each trial builds its own trainer and runs real steps on data from the real pipeline. The trainer is
then discarded.
"""

import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

from infrastructure.backup.state.random_state import seed_everything
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import GivenValue, Layer, Source
from infrastructure.core.hardware import processor
from infrastructure.core.integers import ceil_div
from infrastructure.features.tune.learning_rate_range import RangeTest, range_test
from infrastructure.optimization.pipeline_optimizer import Measured
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.recovery.loss_spikes import BadLossError
from infrastructure.training.setup.compute_choice import choose_by_product
from infrastructure.training.sizing.batch_plan import BatchPlan
from infrastructure.training.sizing.cost_measurement import CostMeasurement, DryRunStep
from infrastructure.training.trainer_factory import TrainerFactory

TRIED = Source(Layer.KEYWORD, "tried by temper tune")
NUM_BATCHES = 4
ROUNDS = 2


class TuningTrials:
    """Short trials of one configuration, each with some settings changed."""

    def __init__(self, config: DeploymentConfig) -> None:
        self.config = config

    def trainer(self, changes: Mapping[str, Any]) -> EnhancedTrainer:
        """Create a trainer for the configuration with some changes."""
        config = self.config.changed([GivenValue(key, v, TRIED) for key, v in changes.items()])
        trainer = TrainerFactory().for_run(config)
        choose_by_product(trainer)
        return trainer

    def measure(self, changes: Mapping[str, Any]) -> Measured:
        """Measure speed and memory of a run with some changes.

        Raises:
            ValueError: if the changes are not possible on this machine or with this model.
        """
        trainer = self.trainer(changes)
        trainer.prepare()
        plan, fit = trainer.batch_plan(), trainer.cost_measurement()
        with fit.probing(accumulates=plan.gradient_accumulation > 1) as probe:
            turns = [_some_steps(probe, fit, plan) for _ in range(1 + ROUNDS)]
        first, *others = turns
        speed = max(num_tokens / seconds for num_tokens, seconds, _ in others)
        setup_seconds = max(0.0, first[1] - first[0] / speed)
        return Measured(speed, max(peak for *_, peak in turns), setup_seconds)

    def rows_per_second(self, num_workers: int) -> float:
        """Measure how many rows per second are read and tokenized, using a temporary cache."""
        with tempfile.TemporaryDirectory() as folder:
            trainer = self.trainer({"data.num_workers": num_workers, "cache.directory": folder})
            trainer.initialize_model()
            started = time.perf_counter()
            data = trainer.initialize_data()
            seconds = time.perf_counter() - started
            close = getattr(data, "close", None)
            if close is not None:
                close()
            return data.num_examples / seconds

    def learning_rates(self) -> RangeTest:
        """Run a learning rate range test on the first batches of the data."""
        trainer = self.trainer({})
        loop, state = trainer.prepare().loop, trainer.state
        seed_everything(trainer.training_config.seed)
        state.model.train()
        batches = _endless(trainer, loop.global_batch_size)

        def loss_at(rate: float) -> float:
            for group in loop.optimizer_step.optimizer.param_groups:
                group["lr"] = rate
            try:
                return loop.single_step(state, next(batches))
            except BadLossError:
                return math.inf

        loop.optimizer_step.scheduler = None  # the test sets the learning rate itself
        return range_test(loss_at)


def worker_counts() -> list[int]:
    """Return the numbers of worker processes that are worth trying on this machine."""
    cores = processor().num_cores
    return [count for count in (0, 1, 2, 4, 8) if count < max(2, cores)]


def _some_steps(probe: DryRunStep, fit: CostMeasurement, plan: BatchPlan) -> tuple[int, float, int]:
    """Run a few steps; return their tokens, seconds (with waiting for data) and peak bytes."""
    started, num_tokens, peak = time.perf_counter(), 0, 0
    with closing(fit.data.train_batches(0, 0, plan.micro_batch_size)) as batches:
        for examples in islice(batches, NUM_BATCHES):
            cost = probe.micro_batch(examples)
            num_tokens, peak = num_tokens + cost.num_tokens, max(peak, cost.peak_bytes)
    for _ in range(ceil_div(NUM_BATCHES, plan.gradient_accumulation)):
        probe.update()
    return num_tokens, time.perf_counter() - started, peak


def _endless(trainer: EnhancedTrainer, batch_size: int) -> Iterator[Sequence[object]]:
    """Yield batches endlessly, one epoch after another."""
    epoch = 0
    while True:
        with closing(trainer.initialize_data().train_batches(epoch, 0, batch_size)) as batches:
            yield from batches
        epoch += 1
