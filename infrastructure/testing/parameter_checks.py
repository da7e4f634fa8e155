"""Does a step move what should train, all of it and nothing else? Every weight is put back."""

import math
from typing import Any

import torch

from infrastructure.testing.results import CheckResult
from infrastructure.testing.subject import (
    Subject,
    disable_randomness,
    fingerprints,
    preserve_subject,
    undone,
)
from infrastructure.training.forward.one_step import one_step
from infrastructure.training.models.lora import adapted_paths, count_parameters, target_paths
from infrastructure.training.models.model_inputs import inner_model, relative_difference
from infrastructure.training.models.packing_check import leak_tolerance
from infrastructure.training.strategies.trial import first_step, is_own

# Large enough that no update is lost to rounding; the weights are put back afterwards.
VISIBLE_LEARNING_RATE = 0.05
MAX_LEARNING_RATE = 2e-4
NUM_STEPS = 2
NUM_LEARNING_STEPS = 4
VISIBLE = 2e-3  # a change of the loss, as a share of what rounding may do to it: 2e-7 in fp32


def check_weights(subject: Subject) -> CheckResult:
    """Every weight is a finite number, those that the first examples do not reach too."""
    named = [(n, p) for n, p in subject.model.named_parameters() if p.is_floating_point()]
    wrong = sorted(name for name, p in named if not bool(p.detach().isfinite().all()))
    if wrong:
        remedy = "load the model from a good copy; see temper checkpoints verify"
        return CheckResult("weights", "fail", f"{_some(wrong)} holds NaN or infinity", remedy)
    return CheckResult("weights", "pass", f"all {len(named)} tensors are finite")


def check_trainable(subject: Subject) -> CheckResult:
    """What may train is what the configuration asks for: LoRA and nothing of its base, or all."""
    named = dict(subject.model.named_parameters())
    trained = {name for name, parameter in named.items() if parameter.requires_grad}
    counts = count_parameters(subject.model)
    share = counts.trainable / max(1, counts.total)
    numbers = {"trained_share": share, "num_trained": float(len(trained))}
    wrong = _wrong_in_lora(subject, trained) if has_lora(subject.model) else ""
    if not trained:
        wrong = "nothing in the model trains"
    if wrong:
        remedy = "look at model.lora_config; freeze the base with requires_grad_(False)"
        return CheckResult("trainable", "fail", wrong, remedy, numbers=numbers)
    what = "LoRA and nothing of its base" if has_lora(subject.model) else f"{len(trained)} tensors"
    text = f"{what}, {100 * share:.3g} % of the weights"
    return CheckResult("trainable", "pass", text, numbers=numbers)


def has_lora(model: torch.nn.Module) -> bool:
    """Whether the model is a base with LoRA beside it."""
    return hasattr(model, "peft_config")


def is_lora(name: str) -> bool:
    """Whether a parameter belongs to what PEFT adds."""
    return "lora_" in name or "modules_to_save" in name


def _wrong_in_lora(subject: Subject, trained: set[str]) -> str:
    base = sorted(name for name in trained if not is_lora(name))
    if base:
        return f"{_some(base)} of the base would train too, which a LoRA would not save"
    names = [name for name, _ in subject.model.named_parameters() if is_lora(name)]
    still = sorted(set(names) - trained)
    if still:
        return f"{_some(still)} of the LoRA is frozen"
    return _missing_targets(subject)


def _missing_targets(subject: Subject) -> str:
    wanted = subject.trainer.model_config.lora_config
    if wanted is None:
        return ""
    within, base = subject.adapter.lora_within, inner_model(subject.model)
    paths = target_paths(base, wanted.target_modules, experts=wanted.experts, within=within)
    missing = sorted(paths - adapted_paths(base))
    return f"{_some(missing)} should have a LoRA and has none" if missing else ""


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def check_start(subject: Subject) -> CheckResult:
    """A new LoRA changes nothing until it is trained: the model begins as its base."""
    name = "start of LoRA"
    model: Any = subject.model
    if not has_lora(model) or not subject.reads_text:
        return CheckResult(name, "skipped", "the model has no LoRA")
    if not hasattr(model, "disable_adapter") or subject.trainer.model_config.lora_config is None:
        return CheckResult(name, "skipped", "the LoRA was trained before")
    moved = [p for n, p in model.named_parameters() if "lora_B" in n and bool(p.detach().any())]
    if moved:
        begins = subject.trainer.model_config.lora_config.init_lora_weights
        why = "was trained before" if begins == "default" else f"begins as {begins} says"
        return CheckResult(name, "skipped", f"the LoRA {why}")
    with preserve_subject(subject):
        disable_randomness(subject)
        batch = subject.adapter.prepare_batch(subject.sample[:1])
        logits = subject.logits(batch)
        with model.disable_adapter():
            expected = subject.logits(batch)
    difference = relative_difference(logits, expected)
    numbers = {"relative_difference": difference}
    if difference > leak_tolerance(logits.dtype):
        text = f"a LoRA that is new changes the logits by {difference:.2g}"
        remedy = "its B matrices must begin at zero, and the base must be left alone"
        return CheckResult(name, "fail", text, remedy, numbers=numbers)
    return CheckResult(name, "pass", "the model begins as its base", numbers=numbers)


