"""Every argument of a Trainer decides unless a list says otherwise, and every part has a name."""

import dataclasses
import itertools
from array import array
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from infrastructure.models.weights_hash import model_hash, weights_hash
from infrastructure.run import identity
from infrastructure.run.compatibility import Verdict
from infrastructure.run.identity import new_key, row_digest
from infrastructure.training.extensions.extension_hooks import Extension, Hook
from infrastructure.training.hf_bridge import TemperCallback, trainer_facts
from infrastructure.training.hf_bridge.trainer_facts import (
    COMPARED_BY_CONTENT,
    HARMLESS,
    IN_THE_CHECKPOINT,
    OF_THE_BEST,
    ROUNDS_OTHERWISE,
    FactsReader,
    TrainerJudge,
    argument_names,
    checked_names,
    rows_facts,
    trainer_of,
    transform_of,
)
from infrastructure.training.methods.method_table import installed_method
from tests.training.hf_bridge.tiny_trainer import Rows, settings, tiny_lora, tiny_model
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
    assert [*map(len, lists)] == [83, 13, 26], "a name that is lost is compared, or is not"


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
    decides |= {"lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "dataloader_drop_last"}
    decides |= {"data_seed", "fp16", "neftune_noise_alpha", "auto_find_batch_size", "label_names"}
    decides |= {"load_best_model_at_end", "metric_for_best_model", "greater_is_better"}
    decides |= {"remove_unused_columns", "average_tokens_across_devices", "optim_target_modules"}
    decides |= {"truncation_mode", "label_smoothing", "num_iterations", "max_completion_length"}
    decides |= {"top_p", "top_k", "min_p", "repetition_penalty", "mask_truncated_completions"}
    decides |= {"shuffle_dataset", "desirable_weight", "undesirable_weight", "loss_weights"}
    decides |= {"f_divergence_type", "reference_free", "completion_only_loss", "generation_kwargs"}
    decides |= set(IN_THE_CHECKPOINT)
    assert decides & fields_of(kind) <= compared - ROUNDS_OTHERWISE


@pytest.mark.parametrize(
    "name", ["data", "torch", "trl", "max_steps", "base_model", "ref_model", "device", "attention"]
)
def test_what_may_differ_has_a_name(name: str) -> None:
    assert checked_names([name]) == {name}


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("max_step", "accept_unknown_name"),
        ("output_dir", "accept_unknown_name"),
        ("learning_rate", "accept_without_effect"),
    ],
)
def test_what_is_not_compared_or_cannot_differ_is_refused(name: str, code: str) -> None:
    with pytest.raises(ValueError, match=rf"trainer\.{code}\(name={name},"):
        checked_names([name])


