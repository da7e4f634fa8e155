import re
from pathlib import Path
from typing import Any

import pytest

from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig, check_sections
from infrastructure.config.field_help import as_typed
from infrastructure.config.merging import cross_checks
from infrastructure.config.merging.effect import conditions_of
from infrastructure.config.schema import schema_of
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.features.stackwise.config import ProgressiveConfig, StackwiseFields
from tests.config.field_values import other_value

FIELDS = schema_of(DeploymentConfig).fields
QUANTUM = {"training.enabled_extensions": ["quantum"]}


@pytest.mark.parametrize(
    ("keywords", "sentence"),
    [
        (
            {"model.attention": "eager", "training.memory_efficient_attention": True},
            "config.attention_settings_disagree(given=true, wanted=sdpa, attention=eager)",
        ),
        (
            {"model.attention": "sdpa", "training.memory_efficient_attention": False},
            "config.attention_settings_disagree(given=false, wanted=eager, attention=sdpa)",
        ),
        (
            {"training.strategy": "standard", "training.layerwise_lr_decay": 0.9},
            "config.setting_without_effect(setting=training.layerwise_lr_decay=0.9,",
        ),
        (
            {"training.compile_mode": "auto", "enable_gpu_optimization": False},
            "config.auto_compile_not_measured",
        ),
        (
            {"training.optimization_frequency": 9, "data.streaming": True},
            "quantum.data_selection_with_streaming",
        ),
        (
            {**QUANTUM, "quantum.target": "validation", "data.validation_split": 0},
            "quantum.quantum_target_not_held_out",
        ),
        (
            {"training.optimization_frequency": 9, "quantum.data_budget": 1.0},
            "quantum.data_budget_keeps_everything",
        ),
        (
            {"training.shard": "yes"},
            "config.shard_on_one_process(name=training.shard=yes)",
        ),
        *(
            ({"training.shard": "yes", "num_processes": 2, **settings}, sentence)
            for settings, sentence in [
                (
                    {"model.quantization": "4bit", "model.lora_config": True},
                    "=training.shard=yes, reason=config.shard_with_quantization(quantization=4bit)",
                ),
                (
                    {"training.optimizer": "adamw_8bit"},
                    "config.shard_with_8bit_optimizer(optimizer=adamw_8bit",
                ),
                (
                    {"training.optimizer": "adamw_offload"},
                    "config.shard_with_offloaded_adamw",
                ),
                ({"model.backend": "unsloth"}, "config.shard_with_unsloth"),
                (
                    {"model.quantization_aware": "int8_int4"},
                    "quantization_aware.with_sharding",
                ),
                (
                    {"training.compile_mode": "default"},
                    "config.shard_with_compile(compile_mode=default)",
                ),
                ({"training.mixed_precision": "fp8"}, "config.shard_with_fp8"),
                (
                    {"training.strategy": "curriculum"},
                    "config.shard_with_strategy(strategy=curriculum",
                ),
                (
                    {"training.mode": "blockwise"},
                    "config.shard_with_strategy(strategy=progressive",
                ),
                (QUANTUM, "config.shard_with_extensions(extensions=quantum"),
                (
                    {"training.enabled_extensions": ["memory"]},
                    "config.shard_with_extensions(extensions=memory",
                ),
                (
                    {"model.adapter": "multimodal"},
                    "config.shard_with_adapter(adapter=multimodal",
                ),
                (
                    {"training.best_metric": "exact_match"},
                    "config.shard_with_answer_metric(best_metric=exact_match",
                ),
                (
                    {"training.batch_size": "auto"},
                    "config.shard_with_auto_batch_size",
                ),
                ({"training.method": "dpo"}, "config.shard_with_trl_method(method=dpo)"),
            ]
        ),
        (
            {**QUANTUM, "quantum.solver": "exakt"},
            "setting=quantum.solver, reason=core.unknown_name(what=sampler, name=exakt,",
        ),
        (
            {**QUANTUM, "quantum.fallback": ["exact", "azure_quantum"]},
            "(setting=quantum.fallback, reason=quantum.sampler_access_missing(name=azure_quantum,",
        ),
        (
            {**QUANTUM, "quantum.solver": "azure-quantum"},
            "(setting=quantum.solver, reason=quantum.sampler_access_missing(name=azure-quantum,",
        ),
        (
            {"backup.place": "runs/copies"},
            'config.destination_inside_output_dir(place="runs/copies", output_dir=runs)',
        ),
        (
            {"backup.place": "file:///a/b", "output_dir": "/a"},
            'config.destination_inside_output_dir(place="file:///a/b", output_dir=/a)',
        ),
        (
            {"data.max_length": 1024},
            "config.max_length_exceeds_model(max_length=1024, longest=512)",
        ),
        (
            {"data.path": "https://example.org/rows.jsonl"},
            "config.web_address_given(key=data.path,",
        ),
        (
            {"data.eval_path": Path("https://me:letmein@x.org/r")},
            'config.web_address_given(key=data.eval_path, value="https:/***@x.org/r")',
        ),
        ({"model.name": "https://huggingface.co/a/b"}, "config.web_address_given(key=model.name,"),
        ({"training.shard": "offload"}, "shard_on_one_process(name=training.shard=offload)"),
        (
            {"training.shard": "offload", "num_processes": 2, "training.mixed_precision": "fp8"},
            "=training.shard=offload, reason=config.shard_with_fp8",
        ),
        (
            {"training.best_metric": "exact_mtch"},
            "unknown_best_metric(reason=core.unknown_name(what=measure, name=exact_mtch, "
            "hint=core.did_you_mean(meant=exact_match)",
        ),
        (
            {"training.best_metric": "math:sqr", "training.metrics": ["math:sqrt"]},
            "hint=core.did_you_mean(meant=math:sqrt)",
        ),
        (
            {"training.best_metric": "math:sqrt", "training.metrics": ["math:sqrt"]},
            "config.best_metric_without_mode(name=math:sqrt)",
        ),
        (
            {"training.best_metric": "f1", "training.validation_prompts": 0},
            "config.best_metric_needs_answers(best_metric=f1",
        ),
        (
            {"num_processes": 2, "device": "cuda:1"},
            "config.processes_on_one_named_gpu(num_processes=2, device=cuda:1)",
        ),
        (
            {"num_processes": 3, "cuda_visible_devices": "0,1"},
            "config.too_few_visible_gpus(num_processes=3, count=2)",
        ),
        (
            {"backup.place": "drive:runs/copies", "output_dir": "runs"},
            "config.destination_inside_output_dir(",
        ),
        ({"backup.place": "/a/../a", "output_dir": "/a/x/.."}, "destination_inside_output_dir("),
        ({"backup.place": "/b/../a/c", "output_dir": "/a"}, "destination_inside_output_dir("),
    ],
)
def test_contradictions_are_refused_when_a_run_starts(
    keywords: dict[str, Any], sentence: str
) -> None:
    config = DeploymentConfig(**keywords)
    with pytest.raises(ValueError, match=r"\w") as raised:
        config.check_supported()
    assert sentence in str(raised.value)


