"""Faults as people make them, planted in a healthy training; each says which check must see it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infrastructure.data.store.examples import TokenizedExample
from infrastructure.models.packed_attention import use_plain_attention
from infrastructure.training.core.state import StepOutput
from infrastructure.training.model_adapters.base_adapter import LossOutput

Plant = Callable[[Any], None]


@dataclass(frozen=True)
class Fault:
    """A mistake.

    Attributes:
        plant: does it to a trainer whose model and data are there.
        seen_by: the check that must fail.
        architecture: of the model that it is planted in.
        lora: whether that model has a LoRA.
    """

    name: str
    plant: Plant
    seen_by: str
    architecture: str = "llama"
    lora: bool = False


def _examples(trainer: Any, change: Callable[[TokenizedExample], TokenizedExample]) -> None:
    """Let the data give changed examples for training."""
    given = trainer.initialize_data().train_batches

    def train_batches(epoch: int, start: int, size: int) -> Any:
        for batch in given(epoch, start, size):
            yield [change(example) for example in batch]

    trainer.initialize_data().train_batches = train_batches


def _batch(trainer: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    given = trainer.adapter.prepare_batch
    trainer.adapter.prepare_batch = lambda examples: change(given(examples))


def nothing_is_learnt(trainer: Any) -> None:
    _examples(trainer, lambda e: replace(e, supervised=np.zeros_like(e.supervised)))


def prompts_are_learnt(trainer: Any) -> None:
    def all_but_first(example: TokenizedExample) -> TokenizedExample:
        mask = np.ones_like(example.supervised)
        mask[0] = False
        return replace(example, supervised=mask)

    _examples(trainer, all_but_first)


def a_token_too_many(trainer: Any) -> None:
    """A tokenizer that was enlarged, and a model that was not."""

    def enlarged(example: TokenizedExample) -> TokenizedExample:
        ids = example.input_ids.copy()
        ids[-1] = trainer.model.get_input_embeddings().num_embeddings
        return replace(example, input_ids=ids)

    _examples(trainer, enlarged)


def answers_do_not_end(trainer: Any) -> None:
    def unended(example: TokenizedExample) -> TokenizedExample:
        end = int(np.flatnonzero(example.supervised)[-1])
        return replace(
            example, input_ids=example.input_ids[:end], supervised=example.supervised[:end]
        )

    _examples(trainer, unended)


def the_next_message_is_learnt(trainer: Any) -> None:
    """The template marks the end with the answer, and the encoder takes one token more."""
    begins = trainer.adapter.tokenizer.bos_token_id

    def one_more(example: TokenizedExample) -> TokenizedExample:
        return replace(
            example,
            input_ids=np.append(example.input_ids, begins).astype(np.int32),
            supervised=np.append(example.supervised, True),
        )

    _examples(trainer, one_more)


def ends_are_learnt_twice(trainer: Any) -> None:
    """EOS is appended to what ends with it already."""
    eos = trainer.adapter.tokenizer.eos_token_id

    def doubled(example: TokenizedExample) -> TokenizedExample:
        end = int(np.flatnonzero(example.supervised)[-1]) + 1
        ids, mask = example.input_ids[:end], example.supervised[:end]
        return replace(
            example,
            input_ids=np.append(ids, eos).astype(np.int32),
            supervised=np.append(mask, True),
        )

    _examples(trainer, doubled)


def ends_are_given(trainer: Any) -> None:
    """The rows hold the ends of their answers, and the mask leaves them out."""

    def unended(example: TokenizedExample) -> TokenizedExample:
        mask = example.supervised.copy()
        mask[np.flatnonzero(mask)[-1]] = False
        return replace(example, supervised=mask)

    _examples(trainer, unended)


def the_end_is_taken_for_padding(trainer: Any) -> None:
    """The pad token is EOS, and the collator masks every pad token."""
    eos = trainer.adapter.tokenizer.eos_token_id

    def masked(batch: dict[str, Any]) -> dict[str, Any]:
        kept = batch["targets"] != eos
        return {
            **batch,
            "targets": batch["targets"][kept],
            "target_positions": batch["target_positions"][kept],
        }

    _batch(trainer, masked)


def another_template_in_use(trainer: Any) -> None:
    """The template was repaired after the data had been prepared."""
    tokenizer = trainer.adapter.tokenizer
    tokenizer.chat_template = tokenizer.chat_template.replace("assistant\n", "assistant: ")


def bos_twice(trainer: Any) -> None:
    bos = trainer.adapter.tokenizer.bos_token_id

    def doubled(example: TokenizedExample) -> TokenizedExample:
        return replace(
            example,
            input_ids=np.concatenate([[bos, bos], example.input_ids]).astype(np.int32),
            supervised=np.concatenate([[False, False], example.supervised]),
        )

    _examples(trainer, doubled)


def labels_are_not_shifted(trainer: Any) -> None:
    _batch(trainer, lambda batch: {**batch, "target_positions": batch["target_positions"] + 1})


def the_loss_is_a_mean(trainer: Any) -> None:
    """compute_loss gives the mean of the tokens, as transformers does, where the sum is meant."""
    given = trainer.adapter.compute_loss

    def compute_loss(model: torch.nn.Module, batch: dict[str, Any]) -> LossOutput:
        output = given(model, batch)
        return LossOutput(output.loss_sum / output.num_items, output.num_items)

    trainer.adapter.compute_loss = compute_loss


def an_embedding_is_not_a_number(trainer: Any) -> None:
    with torch.no_grad():
        trainer.model.get_input_embeddings().weight[-1, 0] = float("nan")


def a_norm_is_not_a_number(trainer: Any) -> None:
    with torch.no_grad():
        trainer.model.model.norm.weight[0] = float("nan")


def every_token_sees_all(trainer: Any) -> None:
    """An attention that was taken from an encoder."""
    use_plain_attention(trainer.model)
    trainer.adapter.packs = False

    def forward(query: Any, key: Any, value: Any, *args: Any, **options: Any) -> Any:
        return attention(query, key, value, **{**options, "attn_mask": None, "is_causal": False})

    attention = torch.nn.functional.scaled_dot_product_attention
    for layer in trainer.model.modules():
        if hasattr(layer, "q_proj"):
            layer.forward = _with(layer.forward, forward)


def _with(given: Callable[..., Any], attention: Callable[..., Any]) -> Callable[..., Any]:
    """`given` with another attention in place of torch's while it runs."""

    def forward(*args: Any, **options: Any) -> Any:
        own = torch.nn.functional.scaled_dot_product_attention
        torch.nn.functional.scaled_dot_product_attention = attention
        try:
            return given(*args, **options)
        finally:
            torch.nn.functional.scaled_dot_product_attention = own

    return forward