@pytest.mark.parametrize(
    ("is_whole", "remedy"),
    [(False, "trainer.use_another_name()"), (True, "trainer.start_another_run()")],
)
def test_the_refusal_of_what_cannot_differ_names_the_way_to_a_new_run(
    is_whole: bool, remedy: str
) -> None:
    with pytest.raises(ValueError, match="accept_without_effect") as refused:
        checked_names(["learning_rate"], is_whole)
    assert f"new_run={remedy}" in str(refused.value)
    assert "reason=trainer.taken_from_checkpoint(name=learning_rate)" in str(refused.value)


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
        (
            {"arguments": {"tf32": True, "load_best_model_at_end": True}},
            {"tf32": ROUNDS, "load_best_model_at_end": CHANGES},
        ),
        (
            {"versions": {"torch": "2.9.0"}, "arguments": {"seed": 1}},
            {"torch": ROUNDS, "seed": CHANGES},
        ),
        (
            {
                "arguments": {"learning_rate": 0.2},
                "parts": {"optimizer": {"name": "SGD"}, "data_collator": "b"},
            },
            {"learning_rate": NEVER, "data_collator": CHANGES},
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
        (
            {"versions": {"torch": "2.9.0"}, "arguments": {"max_steps": None}, "given": []},
            {"torch": ROUNDS, "max_steps": CHANGES},
        ),
        (
            {"versions": {"torch": "2.9.0"}, "arguments": {"seed": None}, "given": ["seed"]},
            {"torch": ROUNDS},
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


MEASURES = (  # when held-out rows are measured, how many answers they get, and in which format
    *("eval_strategy", "eval_steps", "eval_delay", "eval_packing", "num_generations_eval"),
    *("bf16_full_eval", "fp16_full_eval"),
)


@pytest.mark.parametrize("name", sorted({*MEASURES, *ROUNDS_OTHERWISE}))
def test_what_measures_decides_where_the_best_weights_are_kept(name: str) -> None:
    for keeps_best in (False, True):
        best = {"load_best_model_at_end": keeps_best}
        was, now = (facts(arguments={**best, name: value}) for value in (1, 2))
        decides = keeps_best and name in MEASURES
        assert judged(now, was) == {name: CHANGES if decides else ROUNDS}


@pytest.mark.parametrize(
    "name",
    [
        *("r", "rank_pattern", "target_modules", "target_parameters", "modules_to_save", "bias"),
        *("peft_type", "use_dora", "layers_to_transform", "layers_pattern", "exclude_modules"),
        *("trainable_token_indices", "layer_replication", "fan_in_fan_out"),
    ],
)
def test_a_lora_with_other_tensors_cannot_be_resumed(name: str) -> None:
    was, now = (facts(parts={"lora": {"default": {name: value}}}) for value in (1, 2))
    assert judged(now, was) == {"lora": NEVER}


@pytest.mark.parametrize(
    "name", ["device", "driver", "deterministic", "world_size", "num_threads", "attention"]
)
def test_another_machine_only_rounds_otherwise(name: str) -> None:
    assert judged({**WAS, name: "another"}) == {name: ROUNDS}


def test_both_values_of_a_difference_are_in_their_order() -> None:
    now = facts(arguments={"seed": 1}, device="cuda", parts={"own_callbacks": ["b"]})
    values = {d.name: (d.was, d.current) for d in TrainerJudge().differences(WAS, now)}
    assert values == {
        "seed": (0, 1),
        "device": ("cpu", "cuda"),
        "own_callbacks": (["a"], ["b"]),
    }


@pytest.mark.parametrize(
    ("was", "now", "is_other"),
    [
        (None, {"a": {"r": 4}}, True),
        ({"a": {"r": 4}}, None, True),
        (None, None, False),
        ({"a": {"r": 4}}, {"b": {"r": 4}}, True),
        ({"a": {"r": 4, "bias": "none"}}, {"a": {"r": 4, "bias": "all"}}, True),
        ({"a": {"r": 4}, "b": {"r": 4}}, {"a": {"r": 4}, "b": {"r": 8}}, True),
        ({"a": {"r": 4, "lora_alpha": 8}}, {"a": {"r": 4, "lora_alpha": 9}}, False),
        ({"a": {"r": 4}}, {"a": {"r": 4, "use_dora": True}}, False),  # of another version
    ],
)
def test_a_lora_of_another_shape_is_one_that_differs_anywhere(
    was: Any, now: Any, is_other: bool
) -> None:
    assert trainer_facts._has_other_shape(was, now) is is_other


def test_of_a_schedule_plain_settings_are_read() -> None:
    scheduler = SimpleNamespace(
        step_size=3, names=["a"], lr_lambdas=[len, max], own=object(), _private=1, last_epoch=2
    )
    scheduler.verbose, scheduler.lambdas = False, [lambda step: step]
    assert trainer_facts._schedule(scheduler) == {"step_size": 3, "names": ["a"]}


def test_before_it_loads_only_the_lora_is_compared() -> None:
    only = trainer_facts.lora_of(WAS)
    assert (only["parts"], only["arguments"]) == ({"lora": WAS["parts"]["lora"]}, {})
    assert only["device"] == "cpu"
    assert trainer_facts.lora_of(facts(parts={"lora": None}))["parts"] == {}
    now = trainer_facts.facts_before_loading(SimpleNamespace(model=tiny_lora()), WAS)
    lora: Any = now["parts"].pop("lora")
    assert now == {**WAS, "versions": {}, "arguments": {}, "parts": {}}
    assert lora["default"]["r"] == 2
    plain = SimpleNamespace(model=torch.nn.Linear(1, 1))
    assert trainer_facts.facts_before_loading(plain, WAS)["parts"] == {}


@pytest.mark.parametrize(
    ("is_whole", "accept", "remedy"),
    [
        (False, "TemperCallback(..., accept=['a', 'b'])", "trainer.use_another_name()"),
        (True, "accept=A,B", "trainer.start_another_run()"),
    ],
)
def test_how_to_accept_and_what_else_helps(is_whole: bool, accept: str, remedy: str) -> None:
    judge = TrainerJudge(is_whole, str.upper)
    assert judge.how_to_accept(["a", "b", *(["a"] if is_whole else [])]) == accept
    assert judge.other_remedies([]) == [remedy]


def test_why_what_is_fixed_and_what_has_a_shape_can_never_differ() -> None:
    assert TrainerJudge().why_never(["lora", "learning_rate", "optimizer"]).split("; ") == [
        "trainer.taken_from_checkpoint(name=learning_rate)",
        "trainer.taken_from_checkpoint(name=optimizer)",
        "trainer.shape_is_fixed(name=lora)",
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
    from transformers import (
        DefaultFlowCallback,
        EarlyStoppingCallback,
        PrinterCallback,
        ProgressCallback,
    )
    from transformers.integrations import TensorBoardCallback

    watching: tuple[Any, ...] = (
        DefaultFlowCallback,
        ProgressCallback,
        PrinterCallback,
        TensorBoardCallback,
        TemperCallback,
        type("Notebook", (), {"__module__": "transformers.utils.notebook"}),
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
    hidden = {"params", "fused", "foreach", "capturable", "initial_lr"}
    assert not hidden & {*before[0]}  # type: ignore[misc]
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.param_groups[0]["lr"] = 0.125
    assert trainer_facts._groups(optimizer) == before
    tensor = torch.optim.AdamW([weight], lr=torch.tensor(0.25), foreach=False)
    assert trainer_facts._groups(tensor)[0]["lr"] == "tensor(0.2500)"  # type: ignore[index,call-overload]


# -- what is read of a Trainer: nothing is trained ------------------------------------------------

KEY = "ab" * 32


@dataclasses.dataclass
class SomeArguments:
    """Two that decide, of which one may be given; a harmless one, and how a model is loaded."""

    beta: float = 0.5
    seed: int = 42
    output_dir: str = "x"
    model_revision: str = "main"
    ref_model_init_kwargs: dict[str, Any] | None = None
    loss_type: list[str] = dataclasses.field(default_factory=lambda: ["sigmoid"])
    load_best_model_at_end: bool = False
    metric_for_best_model: str | None = None
    world_size = 1


class OwnModel(torch.nn.Linear): ...


class OwnCallback:
    early_stopping_patience = 1

    def __init__(self) -> None:
        self.early_stopping_threshold, self.early_stopping_counter, self.seen = 0.5, 3, 7


class OwnExtension(Extension): ...


class OwnObserver(Hook): ...


def reader_of(
    trainer: Any = None,
    *,
    was: dict[str, Any] | None = None,
    before: Any = None,
    model: Any = None,
    args: Any = None,
    run: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
) -> FactsReader:
    model = model or torch.nn.Linear(3, 2)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)
    parts: Any = SimpleNamespace(
        args=args or SomeArguments(),
        device=torch.device("cpu"),
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
    )
    return FactsReader(run or SimpleNamespace(is_whole=False), parts, trainer, was or {}, before)


def fake_trainer(callbacks: tuple[object, ...] = (), **holds: Any) -> Any:
    handler = SimpleNamespace(callbacks=list(callbacks))
    return SimpleNamespace(args=SomeArguments(), callback_handler=handler, **holds)


def test_an_argument_is_read_and_given_where_it_is_not_at_its_default() -> None:
    arguments, given = reader_of()._arguments(SomeArguments())  # type: ignore[arg-type]
    assert given == []
    assert arguments == {
        "beta": 0.5,
        "seed": 42,
        "ref_model_init_kwargs": None,
        "loss_type": ["sigmoid"],
        "load_best_model_at_end": False,
        "metric_for_best_model": None,
    }
    other: Any = SomeArguments(
        beta=0.25,
        output_dir="y",
        model_revision="z",
        ref_model_init_kwargs={"revision": "a", "dtype": "bfloat16"},
        loss_type=["hinge"],
    )
    arguments, given = reader_of()._arguments(other)
    assert given == ["beta", "ref_model_init_kwargs", "loss_type"]
    assert (arguments["beta"], arguments["loss_type"]) == (0.25, ["hinge"])
    assert arguments["ref_model_init_kwargs"] == {"dtype": "bfloat16"}
    for name in (
        *("device_map", "attn_implementation", "revision", "use_safetensors", "cache_dir"),
        *("token", "local_files_only", "trust_remote_code", "low_cpu_mem_usage", "use_cache"),
    ):
        other.ref_model_init_kwargs = {name: 1, "dtype": "bfloat16"}
        loading = reader_of()._arguments(other)[0]["ref_model_init_kwargs"]
        assert loading == {"dtype": "bfloat16"}, name
    del other.seed  # another version of a library has a field that it does not set
    delattr(SomeArguments, "seed")
    try:
        assert "seed" not in reader_of()._arguments(other)[0]
    finally:
        SomeArguments.seed = 42


def test_an_init_argument_of_another_kind_is_read_whole() -> None:
    one = dataclasses.make_dataclass("One", [("extra_kwargs", dict), ("model_init_kwargs", str)])
    arguments, given = reader_of()._arguments(one({"revision": 1}, "text"))
    assert arguments == {"extra_kwargs": {"revision": 1}, "model_init_kwargs": "text"}
    assert given == ["extra_kwargs", "model_init_kwargs"]


@pytest.mark.parametrize("is_whole", [False, True])
def test_what_follows_from_the_length_of_a_run_is_compared_as_it_was_set(is_whole: bool) -> None:
    kind = dataclasses.make_dataclass("One", [("warmup_steps", int, 0)])
    config = SimpleNamespace(value=lambda key: f"as {key} has it")
    run = SimpleNamespace(is_whole=is_whole, config=config)
    value = "as training.warmup_steps has it" if is_whole else 7
    assert reader_of(run=run)._arguments(kind(7)) == ({"warmup_steps": value}, ["warmup_steps"])


def test_models_tensors_and_types_are_known_by_what_they_hold() -> None:
    trainer, module, tensor = fake_trainer(), torch.nn.Linear(3, 2), torch.tensor([1.0, 2.0])
    known = reader_of(trainer)._known
    assert known(trainer) == "the Trainer"
    assert reader_of(None)._known(None) is None
    assert known(module) == {"class": "Linear", "weights": model_hash(module), "config": None}
    of_model: Any = known(model := tiny_model())
    assert of_model["weights"] == model_hash(model)
    assert of_model["config"]["n_embd"] == 16
    assert known(tensor) == weights_hash([("tensor", tensor)]) != known(tensor + 1)
    assert (known(torch.bfloat16), known(torch.device("cpu"))) == ("torch.bfloat16", "cpu")
    for other in (
        3,
        "text",
        SimpleNamespace(get_vocab=dict),
        SimpleNamespace(special_tokens_map=1),
    ):
        assert known(other) is None


def test_rows_are_those_of_every_data_set_and_as_many_as_were_hashed() -> None:
    reader = reader_of(was={"key": KEY})
    rows: Any = reader._rows("data", Rows(5))
    assert (rows["num_examples"], rows["num_hashed"]) == (5, 5)
    assert rows != reader._rows("data", Rows(5, seed=1))
    assert reader._rows("data", None) is None
    both: Any = reader._rows("held_out_data", {"a": Rows(5), 3: Rows(4)})
    assert both["a"] == rows
    assert both["3"]["num_examples"] == 4
    assert reader.reader.unseen == []
    parts = {"data": {"num_hashed": 3}, "held_out_data": {"a": {"num_hashed": 2}}}
    again = reader_of(was={"key": KEY, "parts": parts})
    fewer: Any = again._rows("data", Rows(5))
    assert (fewer["num_examples"], fewer["num_hashed"]) == (5, 3)
    assert fewer["rows"] != rows["rows"]
    nested: Any = again._rows("held_out_data", {"a": Rows(5), "b": Rows(4)})
    assert [nested[name]["num_hashed"] for name in "ab"] == [2, 4]
    assert again.reader.unseen == [
        "trainer.rows_after_first(num_hashed=3) data (Rows)",
        "trainer.rows_after_first(num_hashed=2) held_out_data.a (Rows)",
    ]
    stream: Any = again._rows("data", iter([1]))
    assert (stream["num_examples"], stream["num_hashed"], stream["rows"]) == (None, 0, None)
    assert again.reader.unseen[2:] == ["trainer.rows_unseen() data (list_iterator)"]


def test_held_out_rows_and_a_transform_count_where_there_are_some() -> None:
    import datasets

    def transform(rows: Any) -> Any:
        return rows

    assert reader_of(fake_trainer())._of_data(Rows(3)).keys() == {"data"}
    assert reader_of(None)._of_data(Rows(3)).keys() == {"data"}
    parts = reader_of(fake_trainer(eval_dataset=Rows(4)))._of_data(Rows(3))
    assert {name: part["num_examples"] for name, part in parts.items()} == {  # type: ignore[index,call-overload]
        "data": 3,
        "held_out_data": 4,
    }
    table = datasets.Dataset.from_dict({"a": [1, 2]})
    table.set_transform(transform)
    read: Any = reader_of(fake_trainer())._of_data(table)["data_transform"]
    assert "transform" in read["name"]


def test_the_model_is_its_frozen_weights_its_settings_and_its_own_code() -> None:
    plain = reader_of(fake_trainer(), model=tiny_model())._of_model()
    assert plain.keys() == {"base_model", "model_config", "lora"}
    assert (plain["base_model"], plain["lora"]) == (None, None)
    lora: Any = reader_of(fake_trainer(num_generations=2), model=tiny_lora())._of_model()
    assert lora["lora"]["default"]["r"] == 2
    assert lora["base_model"]
    assert lora["model_config"] == plain["model_config"]
    assert lora["model_config"]["n_embd"] == 16
    assert lora["generation_config"]["eos_token_id"] == 2
    own: Any = reader_of(fake_trainer(generation_config=1), model=OwnModel(3, 2))._of_model()
    assert own["model_code"]["name"] == "OwnModel"
    assert (own["model_config"], own["generation_config"]) == (None, None)


def test_a_trainer_is_its_class_and_whatever_it_holds_that_acts() -> None:
    def collate(rows: Any) -> Any:
        return rows

    def measure(prediction: Any) -> Any:
        return prediction

    holds = {"data_collator": collate, "own_loss": measure, "compute_metrics": measure, "beta": 1}
    holds |= {"__hidden": measure}
    of_no_part = "model model_wrapped model_init processing_class tokenizer deepspeed optimizer"
    of_no_part += " lr_scheduler train_dataset eval_dataset accelerator state control hp_name"
    of_no_part += " preprocess_logits_for_metrics hp_space objective compute_objective"
    of_no_part += " is_fsdp_enabled optimizer_cls_and_kwargs label_smoother gather_function"
    of_no_part += " _processor _tokenizer image_processor feature_extractor"
    holds |= dict.fromkeys(of_no_part.split(), measure)
    trainer = fake_trainer((), **holds)
    parts: Any = reader_of(trainer)._of_trainer()
    assert parts.keys() == {"trainer", "data_collator", "callbacks", "own_callbacks"}
    assert parts["trainer"].keys() == {"name", "own_loss"}
    assert parts["data_collator"]["name"].endswith("collate")
    assert parts["trainer"]["own_loss"]["name"].endswith("measure")
    assert (parts["callbacks"], parts["own_callbacks"]) == (None, None)
    for changes in ({"load_best_model_at_end": True}, {"metric_for_best_model": "loss"}):
        trainer.args = dataclasses.replace(SomeArguments(), **changes)  # type: ignore[arg-type]
        assert "compute_metrics" in reader_of(trainer)._of_trainer()
    unknown = reader_of(None)
    assert unknown._of_trainer() == {}
    assert unknown.reader.unseen == ["trainer.trainer_parts()"]


def test_callbacks_are_their_code_and_when_they_stop() -> None:
    from transformers import DefaultFlowCallback, EarlyStoppingCallback

    stopping = EarlyStoppingCallback(3, 0.25)
    stopping.early_stopping_patience_counter = 2
    watching = DefaultFlowCallback()
    trainer = fake_trainer((watching, OwnCallback(), stopping))
    parts: Any = reader_of(trainer)._of_trainer()
    [theirs], [own] = parts["callbacks"], parts["own_callbacks"]
    assert theirs == {
        "name": "transformers.trainer_callback:EarlyStoppingCallback",
        "early_stopping_patience": 3,
        "early_stopping_threshold": 0.25,
    }
    assert own["name"] == "OwnCallback"
    assert own["early_stopping_threshold"] == 0.5
    assert not {"seen", "early_stopping_counter"} & own.keys()


def test_an_optimizer_is_its_class_defaults_and_groups() -> None:
    made = reader_of(fake_trainer())._of_optimizer()
    assert made.keys() == {"optimizer"}
    optimizer: Any = made["optimizer"]
    assert optimizer["name"].endswith(":SGD")
    assert (optimizer["defaults"]["lr"], optimizer["defaults"]["momentum"]) == (0.25, 0.5)
    assert not {"fused", "foreach"} & optimizer["defaults"].keys()
    assert [group["lr"] for group in optimizer["groups"]] == [0.25]
    model = torch.nn.Linear(3, 2)
    wrapped = SimpleNamespace(optimizer=torch.optim.SGD(model.parameters(), lr=0.125))
    inner: Any = reader_of(fake_trainer(), optimizer=wrapped)._of_optimizer()["optimizer"]
    assert inner["groups"][0]["lr"] == 0.125
    was = {"key": KEY, "parts": {}}
    resumed: Any = reader_of(fake_trainer(), was=was)._of_optimizer()["optimizer"]
    assert "groups" not in resumed, "what is there now is the checkpoint's"
    before = {"optimizer": [{"lr": 7}], "scheduler": {"gamma": 3}}
    seen: Any = reader_of(fake_trainer(), was=was, before=before)._of_optimizer()["optimizer"]
    assert seen["groups"] == [{"lr": 7}]
    fresh: Any = reader_of(fake_trainer(), before=before)._of_optimizer()["optimizer"]
    assert fresh["groups"][0]["lr"] == 0.25


def test_a_schedule_counts_where_the_arguments_have_not_made_it() -> None:
    optimizer = torch.optim.SGD(torch.nn.Linear(3, 2).parameters(), lr=0.25)
    steps = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)
    factors = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step: 0.5**step])
    own = fake_trainer(_created_lr_scheduler=False)
    read = partial(reader_of, optimizer=optimizer)
    for other in (None, fake_trainer(), fake_trainer(_created_lr_scheduler=True)):
        assert "lr_scheduler" not in read(other, scheduler=steps)._of_optimizer()
    wrapped = SimpleNamespace(scheduler=steps)
    for scheduler in (steps, wrapped):
        found: Any = read(own, scheduler=scheduler)._of_optimizer()["lr_scheduler"]
        assert found["name"].endswith(":StepLR")
        assert (found["holds"], found["factors"]) == ({"step_size": 3, "gamma": 0.5}, None)
    by_code: Any = read(own, scheduler=factors)._of_optimizer()["lr_scheduler"]
    assert len(by_code["factors"]) == 1
    assert "files" in by_code["factors"][0]
    was = {"key": KEY, "parts": {}}
    resumed: Any = read(own, was=was, scheduler=steps)._of_optimizer()["lr_scheduler"]
    assert "holds" not in resumed
    before = {"optimizer": None, "scheduler": {"gamma": 3}}
    seen: Any = read(own, was=was, before=before, scheduler=steps)._of_optimizer()
    assert seen["lr_scheduler"]["holds"] == {"gamma": 3}
    assert "groups" not in seen["optimizer"]


