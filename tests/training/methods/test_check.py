"""What goes together is known without torch; each refusal is a row of the table of wrong inputs."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.training.methods.check import (
    NEEDED,
    NOT_HERE,
    SETTINGS,
    Treatment,
    Use,
    check_method,
    check_model,
    problems_of,
    refused_settings,
    setting_names,
    treatment_of,
)
from infrastructure.training.methods.method_table import installed_method
from tests.config.field_values import other_value
from tests.training.methods.method_runs import configuration, methods_here

PROBE = """
import sys
from infrastructure.training.methods import check, method_data, rewards
sys.exit(sum(name in sys.modules for name in ("torch", "trl", "transformers", "datasets")))
"""


def test_nothing_heavy_is_imported() -> None:
    subprocess.run([sys.executable, "-c", PROBE], check=True, timeout=120)


@pytest.mark.parametrize("method", methods_here())
def test_what_goes_together_is_let_pass(tmp_path: Path, saved_llama: Path, method: str) -> None:
    teacher = tmp_path / "teacher"
    teacher.mkdir()
    (teacher / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 300}))
    check_method(configuration(method, tmp_path, saved_llama, teacher))


def test_the_own_loop_is_not_looked_at() -> None:
    check_method(DeploymentConfig(data_path="nowhere.jsonl"))


def test_a_data_set_of_the_hub_is_looked_at_when_it_is_there(saved_llama: Path) -> None:
    check_method(
        DeploymentConfig(
            data_path="nobody/nothing", model_name=str(saved_llama), training={"method": "dpo"}
        )
    )


def test_what_is_not_taken_is_there_in_trl() -> None:
    """A name that TRL has dropped would be refused for a reason that is none."""
    here = methods_here()
    known = {name for method in here for name in installed_method(method).own_arguments()}
    of_teachers = {name for name in NOT_HERE if "distillation" not in here and "teacher" in name}
    assert set(NOT_HERE) - known - of_teachers == set()


FIELDS = schema_of(DeploymentConfig).fields
REFUSED = [
    key
    for key in FIELDS
    if (treatment := treatment_of(key)) is not None and treatment.use is Use.REFUSED
]


def test_every_key_has_a_treatment_and_no_other_is_named() -> None:
    assert [key for key in FIELDS if treatment_of(key) is None] == []
    sections = {key[: key.rfind(".") + 1] for key in FIELDS} | {"training.recovery.", "quantum."}
    known = {*FIELDS, *sections, "resources.", "monitor."}
    assert [name for name in SETTINGS if name not in known] == []


def test_what_has_nothing_to_decide_or_is_refused_has_a_reason() -> None:
    silent = [
        name
        for name, treatment in SETTINGS.items()
        if treatment.use in (Use.NOTHING, Use.REFUSED, Use.ARGUMENT) and not treatment.words
    ]
    assert silent == []
    assert [f.name for f in fields(Treatment)] == ["use", "words", "values"]


@pytest.mark.parametrize("key", REFUSED)
def test_a_setting_that_cannot_be_carried_out_is_refused_by_its_name(key: str) -> None:
    if key.startswith("training.qlora_ranks"):
        pytest.skip("it has a shape of its own")
    lora = {"lora_config": {"r": 4}} if key.startswith("model.lora_config.") else {}
    config = DeploymentConfig(training={"method": "dpo"}, model=lora)
    spec = FIELDS[key]
    value = other_value(spec)
    treatment = treatment_of(key)
    assert treatment is not None
    section, _, name = key.rpartition(".")
    target: Any = config
    for part in filter(None, section.split(".")):
        target = getattr(target, part)
    target.__dict__[name] = value  # whatever else it needs beside it
    refusals = [text for text in refused_settings(config) if f"(setting={key}=" in text]
    is_taken = treatment.values is not None and value in treatment.values
    assert len(refusals) == (0 if is_taken else 1)
    if refusals:
        assert refusals[0].startswith("methods.setting_not_supported(")
        assert f"reason={treatment.words}()" in refusals[0]
        assert "method=dpo" in refusals[0]


@pytest.mark.parametrize(
    ("section", "name", "value", "reason"),
    [
        (
            *("training", "optimizer", "adamw_offload"),
            "methods.argument_takes_only(argument=optim, values="
            "['adamw', 'adamw_8bit', 'paged_adamw', 'paged_adamw_8bit', 'sgd']))",
        ),
        (
            *("training", "mixed_precision", "fp8"),
            "methods.argument_takes_only(argument=bf16, values="
            "['true', 'false', 'bf16', 'fp16', 'fp32']))",
        ),
        ("data", "over_length", "truncate", "methods.truncates_only_ends()"),
        ("model", "backend", "unsloth", "methods.loaded_by_transformers()"),
    ],
)
def test_some_values_of_a_setting_cannot_be_carried_out(
    section: str, name: str, value: str, reason: str
) -> None:
    sections: dict[str, dict[str, object]] = {"training": {"method": "kto"}}
    sections[section] = {**sections.get(section, {}), name: value}
    [refusal] = refused_settings(DeploymentConfig(**sections))  # type: ignore[arg-type]
    assert refusal.startswith(f"methods.setting_not_supported(setting={section}.{name}={value},")
    assert f"method=kto, reason={reason}" in refusal


def test_the_only_value_of_a_setting_is_taken_though_it_is_not_the_default() -> None:
    recovery = {"out_of_memory": "stop", "not_finite": "stop"}
    config = DeploymentConfig(
        model={"backend": "transformers"},
        data={"num_workers": 0},
        training={"method": "dpo", "validation_prompts": 0, "recovery": recovery},
    )
    assert [*refused_settings(config)] == []


def test_the_defaults_can_be_carried_out() -> None:
    assert list(refused_settings(DeploymentConfig(training={"method": "dpo"}))) == []


def problems(method: str, **sections: Any) -> list[str]:
    """Return the error of a configuration in which only these settings are wrong."""
    training: dict[str, Any] = {"method": method, "batch_size": 8, **sections.pop("training", {})}
    config = DeploymentConfig(training=training, **sections)
    return problems_of(config, installed_method(method))


WORKS_WITH: dict[tuple[str, str], tuple[str, list[object], object]] = {
    ("dpo", "label_smoothing"): ("loss_type", ["robust", "exo_pair", "aot", "aot_unpaired"], "ipo"),
    ("dpo", "discopop_tau"): ("loss_type", ["discopop"], "robust"),
    ("dpo", "f_alpha_divergence_coef"): (
        "f_divergence_type",
        ["alpha_divergence"],
        "js_divergence",
    ),
    **{
        ("grpo", f"sapo_temperature_{sign}"): ("loss_type", ["sapo"], "vespo")
        for sign in ("neg", "pos")
    },
    **{
        ("grpo", f"vespo_{name}_{sign}"): ("loss_type", ["vespo"], "sapo")
        for name in ("k", "lambda")
        for sign in ("neg", "pos")
    },
    **{
        ("grpo", f"entropy_coef_{name}"): ("use_adaptive_entropy", [True], False)
        for name in ("min", "max", "delta")
    },
    ("", "precompute_ref_batch_size"): ("precompute_ref_log_probs", [True], False),
    ("", "num_completions_to_print"): ("log_completions", [True], False),
    ("", "log_unique_prompts"): ("log_completions", [True], False),
}


@pytest.mark.parametrize(("method", "name"), WORKS_WITH)
def test_an_argument_that_works_with_another_alone_is_refused_without_it(
    method: str, name: str
) -> None:
    other, values, wrong = WORKS_WITH[method, name]
    for named in [method] if method else ["dpo", "kto"]:

        def no_effect(*, method: str = named, **given: object) -> list[str]:
            found = problems(method, training={"method_settings": {name: 1, **given}})
            return [text for text in found if text.startswith("methods.argument_no_effect(")]

        for given in ({}, {other: wrong}, {other: [wrong]}):
            [refusal] = no_effect(**given)
            assert f"(name={name}, method={named}, other={other}, " in refusal
        for value in values:
            assert no_effect(**{other: value}) == no_effect(**{other: [wrong, value]}) == []
    if method:  # another one may have its own argument of this name
        assert no_effect(method="orpo") == []
    assert NEEDED.keys() == WORKS_WITH.keys()


def test_several_losses_have_weights_and_one_has_none() -> None:
    for losses, fits in (
        (["ipo", "sigmoid"], True),
        (["ipo"], False),
        ("ipo", False),
        (None, False),
    ):
        given = {"loss_weights": [0.5], **({} if losses is None else {"loss_type": losses})}
        found = problems("dpo", training={"method_settings": given})
        assert ("methods.loss_weights_of_one_loss()" in found) is not fits


@pytest.mark.parametrize(
    ("method", "sections", "refusal"),
    [
        ("dpo", {"training": {"beta": 0.0}}, "methods.beta_zero(method=DPO)"),
        ("kto", {"training": {"beta": 0.0}}, "methods.beta_zero(method=KTO)"),
        ("grpo", {"training": {"beta": 0.0}}, None),
        ("dpo", {"training": {"beta": 0.01}}, None),
        (
            "kto",
            {"training": {"batch_size": 1}},
            "methods.batch_too_small(method=KTO, size=1, least=2)",
        ),
        ("kto", {"training": {"batch_size": 2}}, None),
        (
            "dpo",
            {"training": {"batch_size": "auto", "beta": 0.0}},
            "methods.batch_size_auto(method=dpo)",
        ),
        ("dpo", {"training": {"batch_size": 1}}, None),
        (
            "grpo",
            {"training": {"max_completion_length": 64}, "data": {"max_length": 64}},
            "methods.completion_leaves_no_prompt(longest=64, max_length=64, suggested=32)",
        ),
        (
            "grpo",
            {"training": {"max_completion_length": 63}, "data": {"max_length": 64}},
            None,
        ),
        ("dpo", {"data": {"max_length": 64}}, None),  # it writes none
        (
            "rloo",
            {"training": {"num_generations": 5, "gradient_accumulation": 2}},
            "methods.num_generations_not_divisor(num_generations=5, per_step=16)",
        ),
        ("rloo", {"training": {"num_generations": 16, "gradient_accumulation": 2}}, None),
        ("dpo", {"device": "cuda:1"}, "methods.device_not_first_gpu(device=cuda:1, index=1)"),
        ("dpo", {"device": "cuda:0"}, None),
        ("dpo", {"device": "cuda"}, None),
        (
            "dpo",
            {"model": {"quantization": "8bit"}},
            "methods.quantization_without_lora(quantization=8bit)",
        ),
        ("dpo", {"model": {"quantization": "8bit", "lora_config": {}}}, None),
        (
            "grpo",
            {"training": {"method_settings": {"vllm_mode": "server"}}},
            "methods.unknown_argument(title=GRPO, name=vllm_mode,",
        ),
    ],
)
def test_what_trl_would_fail_with_is_refused_and_its_neighbour_is_not(
    method: str, sections: dict[str, Any], refusal: str | None
) -> None:
    if method in ("grpo", "rloo"):
        sections = {"data": {"max_length": 512}} | sections
    found = problems(method, **sections)
    assert [text[: len(refusal or "")] for text in found] == [refusal] * (refusal is not None)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("sync_ref_model", "ref_model_not_saved"),
        ("ref_model_sync_steps", "needs_sync_ref_model"),
        ("ref_model_mixup_alpha", "needs_sync_ref_model"),
        ("use_vllm", "vllm_state_not_saved"),
        ("model_init_kwargs", "set_model_settings"),
        ("chat_template_path", "set_chat_template"),
        ("log_completions_hub_repo", "only_backups_are_uploaded"),
    ],
)
def test_an_argument_that_changes_what_is_guaranteed_has_its_reason(name: str, reason: str) -> None:
    [refusal] = problems("grpo", training={"method_settings": {name: 1}})
    assert refusal == f"methods.argument_not_supported(name={name}, reason=methods.{reason}())"


def test_an_argument_is_accepted_by_the_name_of_its_setting() -> None:
    names = setting_names()
    assert (names["per_device_train_batch_size"], names["bf16"]) == (
        "batch_size",
        "mixed_precision",
    )
    assert (names["num_train_epochs"], names["optim"]) == ("num_epochs", "optimizer")
    assert "seed" in names.values()
    assert "output_dir" not in names.values()  # of the run


@pytest.mark.parametrize("is_run", [False, True])
def test_a_run_stands_for_the_model_that_it_has_trained(tmp_path: Path, is_run: bool) -> None:
    folder = tmp_path / "final" if is_run else tmp_path
    folder.mkdir(exist_ok=True)
    for file, content, refusal in (
        ("config.json", "{}", None),
        ("config.json", "torn", None),  # loading it says so
        ("config.json", '{"is_encoder_decoder": true}', "encoder_decoder_model"),
        ("config.json", '{"vision_config": {}}', "model_reads_images"),
        ("adapter_config.json", "{}", "whole_model_needed"),
        ("extensions.json", "{}", "model_has_extension_weights"),
        ("temper_model.json", "{}", "model_reads_no_text"),
    ):
        (folder / file).write_text(content)
        if refusal is None:
            check_model(str(tmp_path), "model.name")
            continue
        with pytest.raises(ValueError, match=rf"methods\.{refusal}\(key=training\.teacher, "):
            check_model(str(tmp_path), "training.teacher")
        if file == "adapter_config.json":
            check_model(str(tmp_path), "model.name", takes_lora=True)