# What makes a setting unused: (the setting, a value that is not its default, the rest, the reason)
UNUSED_BECAUSE: list[tuple[str, Any, dict[str, Any], str]] = [
    (
        "model.embedded.num_layers",
        2,
        {"model.name": "some/model"},
        "config.unused_shapes_embedded_model",
    ),
    (
        "model.embedded.vocab_size",
        300,
        {"model.name": "tactical_mappo"},
        "config.unused_shapes_embedded_model",
    ),
    ("model.trust_remote_code", True, {}, "config.unused_embedded_model_has_no_code"),
    (
        "data.validation_split",
        0.2,
        {"data.eval_path": "held_out.jsonl"},
        "config.unused_eval_path_is_held_out",
    ),
    ("data.buffer_size", 10, {}, "config.unused_streaming_is_off"),
    ("backup.keep", 3, {}, "config.unused_no_backup_destination"),
    ("backup.compression", "zstd", {}, "config.unused_no_backup_destination"),
    ("backup.megabytes_per_second", 5.0, {}, "config.unused_no_backup_destination"),
    ("backup.finish_seconds", 5.0, {}, "config.unused_no_backup_destination"),
    ("backup.emergency_seconds", 5.0, {}, "config.unused_no_backup_destination"),
    ("training.gradient_checkpointing_mode", "selective", {}, "config.unused_checkpointing_is_off"),
    ("training.memory.layer", 1, {}, "key_value_memory.unused_no_memory_extension"),
    (
        "training.multimodal.vision_tower",
        "some/tower",
        {},
        "vision_tower.unused_no_multimodal_extension",
    ),
    ("training.memory.slots", 8, {}, "key_value_memory.unused_no_memory_extension"),
    ("training.memory.heads", 4, {}, "key_value_memory.unused_no_memory_extension"),
    ("training.memory.width", 32, {}, "key_value_memory.unused_no_memory_extension"),
    (
        "training.memory.store",
        99,
        {"training.enabled_extensions": ["quantum"]},
        "key_value_memory.unused_no_memory_extension",
    ),
    (
        "training.extension_learning_rate",
        0.1,
        {"training.enabled_extensions": ["quantum"]},
        "config.unused_nothing_adds_weights",
    ),
    (
        "training.gradient_checkpointing_mode",
        "offload",
        {
            "training.gradient_checkpointing": True,
            "model.backend": "unsloth",
            "model.name": "some/model",
        },
        "config.unused_unsloth_checkpoints",
    ),
    (
        "memory.gpu_cache_size",
        "1GB",
        {"enable_memory_optimization": False},
        "config.unused_memory_optimization_is_off",
    ),
    (
        "memory.cpu_memory_limit",
        "8GB",
        {"enable_memory_optimization": False},
        "config.unused_memory_optimization_is_off",
    ),
    (
        "memory.cache_ttl",
        60,
        {"enable_memory_optimization": False},
        "config.unused_memory_optimization_is_off",
    ),
    (
        "max_memory_percent",
        70.0,
        {"enable_memory_optimization": False},
        "config.unused_memory_optimization_is_off",
    ),
    ("training.keep_best", 2, {"data.validation_split": 0}, "config.unused_nothing_held_out"),
    (
        "training.early_stopping_patience",
        2,
        {"data.validation_split": 0},
        "config.unused_nothing_held_out",
    ),
    ("training.curriculum_by", "loss", {}, "curriculum.unused_not_curriculum"),
    ("training.curriculum_stages", 5, {}, "curriculum.unused_not_curriculum"),
    (
        "training.best_metric",
        "exact_match",
        {"data.validation_split": 0},
        "config.unused_nothing_held_out",
    ),
    ("training.best_metric_mode", "max", {}, "config.unused_metric_is_built_in"),
    ("training.rewards", ["exact_answer"], {}, "config.unused_method_has_no_rewards"),
    (
        "training.rewards",
        ["exact_answer"],
        {"training.method": "dpo"},
        "config.unused_method_has_no_rewards",
    ),
    (
        "training.teacher",
        "some/model",
        {"training.method": "grpo"},
        "distillation.unused_without_teacher",
    ),
    ("training.beta", 0.5, {"training.method": "reward"}, "config.unused_method_has_no_beta"),
    (
        "training.num_generations",
        4,
        {"training.method": "distillation"},
        "config.unused_method_has_no_rewards",
    ),
    (
        "training.max_completion_length",
        8,
        {"training.method": "kto"},
        "config.unused_method_generates_nothing",
    ),
    (
        "training.temperature",
        0.5,
        {"training.method": "orpo"},
        "config.unused_method_generates_nothing",
    ),
    ("training.method_settings", {"a": 1}, {}, "config.unused_method_is_sft"),
    ("quantum.problem", "block_selection", {}, "quantum.unused_no_quantum_step"),
    ("quantum.data_budget", 0.5, {}, "quantum.unused_no_quantum_step"),
    (
        "quantum.data_budget",
        0.5,
        {**QUANTUM, "quantum.problem": "block_selection"},
        "quantum.unused_other_problem(problem=data_selection)",
    ),
    ("quantum.target", "validation", {}, "quantum.unused_no_quantum_step"),
    ("training.curriculum_stages", 7, {}, "curriculum.unused_not_curriculum"),
    ("training.curriculum_by", "loss", {}, "curriculum.unused_not_curriculum"),
    (
        "quantum.target",
        "validation",
        {**QUANTUM, "quantum.problem": "block_selection"},
        "quantum.unused_other_problem(problem=data_selection)",
    ),
    ("quantum.candidates", 100, {}, "quantum.unused_no_quantum_step"),
    (
        "quantum.candidates",
        100,
        {**QUANTUM, "quantum.problem": "block_selection"},
        "quantum.unused_other_problem(problem=data_selection)",
    ),
    ("quantum.num_blocks", 2, {}, "quantum.unused_no_quantum_step"),
    ("quantum.num_blocks", 2, QUANTUM, "quantum.unused_other_problem(problem=block_selection)"),
    ("quantum.max_overhead_percent", 10.0, {}, "quantum.unused_no_quantum_step"),
    ("quantum.solver", "exact", {}, "quantum.unused_no_quantum_step"),
    ("quantum.max_qubits", 100, {}, "quantum.unused_no_quantum_step"),
    ("backup.allow_missing_place", True, {}, "config.unused_no_backup_destination"),
    ("quantum.timeout", 10.0, {}, "quantum.unused_no_quantum_step"),
    ("quantum.fallback", ["exact"], {}, "quantum.unused_no_quantum_step"),
]
# What to do about a reason; about any other, the setting is to be left out.
INSTEAD = {
    "config.unused_checkpointing_is_off": "config.unused_switch_it_on",
    "config.unused_memory_optimization_is_off": "config.unused_switch_it_on",
    "config.unused_no_backup_destination": "config.unused_set_it_too",
    "config.unused_nothing_adds_weights": "config.unused_add_extension",
    "config.unused_nothing_held_out": "config.unused_hold_rows_out",
    "config.unused_streaming_is_off": "config.unused_switch_it_on",
    "key_value_memory.unused_no_memory_extension": "key_value_memory.unused_add_memory_extension",
    "quantum.unused_no_quantum_step": "quantum.unused_add_quantum_extension",
    "vision_tower.unused_no_multimodal_extension": "vision_tower.unused_add_multimodal_extension",
}


