"""How gradients are compared, and what is reported of them and of a loss."""

import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.data.store.examples import TokenizedExample
from infrastructure.testing import loss_checks as module
from infrastructure.testing.loss_checks import check_accumulation, check_loss, gradient_difference
from infrastructure.testing.results import CheckResult
from infrastructure.testing.subject import Gradients


def of(not_finite: tuple[str, ...] = (), **values: list[float]) -> Gradients:
    tensors = {name: torch.tensor(each) for name, each in values.items()}
    return Gradients(tensors, (), not_finite)


@pytest.mark.parametrize(
    ("actual", "expected", "difference"),
    [
        (of(a=[3.0], b=[4.0]), of(a=[3.0], b=[4.0]), 0.0),
        (of(a=[3.0, 1.0], b=[4.0]), of(a=[3.0, 0.0], b=[4.0]), 0.2),
        (of(a=[0.0], b=[0.0]), of(a=[3.0], b=[4.0]), 1.0),
        (of(a=[1.0]), of(a=[1.0], b=[0.0]), float("inf")),
        (of(a=[1.0], b=[0.0]), of(a=[1.0]), float("inf")),
        (of(a=[0.0]), of(a=[0.0]), float("inf")),
    ],
)
def test_gradients_differ_by_their_length(
    actual: Gradients, expected: Gradients, difference: float
) -> None:
    assert gradient_difference(actual, expected) == pytest.approx(difference)


WHOLE, OTHER = of(a=[10.0]), of(a=[12.0])


@pytest.mark.parametrize(
    ("found", "balances", "expected"),
    [
        # of the whole batch, of its examples, and of the whole once more where they differ
        ([of(), WHOLE], False, ("fail", "no_gradients()", "loss_detached")),
        ([WHOLE, of()], False, ("fail", "no_gradients()", "loss_detached")),
        (
            [WHOLE, of(("b", "c"), a=[1.0])],
            False,
            (
                "fail",
                "gradient_not_finite(parameters=2 parameters, first b)",
                "check_mixed_precision",
            ),
        ),
        ([WHOLE, of(a=[11.0])], False, ("pass", "micro_batches_keep_gradient(num_examples=3)", "")),
        (
            [WHOLE, OTHER, WHOLE],
            False,
            ("fail", "micro_batches_change_gradient(difference=0.2)", "divide_by_total_items"),
        ),
        ([WHOLE, OTHER, OTHER], False, ("skipped", "randomness_not_disabled()", "")),
        ([WHOLE, OTHER, WHOLE], True, ("skipped", "balancing_loss_per_micro_batch()", "")),
    ],
)
def test_micro_batches_are_compared_with_the_whole(
    found: list[Gradients],
    balances: bool,
    expected: tuple[str, str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []

    def gradients(examples: list[int], size: int) -> Gradients:
        sizes.append(size)
        return found[len(sizes) - 1]

    monkeypatch.setattr(module, "preserve_subject", nullcontext)
    monkeypatch.setattr(module, "disable_randomness", lambda _: None)
    monkeypatch.setattr(module, "_balances", lambda _: balances)
    subject: Any = SimpleNamespace(uneven_sample=[1, 2, 3], gradients=gradients, tolerance=0.1)
    result = check_accumulation(subject)
    status, text, remedy = expected
    assert (result.status, result.text) == (status, f"testing.{text}")
    assert result.remedy == (f"testing.{remedy}()" if remedy else "")
    assert sizes == [3, 1, 3][: len(found)]


@pytest.mark.parametrize(
    ("scale", "own", "status"), [(2.9, False, "pass"), (3.1, False, "warn"), (3.1, True, "pass")]
)
def test_a_loss_far_above_chance_is_a_warning(
    scale: float, own: bool, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of three tokens in a vocabulary of four; the last two are trained."""
    chance = math.log(4)
    losses = [7.0, scale * chance, scale * chance]
    token_loss: Any = lambda logits, ids: torch.tensor(losses)[: len(ids)]  # noqa: E731
    monkeypatch.setattr(module, "cross_entropy", token_loss)
    monkeypatch.setattr(module, "own_loss", lambda _: token_loss if own else None)
    monkeypatch.setattr(module, "_balances", lambda _: False)
    mask = np.array([False, False, True, True])
    training = SimpleNamespace(loss="focal")
    subject: Any = SimpleNamespace(
        adapter=SimpleNamespace(count_items=lambda _: 2, training_config=training),
        sample=[TokenizedExample(np.arange(4, dtype=np.int32), mask)],
        logits_by_row=lambda _: (torch.zeros(4, 4),),
        objective=None,
        tolerance=1e-6,
    )
    value = scale * chance
    found = module._against_reference(subject, value, 2)
    text = f"loss_above_chance(loss={value}, chance={chance})"
    if status == "pass":
        text = f"loss_matches_outputs(loss={value})"
    assert (found.status, found.text) == (status, f"testing.{text}")
    assert found.numbers["expected_loss"] == pytest.approx(value)


def test_a_loss_of_no_text_is_only_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "preserve_subject", nullcontext)
    for loss, result in (
        (3.0, CheckResult("loss", "pass", "1.5 per item", numbers={"loss": 1.5})),
        (
            float("inf"),
            CheckResult(
                "loss",
                "fail",
                "testing.loss_not_finite(loss=inf)",
                "testing.unusable_weights_or_format()",
                numbers={"loss": float("inf")},
            ),
        ),
    ):
        answer = torch.tensor(loss), 2
        subject: Any = SimpleNamespace(reads_text=False, sample=[], loss=lambda _, a=answer: a)
        assert check_loss(subject) == result
