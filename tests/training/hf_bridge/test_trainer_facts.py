"""Every argument of a Trainer decides unless a list says otherwise, and every part has a name."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.training.hf_bridge import TemperCallback, trainer_facts
from infrastructure.training.hf_bridge.trainer_facts import (
    COMPARED_BY_CONTENT,
    HARMLESS,
    IN_THE_CHECKPOINT,
    OF_THE_BEST,
    ROUNDS_OTHERWISE,
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