@pytest.mark.parametrize(("key", "value", "rest", "reason"), UNUSED_BECAUSE)
def test_a_setting_that_cannot_take_effect_is_refused(
    key: str, value: Any, rest: dict[str, Any], reason: str
) -> None:
    config = DeploymentConfig(**rest, **{key: value})
    unused = re.escape(f"config.setting_without_effect(setting={key}={as_typed(value)},")
    with pytest.raises(ValueError, match=f"^{unused}") as raised:
        config.check_supported()
    why, _, remedy = str(raised.value).partition("otherwise=")[2].partition("). ")
    assert (why.removesuffix("()"), remedy) == (
        reason,
        f"{INSTEAD.get(reason, 'config.leave_out')}()",
    )
    if key.startswith(("model.", "data.", "training.")):  # sections that a trainer is given
        with pytest.raises(ValueError, match=f"^{unused}"):
            check_sections(config.model, config.training, config.data)
    DeploymentConfig(**rest).check_supported()
    assert DeploymentConfig(**rest).notes() == []


@pytest.mark.parametrize(("key", "value", "rest", "reason"), UNUSED_BECAUSE)
def test_its_default_given_by_hand_is_reported(
    key: str, value: Any, rest: dict[str, Any], reason: str
) -> None:
    default = DeploymentConfig().value(key)
    config = DeploymentConfig(**rest, **{key: default})
    config.check_supported()
    unused = [
        re.match(r"config\.setting_without_effect\(setting=([^=]+)=", n) for n in config.notes()
    ]
    assert [found and found[1] for found in unused] == ([key] if default else [])
    assert [f"otherwise={reason}" in note for note in config.notes()] == [True] * bool(default)


