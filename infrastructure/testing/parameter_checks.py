"""Checks that a training step changes all trainable weights and no others. Weights are restored."""

import math
from typing import Any

import torch

from infrastructure.core.messages import phrase
from infrastructure.models.lora import adapted_paths, count_parameters, target_paths
from infrastructure.models.model_inputs import inner_model, relative_difference
from infrastructure.models.packing_check import leak_tolerance
from infrastructure.testing.results import CheckResult
from infrastructure.testing.subject import (
    Subject,
    disable_randomness,
    fingerprints,
    preserve_subject,
    undone,
)
from infrastructure.training.forward.gradient_accumulation import one_step
from infrastructure.training.strategies.trial import first_step, is_own

# Large enough that no update is lost to rounding; the weights are restored afterwards.
VISIBLE_LEARNING_RATE = 0.05
MAX_LEARNING_RATE = 2e-4
NUM_STEPS = 2
NUM_LEARNING_STEPS = 4
VISIBLE = 2e-3  # a change of the loss relative to its rounding error: 2e-7 in fp32


def check_weights(subject: Subject) -> CheckResult:
    """Check that every weight is finite, including those that the first examples do not use."""
    named = [(n, p) for n, p in subject.model.named_parameters() if p.is_floating_point()]
    wrong = sorted(name for name, p in named if not bool(p.detach().isfinite().all()))
    if wrong:
        remedy = phrase("testing.load_intact_copy")
        return CheckResult(
            "weights", "fail", phrase("testing.weights_not_finite", names=_some(wrong)), remedy
        )
    return CheckResult(
        "weights", "pass", phrase("testing.weights_are_finite", num_tensors=len(named))
    )


def check_trainable(subject: Subject) -> CheckResult:
    """Check that exactly the configured parameters are trainable: those of LoRA, or all."""
    named = dict(subject.model.named_parameters())
    trained = {name for name, parameter in named.items() if parameter.requires_grad}
    counts = count_parameters(subject.model)
    share = counts.trainable / max(1, counts.total)
    numbers = {"trained_share": share, "num_trained": float(len(trained))}
    wrong = _wrong_in_lora(subject, trained) if has_lora(subject.model) else ""
    if not trained:
        wrong = phrase("testing.nothing_is_trainable")
    if wrong:
        remedy = phrase("testing.check_lora_config")
        return CheckResult("trainable", "fail", wrong, remedy, numbers=numbers)
    what = (
        phrase("testing.only_lora_trains")
        if has_lora(subject.model)
        else phrase("testing.num_trained_tensors", num_trained=len(trained))
    )
    text = phrase("testing.trained_share", trained=what, percent=100 * share)
    return CheckResult("trainable", "pass", text, numbers=numbers)


def has_lora(model: torch.nn.Module) -> bool:
    """Return whether the model is a base model with LoRA matrices."""
    return hasattr(model, "peft_config")


def is_lora(name: str) -> bool:
    """Return whether a parameter is one that PEFT adds."""
    return "lora_" in name or "modules_to_save" in name


def _wrong_in_lora(subject: Subject, trained: set[str]) -> str:
    base = sorted(name for name in trained if not is_lora(name))
    if base:
        return phrase("testing.base_model_trainable", names=_some(base))
    names = [name for name, _ in subject.model.named_parameters() if is_lora(name)]
    still = sorted(set(names) - trained)
    if still:
        return phrase("testing.lora_weights_frozen", names=_some(still))
    return _missing_targets(subject)


def _missing_targets(subject: Subject) -> str:
    wanted = subject.trainer.model_config.lora_config
    if wanted is None:
        return ""
    within, base = subject.adapter.lora_within, inner_model(subject.model)
    paths = target_paths(base, wanted.target_modules, within=within)
    missing = sorted(paths - adapted_paths(base))
    return phrase("testing.lora_modules_missing", names=_some(missing)) if missing else ""


