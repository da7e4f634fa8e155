"""Schedules, parameter groups and the update, on numbers worked out by hand."""

import logging
import math
from types import SimpleNamespace

import pytest
import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.models.added_modules import ATTRIBUTE
from infrastructure.optimization.offloaded_adamw import OffloadedAdamW
from infrastructure.training.core.precision import Precision
from infrastructure.training.core.state import StepOutput
from infrastructure.training.strategies import STRATEGIES, get_training_strategy
from infrastructure.training.strategies.base_strategy import (
    OPTIMIZERS,
    SCHEDULERS,
    TrainingStrategy,
    build_optimizer,
)
from tests.training.toy import ToyAdapter, ToyModel


def learning_rates(total_steps: int, **settings: object) -> list[float]:
    strategy = get_training_strategy("standard", TrainingConfig(**settings))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = strategy.create_scheduler(optimizer, total_steps)
    rates = []
    for _ in range(total_steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_warm_up_rises_and_cosine_falls() -> None:
    rates = learning_rates(12, warmup_steps=3, scheduler_type="cosine")
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    expected = [0.5 * (1 + math.cos(math.pi * k / 9)) for k in range(9)]
    assert rates[3:] == pytest.approx(expected)


def test_linear_and_constant_schedules() -> None:
    assert learning_rates(4, warmup_steps=0, scheduler_type="linear") == [1.0, 0.75, 0.5, 0.25]
    assert learning_rates(3, warmup_steps=0, scheduler_type="constant") == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("scheduler_type", ["cosine", "linear", "constant"])
def test_after_the_last_step_the_rate_stays_what_it_was_there(scheduler_type: str) -> None:
    """A loop of one's own may do more steps than it announced."""
    config = TrainingConfig(warmup_steps=0, scheduler_type=scheduler_type)
    factor = get_training_strategy("standard", config).rate_factor(4)
    assert factor(7) == factor(4)


def test_warm_up_never_takes_more_than_half() -> None:
    assert max(learning_rates(4, warmup_steps=1000, scheduler_type="constant")) == 1.0


def test_a_training_of_no_steps_has_a_schedule() -> None:
    assert learning_rates(0) == []


def test_a_phase_begins_in_its_own_form() -> None:
    strategy, model = get_training_strategy("standard", TrainingConfig()), ToyModel()
    optimizer = strategy.create_optimizer(model, 0.5)
    taken: list[object] = []
    strategy.take_form = lambda *form: taken.append(form)  # type: ignore[method-assign]
    strategy.enter_phase(model, optimizer, 2)
    assert taken == [(model, optimizer, 2)]


def test_only_matrices_decay() -> None:
    strategy = get_training_strategy("standard", TrainingConfig(weight_decay=0.1))
    groups = strategy.parameter_groups(ToyModel(), 0.5)
    assert [(g["weight_decay"], {p.ndim for p in g["params"]}) for g in groups] == [
        (0.1, {2}),
        (0.0, {1}),
    ]
    assert {g["lr"] for g in groups} == {0.5}


@pytest.mark.parametrize(
    ("name", "kind"),
    [("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD), ("adamw_offload", OffloadedAdamW)],
)
def test_the_optimizer_is_the_configured_one(name: str, kind: type) -> None:
    config = TrainingConfig(optimizer=name)
    optimizer = get_training_strategy("standard", config).create_optimizer(ToyModel(), 0.1)
    assert isinstance(optimizer, kind)
    assert name == "sgd" or {group["betas"] for group in optimizer.param_groups} == {(0.9, 0.95)}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("adamw_8bit", torch.uint8),
        ("paged_adamw_8bit", torch.uint8),
        ("paged_adamw", torch.float32),
    ],
)
def test_the_optimizers_of_bitsandbytes_hold_their_state_as_named(
    name: str, dtype: torch.dtype
) -> None:
    config = TrainingConfig(optimizer=name)
    strategy = get_training_strategy("standard", config)
    model = torch.nn.Linear(128, 128, bias=False)  # matrices alone
    optimizer = strategy.create_optimizer(model, 0.1)
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.95)
    model(torch.ones(1, 128)).sum().backward()
    strategy.update_parameters(model, optimizer, None, None)
    assert optimizer.state[model.weight]["state1"].dtype is dtype


def test_a_paged_optimizer_is_made_where_there_is_a_gpu() -> None:
    """On the meta device nothing is allocated, and the class is the GPU's."""
    strategy = get_training_strategy("standard", TrainingConfig(optimizer="paged_adamw_8bit"))
    optimizer = strategy.create_optimizer(torch.nn.Linear(8, 8, device="meta"), 0.1)
    assert type(optimizer).__name__ == "PagedAdamW8bit"