STACKWISE = [
    key
    for key, spec in FIELDS.items()
    if issubclass(spec.section, StackwiseFields | ProgressiveConfig)
    and spec.name in {*StackwiseFields.model_fields, *ProgressiveConfig.model_fields}
    and conditions_of(spec)
]


@pytest.mark.parametrize("key", STACKWISE)
def test_a_setting_of_stackwise_training_is_refused_in_another(key: str) -> None:
    config = DeploymentConfig(**{key: other_value(FIELDS[key])})
    unused = f"config.setting_without_effect(setting={key}="
    assert [one for one in config.problems() if one.startswith(unused)]


@pytest.mark.parametrize("precision", [False, "fp32"])
def test_stacks_in_16_bits_are_not_computed_in_32(precision: object) -> None:
    stacks = {"training.progressive.new_stack_precision": "bf16"}
    given = {"training.strategy": "progressive", "training.mixed_precision": precision, **stacks}
    problems = DeploymentConfig(**given).problems()
    assert [one for one in problems if "stackwise.half_weights_with_fp32" in one]
    for other in ({"training.mixed_precision": True}, {"training.strategy": "auto"}):
        problems = DeploymentConfig(**{**given, **other}).problems()
        assert not [one for one in problems if "stackwise.half_weights_with_fp32" in one]


