"""Is the loss the right one, whatever way a batch is made and split? Changes no weight."""

import math
from dataclasses import replace

import torch

from infrastructure.testing.results import CheckResult
from infrastructure.testing.subject import Gradients, Subject, disable_randomness, preserve_subject
from infrastructure.training.data.store.examples import TokenizedExample
from infrastructure.training.models.model_inputs import inner_model, relative_difference
from infrastructure.training.models.packing_check import leak_tolerance
from infrastructure.training.models.token_functions import cross_entropy, own_loss

NO_TEXT = "this model reads no text"
# A model that knows nothing has the logarithm of its vocabulary; far above is a mistake.
MAX_LOSS_FACTOR = 3.0


def check_loss(subject: Subject) -> CheckResult:
    """The loss is finite, and the one that the logits and the labels say.

    The reference is the plain definition: at each learnt token the cross-entropy (or what
    `training.loss` names), in fp32, of the logits one place before it; with a masked objective at
    each hidden token that of the logits at its own place, as often as it counts.
    """
    with preserve_subject(subject), torch.no_grad():
        if subject.reads_text:
            disable_randomness(subject)
        loss_sum, num_items = subject.loss(subject.sample)
        value = float(loss_sum) / max(1, num_items)
        numbers = {"loss": value}
        if not math.isfinite(value):
            text = f"the loss of the first examples is {value}"
            remedy = "the model's weights or the number format are not usable: see temper doctor"
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
        text = (
            f"the loss is {value:.6g} over {num_items} tokens; by the model's logits it is"
            f" {expected:.6g} over {expected_items}"
        )
        remedy = "the labels are shifted, masked or averaged otherwise than they should be"
        return CheckResult("loss", "fail", text, remedy, numbers=numbers)
    know_nothing = math.log(logits.shape[-1])
    if own is None and value > MAX_LOSS_FACTOR * know_nothing:
        text = f"{value:.4g}, and a model that knows nothing has {know_nothing:.4g}"
        remedy = "are these the right weights, and is this the model's own tokenizer?"
        return CheckResult("loss", "warn", text, remedy, numbers=numbers)
    text = f"{value:.4g} per learnt token, as the model's outputs say"
    return CheckResult("loss", "pass", text, numbers=numbers)


def _balances(subject: Subject) -> bool:
    """Whether a mixture of experts adds a loss of its own, which is of the micro-batch."""
    config = getattr(inner_model(subject.model), "config", None)
    return bool(getattr(config, "output_router_logits", False))


def check_causality(subject: Subject) -> CheckResult:
    """No token sees those after it: other tokens at the end leave the logits before them alone.

    With a masked objective each token has to see them.
    """
    name = "causality"
    if not subject.reads_text:
        return CheckResult(name, "skipped", NO_TEXT)
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
            text = "tokens see those after them, as hidden tokens need"
            return CheckResult(name, "pass", text, numbers=numbers)
        text = "no token sees those after it, and hidden tokens are predicted from both sides"
        remedy = "the model passes its attention mask by"
        return CheckResult(name, "fail", text, remedy, numbers=numbers)
    if leak > leak_tolerance(first.dtype):
        text = f"logits change by {leak:.2g} with tokens that come after them"
        remedy = "the model sees what it is to predict: its attention must be causal"
        return CheckResult(name, "fail", text, remedy, numbers=numbers)
    return CheckResult(name, "pass", "no token sees those after it", numbers=numbers)


def check_isolation(subject: Subject) -> CheckResult:
    """The examples of a batch do not see each other: together as alone, packed or padded."""
    name = "isolation"
    if not subject.reads_text:
        return CheckResult(name, "skipped", NO_TEXT)
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
        text = (
            f"{layout} examples see each other: their logits differ by {difference:.2g} from those"
            f" of the same examples alone, and by {leak:.2g} with another neighbour"
        )
        remedy = "train with data.packing false" if layout == "packed" else ""
        return CheckResult(name, "fail", text, remedy, numbers=numbers)
    text = "the only example has no other one to see"
    if len(examples) > 1:
        where = "one row" if layout == "packed" else "one batch"
        text = f"{len(examples)} examples in {where} do not see each other"
    return CheckResult(name, "pass", text, numbers=numbers)


def _other_first(subject: Subject) -> TokenizedExample:
    """The first example with its tokens in another order."""
    first: TokenizedExample = subject.sample[0]
    return replace(first, input_ids=first.input_ids[::-1].copy())


def check_accumulation(subject: Subject) -> CheckResult:
    """One batch and the same in micro-batches of one give the same gradient, and all of it.

    The examples have unequally many things to learn, so that a mean of means shows.
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
        text = "the model draws random numbers that cannot be switched off"
        return CheckResult("accumulation", "skipped", text, numbers=numbers)
    if _balances(subject):
        text = "the experts' balancing loss is that of a micro-batch, so splitting changes it"
        return CheckResult("accumulation", "skipped", text, numbers=numbers)
    if difference > subject.tolerance:
        text = f"in micro-batches of 1 the gradient is another one, by {difference:.2g}"
        remedy = "losses must be divided by the items of the whole batch (batch['total_items'])"
        return CheckResult("accumulation", "fail", text, remedy, numbers=numbers)
    text = "there is one example, which cannot be split"
    if len(examples) > 1:
        text = f"{len(examples)} examples at once and one by one give the same gradient"
    return CheckResult("accumulation", "pass", text, numbers=numbers)


def _unusable(actual: Gradients) -> CheckResult | None:
    if not actual.values:
        text = "nothing that should train gets a gradient"
        remedy = "the loss is cut off from the weights; with LoRA: do the inputs require gradients?"
        return CheckResult("accumulation", "fail", text, remedy)
    if actual.not_finite:
        names = f"{len(actual.not_finite)} parameters, first {actual.not_finite[0]}"
        text = f"the gradient is not finite in {names}"
        return CheckResult("accumulation", "fail", text, "see temper doctor and mixed_precision")
    return None


def gradient_difference(actual: Gradients, expected: Gradients) -> float:
    """Length of the difference in units of the expected gradient's; infinite where one is missing
    a parameter that the other has."""
    if actual.values.keys() != expected.values.keys():
        return math.inf
    pairs = [(actual.values[name], expected.values[name]) for name in expected.values]
    squared = sum(float((a - b).double().square().sum()) for a, b in pairs)
    length = sum(float(b.double().square().sum()) for _, b in pairs)
    return math.sqrt(squared / length) if length else math.inf
