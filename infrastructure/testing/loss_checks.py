"""Checks of the loss, for different ways to form and split a batch. No weight is changed."""

import math
from dataclasses import replace

import torch

from infrastructure.core.messages import phrase
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.models.model_inputs import inner_model, relative_difference
from infrastructure.models.packing_check import leak_tolerance
from infrastructure.models.token_functions import cross_entropy, own_loss
from infrastructure.testing.results import CheckResult
from infrastructure.testing.subject import Gradients, Subject, disable_randomness, preserve_subject

# A model that knows nothing has the logarithm of its vocabulary; far above that is an error.
MAX_LOSS_FACTOR = 3.0


def check_loss(subject: Subject) -> CheckResult:
    """Check that the loss is finite and matches the logits and labels.

    The reference is the definition: for each trained token, the cross-entropy (or `training.loss`),
    in fp32, of the logits one position before the token. With a masked objective, the reference for
    each hidden token is the cross-entropy of the logits at that token's own position, times the
    token's weight.
    """
    with preserve_subject(subject), torch.no_grad():
        if subject.reads_text:
            disable_randomness(subject)
        loss_sum, num_items = subject.loss(subject.sample)
        value = float(loss_sum) / max(1, num_items)
        numbers = {"loss": value}
        if not math.isfinite(value):
            text = phrase("testing.loss_not_finite", loss=value)
            remedy = phrase("testing.unusable_weights_or_format")
            return CheckResult("loss", "fail", text, remedy, numbers=numbers)
        if not subject.reads_text:
            return CheckResult("loss", "pass", f"{value:.4g} per item", numbers=numbers)
        return _against_reference(subject, value, num_items)


def _against_reference(subject: Subject, value: float, num_items: int) -> CheckResult:
    expected_items = subject.adapter.count_items(subject.sample)
    own = own_loss(subject.adapter.training_config.loss)
    token_loss = own or cross_entropy
    expected = 0.0
    for example in subject.sample:
        (logits,) = subject.logits_by_row([example])
        ids = torch.as_tensor(example.input_ids, device=logits.device).long()
        if subject.objective is not None:
            masked = subject.masked(example)
            places = torch.as_tensor(masked.positions, device=logits.device)
            losses = token_loss(logits[places].float(), ids[places])
            expected += masked.weight * float(losses.sum())
            continue
        learnt = torch.as_tensor(example.supervised[1:], device=logits.device)
        losses = token_loss(logits[:-1].float(), ids[1:])
        expected += float(losses[learnt].sum())
    expected /= max(1, expected_items)
    difference = abs(value - expected) / max(abs(expected), 1e-9)
    numbers = {"loss": value, "expected_loss": expected, "relative_difference": difference}
    if num_items != expected_items or (difference > subject.tolerance and not _balances(subject)):
        text = phrase(
            "testing.loss_differs_from_logits",
            loss=value,
            num_tokens=num_items,
            expected=expected,
            expected_tokens=expected_items,
        )
        remedy = phrase("testing.labels_wrong")
        return CheckResult("loss", "fail", text, remedy, numbers=numbers)
    know_nothing = math.log(logits.shape[-1])
    if own is None and value > MAX_LOSS_FACTOR * know_nothing:
        text = phrase("testing.loss_above_chance", loss=value, chance=know_nothing)
        remedy = phrase("testing.check_weights_and_tokenizer")
        return CheckResult("loss", "warn", text, remedy, numbers=numbers)
    text = phrase("testing.loss_matches_outputs", loss=value)
    return CheckResult("loss", "pass", text, numbers=numbers)


def _balances(subject: Subject) -> bool:
    """Return whether the model adds a load-balancing loss (mixture of experts) to its own loss.

    Such a loss depends on the micro-batch.
    """
    config = getattr(inner_model(subject.model), "config", None)
    return bool(getattr(config, "output_router_logits", False))


def check_causality(subject: Subject) -> CheckResult:
    """Check that no token attends to later ones: changing the last tokens must not change earlier
    logits.

    With a masked objective, each token must attend to later ones.
    """
    name = "causality"
    if not subject.reads_text:
        return CheckResult(name, "skipped", phrase("testing.model_without_text"))
    with preserve_subject(subject):
        disable_randomness(subject)
        example = max(subject.sample, key=lambda one: len(one.input_ids))
        half = len(example.input_ids) // 2
        batch = subject.adapter.prepare_batch([example])
        changed = {**batch, "input_ids": batch["input_ids"].clone()}
        changed["input_ids"][:, half:] = changed["input_ids"][:, half:].flip(-1).roll(1, -1)
        first, second = subject.logits(batch)[0, :half], subject.logits(changed)[0, :half]
    leak = relative_difference(second, first)
    numbers = {"leak": leak}
    if subject.objective is not None:
        if leak > leak_tolerance(first.dtype):
            text = phrase("testing.attends_to_both_sides")
            return CheckResult(name, "pass", text, numbers=numbers)
        text = phrase("testing.attends_to_one_side")
        remedy = phrase("testing.attention_mask_ignored")
        return CheckResult(name, "fail", text, remedy, numbers=numbers)
    if leak > leak_tolerance(first.dtype):
        text = phrase("testing.logits_see_later_tokens", leak=leak)
        remedy = phrase("testing.attention_not_causal")
        return CheckResult(name, "fail", text, remedy, numbers=numbers)
    return CheckResult(name, "pass", phrase("testing.attention_is_causal"), numbers=numbers)