def _some(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    return phrase("testing.first_and_more", first=names[0], count=len(names) - 1)


def check_start(subject: Subject) -> CheckResult:
    """Check that a new LoRA does not change the outputs of its base model before it is trained."""
    name = "start of LoRA"
    model: Any = subject.model
    if not has_lora(model) or not subject.reads_text:
        return CheckResult(name, "skipped", phrase("testing.model_without_lora"))
    is_new = hasattr(model, "disable_adapter") and subject.trainer.model_config.lora_config
    has_moved = any("lora_B" in n and bool(p.detach().any()) for n, p in model.named_parameters())
    if not is_new or has_moved:
        return CheckResult(name, "skipped", phrase("testing.lora_already_trained"))
    with preserve_subject(subject):
        disable_randomness(subject)
        batch = subject.adapter.prepare_batch(subject.sample[:1])
        logits = subject.logits(batch)
        with model.disable_adapter():
            expected = subject.logits(batch)
    difference = relative_difference(logits, expected)
    numbers = {"relative_difference": difference}
    if difference > leak_tolerance(logits.dtype):
        text = phrase("testing.new_lora_changes_logits", difference=difference)
        remedy = phrase("testing.lora_must_start_at_zero")
        return CheckResult(name, "fail", text, remedy, numbers=numbers)
    return CheckResult(name, "pass", phrase("testing.new_lora_changes_nothing"), numbers=numbers)


def check_optimizer(subject: Subject) -> CheckResult:
    """Check that the optimizer holds each trainable parameter once, and no others."""
    try:
        optimizer = subject.optimizer()
    except ValueError as error:
        return CheckResult("optimizer", "fail", str(error), phrase("testing.give_lora"))
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    named = {id(p): (name, p) for name, p in subject.model.named_parameters()}
    lacking = [name for i, (name, p) in named.items() if p.requires_grad and i not in held]
    frozen = [name for i, (name, p) in named.items() if not p.requires_grad and i in held]
    still = [group for group in optimizer.param_groups if not group["lr"] > 0]
    wrong = ""
    if lacking:
        wrong = phrase("testing.optimizer_lacks_parameters", names=_some(lacking))
    elif frozen:
        wrong = phrase("testing.optimizer_has_frozen", names=_some(frozen))
    elif set(held) - set(named):
        wrong = phrase("testing.optimizer_has_foreign")
    elif len(held) != len(set(held)):
        wrong = phrase("testing.optimizer_has_duplicate")
    elif still:
        wrong = phrase("testing.no_learning_rate", num_groups=len(still))
    if wrong:
        remedy = phrase("testing.check_parameter_groups")
        return CheckResult("optimizer", "fail", wrong, remedy)
    text = phrase(
        "testing.optimizer_is_complete", optimizer=type(optimizer).__name__, num_tensors=len(held)
    )
    return CheckResult("optimizer", "pass", text)


def check_steps(subject: Subject) -> CheckResult:
    """Check that two real steps change every trainable tensor and no other tensor."""
    model = subject.model
    with undone(subject):
        before = fingerprints(model.named_parameters())
        received = take_steps(subject, NUM_STEPS, VISIBLE_LEARNING_RATE)
        after = fingerprints(model.named_parameters())
    moved = {name for name in before if before[name] != after[name]}
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    numbers = {"num_moved": float(len(moved)), "num_trained": float(len(trained))}
    wrong = ""
    if moved - trained:
        kept = sorted(moved - trained)
        wrong = phrase("testing.step_changed_frozen", names=_some(kept))
    elif stuck := sorted((trained & received) - moved):
        wrong = phrase("testing.trainable_did_not_change", names=_some(stuck))
    elif untouched := sorted(n for n in trained - received - moved if "expert" not in n):
        wrong = phrase("testing.trainable_without_gradient", names=_some(untouched))
    if wrong:
        remedy = phrase("testing.check_frozen_parameters")
        return CheckResult("steps", "fail", wrong, remedy, "integration", numbers)
    text = phrase(
        "testing.steps_changed_tensors",
        num_steps=NUM_STEPS,
        num_changed=len(moved),
        num_unchanged=len(before) - len(moved),
    )
    return CheckResult("steps", "pass", text, "", "integration", numbers)


def check_learning(subject: Subject) -> CheckResult:
    """Check that a few steps on the same examples lower their loss.

    Near a minimum large steps overshoot, so smaller ones are tried before the check fails.
    """
    if not subject.reads_text:
        text = phrase("testing.learning_only_language_models")
        return CheckResult("learning", "skipped", text, group="integration")
    highest = min(subject.trainer.learning_rate, MAX_LEARNING_RATE)
    visible = VISIBLE * subject.tolerance
    for rate in (highest, highest / 10, highest / 100):
        before, after = _loss_around(subject, rate)
        numbers = {"loss_before": before, "loss_after": after, "learning_rate": rate}
        about = {"num_steps": NUM_LEARNING_STEPS, "rate": rate}
        text = phrase("testing.loss_change", before=before, after=after, **about)
        if math.isfinite(after) and before - after > visible * abs(before):
            return CheckResult("learning", "pass", text, "", "integration", numbers)
    if math.isfinite(after) and after - before <= visible * abs(before):
        remedy = phrase("testing.steps_too_small")
        return CheckResult("learning", "warn", text, remedy, "integration", numbers)
    remedy = phrase("testing.loss_does_not_fall")
    return CheckResult("learning", "fail", text, remedy, "integration", numbers)


def _loss_around(subject: Subject, rate: float) -> tuple[float, float]:
    """Return the mean loss of the sample before and after a few steps on it."""
    with undone(subject):
        disable_randomness(subject)
        before = _mean_loss(subject)
        take_steps(subject, NUM_LEARNING_STEPS, rate)
        return before, _mean_loss(subject)


@torch.no_grad()
def _mean_loss(subject: Subject) -> float:
    loss_sum, num_items = subject.loss(subject.sample)
    return float(loss_sum) / max(1, num_items)


def take_steps(subject: Subject, num_steps: int, learning_rate: float) -> set[str]:
    """Take optimizer steps on the sample with the training's strategy and this peak learning rate.

    Returns:
        The names of the parameters that got a nonzero gradient.
    """
    strategy, optimizer = subject.bound_strategy(), subject.optimizer()
    scaler = subject.scaler()
    highest = max(float(group["lr"]) for group in optimizer.param_groups)
    for group in optimizer.param_groups:
        group["lr"] *= learning_rate / highest
    received: set[str] = set()
    model, sample = subject.model, subject.sample
    with first_step(strategy, model, optimizer, sample) as strategy:
        for step in range(num_steps):
            if is_own(strategy):
                strategy.begin_step(step, sample)
            one_step(model, subject.adapter, strategy, optimizer, sample, scaler=scaler)
            strategy.unscale_gradients(optimizer, scaler)
            named = model.named_parameters()
            received |= {n for n, p in named if p.grad is not None and bool(p.grad.any())}
            strategy.update_parameters(model, optimizer, scaler, None)
    return received