@pytest.mark.parametrize("added_rate", [None, 0.5, 0.003])
def test_weights_that_extensions_add_learn_at_their_own_rate(added_rate: float | None) -> None:
    """Matrices and vectors of both; the model's own weights move as they would without."""
    strategy = get_training_strategy("standard", TrainingConfig(optimizer="sgd", weight_decay=0))
    strategy.added_rate = added_rate
    model = ToyModel()
    model.add_module(ATTRIBUTE, torch.nn.ModuleDict({"one": torch.nn.Linear(3, 2)}))
    optimizer = strategy.create_optimizer(model, 0.1)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert sum(name.startswith(ATTRIBUTE) for name in before) == 2
    for name, parameter in model.named_parameters():
        rate = added_rate if name.startswith(ATTRIBUTE) and added_rate is not None else 0.1
        expected = before[name] - rate
        torch.testing.assert_close(parameter.detach(), expected, rtol=0, atol=1e-6)


def test_a_model_with_nothing_to_train_is_refused() -> None:
    model = ToyModel().requires_grad_(False)
    with pytest.raises(ValueError, match=r"training\.no_trainable_parameters"):
        get_training_strategy("standard", TrainingConfig()).create_optimizer(model, 0.1)


def test_clipping_limits_the_step_and_reports_the_true_norm() -> None:
    strategy = get_training_strategy("standard", TrainingConfig(max_grad_norm=1.0))
    parameter = torch.nn.Parameter(torch.zeros(2))
    module = torch.nn.ParameterList([parameter])
    parameter.grad = torch.tensor([3.0, 4.0])
    norm = strategy.update_parameters(module, torch.optim.SGD([parameter], lr=1.0), None, None)
    assert float(norm) == pytest.approx(5.0)
    assert parameter.tolist() == pytest.approx([-0.6, -0.8], abs=1e-5)
    assert parameter.grad is None


@pytest.mark.parametrize("scaler", [None, torch.amp.GradScaler("cpu", init_scale=1.0)])
def test_an_update_takes_the_schedule_one_step_on(scaler: torch.amp.GradScaler | None) -> None:
    strategy = get_training_strategy("standard", TrainingConfig(warmup_steps=2))
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    schedule = strategy.create_scheduler(optimizer, 4)
    rates = []
    for _ in range(3):
        rates.append(optimizer.param_groups[0]["lr"])
        loss = parameter.sum()
        (loss if scaler is None else scaler.scale(loss)).backward()
        strategy.update_parameters(torch.nn.ParameterList([parameter]), optimizer, scaler, schedule)
    assert rates == pytest.approx([1 / 3, 2 / 3, 1.0])


def test_the_step_of_the_specification_works_on_its_own() -> None:
    """`train_step(model, batch, optimizer, scaler, scheduler, update_gradients=True)`."""
    config = TrainingConfig()
    adapter = ToyAdapter(config)
    strategy = get_training_strategy("standard", config)
    strategy.compute_loss = adapter.compute_loss
    model = adapter.initialize_model()
    optimizer = strategy.create_optimizer(model, 0.1)
    batch = adapter.prepare_batch([1, 2, 3])
    before = model.head.weight.detach().clone()
    output = strategy.train_step(model, batch, optimizer, None, None, update_gradients=False)
    assert isinstance(output, StepOutput)
    assert output.num_items == 9
    assert torch.equal(model.head.weight, before)
    assert model.head.weight.grad is not None
    strategy.train_step(model, batch, optimizer, None, None, update_gradients=True)
    assert not torch.equal(model.head.weight, before)
    assert model.head.weight.grad is None


def test_an_unknown_strategy_gets_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"core\.did_you_mean\(meant=finetune\)"):
        get_training_strategy("finetun", TrainingConfig())


def test_a_strategy_of_ones_own_needs_one_method() -> None:
    class Curriculum(TrainingStrategy):
        def train_step(self, model, batch, optimizer, scaler, scheduler, update_gradients=True):  # type: ignore[no-untyped-def]
            return StepOutput(torch.tensor(0.0), 1)

    with STRATEGIES.registered("curriculum", Curriculum):
        strategy = get_training_strategy("curriculum", TrainingConfig())
    assert isinstance(strategy, Curriculum)
    assert [phase.num_epochs for phase in strategy.phases(ToyModel(), 4)] == [4]


def test_a_strategy_has_a_log_of_its_own_or_the_one_that_it_is_given() -> None:
    given = logging.getLogger("given")
    assert get_training_strategy("standard", TrainingConfig(), given).logger is given
    assert STRATEGIES.get("standard")(TrainingConfig()).logger.name == TrainingStrategy.__module__


def test_a_strategy_without_phases_measures_and_evaluates_the_model_as_it_is() -> None:
    strategy, model = get_training_strategy("standard", TrainingConfig()), ToyModel()
    with strategy.measuring(model), strategy.evaluating():
        assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("rate", [0.25, None])