@pytest.mark.parametrize(
    "settings",
    [
        {"training.mode": "fused", "training.block_size": 2},
        {"training.strategy": "progressive", "training.progressive.growth": "once"},
        {"training.mode": "blockwise", "training.cache_size": 5},
        {"training.mode": "blockwise", "training.qlora_enabled": True, "training.qlora_rank": 4},
        {"training.mode": "blockwise", "training.progressive.new_stack_precision": "nf_fp8"},
        {"training.time_step_masking": True, "training.num_time_steps": 3},
        {"training.strategy": "end_to_end", "training.end_to_end_scope": "stackwise"},
    ],
    ids=lambda settings: ",".join(settings),
)
def test_a_setting_of_stackwise_training_is_taken_in_it(settings: dict[str, Any]) -> None:
    problems = DeploymentConfig(**settings).problems()
    assert not [one for one in problems if "config.setting_without_effect" in one]


def test_every_unused_setting_is_tried() -> None:
    tried = {key for key, *_ in UNUSED_BECAUSE} | {
        "training.layerwise_lr_decay",
    }
    with_conditions = {spec.key for spec in FIELDS.values() if conditions_of(spec)}
    stackwise = {f"training.{name}" for name in StackwiseFields.model_fields}
    elsewhere = (*stackwise, "training.progressive.", "model.embedded.", "backup.place")
    assert {key for key in with_conditions if not key.startswith(elsewhere)} <= tried


@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"enabled_extensions": ["multimodal"]}},
    ],
)
def test_three_sections_are_checked_as_a_whole_configuration_is(
    sections: dict[str, dict[str, Any]],
) -> None:
    config = DeploymentConfig(**sections)
    with pytest.raises(ValueError, match=r"vision_tower\.not_set"):
        check_sections(config.model, config.training, config.data)


def test_sections_that_were_changed_by_hand_are_checked() -> None:
    training = TrainingConfig()
    training.enabled_extensions = ["multimodal"]
    with pytest.raises(ValueError, match=r"vision_tower\.not_set"):
        check_sections(ModelConfig(), training, DataConfig())
    lora = ModelConfig(name="some/model", lora_config=LoraConfig(r=4))
    check_sections(lora, TrainingConfig(checkpoint_frequency=5), DataConfig())


