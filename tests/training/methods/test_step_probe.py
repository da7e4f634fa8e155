"""Steps that are tried before the first cost what steps cost, and leave nothing behind."""

import random
from collections import deque
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback

from infrastructure.optimization.batch_size import DoesNotFitError
from infrastructure.optimization.memory_prediction import MemoryPoint
from infrastructure.training.methods import step_probe
from infrastructure.training.methods.step_probe import (
    ProbedCosts,
    StepProbe,
    _contents,
    _later_mean,
    _lengths,
    _units,
    steps_per_epoch,
    untouched,
)
from infrastructure.training.methods.trl_training import TrlTraining
from tests.training.methods.method_runs import configuration


class StopError(Exception):
    """The training need not begin."""


def probed(
    method: str, folder: Path, model: Path, limit_bytes: int = 1 << 40
) -> tuple[ProbedCosts, dict[str, Any], dict[str, Any]]:
    """The costs, and what the Trainer was before and after."""
    trainer = TrlTraining(configuration(method, folder, model), folder).make_trainer(is_new=True)
    found: list[Any] = []

    class Probe(TrainerCallback):
        def on_train_begin(self, *_: object, **__: object) -> None:
            before = everything_of(trainer)
            found.append(StepProbe(trainer, method == "grpo", limit_bytes).costs(40))
            found.extend((before, everything_of(trainer)))
            raise StopError

    trainer.add_callback(Probe())
    with pytest.raises(StopError):
        trainer.train()
    costs, before, after = found
    return costs, before, after


def everything_of(trainer: Any) -> dict[str, Any]:
    """What a step would change."""
    return {
        "weights": {name: p.detach().clone() for name, p in trainer.model.named_parameters()},
        "gradients": [p.grad is None for p in trainer.model.parameters()],
        "training": [module.training for module in trainer.model.modules()],
        "optimizer": len(trainer.optimizer.state),
        "random": (random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist()),
        "counted": {
            name: repr(value)
            for name, value in vars(trainer).items()
            if isinstance(value, int | float | dict | list | deque | None)
        },
        "state": repr(trainer.state),
        "loaders": len(trainer.accelerator._dataloaders),
        "accumulates": repr(vars(trainer.accelerator.gradient_state)),
    }


@pytest.mark.parametrize("method", ["dpo", "grpo"])
def test_a_trainer_that_was_probed_is_what_it_was(
    tmp_path: Path, saved_llama: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000, 3))  # each micro-batch, and the update, between two readings
    monkeypatch.setattr(StepProbe, "_now", lambda self: float(next(clock)))
    costs, before, after = probed(method, tmp_path, saved_llama)
    assert costs.step_seconds == 2 * 3.0 + 3.0  # as long as all of its micro-batches
    assert costs.evaluation_seconds > 0
    assert costs.peak_bytes > 50e6  # this process, whatever else it holds
    assert (costs.limit_bytes, costs.writes) == (1 << 40, method == "grpo")
    torch.testing.assert_close(before.pop("weights"), after.pop("weights"), rtol=0, atol=0)
    random_before, random_after = before.pop("random"), after.pop("random")
    assert torch.equal(random_before[1], random_after[1])
    assert (random_before[0], random_before[2]) == (random_after[0], random_after[2])
    assert before == after


def test_a_step_that_does_not_fit_is_refused_before_it_is_done(
    tmp_path: Path, saved_llama: Path
) -> None:
    with pytest.raises(
        DoesNotFitError,
        match=r"methods\.micro_batch_too_large\(.*remedies=methods\.reduce_memory\(\)",
    ):
        probed_within(tmp_path, saved_llama, 1 << 20)


def probed_within(folder: Path, model: Path, limit_bytes: int) -> None:
    trainer = TrlTraining(configuration("dpo", folder, model), folder).make_trainer(is_new=True)

    class Probe(TrainerCallback):
        def on_train_begin(self, *_: object, **__: object) -> None:
            StepProbe(trainer, False, limit_bytes).costs(40)

    trainer.add_callback(Probe())
    trainer.train()


