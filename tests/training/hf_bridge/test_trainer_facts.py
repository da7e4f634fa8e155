"""Every argument of a Trainer decides unless a list says otherwise, and every part has a name."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.run.compatibility import Verdict
from infrastructure.training.hf_bridge import TemperCallback, trainer_facts
from infrastructure.training.hf_bridge.trainer_facts import (
    COMPARED_BY_CONTENT,
    HARMLESS,
    IN_THE_CHECKPOINT,
    OF_THE_BEST,
    ROUNDS_OTHERWISE,
    TrainerJudge,
    argument_names,
    checked_names,
    trainer_of,
)
from infrastructure.training.methods.method_table import installed_method
from tests.training.hf_bridge.tiny_trainer import settings
from tests.training.hf_bridge.tiny_trainer import trainer_of as tiny_trainer
from tests.training.methods.method_runs import methods_here

# Arguments of TRL 0.29.1, which Colab's column installs, that no newer version has; and those of
# earlier versions of transformers.
OF_COLUMNS = frozenset(
    {
        *("wandb_log_unique_prompts", "log_completions_steps", "trl_project", "wandb_entity"),
        *("wandb_project", "wandb_run_group", "hub_model_revision", "push_to_hub_revision"),
        *("overwrite_hub_revision", "sft_model_path", "reward_model_path", "model_name_or_path"),
        *("model_revision", "student_model_revision", "teacher_tokenizer_name_or_path"),
        *("logging_dir", "overwrite_output_dir", "save_safetensors", "no_cuda", "jit_mode_eval"),
        *("include_tokens_per_second", "include_inputs_for_metrics", "lr_scheduler", "optimizer"),
    }
)


def argument_classes() -> list[Any]:
    from transformers import TrainingArguments
    from trl import SFTConfig

    of_methods = [installed_method(name).classes()[1] for name in methods_here()]
    return [TrainingArguments, SFTConfig, *of_methods]


def fields_of(kind: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def test_each_argument_of_the_lists_is_one_of_a_class_and_stands_in_one_list() -> None:
    known = set().union(*map(fields_of, argument_classes())) | OF_COLUMNS
    lists = [HARMLESS, COMPARED_BY_CONTENT, ROUNDS_OTHERWISE]
    for one in lists:
        assert one <= known, "a misspelt name would make nothing harmless"
    assert sum(map(len, lists)) == len(frozenset().union(*lists))
    assert OF_THE_BEST <= ROUNDS_OTHERWISE


@pytest.mark.parametrize("kind", argument_classes(), ids=lambda kind: kind.__name__)
def test_each_argument_of_each_class_is_compared_unless_it_is_harmless(kind: Any) -> None:
    compared = set(argument_names())
    for name in fields_of(kind):
        assert (name in compared) is (name not in HARMLESS | COMPARED_BY_CONTENT), name
    # what decides in any training, whoever edits the lists
    decides = {"seed", "max_steps", "num_train_epochs", "bf16", "label_smoothing_factor"}
    decides |= {"gradient_accumulation_steps", "per_device_train_batch_size", "max_grad_norm"}
    decides |= {"beta", "loss_type", "temperature", "num_generations", "reward_weights", "delta"}
    decides |= {"scale_rewards", "epsilon", "max_length", "packing", "ignore_data_skip"}
    decides |= set(IN_THE_CHECKPOINT)
    assert decides & fields_of(kind) <= compared - ROUNDS_OTHERWISE


@pytest.mark.parametrize("name", ["data", "torch", "trl", "max_steps", "base_model", "ref_model"])
def test_what_may_differ_has_a_name(name: str) -> None:
    assert checked_names([name]) == {name}


@pytest.mark.parametrize("name", ["max_step", "output_dir", "learning_rate"])
def test_what_is_not_compared_or_cannot_differ_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"accept='{name}'"):
        checked_names([name])


def test_a_callback_finds_the_trainer_that_it_was_added_to(tmp_path: Path) -> None:
    callback = TemperCallback("tiny", settings(tmp_path))
    trainers = [tiny_trainer(tmp_path) for _ in range(2)]
    assert trainer_of(callback) is None
    trainers[1].add_callback(callback)
    assert trainer_of(callback) is trainers[1]


def test_what_a_trainer_was_made_with_is_known_before_it_loads(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path)
    assert trainer_facts.before_loading(trainer) == {"optimizer": None, "scheduler": None}
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.25, momentum=0.5)
    trainer.lr_scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 3, gamma=0.5)
    found: Any = trainer_facts.before_loading(trainer)
    assert [(group["lr"], group["momentum"]) for group in found["optimizer"]] == [(0.25, 0.5)]
    assert found["scheduler"] == {"step_size": 3, "gamma": 0.5}


def test_a_package_without_a_version_of_its_own_is_left_out() -> None:
    """Code of Python's own modules is installed, too, and has no distribution."""
    assert trainer_facts._versions({"torch", "functools"}).keys() == {"torch"}


