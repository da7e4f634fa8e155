"""A trial measures the speed after its first turn, the peak of memory, and the time of its start.

The trainers are stand-ins whose steps take seconds of a clock that the tests set.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.features.tune import trials
from infrastructure.features.tune.trials import TuningTrials, worker_counts
from infrastructure.optimization.pipeline_optimizer import Measured
from infrastructure.training.recovery.loss_spikes import BadLossError
from infrastructure.training.sizing.batch_plan import BatchPlan


class Clock:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        patch.setattr(trials.time, "perf_counter", lambda: self.now)


class Batches:
    """Endless batches, which note how they were requested, and whether they were closed."""

    def __init__(self) -> None:
        self.given: list[object] = []

    def train_batches(self, *given: int) -> Iterator[Sequence[int]]:
        self.given.append(given)
        try:
            for number in range(9):
                yield [number]
        finally:
            self.given.append("closed")


def test_the_first_turn_is_the_start_and_the_fastest_other_one_the_speed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, data, changed = Clock(monkeypatch), Batches(), list[object]()
    seconds = iter([10.0] * 4 + [2.5] * 4 + [1.25] * 4)
    peaks = iter([7, 9, 8, 7] + [3] * 8)
    done: list[object] = []

    def micro_batch(examples: Sequence[int]) -> SimpleNamespace:
        clock.now += next(seconds)
        done.append(examples[0])
        return SimpleNamespace(num_tokens=10, peak_bytes=next(peaks))

    @contextmanager
    def probing(accumulates: bool) -> Iterator[SimpleNamespace]:
        done.append(accumulates)
        yield SimpleNamespace(micro_batch=micro_batch, update=lambda: done.append("update"))

    trainer = SimpleNamespace(
        prepare=lambda: None,
        batch_plan=lambda: BatchPlan(2, 3),
        cost_measurement=lambda: SimpleNamespace(probing=probing, data=data),
    )
    monkeypatch.setattr(
        TuningTrials, "trainer", lambda _, changes: (changed.append(changes), trainer)[1]
    )
    measured = TuningTrials(DeploymentConfig()).measure({"a": 1})
    assert measured == Measured(8.0, 9, 35.0)
    assert changed == [{"a": 1}]
    assert done == [True, *([0, 1, 2, 3, "update", "update"] * 3)]
    assert data.given == [(0, 0, 2), "closed"] * 3


def test_rows_are_counted_while_they_are_prepared_into_a_new_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, folders = Clock(monkeypatch), list[Path]()

    def trainer(_: TuningTrials, changes: dict[str, Any]) -> SimpleNamespace:
        folders.append(Path(changes.pop("cache.directory")))
        assert folders[0].is_dir()
        assert changes == {"data.num_workers": 3}

        def initialize_data() -> SimpleNamespace:
            clock.now += 2
            return SimpleNamespace(num_examples=50, close=lambda: folders.append(Path("closed")))

        def initialize_model() -> None:
            clock.now += 7

        return SimpleNamespace(initialize_model=initialize_model, initialize_data=initialize_data)

    monkeypatch.setattr(TuningTrials, "trainer", trainer)
    assert TuningTrials(DeploymentConfig()).rows_per_second(3) == 25
    assert folders[1:] == [Path("closed")]
    assert not folders[0].exists()


def test_rates_are_tried_on_one_batch_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    data, seen = Batches(), list[tuple[float, float, object]]()
    groups = [{"lr": 0.0}, {"lr": 0.0}]
    step = SimpleNamespace(optimizer=SimpleNamespace(param_groups=groups), scheduler="is there")

    def single_step(state: object, batch: Sequence[int]) -> float:
        seen.append((groups[0]["lr"], groups[1]["lr"], batch[0]))
        assert step.scheduler is None
        if len(seen) == 12:
            bad: Any = "no number"
            raise BadLossError(bad)
        return 1.0

    loop = SimpleNamespace(global_batch_size=6, optimizer_step=step, single_step=single_step)
    trainer = SimpleNamespace(
        prepare=lambda: SimpleNamespace(loop=loop),
        state=SimpleNamespace(model=torch.nn.Linear(1, 1).eval()),
        training_config=SimpleNamespace(seed=3),
        initialize_data=lambda: data,
    )
    monkeypatch.setattr(TuningTrials, "trainer", lambda _, changes: trainer)
    found = TuningTrials(DeploymentConfig()).learning_rates()
    assert trainer.state.model.training
    assert [first for first, _, _ in seen] == [second for _, second, _ in seen]
    assert [batch for *_, batch in seen] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2]
    assert data.given[:3] == [(0, 0, 6), "closed", (1, 0, 6)]
    assert (len(found.rates), found.explodes_at) == (11, seen[-1][0])
    assert math.isclose(seen[1][0], 1e-7 * 1e7 ** (1 / 99))


@pytest.mark.parametrize(
    ("num_cores", "counts"),
    [(1, [0, 1]), (2, [0, 1]), (4, [0, 1, 2]), (5, [0, 1, 2, 4]), (64, [0, 1, 2, 4, 8])],
)
def test_fewer_workers_than_cores_are_tried(
    num_cores: int, counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "processor", lambda: SimpleNamespace(num_cores=num_cores))
    assert worker_counts() == counts