def test_containers_stay_the_same_objects() -> None:
    inner, lengths = [1], deque([2], maxlen=4)
    held: dict[str, Any] = {"metrics": {"loss": inner}, "lengths": lengths, "step": 1}
    restore = _contents(held, set())
    inner.append(5)
    lengths.extend((3, 4))
    held["metrics"]["more"] = []
    held["step"], held["new"] = 2, 3
    restore()
    assert held == {"metrics": {"loss": [1]}, "lengths": deque([2]), "step": 1}
    assert held["metrics"]["loss"] is inner
    assert held["lengths"] is lengths


def test_what_failed_in_between_leaves_nothing_either() -> None:
    model = torch.nn.Linear(2, 2)
    gradient_state = SimpleNamespace()
    trainer = SimpleNamespace(
        args=SimpleNamespace(device="cpu"),
        model=model,
        counts=[1],
        accelerator=SimpleNamespace(gradient_state=gradient_state),
    )

    def fails() -> None:
        with untouched(trainer):
            model(torch.ones(1, 2)).sum().backward()
            trainer.counts.append(2)
            raise ValueError("in between")

    with pytest.raises(ValueError, match="in between"):
        fails()
    assert trainer.counts == [1]
    assert model.weight.grad is None


def probe_of(**parts: Any) -> StepProbe:
    """Of a Trainer that has these parts alone."""
    args = SimpleNamespace(
        device="cpu",
        gradient_accumulation_steps=parts.pop("accumulation", 2),
        per_device_train_batch_size=parts.pop("batch_size", 3),
        **parts.pop("args", {}),
    )
    trainer = SimpleNamespace(args=args, model_wrapped=None, **parts)
    return StepProbe(trainer, True, parts.get("limit_bytes", 1000))


def clock(monkeypatch: pytest.MonkeyPatch, seconds: list[float]) -> None:
    """What takes time takes these, one after the other."""
    readings = iter([now for one in seconds for now in (0.0, one)])
    monkeypatch.setattr(StepProbe, "_now", lambda self: next(readings))