def packed_though_it_leaks(trainer: Any) -> None:
    """BLOOM takes no position ids, so packed rows see each other."""
    trainer.adapter.packs = True


def positions_go_on(trainer: Any) -> None:
    """Packed rows without their bounds: one long text."""
    use_plain_attention(trainer.model)

    def joined(batch: dict[str, Any]) -> dict[str, Any]:
        length = batch["input_ids"].shape[1]
        bounds = torch.tensor([0, length], dtype=torch.int32)
        positions = torch.arange(length)[None]
        return {**batch, "cu_seq_lens": bounds, "position_ids": positions, "max_length": length}

    _batch(trainer, joined)


def padding_on_the_wrong_side(trainer: Any) -> None:
    """Padded on the left without a mask, so that padding is seen."""
    trainer.adapter.packs = False

    def turned(batch: dict[str, Any]) -> dict[str, Any]:
        lengths = batch["attention_mask"].sum(1).tolist()
        ids = batch["input_ids"]
        rows = [row.roll(len(row) - n) for row, n in zip(ids, lengths, strict=True)]
        return {**batch, "input_ids": torch.stack(rows), "attention_mask": torch.ones_like(ids)}

    _batch(trainer, turned)


def a_mean_of_means(trainer: Any) -> None:
    """Each micro-batch is divided by its own tokens, the mistake that transformers had."""
    _step(trainer, lambda batch: {k: v for k, v in batch.items() if k != "total_items"})