@pytest.mark.parametrize(
    "keywords",
    [
        {"model.attention": "flash_attention_2", "training.memory_efficient_attention": True},
        {"training.strategy": "finetune", "training.layerwise_lr_decay": 0.9},
        {"data.max_length": 1024, "model.embedded.max_positions": 1024},
        {"data.max_length": 1024, "model_name": "some/model"},
        {"cuda_visible_devices": "1"},
        {"data.validation_split": 0, "data.eval_path": "held_out.jsonl"},
        {"model.name": "some/model", "model.trust_remote_code": True},
        {"data.streaming": True, "data.buffer_size": 10},
        {"data.num_workers": 0, "data.prefetch_factor": 4},
        {"training.early_stopping_patience": 2},
        {**QUANTUM, "quantum.target": "validation", "quantum.data_budget": 0.1},
        {**QUANTUM, "quantum.problem": "block_selection", "data.streaming": True},
        {"training.optimization_frequency": 100, "quantum.solver": "exact"},
        {"num_processes": 2, "cuda_visible_devices": "0,1"},
        {"num_processes": 2, "device": "cpu"},
        {"num_processes": "auto", "device": "cuda"},
        {"backup.place": "hf://runs/copies", "output_dir": "runs"},
        {"backup.place": "/a", "output_dir": "/a/runs"},  # the runs lie inside of it
        {"backup.place": "/runs-copies", "output_dir": "/runs"},
        {
            "training.best_metric": "math:sqrt",
            "training.metrics": ["math:sqrt"],
            "training.best_metric_mode": "max",
        },
        {"training.best_metric": "perplexity", "training.validation_prompts": 0},
    ],
)
def test_what_fits_is_left_alone(keywords: dict[str, Any]) -> None:
    DeploymentConfig(**keywords).check_supported()


def test_units_that_only_keep_features_are_reported_with_what_they_cost() -> None:
    settings: dict[str, Any] = {"training.local_loss": "reconstruct"}
    (note,) = DeploymentConfig(**settings, **{"training.mode": "blockwise"}).notes()
    assert note == "stackwise.reconstruct_costs_accuracy()"
    lopt = {"training.strategy": "end_to_end", "training.end_to_end_scope": "stackwise"}
    assert DeploymentConfig(**settings, **lopt).notes() == []
    assert DeploymentConfig(**{"training.mode": "blockwise"}).notes() == []


def test_a_setting_of_lora_does_not_freeze_new_weights_in_passing() -> None:
    """They are random; who wants that says so."""
    passing = DeploymentConfig(**{"model.lora_config.r": 4})
    with pytest.raises(
        ConfigurationError, match=r"lora_enabled_on_new_model\(source=model\.lora_config\.r\b"
    ):
        passing.check_supported()
    DeploymentConfig(**{"model.lora_config.r": 4, "model.lora_config": True}).check_supported()
    DeploymentConfig(**{"model.lora_config.r": 4, "model.name": "some/model"}).check_supported()


def test_lora_beside_a_new_model_that_nobody_named_is_noted() -> None:
    (note,) = DeploymentConfig(**{"model.lora_config": True}).notes()
    assert note == "config.lora_without_trained_model()"
    named = {"model.lora_config": True, "model.name": "embedded"}
    assert DeploymentConfig(**named).notes() == []
    assert DeploymentConfig(**{**named, "model.name": "owner/name"}).notes() == []


def test_qlora_of_block_wise_training_is_another_thing() -> None:
    keys = {"training.qlora_enabled": True}
    noted = "stackwise.qlora_of_block_wise_training"
    assert any(noted in note for note in DeploymentConfig(**keys).notes())
    chosen = DeploymentConfig(**keys, **{"training.mode": "blockwise"})
    assert not any(noted in note for note in [*chosen.notes(), *DeploymentConfig().notes()])


@pytest.mark.parametrize(
    ("metric", "needs"),
    [("f1", True), ("rouge1", True), ("rouge2", True), ("rougeL", True), ("exact_match", False)],
)
def test_a_measure_of_a_package_needs_it(
    metric: str, needs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = DeploymentConfig(**{"training.best_metric": metric})
    monkeypatch.setattr(cross_checks, "is_installed", lambda package: package != "torchmetrics")
    refused = f"config.best_metric_needs_torchmetrics(name={metric})"
    assert config.problems() == [refused] * needs
    monkeypatch.setattr(cross_checks, "is_installed", lambda package: True)
    assert config.problems() == []
