"""What is said of data and model before PyTorch is loaded."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from infrastructure.backup.replication.status import BackupStatus, write_status
from infrastructure.backup.run_backup import STATUS_FILE
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.errors import StorageError
from infrastructure.data.defaults import make_ready
from infrastructure.data.encoding.chat_format import shipped_templates
from infrastructure.data.preparation.plan import read_chat_template
from infrastructure.deployment import given_paths
from infrastructure.deployment.given_paths import check_given, check_measured


@pytest.fixture
def config(tmp_path: Path, saved_llama: Path) -> DeploymentConfig:
    shutil.copytree(saved_llama, tmp_path / "model")
    rows = [{"prompt": f"Reverse {n}", "completion": str(n)[::-1]} for n in range(100, 130)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return DeploymentConfig(
        model={"name": str(tmp_path / "model")},
        data={"path": str(tmp_path / "rows.jsonl")},
        output_dir=str(tmp_path / "runs"),
    )


@pytest.mark.parametrize("name", ["mine", "20260101-000000-mine-abcd"])
def test_the_name_of_a_run_is_its_model(
    config: DeploymentConfig, tmp_path: Path, name: str
) -> None:
    run = tmp_path / "runs" / "20260101-000000-mine-abcd"
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"config": {"run_name": {"value": "mine"}}}))
    config.model.name = name
    make_ready(config)
    assert config.model.name == str(run)  # which has no model yet, and that is what will be said
    (run / "final").mkdir()
    config.model.name = name
    make_ready(config)
    assert config.model.name == str(run / "final")
    is_by_person = [f"data.model_is_run(name=mine, path={run})"] * (name == "mine")
    assert [note for note in config.notes() if "data.model_is_run" in note][:1] == is_by_person


def test_the_name_of_an_own_trainers_run_is_answered_with_its_folder(
    config: DeploymentConfig, tmp_path: Path
) -> None:
    """It may be the name of a model of the Hub."""
    run = tmp_path / "runs" / "own"
    (run / "final").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    config.model.name = "own"
    with pytest.raises(ValueError, match=r"deployment\.model_named_like_run.*runs/own/final"):
        check_given(config)


def test_data_that_are_measured_on_are_not_called_training_data(config: DeploymentConfig) -> None:
    config.data.path = "nowhere.jsonl"
    with pytest.raises(ValueError, match=r"data\.path_not_found.*what=data.*path=nowhere\.jsonl"):
        check_measured(config)
    with pytest.raises(ValueError, match=r"data\.path_not_found.*path=nowhere\.jsonl"):
        check_given(config)


def test_a_place_whose_disk_is_not_there_is_refused_before_torch_is_loaded(
    config: DeploymentConfig, tmp_path: Path
) -> None:
    place = str(tmp_path / "dsik" / "temper")
    config.backup = config.backup.copy_with(place=place)
    config.data.max_length = 128
    with pytest.raises(StorageError, match=r"backup\.destination_unusable"):
        check_given(config)
    config.enable_backups = False
    check_given(config)
    config.enable_backups = True
    config.backup = config.backup.copy_with(allow_missing_place=True)
    check_given(config)
    config.backup = config.backup.copy_with(allow_missing_place=False)
    run = tmp_path / "runs" / "20260101-000000-mine-abcd"  # it may be finished and lie here
    (run / "checkpoints").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    with pytest.raises(StorageError, match=r"backup\.path_missing\(path=.*dsik\)"):
        check_given(config)
    write_status(run / "checkpoints" / STATUS_FILE, BackupStatus(place, "idle"))
    check_given(config)
    assert not (tmp_path / "dsik").exists()


def test_data_with_the_columns_of_the_run_is_measured_without_naming_them(
    config: DeploymentConfig, tmp_path: Path, saved_llama: Path
) -> None:
    columns = {"prompt_column": "they ask", "answer_column": "we reply"}
    run = tmp_path / "runs" / "mine"
    shutil.copytree(saved_llama, run / "final")
    saved = DeploymentConfig(data=columns).to_dict()
    (run / "run.json").write_text(json.dumps({"configuration": saved}))
    (run / "summary.json").write_text('{"status": "finished"}')
    (tmp_path / "rows.csv").write_text("they ask,we reply\nHow late?,Nine\nWhere?,Here\n")
    config.data.path, config.data.max_length = str(tmp_path / "rows.csv"), 128
    with pytest.raises(ValueError, match=r"data\.set_prompt_and_answer"):
        check_measured(config)
    config.model.name = str(run)
    check_measured(config)
    assert config.data.prompt_column is None, "the measurement itself takes it, and says so"


@pytest.mark.parametrize("name", ["mine@best", "20260101-000000-mine-abcd@12"])
def test_a_checkpoint_is_no_model_to_begin_with(
    config: DeploymentConfig, tmp_path: Path, name: str
) -> None:
    run = tmp_path / "runs" / "20260101-000000-mine-abcd"
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"config": {"run_name": {"value": "mine"}}}))
    config.model.name = name
    step = name.partition("@")[2]
    with pytest.raises(ValueError, match=rf"deployment\.model_is_checkpoint\(.*{run}.*{step}"):
        check_given(config)


def test_a_template_is_taken_by_the_name_that_trl_has_for_it(
    config: DeploymentConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if not shipped_templates():  # TRL 0.29, which Colab's column has
        with pytest.raises(ValueError, match=r"that TRL ships, which is older and keeps none"):
            read_chat_template("qwen3")
        return
    assert "<|im_start|>" in read_chat_template("qwen3")
    Path("qwen3").write_text("of my own")
    assert read_chat_template("qwen3") == "of my own"
    config.data.chat_template = "chatlm"
    with pytest.raises(ValueError, match=r"data\.invalid_chat_template"):
        check_given(config)


def test_rows_that_cannot_be_rounded_are_found_by_their_widths(
    saved_llama: Path, tmp_path: Path
) -> None:
    """Before torch is loaded, as far as configuration and names of weights tell."""
    (tmp_path / "d.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 8)
    odd = {f"model.layers.0.{name}.weight": np.zeros((4, 40)) for name in ("embed", "up_proj")}

    def check(name: str, **model: Any) -> None:
        check_given(
            DeploymentConfig(
                model={"name": name, "quantization_aware": "int4", **model},
                data={"path": str(tmp_path / "d.jsonl"), "max_length": 32},
                output_dir=str(tmp_path / "runs"),
            )
        )

    check(str(saved_llama))
    check("embedded", embedded={"hidden_size": 64, "intermediate_size": 128})
    with pytest.raises(
        ValueError,
        match=r"quantization_aware\.embedded_width.*setting=model\.embedded\.intermediate_size.*width=336.*wider=352",
    ):
        check("embedded")
    for values, sentence in (
        ({"model_type": "llama"}, "quantization_aware.row_size"),
        ({"model_type": "gpt2"}, "quantization_aware.conv1d_layers"),
        ({"model_type": "llava", "vision_config": {}}, "quantization_aware.text_models_only"),
    ):
        (tmp_path / "m").mkdir(exist_ok=True)
        (tmp_path / "m" / "config.json").write_text(json.dumps(values))
        (tmp_path / "m" / "tokenizer.json").write_text("{}")
        save_file(odd, tmp_path / "m" / "model.safetensors")
        with pytest.raises(ValueError, match=sentence):
            check(str(tmp_path / "m"))


@pytest.mark.parametrize(
    ("has_gpu", "settings", "how"),
    [
        (False, {"device": "cuda:1"}, "core.pytorch_sees_no_gpu(device=cuda:1)"),
        (False, {"device": "auto"}, None),
        (True, {"device": "cuda:1"}, None),
        (False, {"cuda_visible_devices": "0"}, "visible_device_not_found(devices=0)"),
        (True, {"cuda_visible_devices": "0"}, None),
        (False, {"training.mixed_precision": "fp16"}, "core.fp16_needs_gpu()"),
        (False, {"training.mixed_precision": "fp8"}, "core.fp8_needs_newer_gpu()"),
        (False, {"training.mixed_precision": "bf16"}, None),
        (True, {"training.mixed_precision": "fp16"}, None),
        (True, {"training.mixed_precision": "fp16", "device": "cpu"}, "core.fp16_needs_gpu()"),
        (False, {"model.attention": "flash_attention_2"}, "flash"),
        (True, {"model.attention": "flash_attention_2"}, None),
        (True, {"model.attention": "flash_attention_2", "device": "cpu"}, "flash"),
    ],
)
def test_what_needs_a_gpu_is_refused_where_there_is_none(
    has_gpu: bool, settings: dict[str, Any], how: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given_paths, "has_no_gpu", lambda: not has_gpu)
    config = DeploymentConfig(**settings)
    if how is None:
        given_paths.check_device(config)
        return
    with pytest.raises(ValueError, match=re.escape(how)):
        given_paths.check_device(config)


def test_a_lora_is_not_fully_fine_tuned(tmp_path: Path, config: DeploymentConfig) -> None:
    lora = tmp_path / "lora"
    lora.mkdir()
    (lora / "adapter_config.json").write_text("{}")
    for model, is_refused in (
        ({"name": str(lora)}, False),
        ({"name": str(lora), "lora_config": {"r": 4}}, False),
        ({"name": config.model.name, "lora_config": None}, False),
        ({"name": str(lora), "lora_config": None}, True),
    ):
        given = DeploymentConfig(model=model)
        if is_refused:
            of = rf"\(key=model\.lora_config, model={lora}\)"
            with pytest.raises(ValueError, match=f"lora_despite_full_fine_tuning{of}"):
                given_paths._refuse_lora_without(given)
        else:
            given_paths._refuse_lora_without(given)


def test_a_model_to_measure_is_a_folder_or_a_finished_run(
    config: DeploymentConfig, tmp_path: Path
) -> None:
    given_paths.check_model(config.model.name)
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    for path in (run, tmp_path / "rows.jsonl", tmp_path / "missing"):
        with pytest.raises(ValueError, match=re.escape(str(path))):
            given_paths.check_model(str(path))
    shutil.copytree(config.model.name, run / "final")
    given_paths.check_model(str(run))
    config.data.max_length = 128
    check_measured(config, str(run))
    with pytest.raises(ValueError, match="missing"):
        check_measured(config, str(tmp_path / "missing"))


@pytest.mark.parametrize(
    ("change", "how"),
    [
        ({"data.max_length": 100_000}, r"\(.*100000|100,000"),
        ({"data.eval_path": "nowhere.jsonl"}, r"path_not_found\(.*held-out data.*nowhere"),
        ({"training.metrics_sinks": ["nothing:Sink"]}, "nothing"),
        ({"monitor.alert_sinks": ["nothing:Sink"]}, "nothing"),
        ({"backup.place": "nothing://x"}, "nothing"),
        ({"model.quantization": "4bit"}, "quantiz"),
        ({"model.name": "rows.jsonl"}, r"rows\.jsonl"),
    ],
)
def test_what_is_given_wrongly_is_found_at_once(
    change: dict[str, Any],
    how: str,
    config: DeploymentConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    config.data.max_length = 64
    check_given(config, ["data"])
    with pytest.raises(ValueError, match=r"unknown_accepted_name\(name=dat"):
        check_given(config, ["dat"])
    for key, value in change.items():
        config.assign(key, value)
    with pytest.raises(ValueError, match=how):
        check_given(config)
    assert not (tmp_path / "runs").exists()