def test_own_extensions_and_patience_are_parts(tmp_path: Path) -> None:
    ours: Any = type("Ours", (Extension,), {"__module__": "infrastructure.features"})
    hooks = [OwnExtension(), OwnObserver(), ours()]
    stopping = {"early_stopping_patience": 3}
    for is_whole, training, expected in (
        (True, stopping, 3),
        (False, stopping, None),
        (True, {}, None),
    ):
        run = SimpleNamespace(config=settings(tmp_path, training=training), is_whole=is_whole)
        parts: Any = reader_of(run=run)._of_hooks(hooks)
        assert parts.get("early_stopping") == expected
        assert {name: one["name"] for name, one in parts["extensions"].items()} == {
            "OwnExtension": "OwnExtension"
        }
        assert reader_of(run=run)._of_hooks([OwnObserver()])["extensions"] is None


def test_the_facts_are_of_all_parts_and_keep_the_key_of_the_run(tmp_path: Path) -> None:
    run = SimpleNamespace(config=settings(tmp_path), is_whole=False)
    read = partial(reader_of, fake_trainer(eval_dataset=iter([1])), run=run, model=tiny_model())
    found: Any = read(was={"key": KEY}).read(Rows(3), None, [])
    assert found["key"] == KEY != read().key
    assert len(bytes.fromhex(read().key)) == 32
    assert found["parts"].keys() >= {"data", "held_out_data", "model_config", "trainer"}
    assert not {"lora", "callbacks", "extensions", "base_model"} & found["parts"].keys()
    assert found["unseen"] == ["trainer.rows_unseen() held_out_data (list_iterator)"]
    assert found["num_threads"] == torch.get_num_threads()
    assert found["attention"] in ("sdpa", "eager")
    assert {"torch", "trl", "accelerate"} <= found["versions"].keys()
    assert found["versions"]["torch"] == torch.__version__
    assert (found["arguments"]["seed"], found["given"]) == (42, [])
    bare: Any = reader_of(fake_trainer(), run=run).read(Rows(3), None, [])
    assert bare["attention"] is None