def check_isolation(subject: Subject) -> CheckResult:
    """Check that examples of a batch do not attend to each other, packed or padded."""
    name = "isolation"
    if not subject.reads_text:
        return CheckResult(name, "skipped", phrase("testing.model_without_text"))
    layout = "packed" if getattr(subject.adapter, "packs", False) else "padded"
    with preserve_subject(subject):
        disable_randomness(subject)
        examples = subject.sample
        together = subject.logits_by_row(examples)
        alone = [subject.logits_by_row([example])[0] for example in examples]
        others = subject.logits_by_row([_other_first(subject), *examples[1:]])
    difference = max(map(relative_difference, together, alone))
    leak = max(map(relative_difference, others[1:], together[1:]), default=0.0)
    numbers = {"relative_difference": difference, "leak": leak}
    if difference > subject.tolerance or leak > leak_tolerance(together[0].dtype):
        text = phrase(
            "testing.examples_see_each_other", layout=layout, difference=difference, leak=leak
        )
        remedy = phrase("testing.disable_packing") if layout == "packed" else ""
        return CheckResult(name, "fail", text, remedy, numbers=numbers)
    where = "one row" if layout == "packed" else "one batch"
    text = phrase("testing.examples_are_isolated", num_examples=len(examples), container=where)
    return CheckResult(name, "pass", text, numbers=numbers)


def _other_first(subject: Subject) -> TokenizedExample:
    """Return the first example with its tokens in another order."""
    first: TokenizedExample = subject.sample[0]
    return replace(first, input_ids=first.input_ids[::-1].copy())


def check_accumulation(subject: Subject) -> CheckResult:
    """Check that a batch has the same gradient as a whole and in micro-batches of one example.

    The examples have different numbers of trained tokens, so that a wrong mean over micro-batches
    is detected.
    """
    with preserve_subject(subject):
        disable_randomness(subject)
        examples = subject.uneven_sample
        whole = subject.gradients(examples, len(examples))
        pieces = subject.gradients(examples, 1)
        if bad := _unusable(whole) or _unusable(pieces):
            return bad
        difference = gradient_difference(pieces, whole)
        noise = 0.0
        if difference > subject.tolerance:
            noise = gradient_difference(subject.gradients(examples, len(examples)), whole)
    numbers = {"relative_difference": difference, "noise": noise}
    if noise > subject.tolerance:
        text = phrase("testing.randomness_not_disabled")
        return CheckResult("accumulation", "skipped", text, numbers=numbers)
    if _balances(subject):
        text = phrase("testing.balancing_loss_per_micro_batch")
        return CheckResult("accumulation", "skipped", text, numbers=numbers)
    if difference > subject.tolerance:
        text = phrase("testing.micro_batches_change_gradient", difference=difference)
        remedy = phrase("testing.divide_by_total_items")
        return CheckResult("accumulation", "fail", text, remedy, numbers=numbers)
    text = phrase("testing.micro_batches_keep_gradient", num_examples=len(examples))
    return CheckResult("accumulation", "pass", text, numbers=numbers)


def _unusable(actual: Gradients) -> CheckResult | None:
    if not actual.values:
        text = phrase("testing.no_gradients")
        remedy = phrase("testing.loss_detached")
        return CheckResult("accumulation", "fail", text, remedy)
    if actual.not_finite:
        names = f"{len(actual.not_finite)} parameters, first {actual.not_finite[0]}"
        text = phrase("testing.gradient_not_finite", parameters=names)
        return CheckResult("accumulation", "fail", text, phrase("testing.check_mixed_precision"))
    return None


def gradient_difference(actual: Gradients, expected: Gradients) -> float:
    """Return the norm of the gradients' difference, relative to the norm of the expected gradient.

    The result is infinite if a parameter has a gradient only in `actual` or only in `expected`.
    """
    if actual.values.keys() != expected.values.keys():
        return math.inf
    pairs = [(actual.values[name], expected.values[name]) for name in expected.values]
    squared = sum(float((a - b).double().square().sum()) for a, b in pairs)
    length = sum(float(b.double().square().sum()) for _, b in pairs)
    return math.sqrt(squared / length) if length else math.inf
