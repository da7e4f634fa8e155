"""Checks of weights, of an optimizer and of a loss that does not fall."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.testing import parameter_checks as module
from infrastructure.testing.parameter_checks import (
    check_learning,
    check_optimizer,
    check_start,
    check_trainable,
    check_weights,
)
from infrastructure.testing.results import CheckResult


def test_names_are_the_first_and_how_many_more() -> None:
    assert [module._some(["a", "b", "c"][:count]) for count in (1, 2, 3)] == [
        "a",
        "testing.first_and_more(first=a, count=1)",
        "testing.first_and_more(first=a, count=2)",
    ]


def test_weights_that_are_not_finite_are_named_in_order() -> None:
    model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2, bias=False) for name in "bac"})
    model.register_parameter("whole", torch.nn.Parameter(torch.ones(1).int(), requires_grad=False))
    subject: Any = SimpleNamespace(model=model)
    assert check_weights(subject).text == "testing.weights_are_finite(num_tensors=3)"
    with torch.no_grad():
        model["b"].weight[1, 1], model["a"].weight[0, 0] = float("inf"), float("nan")
    names = "testing.first_and_more(first=a.weight, count=1)"
    assert check_weights(subject).text == f"testing.weights_not_finite(names={names})"


@pytest.mark.parametrize("frozen", [(), ("weight",), ("weight", "bias")])
def test_how_much_trains_is_counted(frozen: tuple[str, ...]) -> None:
    model = torch.nn.Linear(3, 1)
    for name in frozen:
        getattr(model, name).requires_grad_(False)
    found = check_trainable(SimpleNamespace(model=model))  # type: ignore[arg-type]
    share = {0: 1.0, 1: 0.25, 2: 0.0}[len(frozen)]
    trained = f"testing.num_trained_tensors(num_trained={2 - len(frozen)})"
    text, remedy = f"testing.trained_share(trained={trained}, percent={100 * share})", ""
    if not share:
        text, remedy = "testing.nothing_is_trainable()", "testing.check_lora_config()"
    numbers = {"trained_share": share, "num_trained": 2.0 - len(frozen)}
    status = "pass" if share else "fail"
    assert found == CheckResult("trainable", status, text, remedy, numbers=numbers)  # type: ignore[arg-type]


def test_an_optimizer_that_cannot_be_made_fails() -> None:
    def refuse() -> None:
        raise ValueError("nothing trains")

    found = check_optimizer(SimpleNamespace(optimizer=refuse))  # type: ignore[arg-type]
    remedy = "testing.give_lora()"
    assert found == CheckResult("optimizer", "fail", "nothing trains", remedy)


def test_an_optimizer_with_a_foreign_tensor_fails() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*model.parameters(), torch.nn.Parameter(torch.ones(1))], lr=0.1)
    subject: Any = SimpleNamespace(model=model, optimizer=lambda: optimizer)
    assert check_optimizer(subject).text == "testing.optimizer_has_foreign()"


@pytest.mark.parametrize(
    ("losses", "status", "remedy"),
    [
        ([(2.0, 1.9)], "pass", ""),
        ([(2.0, 2.0), (2.0, 1.9)], "pass", ""),
        ([(2.0, float("inf")), (2.0, 2.1), (2.0, 1.9)], "pass", ""),
        ([(2.0, 2.0)] * 3, "warn", "steps_too_small"),
        ([(2.0, 2.1)] * 2 + [(-2.0, -2.001)], "warn", "steps_too_small"),  # 0.002 is visible
        ([(2.0, 2.1)] * 2 + [(2.0, 2.001)], "warn", "steps_too_small"),
        ([(2.0, 2.1)] * 3, "fail", "loss_does_not_fall"),
        ([(2.0, 2.0)] * 2 + [(2.0, float("nan"))], "fail", "loss_does_not_fall"),
    ],
)
@pytest.mark.parametrize(("rate", "highest"), [(1e-5, 1e-5), (1.0, 2e-4)])
def test_a_loss_falls_at_one_of_three_rates(
    losses: list[tuple[float, float]],
    status: str,
    remedy: str,
    rate: float,
    highest: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates: list[float] = []
    monkeypatch.setattr(
        module, "_loss_around", lambda _, rate: (rates.append(rate), losses[len(rates) - 1])[1]
    )
    trainer = SimpleNamespace(learning_rate=rate)
    subject: Any = SimpleNamespace(reads_text=True, trainer=trainer, tolerance=0.5)
    found = check_learning(subject)
    assert rates == [highest, highest / 10, highest / 100][: len(losses)]
    before, after = losses[-1]
    about = f"before={before}, after={after}, num_steps=4, rate={rates[-1]}"
    assert (found.status, found.text) == (status, f"testing.loss_change({about})")
    assert (found.group, found.remedy) == ("integration", f"testing.{remedy}()" if remedy else "")
    assert [*found.numbers] == ["loss_before", "loss_after", "learning_rate"]
    assert found.numbers["learning_rate"] == rates[-1]


def test_a_model_without_text_or_lora_is_skipped() -> None:
    plain: Any = SimpleNamespace(reads_text=False, model=torch.nn.Linear(1, 1))
    assert [
        (one.name, one.status, one.group) for one in (check_learning(plain), check_start(plain))
    ] == [
        ("learning", "skipped", "integration"),
        ("start of LoRA", "skipped", "unit"),
    ]
