"""Rows are tried one by one on the weights as they are; nothing is changed by it."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from infrastructure.config.sections.recovery_config import RecoveryConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.core.metric_accumulator import MetricAccumulator
from infrastructure.training.core.state import Position, RecoveryKind, SkippedBatch, TrainingState
from infrastructure.training.model_adapters.base_adapter import LossOutput
from infrastructure.training.recovery.bad_loss import (
    advance,
    bad_step,
    describe_attempts,
    device_failed,
    find_bad_rows,
    name_bad_rows,
    rollback_refusal,
    skip_batch,
    skipped_here,
)
from infrastructure.training.recovery.loss_spikes import BadStep, LossSpikeDetector
from infrastructure.training.recovery.recovery_log import num_rollbacks, record_recovery
from infrastructure.training.strategies import get_training_strategy
from tests.training.toy import ToyAdapter, ToyModel

ROWS = [3, 8, 2, 13, 7, 1]  # of 4, 4, 3, 4, 3 and 2 items
USUAL = [1.0] * 20


class Adapter(ToyAdapter):
    """Some rows are special: by example, what their loss is multiplied with."""

    def __init__(self, **special: float) -> None:
        self.config = TrainingConfig()
        super().__init__(self.config, ToyModel(dropout=0.5))
        self.special = {int(name[1:]): factor for name, factor in special.items()}
        self.now: Sequence[int] = ()
        self.num_trained = 0

    def prepare_batch(self, examples: Sequence[int]) -> dict[str, Any]:
        self.now = examples
        return super().prepare_batch(examples)

    def compute_loss(self, model: torch.nn.Module, batch: dict[str, Any]) -> Any:
        self.num_trained += model.training
        torch.rand(1)
        output = super().compute_loss(model, batch)
        factor = next((self.special[row] for row in self.now if row in self.special), 1.0)
        output.loss_sum = output.loss_sum * factor
        return output

    def parts(self) -> tuple[Any, Any, Any]:
        """Model, strategy and optimizer."""
        model = self.initialize_model()
        strategy = get_training_strategy("standard", self.config)
        strategy.compute_loss = self.compute_loss
        return model, strategy, torch.optim.SGD(model.parameters(), lr=1.0)

    def bad_rows(self, rows: Sequence[int] = ROWS, recent: Sequence[float] = USUAL) -> list[int]:
        model, strategy, optimizer = self.parts()
        watch = LossSpikeDetector(20.0, recent=[*recent])
        return find_bad_rows(model, self, strategy, optimizer, rows, watch)


@pytest.mark.parametrize(
    ("special", "bad"),
    [
        ({}, []),
        ({"r8": float("nan")}, [1]),
        ({"r3": float("inf"), "r7": float("nan")}, [0, 4]),  # and none that comes after them
        ({"r2": 1e4}, [2]),
        ({"r2": 1e4, "r1": float("nan")}, [2, 5]),
        ({f"r{row}": float("nan") for row in ROWS}, [*range(6)]),
        ({f"r{row}": 1e4 for row in ROWS}, []),  # not one of them is above the others
    ],
)
def test_rows_are_bad_by_their_own_loss_among_those_of_the_batch(
    special: dict[str, float], bad: list[int]
) -> None:
    adapter = Adapter(**special)
    before = [p.detach().clone() for p in adapter.model.parameters()]
    state = torch.get_rng_state()
    assert adapter.bad_rows() == bad
    assert adapter.num_trained == 0
    assert adapter.model.training
    assert torch.equal(torch.get_rng_state(), state)
    after = [*adapter.model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(p.grad is None for p in after)


def test_a_row_whose_gradient_alone_is_no_number_is_bad() -> None:
    adapter = Adapter()
    adapter.model.head.weight.register_hook(
        lambda gradient: gradient * torch.inf if adapter.now == [13] else gradient
    )
    assert adapter.bad_rows() == [3]


def test_where_not_one_row_fits_nobody_knows_and_another_error_is_raised() -> None:
    adapter = Adapter()
    adapter.fail_above = 0
    assert adapter.bad_rows() == []
    assert all(p.grad is None for p in adapter.model.parameters())
    broken = Adapter()
    broken.count_items = lambda examples: 1 // 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        broken.bad_rows()


class Known(Adapter):
    """The mean loss of each example is known; one of them has no item."""

    def __init__(self, **means: float) -> None:
        super().__init__()
        self.means = {int(name[1:]): mean for name, mean in means.items()}

    def compute_loss(self, model: torch.nn.Module, batch: dict[str, Any]) -> Any:
        output = super().compute_loss(model, batch)
        num_items = 0 if 99 in self.now else output.num_items
        mean = self.means.get(self.now[0], 1.0)
        return LossOutput(output.loss_sum * 0 + mean * num_items, num_items)


@pytest.mark.parametrize(
    ("mean", "recent", "bad"),
    [
        (20.0, USUAL, []),
        (20.1, USUAL, [1, 2]),
        (20.1, [1e9] * 20, []),  # it was usual before
        (20.1, [1e-9] * 20, [1, 2]),  # the others are usual in this batch
        (1e9, [], []),  # nothing is known of what is usual for a single row
        (1e9, [1.0] * 8, []),
        (math.nan, [], [1, 2]),
    ],
)
def test_a_row_is_measured_by_its_mean_the_losses_before_it_and_those_of_its_batch(
    mean: float, recent: list[float], bad: list[int]
) -> None:
    """Rows of one and of four items, and one of none."""
    rows = [3, 5, 8, 13, 7, 1, 99]
    assert Known(r5=mean, r8=mean).bad_rows(rows, recent) == bad


# -- what is noted of a bad loss, and what is done about it ---------------------------------------


class Places:
    def places(self, epoch: int, example: int, count: int) -> list[str]:
        return [f"rows:{epoch}:{number}" for number in range(example, example + count)]


def state_at(step: int = 7, **more: Any) -> TrainingState:
    batch = [3, 8, 2]
    return TrainingState(torch.nn.Linear(1, 1), step=step, batch=batch, **more)


SUMS = MetricAccumulator(6.0, 4, num_steps=1, grad_norm=torch.tensor(2.5))
AT = Position(phase=1, epoch=2, example=12)
BAD = BadStep(RecoveryKind.LOSS_SPIKE, 7, 1.5, 2.5, 1)
ROWS_OF_BAD = ("rows:2:12", "rows:2:13", "rows:2:14")
EXACT = replace(BAD, epoch=2, example=12, num_examples=3, rows=ROWS_OF_BAD)
SKIPPED = SkippedBatch(7, 2, 12, 3, "loss_spike", ROWS_OF_BAD)


@pytest.mark.parametrize(
    ("sums", "at", "skipped", "expected"),
    [
        (SUMS, AT, [], EXACT),
        (SUMS, AT, [replace(SKIPPED, epoch=1), replace(SKIPPED, example=9)], EXACT),
        (SUMS, AT, [SKIPPED], BAD),  # it was skipped, so it is not what is bad
        (SUMS, None, [], BAD),
        (replace(SUMS, num_steps=2), AT, [], replace(BAD, num_steps=2)),
    ],
)
def test_a_bad_loss_of_one_step_is_that_of_its_batch(
    sums: MetricAccumulator, at: Position | None, skipped: list[SkippedBatch], expected: BadStep
) -> None:
    state = state_at(skipped=skipped)
    assert bad_step(RecoveryKind.LOSS_SPIKE, state, sums, at, Places()) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "policy", "num_before", "refusal"),
    [
        ("not_finite", {}, 0, None),
        ("not_finite", {}, 2, None),
        ("not_finite", {}, 3, "training.max_rollbacks_reached(limit=3)"),
        ("not_finite", {"not_finite": "stop", "loss_spike": "roll_back"}, 0, "stop"),
        ("loss_spike", {"not_finite": "stop", "loss_spike": "roll_back"}, 0, None),
        ("loss_spike", {}, 0, "note"),
    ],
)
def test_whether_a_run_rolls_back(
    kind: str, policy: dict[str, Any], num_before: int, refusal: str | None
) -> None:
    state = state_at()
    for _ in range(num_before):
        record_recovery(state, RecoveryKind.NOT_FINITE, "back", "nan", is_rollback=True)
    if refusal in ("stop", "note"):
        refusal = f"training.policy_is(policy=training.recovery.{kind}={refusal})"
    bad = replace(BAD, kind=RecoveryKind(kind))
    assert rollback_refusal(state, bad, RecoveryConfig(**policy)) == refusal


SEARCH = "training.rolled_back_to_search(first=4, last=7)"
SKIP = "training.rolled_back_to_skip(start=4, step=7)"


@pytest.mark.parametrize(
    ("bad", "was_searched", "action", "counts"),
    [
        (BAD, False, SEARCH, True),
        (BAD, True, SEARCH, True),
        (EXACT, False, SKIP, True),
        (EXACT, True, f"training.batch_found(action={SKIP})", False),
    ],
)
def test_a_batch_that_is_known_is_skipped_and_each_search_counts_once(
    bad: BadStep, was_searched: bool, action: str, counts: bool
) -> None:
    state = state_at(step=9)
    skip_batch(state, bad, 4, was_searched)
    (entry,) = state.recoveries
    assert (entry["step"], entry["kind"], entry["action"]) == (7, "loss_spike", action)
    assert (entry["message"], entry["rows"]) == (bad.numbers, [*bad.rows])
    assert (entry["is_rollback"], num_rollbacks(state)) == (counts, int(counts))
    assert state.skipped == ([SKIPPED] if bad is EXACT else [])


def test_the_attempts_are_those_after_a_bad_loss() -> None:
    state = state_at()
    assert describe_attempts(state) == ""
    record_recovery(state, RecoveryKind.OUT_OF_MEMORY, "smaller", "full", step=1)
    assert describe_attempts(state) == ""
    record_recovery(state, RecoveryKind.NOT_FINITE, "back to 2", "nan", step=3)
    record_recovery(state, RecoveryKind.LOSS_SPIKE, "back to 4", "9", step=5)
    attempts = "step 3: back to 2; step 5: back to 4"
    assert describe_attempts(state) == f"training.recovery_attempts(attempts={attempts})"


@pytest.mark.parametrize(
    ("special", "names", "verdict"),
    [
        ({"r8": 1e4}, ("rows:2:13",), "training.rows_bad_alone()"),
        (
            {"r3": math.inf, "r2": math.nan},
            (ROWS_OF_BAD[0], ROWS_OF_BAD[2]),
            "training.rows_bad_alone()",
        ),
        ({}, ROWS_OF_BAD, "training.no_single_row_is_bad()"),
    ],
)
def test_the_rows_of_a_skipped_batch_are_searched_once(
    special: dict[str, float], names: tuple[str, ...], verdict: str
) -> None:
    adapter = Adapter(**special)
    model, strategy, optimizer = adapter.parts()
    others = [replace(SKIPPED, example=0), replace(SKIPPED, epoch=0)]
    state = state_at(step=9, skipped=[others[0], SKIPPED, others[1]])
    state.model, state.optimizer, state.position = model, optimizer, replace(AT)
    watch = LossSpikeDetector(20.0, recent=[1.0] * 20)
    assert skipped_here(state) is SKIPPED
    for _ in range(2):
        name_bad_rows(state, Places(), adapter, strategy, watch)  # type: ignore[arg-type]
        found = replace(SKIPPED, rows=names, is_searched=True)
        assert state.skipped == [others[0], found, others[1]]
    (entry,) = state.recoveries
    assert (entry["step"], entry["kind"], entry["rows"]) == (7, "loss_spike", [*names])
    assert (entry["action"], entry["message"]) == ("training.bad_batch_skipped()", verdict)
    assert entry["is_rollback"] is False
    state.position.example += 1
    assert skipped_here(state) is None
    name_bad_rows(state, Places(), adapter, strategy, watch)  # type: ignore[arg-type]
    assert len(state.recoveries) == 1


def test_a_schedule_advances_past_a_skipped_step_without_a_warning() -> None:
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0)

    def factor(step: int) -> float:
        if step:
            warnings.warn("of its own", UserWarning, stacklevel=1)
        return 1 / (1 + step)

    scheduler = LambdaLR(optimizer, factor)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        filters = [*warnings.filters]
        advance(scheduler)
        assert [*warnings.filters] == filters
    assert [str(one.message) for one in seen] == ["of its own"]
    assert scheduler.get_last_lr() == [0.5]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (RuntimeError("\n  CUDA error: lost \nmore of it"), "CUDA error: lost "),
        (RuntimeError(" "), "RuntimeError(' ')"),
    ],
)
def test_a_failed_gpu_is_reported_with_its_step_and_what_is_saved(
    error: Exception, cause: str, tmp_path: Path
) -> None:
    state = state_at()
    about = f"step=8, cause={cause}, what_next="
    nothing = "training.gpu_failed_before_first_save()"
    assert str(device_failed(error, state)) == f"training.gpu_failed({about}{nothing})"
    state.checkpoint = tmp_path / "mine/checkpoints/versions/one.json"
    saved = f"checkpoint={state.checkpoint}, run={tmp_path / 'mine'}"
    saved = f"training.gpu_failed_after_save({saved})"
    assert str(device_failed(error, state)) == f"training.gpu_failed({about}{saved})"
