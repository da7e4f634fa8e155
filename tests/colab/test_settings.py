"""A cell's settings lie over the file and under the environment; an empty `#@param` is no value."""

from pathlib import Path

import pytest

from colab import configure
from infrastructure.config.merging.precedence import Layer


@pytest.fixture(autouse=True)
def nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable and no file of this machine."""
    monkeypatch.chdir(tmp_path)
    for name in ("MODEL_NAME", "BATCH_SIZE", "TEMPER_PRESET", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def test_the_cell_goes_before_preset_and_file(tmp_path: Path) -> None:
    (tmp_path / ".config").mkdir()
    text = "training:\n  batch_size: 3\n  seed: 7\n"
    (tmp_path / ".config/training_config.yaml").write_text(text)
    config = configure("quick", batch_size=5)
    assert config.batch_size == 5
    assert config.source("training.batch_size").place == "cell batch_size"
    assert config.training.seed == 7
    assert config.source("training.max_steps").layer is Layer.PRESET


def test_the_environment_goes_before_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH_SIZE", "2")
    monkeypatch.setenv("TEMPER_PRESET", "ci")
    config = configure("thorough", batch_size=5, **{"training.max_steps": 99})
    assert config.batch_size == 2
    assert config.training.max_steps == 6
    assert config.source("training.max_steps").place == "preset ci (environment TEMPER_PRESET)"


def test_another_file_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("data:\n  max_length: 99\n")
    assert configure(config_file=tmp_path / "mine.yaml").data.max_length == 99


def test_what_nobody_filled_in_is_not_given() -> None:
    config = configure("", data_path="", run_name="", cuda_visible_devices="")
    assert config.data.path is None
    assert config.run_name is None
    assert config.cuda_visible_devices == ""


@pytest.mark.parametrize("typed", ["4", 4, 4.0])
def test_a_param_of_text_or_number_is_the_same_value(typed: object) -> None:
    assert configure(batch_size=typed).batch_size == 4


def test_settings_of_a_session_go_in_by_their_keys() -> None:
    config = configure(**{"output_dir": "here", "backup.place": "there", "training.deadline": 3600})
    assert (config.output_dir, config.backup.place, config.training.deadline) == (
        "here",
        "there",
        3600,
    )


def test_a_wrong_value_is_reported_with_its_place() -> None:
    with pytest.raises(
        ValueError, match=r"setting=training\.batch_size.*value=0.* \(cell batch_size\)"
    ):
        configure(batch_size=0)
    with pytest.raises(ValueError, match=r"unknown_key_meant\(key=batchsize, meant='batch_size'"):
        configure(batchsize=1)


def test_the_keywords_of_train_are_taken() -> None:
    config = configure(
        "none", model=Path("my-llama"), data="chats.jsonl", lora=True, quantization="4bit"
    )
    assert (config.model.name, config.data.path) == ("my-llama", "chats.jsonl")
    assert config.model.lora_config is not None
    assert config.model.quantization == "4bit"
    assert config.source("model.name").place == "cell model"
    assert configure(max_steps=3, backup_place="there").training.max_steps == 3


def test_a_section_can_be_a_mapping() -> None:
    config = configure(model={"name": "my-llama", "lora_config": {"r": 4}}, lora={"alpha": 8})
    lora = config.model.lora_config
    assert lora is not None
    assert (config.model.name, lora.r, lora.alpha) == ("my-llama", 4, 8)
    assert config.source("model.lora_config.alpha").place == "cell lora.alpha"


def test_two_spellings_of_one_setting_must_agree() -> None:
    with pytest.raises(ValueError, match=r"cell backup_place.*cell backup\.place.*both_mean"):
        configure(backup_place="here", **{"backup.place": "there"})


def test_messages_name_the_keywords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEMPER_MESSAGES")
    for given, meant in {
        "loraa": "lora",
        "quantisation": "quantization",
        "no_lora": "lora",
    }.items():
        with pytest.raises(ValueError, match=f"'{given}'.*'{meant}'"):
            configure(**{given: True})
    with pytest.raises(ValueError, match=r"^max_steps must be .* \(cell max_steps\)$"):
        configure(max_steps=-1)