def _step(trainer: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    given = trainer.strategy.train_step

    def train_step(model: Any, batch: Any, *others: Any, **options: Any) -> StepOutput:
        return given(model, change(batch), *others, **options)

    trainer.strategy.train_step = train_step


def a_micro_batch_forgets(trainer: Any) -> None:
    """Gradients are cleared before each micro-batch, so that only the last one counts."""
    given = trainer.strategy.train_step

    def train_step(model: Any, *others: Any, **options: Any) -> StepOutput:
        model.zero_grad()
        return given(model, *others, **options)

    trainer.strategy.train_step = train_step


def the_loss_is_cut_off(trainer: Any) -> None:
    """The hidden states are detached, so that nothing below the head learns."""
    trainer.model.model.register_forward_hook(_detach)


def _detach(module: torch.nn.Module, args: Any, output: Any) -> Any:
    output.last_hidden_state = output.last_hidden_state.detach()
    return output


def the_base_trains_too(trainer: Any) -> None:
    for name, parameter in trainer.model.named_parameters():
        if "layers.0" in name and "q_proj.base_layer" in name:
            parameter.requires_grad_(True)


def a_lora_matrix_is_frozen(trainer: Any) -> None:
    for name, parameter in trainer.model.named_parameters():
        if "layers.1" in name and "v_proj.lora_B" in name:
            parameter.requires_grad_(False)


def the_base_is_changed_in_a_step(trainer: Any) -> None:
    """Merged into the base and not taken out again."""
    given = trainer.strategy.update_parameters

    def update(model: torch.nn.Module, *others: Any) -> torch.Tensor:
        found = given(model, *others)
        with torch.no_grad():
            dict(model.named_parameters())[BASE].mul_(1.001)
        return found

    trainer.strategy.update_parameters = update


BASE = "base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight"


def the_lora_begins_somewhere(trainer: Any) -> None:
    """The hidden states are changed where the LoRA is, though its B is zero."""
    layer = trainer.model.base_model.model.model.layers[0].self_attn.q_proj
    given = layer.forward

    def forward(*args: Any, **options: Any) -> Any:
        scale = 1.0 if layer.disable_adapters else 1.1
        return given(*args, **options) * scale

    layer.forward = forward


def the_optimizer_forgets_a_layer(trainer: Any) -> None:
    given = trainer.strategy.parameter_groups

    def groups(model: torch.nn.Module, rate: float) -> Any:
        found = given(model, rate)
        found[0]["params"] = found[0]["params"][:-1]
        return found

    trainer.strategy.parameter_groups = groups


def a_group_has_no_learning_rate(trainer: Any) -> None:
    given = trainer.strategy.parameter_groups

    def groups(model: torch.nn.Module, rate: float) -> Any:
        found = given(model, rate)
        found[1]["lr"] = 0.0
        return found

    trainer.strategy.parameter_groups = groups


def the_optimizer_has_a_tensor_twice(trainer: Any) -> None:
    given = trainer.strategy.create_optimizer

    def create(model: torch.nn.Module, rate: float) -> Any:
        optimizer = given(model, rate)
        optimizer.param_groups[0]["params"].append(optimizer.param_groups[0]["params"][0])
        return optimizer

    trainer.strategy.create_optimizer = create


def the_optimizer_has_a_frozen_tensor(trainer: Any) -> None:
    """It was frozen after the optimizer was made."""
    given = trainer.strategy.create_optimizer

    def create(model: torch.nn.Module, rate: float) -> Any:
        optimizer = given(model, rate)
        next(model.parameters()).requires_grad_(False)
        return optimizer

    trainer.strategy.create_optimizer = create


def the_optimizer_has_a_copy(trainer: Any) -> None:
    """The optimizer was made before the model was copied."""
    given = trainer.strategy.parameter_groups

    def groups(model: torch.nn.Module, rate: float) -> Any:
        found = given(model, rate)
        found[0]["params"] = [torch.nn.Parameter(p.clone()) for p in found[0]["params"]]
        return found

    trainer.strategy.parameter_groups = groups


def a_layer_is_put_back(trainer: Any) -> None:
    """Something else writes its own copy of a weight back after each step."""
    given = trainer.strategy.update_parameters
    name = "model.layers.0.mlp.up_proj.weight"
    kept = dict(trainer.model.named_parameters())[name].detach().clone()

    def update(model: torch.nn.Module, *others: Any) -> torch.Tensor:
        found = given(model, *others)
        with torch.no_grad():
            dict(model.named_parameters())[name].copy_(kept)
        return found

    trainer.strategy.update_parameters = update


def uphill(trainer: Any) -> None:
    """The sign of the loss is wrong."""
    given = trainer.strategy.update_parameters

    def update(model: torch.nn.Module, *others: Any) -> torch.Tensor:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.neg_()
        return given(model, *others)

    trainer.strategy.update_parameters = update


def a_counter_outside_of_the_checkpoint(trainer: Any) -> None:
    """The model changes with the number of its forward passes, which nobody saves."""
    calls = []

    def count(module: torch.nn.Module, args: Any, output: Any) -> Any:
        calls.append(1)
        return output * (1 + 0.01 * len(calls))

    trainer.model.model.embed_tokens.register_forward_hook(count)


def random_numbers_of_its_own(trainer: Any) -> None:
    """Noise from a generator that no checkpoint holds."""
    generator = torch.Generator().manual_seed(0)

    def add_noise(module: torch.nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        if not module.training:
            return output
        return output + 0.01 * torch.randn(output.shape, generator=generator)

    trainer.model.model.embed_tokens.register_forward_hook(add_noise)


def a_hidden_momentum(trainer: Any) -> None:
    """The strategy keeps a mean of gradients for itself."""
    given = trainer.strategy.update_parameters
    kept: dict[int, torch.Tensor] = {}

    def update(model: torch.nn.Module, *others: Any) -> torch.Tensor:
        for parameter in model.parameters():
            if parameter.grad is not None:
                mean = kept.get(id(parameter), torch.zeros_like(parameter.grad))
                kept[id(parameter)] = 0.9 * mean + parameter.grad
                parameter.grad.copy_(kept[id(parameter)])
        return given(model, *others)

    trainer.strategy.update_parameters = update


def the_save_forgets_a_layer(trainer: Any) -> None:
    given = trainer.adapter.save

    def save(directory: Path) -> None:
        with torch.no_grad():
            weight = trainer.model.model.layers[1].mlp.up_proj.weight
            kept = weight.clone()
            weight.zero_()
            given(directory)
            weight.copy_(kept)

    trainer.adapter.save = save


def the_save_is_of_the_start(trainer: Any) -> None:
    """What is saved is the model as it was loaded."""
    given = trainer.adapter.save
    start = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}

    def save(directory: Path) -> None:
        now = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
        _write(trainer.model, start)
        given(directory)
        _write(trainer.model, now)

    trainer.adapter.save = save


@torch.no_grad()
def _write(model: torch.nn.Module, values: dict[str, torch.Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(values[name])


FAULTS: Sequence[Fault] = (
    Fault("nothing is learnt", nothing_is_learnt, "labels"),
    Fault("the prompts are learnt too", prompts_are_learnt, "labels"),
    Fault("a token that the model does not know", a_token_too_many, "labels"),
    Fault("answers do not end", answers_do_not_end, "end of answers"),
    Fault("the next message is learnt", the_next_message_is_learnt, "answers"),
    Fault("ends are learnt twice", ends_are_learnt_twice, "answers"),
    Fault("ends are given, not learnt", ends_are_given, "answers"),
    Fault("EOS is masked as padding", the_end_is_taken_for_padding, "end of answers"),
    Fault("another template in use", another_template_in_use, "prompts"),
    Fault("BOS twice", bos_twice, "prompts"),
    Fault("labels are not shifted", labels_are_not_shifted, "loss"),
    Fault("the loss is a mean, not a sum", the_loss_is_a_mean, "loss"),
    Fault("a weight that is seldom read is NaN", an_embedding_is_not_a_number, "weights"),
    Fault("a weight is NaN", a_norm_is_not_a_number, "loss"),
    Fault("attention is not causal", every_token_sees_all, "causality"),
    Fault("a leaky model is packed", packed_though_it_leaks, "isolation", "bloom"),
    Fault("packed rows without bounds", positions_go_on, "isolation"),
    Fault("padding that is seen", padding_on_the_wrong_side, "isolation"),
    Fault("a mean of means", a_mean_of_means, "accumulation"),
    Fault("only the last micro-batch counts", a_micro_batch_forgets, "accumulation"),
    Fault("the loss is cut off", the_loss_is_cut_off, "steps"),
    Fault("the base of a LoRA trains", the_base_trains_too, "trainable", lora=True),
    Fault("a LoRA matrix is frozen", a_lora_matrix_is_frozen, "trainable", lora=True),
    Fault("a LoRA is not neutral", the_lora_begins_somewhere, "start of LoRA", lora=True),
    Fault("a step changes the base", the_base_is_changed_in_a_step, "steps", lora=True),
    Fault("the optimizer lacks a tensor", the_optimizer_forgets_a_layer, "optimizer"),
    Fault("a group without a rate", a_group_has_no_learning_rate, "optimizer"),
    Fault("a tensor is in the optimizer twice", the_optimizer_has_a_tensor_twice, "optimizer"),
    Fault("a frozen tensor is in it", the_optimizer_has_a_frozen_tensor, "optimizer"),
    Fault("the optimizer has copies", the_optimizer_has_a_copy, "optimizer"),
    Fault("a layer is put back", a_layer_is_put_back, "steps"),
    Fault("uphill", uphill, "learning"),
    Fault(
        "state outside of the checkpoint", a_counter_outside_of_the_checkpoint, "save and resume"
    ),
    Fault("random numbers of its own", random_numbers_of_its_own, "save and resume"),
    Fault("a hidden momentum", a_hidden_momentum, "save and resume"),
    Fault("the saved model lacks a layer", the_save_forgets_a_layer, "saved model"),
    Fault("the saved model is untrained", the_save_is_of_the_start, "saved model"),
)

WRONG_LOSS = (
    "loss_differs_from_logits(loss=…, num_tokens=28, expected=…, expected_tokens=28) → labels_wrong"
)
RESUMED = (
    "resumed_run_differs(steps_before=2, steps_after=2, num_differing=64,"
    " name=model/model.embed_tokens.weight) → checkpoint_incomplete"
)
# What each check then reports and advises, with … for what is measured.
FINDINGS = {
    "nothing is learnt": "example_without_trained_tokens(number=1) → preview_data",
    "the prompts are learnt too": "prompts_trained() → preview_data",
    "a token that the model does not know": (
        "token_out_of_range(number=1, token=320, num_tokens=320) → preview_data"
    ),
    "answers do not end": "no_answer_stops(tokens='</s>') → add_end_of_turn",
    "the next message is learnt": (
        "token_outside_answers(example=example 1, token=<s>) → preview_data"
    ),
    "ends are learnt twice": (
        "answer_end_trained_twice(example=example 1, token=</s>) → preview_data"
    ),
    "ends are given, not learnt": (
        "answer_end_not_trained(example=example 1, token=</s>) → preview_data"
    ),
    "EOS is masked as padding": "end_token_not_in_loss(tokens='</s>') → end_token_is_padding",
    "another template in use": (
        "prompt_ends_with_space("
        "difference=testing.prompt_differs_after(before=<s>assistant, used=: ), trained=\naaa8)"
        " → remove_trailing_space"
    ),
    "BOS twice": "duplicate_bos(number=1) → remove_second_bos",
    "labels are not shifted": WRONG_LOSS,
    "the loss is a mean, not a sum": WRONG_LOSS,
    "a weight that is seldom read is NaN": (
        "weights_not_finite(names=model.embed_tokens.weight) → load_intact_copy"
    ),
    "a weight is NaN": "loss_not_finite(loss=nan) → unusable_weights_or_format",
    "attention is not causal": "logits_see_later_tokens(leak=…) → attention_not_causal",
    "a leaky model is packed": (
        "examples_see_each_other(layout=packed, difference=…, leak=…) → disable_packing"
    ),
    "packed rows without bounds": (
        "examples_see_each_other(layout=packed, difference=…, leak=…) → disable_packing"
    ),
    "padding that is seen": "examples_see_each_other(layout=padded, difference=…, leak=…)",
    "a mean of means": "micro_batches_change_gradient(difference=…) → divide_by_total_items",
    "only the last micro-batch counts": (
        "micro_batches_change_gradient(difference=…) → divide_by_total_items"
    ),
    "the loss is cut off": (
        "trainable_without_gradient("
        "names=testing.first_and_more(first=model.embed_tokens.weight, count=19))"
        " → check_frozen_parameters"
    ),
    "the base of a LoRA trains": f"base_model_trainable(names={BASE}) → check_lora_config",
    "a LoRA matrix is frozen": (
        "lora_weights_frozen("
        "names=base_model.model.model.layers.1.self_attn.v_proj.lora_B.default.weight)"
        " → check_lora_config"
    ),
    "a LoRA is not neutral": "new_lora_changes_logits(difference=…) → lora_must_start_at_zero",
    "a step changes the base": f"step_changed_frozen(names={BASE}) → check_frozen_parameters",
    "the optimizer lacks a tensor": (
        "optimizer_lacks_parameters(names=lm_head.weight) → check_parameter_groups"
    ),
    "a group without a rate": "no_learning_rate(num_groups=1) → check_parameter_groups",
    "a tensor is in the optimizer twice": "optimizer_has_duplicate() → check_parameter_groups",
    "a frozen tensor is in it": (
        "optimizer_has_frozen(names=model.embed_tokens.weight) → check_parameter_groups"
    ),
    "the optimizer has copies": (
        "optimizer_lacks_parameters("
        "names=testing.first_and_more(first=model.embed_tokens.weight, count=15))"
        " → check_parameter_groups"
    ),
    "a layer is put back": (
        "trainable_did_not_change("
        "names=model.layers.0.mlp.up_proj.weight) → check_frozen_parameters"
    ),
    "uphill": "loss_change(before=…, after=…, num_steps=4, rate=…) → loss_does_not_fall",
    "state outside of the checkpoint": RESUMED,
    "random numbers of its own": RESUMED,
    "a hidden momentum": RESUMED,
    "the saved model lacks a layer": (
        "saved_model_differs(difference=…) → adapter_save_incomplete"
    ),
    "the saved model is untrained": ("saved_model_differs(difference=…) → adapter_save_incomplete"),
}