@pytest.mark.parametrize(
    ("shared", "accumulation", "expected"),
    [
        ({}, 2, 2),
        ({"steps_per_generation": 4, "num_iterations": None}, 2, 4),
        ({"steps_per_generation": 4, "num_iterations": 2}, 2, 8),
        ({"steps_per_generation": 4, "num_iterations": 1}, 3, 6),
    ],
)
def test_a_step_that_writes_costs_its_share_of_what_is_written_for_several(
    shared: dict[str, Any],
    accumulation: int,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nine seconds to write and one for each micro-batch, however many share what is written."""
    done: list[int] = []

    def samples(batches: Any, count: int, device: torch.device) -> Any:
        return [[next(batches)] for _ in range(count)], None

    probe = probe_of(
        accumulation=accumulation,
        args=shared,
        get_batch_samples=samples,
        training_step=lambda model, inputs, count: done.extend(inputs),
    )
    monkeypatch.setattr(StepProbe, "_update", lambda self: None)
    clock(monkeypatch, [10.0, *[1.0] * (expected - 1)])
    seconds = probe._whole_steps([0, 1, 2], steps_left=5)
    assert seconds == pytest.approx((9 + expected) / (expected / accumulation))
    assert done == [n % 3 for n in range(expected)]


def test_an_evaluation_takes_all_batches_by_two_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(1, 1)
    seen: list[tuple[int, bool]] = []
    probe = probe_of(
        model=model,
        eval_dataset=[1],
        get_eval_dataloader=lambda: range(5),
        prediction_step=lambda _, inputs, **__: seen.append((inputs, model.training)),
    )
    clock(monkeypatch, [4.0, 3.0])
    assert probe._evaluation() == 5 * 3.0  # the first one is slower
    assert seen == [(0, False), (1, False)]
    assert model.training
    assert len(probe.peaks) == 2
    clock(monkeypatch, [7.0])
    assert probe._evaluation() == 5 * 7.0  # a slow one is enough
    probe.trainer.eval_dataset = None
    assert probe._evaluation() == 0.0


def test_the_heaviest_step_has_the_longest_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Dataset.from_list([{"a": [1] * n, "b": [1] * 2, "text": "x"} for n in (1, 9, 2)])
    assert _lengths(rows).tolist() == [3, 11, 4]  # type: ignore[union-attr]
    assert _lengths(Dataset.from_list([{"text": "x", "prompt": ["y"]}])) is None

    def collate(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        longest = max(len(example["a"]) for example in examples)
        return {"ids": torch.ones(len(examples), longest, dtype=torch.int64)}

    loader: Any = SimpleNamespace(dataset=rows, collate_fn=collate)
    points = [MemoryPoint(2, 120), MemoryPoint(4, 140)]
    assert probe_of()._heaviest(loader, 50, points, 100) == 100 + 10 * 3 * 9
    drawn = np.array([[1, 1, 1], [2, 2, 0]])  # the longest row alone decides how many are padded
    draws: list[tuple[int, ...]] = []

    def integers(_: object, high: int, size: tuple[int, ...]) -> np.ndarray:
        draws.append((high, *size))
        return drawn

    loader.dataset = Dataset.from_list([{"a": [1] * n} for n in (9, 8, 1, 1)])
    with monkeypatch.context() as patched:
        patched.setattr(
            np.random, "default_rng", lambda _: SimpleNamespace(integers=partial(integers, 0))
        )
        assert probe_of()._heaviest(loader, 50, points, 100) == 100 + 10 * 3 * 9
        assert probe_of(batch_size=9)._heaviest(loader, 5000, points, 100) > 0
        assert probe_of()._heaviest(loader, 0, points, 100) > 0
    assert draws == [(4, 100, 3), (4, step_probe.MOST_DRAWN, 4), (4, 1, 3)]
    loader.dataset = rows
    most = [MemoryPoint(2, 120), MemoryPoint(40, 900)]
    assert probe_of()._heaviest(loader, 50, most, 100) == 900  # seen, if not expected


def test_what_counts_as_size_time_and_steps() -> None:
    inputs = {
        "input_ids": torch.ones(2, 3, dtype=torch.int64),
        "mask": torch.ones(2, 4, dtype=torch.int64),
        "logps": torch.ones(2, 5),
        "label": torch.ones(2, dtype=torch.int64),
        "text": "abc",
    }
    assert _units(inputs) == 6 + 8
    assert _units([{"prompt": "a"}] * 5) == 5
    assert [_later_mean(times) for times in ([9.0, 1.0, 3.0], [4.0], [])] == [2, 4, 0]
    for batches, steps in ((7, 4), (8, 4), (0, 1)):
        assert steps_per_epoch(probe_of().trainer, range(batches)) == steps


@pytest.mark.parametrize(
    ("times", "estimated", "steps_left", "passed", "expected"),
    [
        ([1.0, 1.0], 1e6, 19, 0.0, True),  # few steps
        ([6.1], 1e6, 99, 0.0, True),  # slow ones
        ([1.0], 0.0, 20, 9.0, False),  # one is none without its first
        ([1.0, 1.0], 100.0, 20, 2.9, False),  # three of a hundred
        ([1.0, 1.0], 100.0, 20, 3.1, True),
        ([1.0, 1.0], 1e6, 20, 6.1, True),  # at most
    ],
)
def test_measuring_takes_a_small_part_of_the_training(
    times: list[float],
    estimated: float,
    steps_left: int,
    passed: float,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_probe.time, "perf_counter", lambda: 50.0 + passed)
    assert probe_of()._is_enough(times, estimated, steps_left, 50.0) is expected


def test_a_process_alone_is_refused_before_it_is_killed() -> None:
    probe = probe_of()
    probe._refuse_beyond(1000)
    with pytest.raises(DoesNotFitError):
        probe._refuse_beyond(1001)
    probe.limit_bytes = 2 << 30
    with pytest.raises(DoesNotFitError, match=r"\(needed=3\.0, available=2\.0, "):
        probe._refuse_beyond(3 << 30)
    probe.device = torch.device("cuda")
    probe._refuse_beyond(1001)  # which raises by itself


def test_memory_that_runs_out_is_no_fit_and_another_error_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accelerator = SimpleNamespace(gradient_state=SimpleNamespace())
    probe = probe_of(model=torch.nn.Linear(2, 2), accelerator=accelerator)
    words = r"methods\.step_out_of_memory\(remedies=methods\.reduce_memory\(\)\)"
    for error, expected, sentence in (
        (torch.OutOfMemoryError("no memory"), DoesNotFitError, words),
        (DoesNotFitError("methods.reduce_memory"), DoesNotFitError, r"^methods\.reduce_memory"),
        (ZeroDivisionError("other"), ZeroDivisionError, "other"),
    ):

        def fails(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(StepProbe, "_costs", fails)
        with pytest.raises(expected, match=sentence):
            probe.costs(40)


class Loader(list[int]):
    """Batches, and the rows that they are made of."""

    collate_fn = list

    def __init__(self, num_rows: int) -> None:
        super().__init__(range(9))
        self.dataset = range(100, 100 + num_rows)


@pytest.mark.parametrize(
    ("batch_size", "num_rows", "halves"),
    [(8, 20, [100, 101, 102, 103]), (4, 20, [100, 101]), (3, 20, []), (8, 3, [100, 101, 102])],
)
def test_half_a_micro_batch_is_done_before_a_whole_one(
    batch_size: int, num_rows: int, halves: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that leaves rows to compare; it says whether the whole one will fit."""
    done: list[tuple[list[int], int]] = []
    whole = [*range(20)]
    probe = probe_of(
        batch_size=batch_size,
        limit_bytes=1 << 50,
        get_batch_samples=lambda batches, count, _: ([whole[next(batches) :]] * count, 7),
        training_step=lambda _, inputs, count: done.append((inputs, count)),
    )
    updated: list[int] = []
    monkeypatch.setattr(StepProbe, "_update", lambda self: updated.append(len(done)))
    clock(monkeypatch, [9.0] * bool(halves) + [3.0])
    seconds, points = probe._micro_batches(Loader(num_rows), 19, 0)
    assert done == [(halves, 1)] * bool(halves) + [(whole, 7)]
    assert updated == [len(done) - 1]  # before the memory of a whole one is predicted
    assert seconds == 3.0 * 2
    assert [point.size for point in points] == [len(inputs) for inputs, _ in done]
    assert [point.peak_bytes for point in points] == probe.peaks


def test_an_update_is_done_where_the_optimizer_has_not_begun() -> None:
    model = torch.nn.Linear(2, 2)
    model.bias.requires_grad = False
    before = model.weight.detach().clone()
    made: list[list[torch.Tensor]] = []

    def optimizer(parameters: list[torch.Tensor], lr: float) -> torch.optim.Optimizer:
        made.append(parameters)
        return torch.optim.SGD(parameters, lr=lr, weight_decay=0.5)

    probe = probe_of(
        model=model,
        optimizer=SimpleNamespace(state={model.weight: 1}),
        get_optimizer_cls_and_kwargs=lambda *_: (optimizer, {"lr": 0.25}),
    )
    probe._update()
    assert (probe.update_seconds, probe.peaks, made) == (0.0, [], [])
    probe.trainer.optimizer.state.clear()
    for _ in range(2):
        probe._update()
    assert probe.update_seconds > 0
    assert len(probe.peaks) == 2
    assert made == [[model.weight]]  # once, of what is trained
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None