def check_optimizer(subject: Subject) -> CheckResult:
    """The optimizer holds each parameter that trains once, and no other."""
    try:
        optimizer = subject.optimizer()
    except ValueError as error:
        return CheckResult("optimizer", "fail", str(error), "give model.lora_config")
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    named = {id(p): (name, p) for name, p in subject.model.named_parameters()}
    lacking = [name for i, (name, p) in named.items() if p.requires_grad and i not in held]
    frozen = [name for i, (name, p) in named.items() if not p.requires_grad and i in held]
    still = [group for group in optimizer.param_groups if not group["lr"] > 0]
    wrong = ""
    if lacking:
        wrong = f"{_some(lacking)} should train, and the optimizer does not hold it"
    elif frozen:
        wrong = f"{_some(frozen)} is frozen, and the optimizer holds it"
    elif set(held) - set(named):
        wrong = "the optimizer holds parameters that are not the model's"
    elif len(held) != len(set(held)):
        wrong = "the optimizer holds a parameter twice"
    elif still:
        wrong = f"{len(still)} groups of the optimizer have no learning rate"
    if wrong:
        remedy = "look at the strategy's parameter_groups"
        return CheckResult("optimizer", "fail", wrong, remedy)
    text = f"{type(optimizer).__name__} holds all {len(held)} tensors that train, and no other"
    return CheckResult("optimizer", "pass", text)


def check_steps(subject: Subject) -> CheckResult:
    """Two real steps move every tensor that trains, and none that does not."""
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
        wrong = f"{_some(kept)} should stay as it is, and a step changed it"
    elif stuck := sorted((trained & received) - moved):
        wrong = f"{_some(stuck)} should train, gets a gradient, and did not move"
    elif untouched := sorted(n for n in trained - received - moved if "expert" not in n):
        wrong = f"{_some(untouched)} should train and gets no gradient"
    if wrong:
        remedy = "look at what is frozen, and at the strategy's parameter_groups"
        return CheckResult("steps", "fail", wrong, remedy, "integration", numbers)
    text = f"{NUM_STEPS} steps moved {len(moved)} tensors and left {len(before) - len(moved)} alone"
    return CheckResult("steps", "pass", text, "", "integration", numbers)


def check_learning(subject: Subject) -> CheckResult:
    """A few steps on the same examples lower their loss.

    Near a minimum large steps go too far, so smaller ones are tried before it is called a failure.
    """
    if not subject.reads_text:
        text = "only a language model's loss must fall from step to step"
        return CheckResult("learning", "skipped", text, group="integration")
    highest = min(subject.learning_rate, MAX_LEARNING_RATE)
    visible = VISIBLE * subject.tolerance
    for rate in (highest, highest / 10, highest / 100):
        before, after = _loss_around(subject, rate)
        numbers = {"loss_before": before, "loss_after": after, "learning_rate": rate}
        change = f"{NUM_LEARNING_STEPS} steps at {rate:.2g} took the loss from {before:.6g}"
        text = f"{change} to {after:.6g}"
        if math.isfinite(after) and before - after > visible * abs(before):
            return CheckResult("learning", "pass", text, "", "integration", numbers)
    if math.isfinite(after) and after - before <= visible * abs(before):
        remedy = "the steps are too small to be seen: is the learning rate meant?"
        return CheckResult("learning", "warn", text, remedy, "integration", numbers)
    remedy = "the gradient does not point down: look at the loss and the strategy"
    return CheckResult("learning", "fail", text, remedy, "integration", numbers)


def _loss_around(subject: Subject, rate: float) -> tuple[float, float]:
    """The mean loss of the sample before and after a few steps on it."""
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
    """Optimizer steps on the sample by the training's strategy, at this highest learning rate.

    Returns:
        The parameters that got a gradient that is not zero.
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