CPU = torch.device("cpu")
RUN_KEY = new_key()


class Of(Dataset[Any]):
    """Rows that are given."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


class Drawing(Of):
    """Gives a row another way each time."""

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.rand(2)}


def hash_of(dataset: Any, key: str = RUN_KEY) -> str | None:
    return rows_facts(dataset, key, CPU)["rows"]


def table(rows: list[dict[str, Any]]) -> Any:
    from datasets import Dataset as Table

    return Table.from_list(rows)


def chats(num_rows: int = 40) -> list[dict[str, Any]]:
    return [
        {
            "ids": [1, 2, n],
            "messages": [{"role": "user", "content": f"ä {n}"}],
            "label": None if n % 3 else bool(n % 2),
            "weight": n / 7,
        }
        for n in range(num_rows)
    ]


def test_other_rows_are_other_data_and_reading_them_draws_nothing() -> None:
    state = torch.get_rng_state()
    facts = rows_facts(Rows(), RUN_KEY, CPU)
    assert facts == rows_facts(Rows(), RUN_KEY, CPU)
    assert {len(block) for block in facts["blocks"]} == {8}
    assert facts["num_examples"] == facts["num_hashed"] == len(Rows())
    for index in range(len(Rows())):
        other = Rows()
        other.ids[index, -1] += 1
        assert hash_of(other) != facts["rows"], index
    assert rows_facts(Drawing([1, 2]), RUN_KEY, CPU)["rows"] is None
    assert torch.equal(torch.get_rng_state(), state)


def test_a_hash_depends_on_the_key() -> None:
    for dataset in (Rows(), table(chats())):
        assert hash_of(dataset) != hash_of(dataset, new_key())


def test_of_a_stream_nothing_is_known() -> None:
    stream: Any = itertools.count()
    facts = rows_facts(stream, RUN_KEY, CPU)
    assert facts == {"num_examples": None, "num_hashed": 0, "rows": None}


def test_each_cell_of_a_table_counts_and_how_it_is_stored_does_not(tmp_path: Path) -> None:
    from datasets import Dataset as Table
    from datasets import concatenate_datasets

    rows = chats()
    whole = hash_of(table(rows))
    others = [("messages", []), ("label", True), ("weight", 0.5), ("label", False)]
    for index, (name, value) in [
        *((0, ("ids", [1, 2])), (39, ("ids", [1, 2])), (39, ("label", False))),
        *((17, one) for one in others),
    ]:
        changed = [dict(row) for row in rows]
        assert changed[index][name] != value
        changed[index][name] = value
        assert hash_of(table(changed)) != whole, (index, name)
    assert hash_of(table(rows[::-1])) != whole
    assert hash_of(table(rows[:-1])) != whole
    other_order = [dict(reversed(row.items())) for row in rows]
    pieces = concatenate_datasets([table(rows[:7]), table(rows[7:])])
    pieces_of_rest = table([rows[3], *rows]).select(range(1, 41))
    table(rows).to_parquet(tmp_path / "rows.parquet")
    table(rows).save_to_disk(tmp_path / "saved")
    read = Table.from_parquet(str(tmp_path / "rows.parquet"), cache_dir=str(tmp_path / "cache"))
    for same in (
        *(table(other_order), pieces, pieces_of_rest, read),
        *(table(rows).with_format("torch"), Table.load_from_disk(str(tmp_path / "saved"))),
    ):
        assert hash_of(same) == whole
    assert hash_of(table(rows).with_format("torch", columns=["ids"])) != whole


def test_where_one_cell_ends_and_the_next_begins_counts() -> None:
    one, other = ([{"ids": ids} for ids in cells] for cells in ([[1], [2, 3]], [[1, 2], [3]]))
    assert hash_of(table(one)) != hash_of(table(other))
    one, other = ([{"text": text} for text in cells] for cells in (["a", "bc"], ["ab", "c"]))
    assert hash_of(table(one)) != hash_of(table(other))


@pytest.mark.parametrize("value", [0, 0.0, False, "", []])
def test_a_missing_value_is_not_the_one_that_fills_it(value: object) -> None:
    one, other = ([{"x": cell} for cell in cells] for cells in ([None, value], [value, None]))
    assert hash_of(table(one)) != hash_of(table(other))


def test_how_the_keys_inside_a_cell_are_ordered_does_not_count() -> None:
    one, other = {"role": "user", "text": "a"}, {"text": "a", "role": "user"}
    assert hash_of(table([{"x": one}])) == hash_of(table([{"x": other}]))
    assert hash_of(table([{"x": [one]}])) == hash_of(table([{"x": [other]}]))


def test_what_gives_a_table_its_rows_is_found() -> None:
    def doubled(batch: Any) -> Any:
        return batch

    assert transform_of(table(chats()).with_transform(doubled)) is doubled
    assert transform_of(table(chats())) is None
    assert transform_of(Rows()) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.arange(5000), np.where(np.arange(5000) == 2500, 0, np.arange(5000))),
        (torch.zeros(3, dtype=torch.bfloat16), torch.zeros(3)),
        ("ab", b"ab"),
        ([["a"], ["b"]], [["a", "b"], []]),
        ({"a": "b"}, {"ab": ""}),
        ([1, 2**70], [1, 2**71]),
        ([1, None], [1, 0]),
        (np.array(["a", None], dtype=object), np.array(["a", "b"], dtype=object)),
        (1.5, 1.25),
    ],
)
def test_each_kind_of_value_counts(one: Any, other: Any) -> None:
    assert hash_of(Of([one])) == hash_of(Of([one]))
    assert hash_of(Of([one])) != hash_of(Of([other]))


def test_pictures_count_by_their_pixels_and_what_has_no_content_is_unseen() -> None:
    from PIL import Image

    black, same, white = (Image.new("RGB", (3, 2), color) for color in ("black", "black", "white"))
    assert hash_of(Of([black])) == hash_of(Of([same])) != hash_of(Of([white]))
    assert rows_facts(Of([object()]), RUN_KEY, CPU)["rows"] is None


def test_as_many_rows_are_compared_as_time_allowed_at_the_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(seconds))
    monkeypatch.setattr(trainer_facts, "time", clock)
    assert trainer_facts.MOST_SECONDS == 120.0
    monkeypatch.setattr(trainer_facts, "MOST_SECONDS", 25.0)
    first = rows_facts(Of([*range(1000)]), RUN_KEY, CPU)
    assert 20 < first["num_hashed"] < 30
    monkeypatch.setattr(trainer_facts, "MOST_SECONDS", 0.0)
    assert rows_facts(Of([*range(1000)]), RUN_KEY, CPU, first["num_hashed"]) == first
    changed = [-1, *range(1, 1000)]
    assert rows_facts(Of(changed), RUN_KEY, CPU, first["num_hashed"]) != first


@pytest.mark.parametrize("name", ["Image", "Audio", "Video"])
def test_a_table_of_files_is_read_as_it_gives_its_rows(name: str, tmp_path: Path) -> None:
    """The paths in its cells are other ones elsewhere; what lies there is the same."""
    found = SimpleNamespace(features=f"{{'x': {name}(decode=True)}}")
    kind = type("Table", (), {"__module__": "datasets.arrow_dataset", "format": {}})
    table = kind()
    vars(table).update(vars(found))
    assert not trainer_facts._is_table(table)
    table.features = "{'Images(s)': Value('string'), 'x': List(Value('int64'))}"
    assert trainer_facts._is_table(table)


def test_only_tables_of_datasets_are_read_as_tables() -> None:
    class Formatted(Of):
        format: ClassVar = {"format_kwargs": {"transform": print}}

    assert transform_of(Formatted([1])) is None
    assert hash_of(Formatted([1, 2])) == hash_of(Of([1, 2]))
    theirs = type("Stream", (Of,), {"__module__": "datasets.iterable_dataset"})
    assert transform_of(theirs([1])) is None
    assert hash_of(theirs([1, 2])) == hash_of(Of([1, 2]))


@pytest.mark.parametrize("num_rows", [0, 1, 5, 16, 40])
def test_a_few_rows_from_everywhere_are_read_twice(num_rows: int) -> None:
    read: list[int] = []

    class Noting(Of):
        def __getitem__(self, index: int) -> Any:
            read.append(index)
            return self.rows[index]

    assert rows_facts(Noting([*range(num_rows)]), RUN_KEY, CPU)["num_hashed"] == num_rows
    sampled = min(num_rows, trainer_facts.NUM_TWICE)
    assert len(read) == 2 * sampled + num_rows
    first = read[:sampled]
    assert first == read[sampled : 2 * sampled] == sorted({*first})
    assert max(first, default=0) >= num_rows - max(1, num_rows // 10)


@pytest.mark.parametrize("changing", [0, 20, 36])
def test_a_row_that_changes_when_it_is_read_again_cannot_be_compared(changing: int) -> None:
    class Counting(Of):
        def __getitem__(self, index: int) -> Any:
            self.rows[index] += index == changing
            return self.rows[index]

    indices = {i * 40 // trainer_facts.NUM_TWICE for i in range(trainer_facts.NUM_TWICE)}
    is_seen = changing in indices
    facts = rows_facts(Counting([*range(40)]), RUN_KEY, CPU)
    assert (facts["rows"] is None) is is_seen
    assert (facts["num_examples"], facts["num_hashed"]) == (40, 0 if is_seen else 40)


@pytest.mark.parametrize(("num_hashed", "expected"), [(0, 0), (1, 1), (4, 4), (9, 5)])
def test_as_many_rows_as_were_hashed_are_hashed(num_hashed: int, expected: int) -> None:
    rows = [*range(5)]
    facts = rows_facts(Of(rows), RUN_KEY, CPU, num_hashed)
    assert facts["num_hashed"] == expected
    for index in range(5):
        other = rows_facts(Of([*rows[:index], -1, *rows[index + 1 :]]), RUN_KEY, CPU, num_hashed)
        assert (other["rows"] != facts["rows"]) is (index < expected)


# Values of which no two are alike, though some are written alike, or lie alike in memory.
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 1.0, 0.0, "", "1", "None", b"", b"1", 2**63, -(2**70)),
    *([], [1], [1, 2], [2, 1], [12], [1, 2.0], [1, "2"], [1, None], [[1], 2], [[1, 2]], ["1", 2]),
    *([2**63, 1], [2**63, 2], [2**63], {}, {"a": 1}, {"b": 1}, {"a": 2}, {"a": 1, "b": 2}),
    *({"a": 2, "b": 1}, {"a": {"b": 1}}, {"a": "b"}, {"ab": ""}, ["a", "b"], ["ab"], ["", "ab"]),
    *(["a", 1, "b", 2], "\ud800", "ä", "ä".encode()),
    *(torch.zeros(2), torch.zeros(1, 2), torch.zeros(2, dtype=torch.int32), torch.ones(2)),
    *(torch.zeros(0), torch.zeros(0, 1), torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])),
    *(np.zeros(2), np.zeros((1, 2)), np.zeros(2, np.int64), np.array([1.0, 0.0])),
    *(np.float32(1), np.float64(1), np.array(["a"], object), np.array(["b"], object)),
    *(SimpleNamespace(a=3), SimpleNamespace(a=4), int, float, 1 + 2j),
    *({1: 2, "a": 3}, {1: 2, "b": 3}, {"a": {"b": 1, "c": 2}}, {"a": {"b": 1}, "c": 2}),
    *([True, 1], [1, 1], SimpleNamespace(mode=1), array("d", [1.0]), array("d", [2.0])),
]


def test_no_two_values_are_alike() -> None:
    hashes = [hash_of(Of([value])) for value in VALUES]
    assert None not in hashes
    alike = [
        (one, other)
        for (one, first), (other, second) in itertools.combinations(
            zip(VALUES, hashes, strict=True), 2
        )
        if first == second
    ]
    assert alike == []


def test_no_two_pictures_are_alike() -> None:
    from PIL import Image

    shapes = [("L", (2, 6)), ("L", (3, 4)), ("P", (3, 4)), ("RGB", (2, 2)), ("RGB", (4, 1))]
    pictures = [Image.new(mode, size) for mode, size in shapes]
    assert len({hash_of(Of([one])) for one in pictures}) == len(pictures)


def test_how_a_value_lies_in_memory_does_not_count() -> None:
    grid = torch.arange(6.0).view(2, 3)
    assert hash_of(Of([grid.t().contiguous().t()])) == hash_of(Of([grid]))
    assert hash_of(Of([grid.requires_grad_()])) == hash_of(Of([grid.detach()]))
    assert hash_of(Of([np.asfortranarray(grid.detach().numpy())])) == hash_of(
        Of([grid.detach().numpy()])
    )
    assert hash_of(Of([{"a": 1, "b": 2}])) == hash_of(Of([{"b": 2, "a": 1}]))
    assert hash_of(Of([SimpleNamespace(a=1)])) == hash_of(Of([{"a": 1}]))
    assert hash_of(Of([(1, 2)])) == hash_of(Of([[1, 2]]))


# Columns of one type each, of which no two hold the same.
COLUMNS: dict[str, list[list[Any]]] = {
    "int64": [[1, 2], [2, 1], [None, 1], [1, None], [None, 0], [None, None]],
    "uint64": [[2**64 - 1, 1], [2**64 - 2, 1], [None, 1]],
    "int8": [[1, 2], [2, 1]],
    "float64": [[0.1, 0.2], [0.1, 0.3], [None, 0.0], [0.0, None]],
    "float32": [[0.5, 2.0], [2.0, 0.5]],
    "bool_": [[True, False], [False, True], [None, False], [False, None]],
    "string": [["ab", "c"], ["ac", "b"], ["a", "bc"], [None, ""], ["", None], ["", ""]],
    "large_string": [["ab", "c"], ["a", "bc"]],
    "binary": [[b"ab", b"c"], [b"ac", b"b"], [b"a", b"bc"], [None, b""], [b"", None]],
    "date32": [[1, 2], [2, 1], [None, 1]],
}


def column_hash(column: Any) -> str:
    digest = row_digest(RUN_KEY)
    trainer_facts._feed_column(digest.update, column)
    return digest.hexdigest()


def assert_all_differ(columns: list[Any]) -> None:
    assert len({*map(column_hash, columns)}) == len(columns), columns


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("around", ["plain", "list_", "large_list", "struct"])
def test_no_two_columns_are_alike(kind: str, around: str) -> None:
    import pyarrow as pa

    of_type = getattr(pa, kind)()
    if around == "plain":
        columns = [pa.array(cells, of_type) for cells in COLUMNS[kind]]
    elif around == "struct":
        of_type = pa.struct([("one", of_type), ("two", of_type)])
        pairs = [dict(zip(("one", "two"), cells, strict=True)) for cells in COLUMNS[kind]]
        columns = [pa.array([pair, {}], of_type) for pair in pairs]
        columns += [pa.array([{}, pair], of_type) for pair in pairs if {*pair.values()} != {None}]
        columns += [pa.array([pairs[0], None], of_type)]
    else:
        of_type = getattr(pa, around)(of_type)
        rows = [
            divided
            for a, b in COLUMNS[kind]
            for divided in ([[a, b]], [[a], [b]], [[a, b], []], [[], [a, b]], [[a, b], None])
        ]
        columns = [pa.array(cells, of_type) for cells in rows]
    assert_all_differ(columns)
    for column in columns:
        pieces = pa.chunked_array([column[:1], column[1:]])
        assert column_hash(pieces) == column_hash(column)
        longer = pa.concat_arrays([columns[0], column])[len(columns[0]) :]
        assert column_hash(longer) == column_hash(column), "a slice is read as what it shows"
    assert column_hash(pa.chunked_array([], of_type)) == column_hash(pa.array([], of_type))


def test_fields_of_a_cell_count_by_their_names_in_any_order() -> None:
    import pyarrow as pa

    cells = [{"a": 1, "b": 2}]
    one = pa.array(cells, pa.struct([("a", pa.int64()), ("b", pa.int64())]))
    same = pa.array(cells, pa.struct([("b", pa.int64()), ("a", pa.int64())]))
    other = pa.array([{"a": 1, "c": 2}], pa.struct([("a", pa.int64()), ("c", pa.int64())]))
    assert column_hash(one) == column_hash(same) != column_hash(other)


def test_each_row_of_a_long_table_and_each_name_of_a_column_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(identity, "MOST_BLOCKS", 20)
    num_rows = 2 * 20 + 1  # in blocks of three
    cells = [*range(num_rows)]
    whole = hash_of(table([{"x": x, "y": 0} for x in cells]))
    for index in (0, 19, 20, 21, num_rows - 1):
        changed = [{"x": -1 if x == index else x, "y": 0} for x in cells]
        assert hash_of(table(changed)) != whole
    assert hash_of(table([{"z": x, "y": 0} for x in cells])) != whole
    assert hash_of(table([{"y": x, "x": 0} for x in cells])) != whole
    assert hash_of(table([{"x": x} for x in cells])) != whole