def test_weights_that_extensions_have_added_learn_at_their_own_rate(rate: float | None) -> None:
    model = ToyModel()
    attached = torch.nn.Module()
    attached.own = torch.nn.Linear(2, 3)
    model.add_module(ATTRIBUTE, attached)
    strategy = get_training_strategy("standard", TrainingConfig(weight_decay=0.1))
    strategy.added_rate = rate
    optimizer = strategy.create_optimizer(model, 0.5)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    own = 0.5 if rate is None else rate
    found = [
        ([names[id(p)] for p in g["params"]], g["lr"], g["weight_decay"])
        for g in optimizer.param_groups
    ]
    assert found == [
        (["inner.weight", "head.weight"], 0.5, 0.1),
        (["inner.bias", "head.bias"], 0.5, 0.0),
        ([f"{ATTRIBUTE}.own.weight"], own, 0.1),
        ([f"{ATTRIBUTE}.own.bias"], own, 0.0),
    ]


def test_what_hides_tokens_draws_by_the_step() -> None:
    """So that a training that goes on draws as one that was never broken off."""
    strategy = get_training_strategy("standard", TrainingConfig())
    strategy.begin_step(3, [])
    strategy.objective = SimpleNamespace(time_step=None, draw=0)
    strategy.begin_step(7, [])
    assert strategy.objective.draw == 7


@pytest.mark.parametrize("total_items", [None, 4, 40])
def test_a_step_divides_by_the_items_of_the_whole_batch(total_items: int | None) -> None:
    config = TrainingConfig(max_grad_norm=None, optimizer="sgd")
    adapter = ToyAdapter(config, ToyModel(dropout=0.0))
    strategy = get_training_strategy("standard", config)
    strategy.compute_loss = adapter.compute_loss
    model = adapter.initialize_model()
    batch = adapter.prepare_batch([1, 2, 3])  # nine items
    adapter.compute_loss(model, batch).loss_sum.backward()
    expected = model.head.weight.grad / (total_items or 9)
    model.zero_grad()
    before = model.head.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    given = {} if total_items is None else {"total_items": total_items}
    strategy.train_step(model, {**batch, **given}, optimizer, None, schedule)
    assert torch.allclose(model.head.weight, before - 0.5 * expected, atol=1e-6)
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_a_step_needs_a_loss_which_is_computed_in_its_precision() -> None:
    config, seen = TrainingConfig(), list[torch.dtype]()
    adapter = ToyAdapter(config)
    strategy, model = get_training_strategy("standard", config), adapter.initialize_model()
    step = adapter.prepare_batch([1]), strategy.create_optimizer(model, 0.1), None, None
    with pytest.raises(ValueError, match=r"training\.strategy_without_loss"):
        strategy.train_step(model, *step)
    strategy.precision = Precision("bf16", "cpu")
    model.inner.register_forward_hook(lambda module, given, output: seen.append(output.dtype))
    strategy.compute_loss = adapter.compute_loss
    strategy.train_step(model, *step)
    assert seen == [torch.bfloat16]


def groups() -> list[dict[str, object]]:
    return [{"params": [torch.nn.Parameter(torch.ones(3, 2))], "weight_decay": 0.25}]


@pytest.mark.parametrize("name", ["torch.optim:Adamax", "adamw"])
def test_an_optimizer_with_betas_gets_ours(name: str) -> None:
    made = build_optimizer(name, groups(), 3e-3)
    assert [(g["lr"], g["betas"], g["weight_decay"]) for g in made.param_groups] == [
        (3e-3, (0.9, 0.95), 0.25)
    ]


@pytest.mark.parametrize("name", ["torch.optim:RMSprop", "sgd"])
def test_one_without_betas_gets_none(name: str) -> None:
    made = build_optimizer(name, groups(), 3e-3)
    assert [(g["lr"], g["weight_decay"]) for g in made.param_groups] == [(3e-3, 0.25)]


def test_the_step_of_an_address_is_that_of_its_class() -> None:
    config = TrainingConfig(optimizer="torch.optim:Adamax", weight_decay=0.0, learning_rate=0.1)
    strategy = get_training_strategy("standard", config)
    model, same = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    same.load_state_dict(model.state_dict())
    ours = strategy.create_optimizer(model, 0.1)
    theirs = torch.optim.Adamax(same.parameters(), lr=0.1, betas=(0.9, 0.95))
    for one, optimizer in ((model, ours), (same, theirs)):
        one(torch.ones(4)).square().sum().backward()
        optimizer.step()
    assert torch.equal(model.weight, same.weight)
    assert torch.equal(model.bias, same.bias)


def test_a_registered_name_is_used_and_its_class_must_be_there() -> None:
    with OPTIMIZERS.registered("mine", torch.optim.Adagrad):
        strategy = get_training_strategy("standard", TrainingConfig(optimizer="mine"))
        made = strategy.create_optimizer(torch.nn.Linear(2, 2), 1.0)
    assert isinstance(made, torch.optim.Adagrad)
    with pytest.raises(ValueError, match=r"core\.\w+"):
        build_optimizer("torch.optim:NoSuch", groups(), 1.0)


def test_a_schedule_may_be_anyones() -> None:
    with SCHEDULERS.registered("square", lambda done: (1 - done) ** 2):
        config = TrainingConfig(scheduler_type="square", warmup_steps=0)
        factor = get_training_strategy("standard", config).rate_factor(10)
    assert [factor(step) for step in (0, 5, 10)] == pytest.approx([1.0, 0.25, 0.0])
