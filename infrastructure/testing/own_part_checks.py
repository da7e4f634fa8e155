"""Checks of user-defined parts before a run, by calling them as the run will.

An error in a part is reported with its location, before there is a run directory. All effects of
the calls are undone.
"""

from collections.abc import Callable

import torch

from infrastructure.core.messages import phrase
from infrastructure.models.token_functions import CROSS_ENTROPY
from infrastructure.testing.results import CheckResult
from infrastructure.testing.subject import Subject, preserve_subject, undone
from infrastructure.training.forward.gradient_accumulation import accumulate_gradients
from infrastructure.training.strategies.base_strategy import NOT_ENTERED
from infrastructure.training.strategies.trial import first_step, is_own


def own_checks(subject: Subject) -> tuple[Callable[[Subject], CheckResult], ...]:
    """Return the checks for the user-defined parts of this training."""
    training = subject.trainer.training_config
    checks: list[Callable[[Subject], CheckResult]] = []
    if training.loss != CROSS_ENTROPY:
        checks.append(check_own_loss)
    if training.metrics:
        checks.append(check_own_metrics)
    strategy = subject.trainer.strategy
    if is_own(strategy) and strategy.entered == NOT_ENTERED:
        checks.append(check_own_strategy)
    return tuple(checks)


def check_own_loss(subject: Subject) -> CheckResult:
    """Check that `training.loss` returns a number with a gradient for each trained token."""
    with preserve_subject(subject):
        loss_sum, _ = subject.loss(subject.sample)
        loss_sum.backward()
    name = subject.trainer.training_config.loss
    return CheckResult("own loss", "pass", phrase("testing.own_loss_works", loss=name))


def check_own_metrics(subject: Subject) -> CheckResult:
    """Check that each metric in `training.metrics` returns a number for each held-out token."""
    model, adapter = subject.model, subject.adapter
    with preserve_subject(subject), torch.no_grad():
        model.eval()
        batch = adapter.prepare_batch(subject.sample)
        with subject.trainer.precision.autocast():
            sums = adapter.sum_metrics(model, batch)
    shown = ", ".join(f"{name} {total / max(1, num):.4g}" for name, (total, num) in sums.items())
    return CheckResult("own metrics", "pass", phrase("testing.own_metrics_work", values=shown))


def check_own_strategy(subject: Subject) -> CheckResult:
    """Check a user-defined strategy by calling it as the training loop does, for one step."""
    model, strategy, examples = subject.model, subject.bound_strategy(), subject.sample
    total_steps = subject.trainer.length().total_steps
    with undone(subject):
        optimizer, scaler = subject.optimizer(), subject.scaler()
        with first_step(strategy, model, optimizer, examples) as trial:
            model.train()
            scheduler = trial.create_scheduler(optimizer, total_steps)
            total_items = max(1, subject.adapter.count_items(examples))
            accumulate_gradients(
                model,
                subject.adapter,
                trial,
                optimizer,
                scaler,
                examples,
                micro_batch_size=1,
                total_items=total_items,
            )
            trial.unscale_gradients(optimizer, scaler)
            trial.update_parameters(model, optimizer, scaler, scheduler)
            with trial.evaluating(), torch.no_grad():
                subject.loss(examples)
            trial.begin_step(1, examples)
            trial.take_form(model, optimizer, NOT_ENTERED)  # as returning to the start does
    text = phrase(
        "testing.own_strategy_works", strategy=type(strategy).__name__, total_steps=total_steps
    )
    return CheckResult("own strategy", "pass", text)
