"""Which settings make two trainings the same one."""

from pathlib import Path

import pytest

from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.fingerprint import (
    affects_result,
    backend_taken,
    differing_keys,
    kept_defaults,
    result_settings,
)
from infrastructure.config.schema import schema_of
from infrastructure.run.find import is_same, wanted_beside
from tests.config.field_values import other_value

FIELDS = schema_of(DeploymentConfig).fields
# As runs of before have them.
PLACES = (
    *("model.name", "data.path", "data.eval_path", "data.chat_template"),
    *("training.teacher", "training.multimodal.vision_tower"),
)
# A new key fails the test below until somebody has decided on which side it is.
COUNT = """
model.name backend adapter train_vision quantization quantization_aware lora_config lora_config.r
lora_config.alpha
lora_config.dropout lora_config.target_modules lora_config.use_dora lora_config.use_rslora

dtype attention trust_remote_code revision
embedded.hidden_size embedded.num_layers embedded.num_heads
embedded.intermediate_size embedded.vocab_size embedded.max_positions
data.path eval_path format encoding shape prompt_column answer_column context_column text_column
image_column image_background task_column
max_length over_length packing train_on validation_split streaming buffer_size memory_limit
augmentation chat_template
training.method rewards teacher beta num_generations max_completion_length temperature
method_settings strategy num_epochs max_steps batch_size gradient_accumulation learning_rate
weight_decay
warmup_steps scheduler_type max_grad_norm optimizer   mixed_precision
gradient_checkpointing compile_mode memory_efficient_attention seed validation_interval
validation_frequency validation_prompts early_stopping_patience
layerwise_lr_decay
 curriculum_stages curriculum_by
enabled_extensions memory.layer memory.slots memory.heads memory.width memory.store
multimodal.vision_tower
extension_learning_rate optimization_frequency mode block_size
best_metric best_metric_mode
local_loss reconstruct_weight cache_activations cache_dtype end_to_end_scope
progressive.target_stacks progressive.trunk_strategy progressive.new_stack_precision
progressive.growth progressive.init time_interpretation corruption mask_weighting
time_step_masking num_time_steps time_step_bins time_step_mask_fractions store_all_time_steps
time_step_cache_size quantization_enabled quantization_type backbone_quantized
adapters_full_precision qlora_enabled qlora_rank qlora_alpha qlora_dropout qlora_lr
qlora_progressive_enabled qlora_strategy qlora_ranks cache_mode loss settings
quantum.problem data_budget target candidates num_blocks
solver max_qubits fallback max_overhead_percent timeout
"""
# These say where, how fast, how safely and how visibly the same is computed.
SAME_RESULT = """
data.num_workers prefetch_factor pin_memory max_bad_rows_percent accept_small_data
training.checkpoint_interval checkpoint_frequency checkpoint_seconds keep_checkpoints
gradient_checkpointing_mode keep_best   deadline
log_frequency metrics metrics_sinks shard
recovery.out_of_memory recovery.not_finite recovery.loss_spike
cache_dir cache_storage cache_size save_stacks save_rack
"""
OUTSIDE = ("backup.", "cache.", "memory.", "monitor.", "resources.gpu.")
ROOT = {key for key in FIELDS if "." not in key}


def keys_in(text: str) -> set[str]:
    found, section = set(), ""
    for word in text.split():
        first, dot, rest = word.partition(".")
        if dot and first in ("model", "data", "training", "quantum"):
            section, word = first, rest
        found.add(f"{section}.{word}")
    return found


def test_every_key_is_on_one_side() -> None:
    inside = {key for key in FIELDS if not key.startswith(OUTSIDE)} - ROOT
    assert keys_in(COUNT) | keys_in(SAME_RESULT) == inside
    assert not keys_in(COUNT) & keys_in(SAME_RESULT)
    assert {key for key in FIELDS if affects_result(key)} == keys_in(COUNT)


def test_the_quantum_step_counts_where_there_is_one() -> None:
    plain, other = DeploymentConfig(), DeploymentConfig(**{"quantum.data_budget": 0.5})
    assert result_settings(other) == result_settings(plain)
    assert not [key for key in result_settings(plain) if "quantum." in key]
    on = {"training.optimization_frequency": 10}
    found = result_settings(DeploymentConfig(**on, **{"quantum.data_budget": 0.5}))
    assert [*differing_keys(result_settings(DeploymentConfig(**on)), found)] == [
        "quantum.data_budget"
    ]


@pytest.mark.parametrize("key", ["quantum.max_overhead_percent", "quantum.timeout"])
def test_whether_there_is_time_for_a_quantum_step_decides_what_is_trained(key: str) -> None:
    on = {"training.optimization_frequency": 10}
    was = result_settings(DeploymentConfig(**on))
    now = result_settings(DeploymentConfig(**on, **{key: other_value(FIELDS[key])}))
    assert [*differing_keys(was, now)] == [key]


def test_the_number_of_prompts_counts_where_their_answers_end_a_training() -> None:
    key = "training.validation_prompts"
    by_answers = {"training.best_metric": "exact_match", "training.early_stopping_patience": 2}
    for given, differing in ((by_answers, [key]), ({"training.early_stopping_patience": 2}, [])):
        was, now = (result_settings(DeploymentConfig(**given, **{key: n})) for n in (320, 8))
        assert [*differing_keys(was, now)] == differing


