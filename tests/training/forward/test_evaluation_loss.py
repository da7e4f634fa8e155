"""The held-out loss is that of the model as it will be used, and measuring it changes nothing."""

import math
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from infrastructure.training.core.precision import Precision
from infrastructure.training.forward import evaluation_loss as held_out_loss
from infrastructure.training.forward.evaluation_loss import EvaluationLoss
from tests.training.toy import ToyAdapter, ToyModel

BATCHES = [[0, 1, 2], [3], [4, 5]]
CPU = torch.device("cpu")


class Measuring(ToyAdapter):
    """Draws a random number for each batch, and tells its examples' mean."""

    def compute_loss(self, model: torch.nn.Module, batch: dict[str, Any]) -> Any:
        torch.rand(1)
        assert not torch.is_grad_enabled()
        return super().compute_loss(model, batch)

    def compute_metrics(self, model: torch.nn.Module, batch: dict[str, Any]) -> dict[str, float]:
        return {"size": float(batch["num_examples"])}


def held_out(model: torch.nn.Module, **options: Any) -> EvaluationLoss:
    adapter = Measuring(None, model)
    return EvaluationLoss(model, adapter, Precision("fp32", "cpu"), **options)


def expected(batches: Sequence[Sequence[int]]) -> float:
    """By hand, without dropout, over all items alike."""
    model, adapter = ToyModel(dropout=0.0), ToyAdapter(None)
    every = adapter.prepare_batch([example for batch in batches for example in batch])
    with torch.no_grad():
        return float(adapter.compute_loss(model, every).loss_sum) / len(every["features"])


@pytest.mark.parametrize("most", [None, 1, 2])
def test_it_is_the_mean_over_all_items_without_dropout(most: int | None) -> None:
    measured = held_out(ToyModel(dropout=0.5), most=most).measure(BATCHES)
    assert measured["eval_loss"] == pytest.approx(expected(BATCHES), rel=1e-5)


def test_what_the_adapter_measures_is_a_mean_over_examples() -> None:
    measured = held_out(ToyModel()).measure(BATCHES)
    assert measured["size"] == pytest.approx((3 * 3 + 1 * 1 + 2 * 2) / 6)


def test_of_no_rows_there_is_no_loss() -> None:
    assert held_out(ToyModel()).measure([]) == {}


def test_each_modules_mode_and_the_random_state_stay() -> None:
    model = ToyModel()
    model.train()
    model.inner.eval()
    state = torch.get_rng_state()
    held_out(model).measure(BATCHES)
    assert (model.training, model.inner.training, model.dropout.training) == (True, False, True)
    assert torch.equal(torch.get_rng_state(), state)


class OfLittleMemory(Measuring):
    """Has memory for two examples."""

    def compute_loss(self, model: torch.nn.Module, batch: dict[str, Any]) -> Any:
        if batch["num_examples"] > 2:
            raise torch.OutOfMemoryError("out of memory")
        return super().compute_loss(model, batch)


def test_too_little_memory_is_answered_with_halves_and_nothing_else_is() -> None:
    model, reported = ToyModel(), list[tuple[int, str]]()
    little = OfLittleMemory(None, model)
    batches = [[0, 1, 2, 3, 4], [5, 6, 7]]
    measured = EvaluationLoss(
        model, little, Precision("fp32", "cpu"), on_smaller=lambda *why: reported.append(why)
    ).measure(batches)
    assert reported == [(2, "out of memory")]
    assert measured["eval_loss"] == pytest.approx(expected(batches), rel=1e-5)
    with pytest.raises(torch.OutOfMemoryError):
        EvaluationLoss(model, little, Precision("fp32", "cpu"), may_halve=False).measure(batches)


def test_what_a_batch_held_is_given_back_before_a_smaller_one_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the error and the call that it came from hold each other."""
    held: list[weakref.ref[torch.Tensor]] = []
    left: list[Any] = []

    class Holding(OfLittleMemory):
        def compute_loss(self, model: torch.nn.Module, batch: dict[str, Any]) -> Any:
            graph = torch.zeros(1)
            held.append(weakref.ref(graph))
            try:
                return super().compute_loss(model, batch)
            except torch.OutOfMemoryError as error:
                failure = error
                raise failure from None

    monkeypatch.setattr(
        held_out_loss, "free_memory", lambda device: left.append([one() for one in held])
    )
    model = ToyModel()
    EvaluationLoss(model, Holding(None, model), Precision("fp32", "cpu")).measure([[0, 1, 2]])
    assert left == [[None]]


def test_an_error_in_the_measurement_is_raised() -> None:
    class Broken(Measuring):
        def compute_loss(self, model: torch.nn.Module, batch: dict[str, Any]) -> Any:
            raise KeyError("no such column")

    model = ToyModel()
    with pytest.raises(KeyError):
        EvaluationLoss(model, Broken(None, model), Precision("fp32", "cpu")).measure([[0, 1, 2]])


def test_it_is_computed_in_the_precision_of_the_training() -> None:
    seen: list[torch.dtype] = []

    class Seeing(Measuring):
        def compute_loss(self, model: torch.nn.Module, batch: dict[str, Any]) -> Any:
            seen.append(torch.get_autocast_dtype("cpu"))
            assert torch.is_autocast_enabled("cpu")
            return super().compute_loss(model, batch)

    model = ToyModel()
    EvaluationLoss(model, Seeing(None, model), Precision("bf16", "cpu")).measure(BATCHES)
    assert seen == [torch.bfloat16] * len(BATCHES)


def test_what_is_summed_over_items_is_their_mean_however_they_come() -> None:
    class Summing(Measuring):
        def sum_metrics(
            self, model: torch.nn.Module, batch: dict[str, Any]
        ) -> dict[str, tuple[float, int]]:
            items = batch["features"]
            return {"right": (float(items.shape[0] > 3), items.shape[0]), "never": (0.0, 0)}

    model = ToyModel()
    measured = EvaluationLoss(model, Summing(None, model), Precision("fp32", "cpu"))
    numbers = measured.measure(BATCHES)  # of 6, 4 and 6 items
    assert numbers["right"] == pytest.approx(3 / 16)
    assert numbers["never"] == 0.0
    assert numbers["size"] == pytest.approx((3 * 3 + 1 * 1 + 2 * 2) / 6)
    assert sorted(numbers) == ["eval_loss", "never", "right", "size"]


def test_each_batch_is_polled_for_and_the_source_is_closed_whatever_happens() -> None:
    closed: list[bool] = []
    seen: list[object] = []

    def source() -> Any:
        try:
            yield from BATCHES
        finally:
            closed.append(True)

    batches = source()
    with pytest.raises(KeyboardInterrupt):
        seen.extend(held_out_loss.with_polling(batches, lambda: polled(seen)))
    assert seen == ["asked", BATCHES[0], "asked", BATCHES[1], "asked"]
    assert closed == [True]


def polled(seen: list[object]) -> None:
    seen.append("asked")
    if len(seen) == 5:
        raise KeyboardInterrupt


def test_a_loss_has_a_perplexity_however_high_it_is() -> None:
    assert held_out_loss.perplexity(2.0) == pytest.approx(math.e**2)
    assert held_out_loss.perplexity(1e6) == math.inf