# -- what differs: pure functions of two facts ----------------------------------------------------

WAS: dict[str, Any] = {
    "versions": {"torch": "2.8.0"},
    "arguments": {"max_steps": 4, "learning_rate": 0.1, "eval_steps": 2, "seed": 0},
    "given": ["max_steps"],
    "parts": {
        "lora": {"default": {"r": 4, "lora_alpha": 8}},
        "optimizer": {"name": "AdamW", "groups": [{"lr": 0.1}]},
        "own_callbacks": ["a"],
        "lr_scheduler": {"name": "LambdaLR"},
    },
    "device": "cpu",
    "driver": None,
}
CHANGES, ROUNDS, NEVER = (
    Verdict.CHANGES_THE_RESULT,
    Verdict.ROUNDS_OTHERWISE,
    Verdict.NEEDS_A_NEW_RUN,
)


def facts(**changes: Any) -> dict[str, Any]:
    """The facts with other arguments and parts; None leaves one out."""
    new = {key: {**WAS[key], **changes.pop(key, {})} for key in ("arguments", "parts", "versions")}
    new = {key: {k: v for k, v in values.items() if v is not None} for key, values in new.items()}
    return {**WAS, **new, **changes}


def judged(now: dict[str, Any], was: dict[str, Any] = WAS) -> dict[str, Verdict]:
    return {d.name: d.verdict for d in TrainerJudge().differences(was, now)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"arguments": {"max_steps": 5}}, {"max_steps": CHANGES}),
        ({"arguments": {"learning_rate": 0.2}}, {"learning_rate": NEVER}),
        ({"arguments": {"eval_steps": 3}}, {"eval_steps": ROUNDS}),
        (
            {"arguments": {"eval_steps": 3, "load_best_model_at_end": True}},
            {"eval_steps": CHANGES, "load_best_model_at_end": CHANGES},
        ),
        (
            {"arguments": {"tf32": True, "load_best_model_at_end": False}},
            {"tf32": ROUNDS, "load_best_model_at_end": CHANGES},
        ),
        ({"arguments": {"seed": None}}, {"seed": CHANGES}),
        ({"arguments": {"new": 1}}, {"new": CHANGES}),
        ({"versions": {"torch": "2.9.0"}}, {"torch": ROUNDS}),
        ({"versions": {"torch": "2.9.0"}, "arguments": {"new": 1}}, {"torch": ROUNDS}),
        ({"versions": {"torch": "2.9.0"}, "arguments": {"seed": None}}, {"torch": ROUNDS}),
        (
            {"versions": {"torch": "2.9.0"}, "arguments": {"new": 1}, "given": ["new"]},
            {"torch": ROUNDS, "new": CHANGES},
        ),
        (
            {"versions": {"torch": "2.9.0"}, "arguments": {"max_steps": None}},
            {"torch": ROUNDS, "max_steps": CHANGES},
        ),
        ({"device": "cuda", "driver": "1"}, {"device": ROUNDS, "driver": ROUNDS}),
        ({"parts": {"lora": {"default": {"r": 8, "lora_alpha": 8}}}}, {"lora": NEVER}),
        ({"parts": {"lora": {"default": {"r": 4, "lora_alpha": 9}}}}, {"lora": CHANGES}),
        ({"parts": {"lora": {"other": {"r": 4, "lora_alpha": 8}}}}, {"lora": NEVER}),
        ({"parts": {"lora": None}}, {"lora": NEVER}),
        ({"parts": {"own_callbacks": ["b"]}}, {"own_callbacks": ROUNDS}),
        ({"parts": {"lr_scheduler": {"name": "StepLR"}}}, {"lr_scheduler": NEVER}),
        ({"parts": {"optimizer": {"name": "SGD"}}}, {"optimizer": NEVER}),
        ({"parts": {"optimizer": {"name": "AdamW"}}}, {}),
        ({"parts": {"data_collator": "b"}}, {"data_collator": CHANGES}),
        (
            {"arguments": {"learning_rate": 0.2}, "parts": {"optimizer": {"name": "SGD"}}},
            {"learning_rate": NEVER},
        ),
        (
            {"arguments": {"max_steps": 5}, "parts": {"optimizer": {"name": "SGD"}}},
            {"max_steps": CHANGES, "optimizer": NEVER},
        ),
        (
            {"arguments": {"learning_rate": 0.2, "seed": 1}, "parts": {"optimizer": None}},
            {"learning_rate": NEVER, "seed": CHANGES},
        ),
    ],
)
def test_each_difference_has_its_verdict(
    changes: dict[str, Any], expected: dict[str, Verdict]
) -> None:
    assert judged(facts(**changes)) == expected