@pytest.mark.parametrize(
    "key", sorted({*keys_in(SAME_RESULT), *ROOT, "backup.place", "cache.disk_size"})
)
def test_what_does_not_count_leaves_the_purpose_as_it_is(key: str) -> None:
    other = DeploymentConfig(**{key: other_value(FIELDS[key])})
    assert result_settings(other) == result_settings(DeploymentConfig())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("training.seed", 1), ("data.packing", False), ("model.lora_config.r", 4)],
        *[("training.settings", {"stages": 3}), ("training.loss", "my_losses:focal")],
    ],
)
def test_what_counts_makes_it_another(key: str, value: object) -> None:
    was, found = (
        result_settings(DeploymentConfig()),
        result_settings(DeploymentConfig(**{key: value})),
    )
    assert key in list(differing_keys(was, found))


def test_a_mapping_counts_by_what_it_holds_where_that_was_recorded() -> None:
    key = "training.settings"
    was, found = (result_settings(DeploymentConfig(**{key: {"stages": n}})) for n in (3, 4))
    assert list(differing_keys(was, found)) == [key]


@pytest.mark.parametrize("key", PLACES)
def test_a_path_that_is_gone_counts_by_its_name(key: str, tmp_path: Path) -> None:
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rows.jsonl").write_text("{}")
    was, found = (
        result_settings(DeploymentConfig(**{key: str(tmp_path / folder / "rows.jsonl")}))
        for folder in ("old", "new")
    )
    assert list(differing_keys(was, found)) == [key]
    (tmp_path / "old/rows.jsonl").unlink()
    assert list(differing_keys(was, found)) == []
    for other in (str(tmp_path / "new/others.jsonl"), None, "owner/rows.jsonl"):
        is_moved = other == "owner/rows.jsonl"  # to the hub, by the same name
        assert list(differing_keys(was, {**found, key: other})) == ([] if is_moved else [key])
    assert list(differing_keys({**was, key: "owner/rows.jsonl"}, found)) == [key]


def test_what_else_lay_somewhere_counts_in_full(tmp_path: Path) -> None:
    was, found = ({"training.loss": str(tmp_path / n / "a")} for n in ("old", "new"))
    assert list(differing_keys(was, found)) == ["training.loss"]


@pytest.mark.parametrize("key", PLACES)
def test_a_path_means_the_same_from_any_folder(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.jsonl").write_text("{}")
    absolute = result_settings(DeploymentConfig(**{key: str(tmp_path / "rows.jsonl")}))
    monkeypatch.chdir(tmp_path)
    relative = result_settings(DeploymentConfig(**{key: "rows.jsonl"}))
    assert relative[key] == absolute[key] == str(tmp_path / "rows.jsonl")
    assert list(differing_keys(absolute, relative)) == []


def test_a_run_of_before_there_were_encodings_is_the_same_training() -> None:
    now = result_settings(DeploymentConfig())
    before = {key: value for key, value in now.items() if key != "data.encoding"}
    assert list(differing_keys(before, now)) == []
    assert list(differing_keys(before, {**now, "data.encoding": "cp1252"})) == ["data.encoding"]


@pytest.mark.parametrize(
    ("recorded", "backend"),
    [({}, "transformers"), ({"model.backend": "auto"}, "transformers")]
    + [({"model.backend": name}, name) for name in ("transformers", "unsloth")],
)
def test_what_has_loaded_a_model_is_of_its_record(recorded: dict[str, str], backend: str) -> None:
    assert backend_taken(recorded) == backend


def test_settings_that_no_longer_exist_start_no_second_run_unless_they_had_been_set() -> None:
    recorded = DeploymentConfig(**{"model.lora_config": {"r": 4}}).to_dict()
    recorded["values"]["training"]["gone"] = True
    recorded["values"]["gone_section"] = {"size": 3}
    began = DeploymentConfig.from_dict(recorded)
    wanted = DeploymentConfig(**{"model.lora_config": {"r": 4}})
    assert result_settings(began) == result_settings(wanted)
    checkpoint = {**result_settings(wanted), "training.gone": True, "gone_section.size": 3}
    assert is_same(checkpoint, result_settings(wanted), ())
    for key in ("training.gone", "gone_section.size"):
        given = {**recorded["sources"], key: {"layer": "flag", "place": "--gone"}}
        with pytest.raises(ConfigurationError, match=r"gone"):
            DeploymentConfig.from_dict({**recorded, "sources": given})


def test_a_run_keeps_the_defaults_of_the_version_in_which_it_began() -> None:
    recorded = DeploymentConfig(**{"data.packing": False}).to_dict()
    recorded["values"]["training"]["weight_decay"] = 0.5  # the default then
    began = DeploymentConfig.from_dict(recorded)
    assert kept_defaults(DeploymentConfig(), began) == {"training.weight_decay": 0.5}
    assert kept_defaults(DeploymentConfig(**{"training.weight_decay": 0.25}), began) == {}
    assert kept_defaults(began, began) == {}
    settings = result_settings(began)
    packed = DeploymentConfig()  # packing was given then, and is not given now
    assert not is_same(settings, wanted_beside(began, packed), ())
    assert is_same(settings, wanted_beside(began, DeploymentConfig(**{"data.packing": False})), ())