def test_both_values_of_a_difference_are_in_their_order() -> None:
    now = facts(arguments={"seed": 1}, device="cuda", parts={"own_callbacks": ["b"]})
    values = {d.name: (d.was, d.current) for d in TrainerJudge().differences(WAS, now)}
    assert values == {
        "seed": (0, 1),
        "device": ("cpu", "cuda"),
        "own_callbacks": (["a"], ["b"]),
    }


def test_before_it_loads_only_the_lora_is_compared() -> None:
    only = trainer_facts.lora_of(WAS)
    assert (only["parts"], only["arguments"]) == ({"lora": WAS["parts"]["lora"]}, {})
    assert only["device"] == "cpu"
    assert trainer_facts.lora_of(facts(parts={"lora": None}))["parts"] == {}


@pytest.mark.parametrize(
    ("is_whole", "accept", "remedy"),
    [
        (False, "TemperCallback(..., accept=['a', 'b'])", "name"),
        (True, "--accept A,B", "--new-run"),
    ],
)
def test_how_to_accept_and_what_else_helps(is_whole: bool, accept: str, remedy: str) -> None:
    judge = TrainerJudge(is_whole, str.upper)
    assert judge.how_to_accept(["a", "b", *(["a"] if is_whole else [])]) == accept
    [line] = judge.other_remedies([])
    assert remedy in line


def test_why_what_is_fixed_and_what_has_a_shape_can_never_differ() -> None:
    both = TrainerJudge().why_never(["lora", "learning_rate"]).split("; ")
    assert [("learning_rate" in one, "lora" in one) for one in both] == [
        (True, False),
        (False, True),
    ]


class Called:
    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((1, False), ("a", False), (None, False), ([], False), ({}, False), ([1, 2], False)),
        *((Called(), True), (Called, True), ([1, Called()], True), ((Called(), 1), True)),
        *(({"a": 1, "b": Called()}, True), ({"a": [Called()]}, True), ({"a": 1}, False)),
        *((torch.nn.Identity(), True), (list, False), ([list, dict], False), ({"a": int}, False)),
        *((TrainerJudge(), False), (TrainerJudge, False), (trainer_facts.checked_names, False)),
    ],
)
def test_parts_are_models_and_whatever_can_be_called(value: object, expected: bool) -> None:
    assert trainer_facts._is_part(value) is expected


def test_callbacks_that_are_known_to_watch_only_are_left_out() -> None:
    from transformers import DefaultFlowCallback, EarlyStoppingCallback, ProgressCallback
    from transformers.integrations import TensorBoardCallback

    watching: tuple[Any, ...] = (
        DefaultFlowCallback,
        ProgressCallback,
        TensorBoardCallback,
        TemperCallback,
    )
    for kind in watching:
        assert trainer_facts._watches(object.__new__(kind)), kind
    others: tuple[Any, ...] = (EarlyStoppingCallback, Called)
    for kind in others:
        assert not trainer_facts._watches(object.__new__(kind)), kind


def test_a_group_is_read_with_its_rate_before_the_schedule() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight], lr=0.25, weight_decay=0.5, fused=False)
    before = trainer_facts._groups(optimizer)
    assert [(group["lr"], group["weight_decay"]) for group in before] == [(0.25, 0.5)]  # type: ignore[index,call-overload]
    assert not {"params", "fused", "foreach", "initial_lr"} & {*before[0]}  # type: ignore[misc]
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.param_groups[0]["lr"] = 0.125
    assert trainer_facts._groups(optimizer) == before
    tensor = torch.optim.AdamW([weight], lr=torch.tensor(0.25), foreach=False)
    assert trainer_facts._groups(tensor)[0]["lr"] == "tensor(0.2500)"  # type: ignore[index,call-overload]
