"""A message spells settings as its reader gives them: flags, keywords, keys, or as they came."""

import inspect
from keyword import iskeyword
from pathlib import Path

import pytest

import colab
import temper
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.flags import as_flag, key_of_flag, key_of_keyword
from infrastructure.config.sources.load import load_config
from infrastructure.config.sources.spelling import as_keyword, speaking
from infrastructure.core.errors import InputError
from infrastructure.core.messages import WORDS, Setting, as_key, speller

FIELDS = schema_of(DeploymentConfig).fields


def test_every_setting_has_a_flag_and_a_keyword_that_set_it() -> None:
    for key in FIELDS:
        assert key_of_flag(as_flag(key)) == key, key
        keyword = as_keyword(key)
        assert keyword.isidentifier(), key
        assert not iskeyword(keyword), key
        assert keyword == "data" or key_of_keyword(keyword) == key, key


@pytest.mark.parametrize(
    ("key", "value", "flag", "keyword"),
    [
        ("data.shape", "text", "--data-shape text", 'data_shape="text"'),
        ("data.prompt_column", "a.b", "--prompt-column a.b", 'prompt_column="a.b"'),
        ("training.learning_rate", "1e-4", "--learning-rate 1e-4", "learning_rate=1e-4"),
        ("num_processes", "auto", "--num-processes auto", 'num_processes="auto"'),
        ("model.lora_config", "false", "--no-lora", "lora=False"),
        ("model.lora_config", "none", "--no-lora", "lora=None"),
        ("run_name", "mine", "--name mine", 'name="mine"'),
        ("run_name", "12", "--name 12", 'name="12"'),
        ("run_name", "true", "--name true", 'name="true"'),
        ("training.seed", "none", "--seed none", 'seed="none"'),
        ("training.seed", "12", "--seed 12", "seed=12"),
        ("training.learning_rate", "0.001", "--learning-rate 0.001", "learning_rate=0.001"),
        ("training.max_grad_norm", "none", "--max-grad-norm none", "max_grad_norm=None"),
        ("training.mixed_precision", "true", "--mixed-precision true", "mixed_precision=True"),
        ("data.packing", "true", "--packing", "packing=True"),
        ("data.packing", "", "--packing", "packing"),
        ("data.path", "my file", "--data-path 'my file'", 'data="my file"'),
        ("data.prompt_column", "größe", "--prompt-column 'größe'", 'prompt_column="größe"'),
        ("accept", "a,ö", "--accept a,ö", 'accept=["a", "ö"]'),
        ("accept", "", "--accept", "accept"),
        ("file_format", "ö", "--format ö", 'file_format="ö"'),
        ("output_dir", "", "--output", "output_dir"),
        ("training.rewards", "a", "--reward a", 'rewards="a"'),
        ("preset", "quick", "--preset quick", 'preset="quick"'),
        ("accept", "sed", "--accept sed", 'accept=["sed"]'),
        ("a.yaml:2: data.path", "", "a.yaml:2: data.path", "a.yaml:2: data.path"),
        ("interrupt", "", "Ctrl-C", "Ctrl-C"),
    ],
)
def test_a_value_is_spelled_so_that_it_can_be_typed(
    key: str, value: str, flag: str, keyword: str
) -> None:
    assert as_flag(key, value) == flag
    assert as_keyword(key, value) == keyword


def test_an_error_that_leaves_a_door_keeps_its_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORDS)
    with pytest.raises(InputError) as raised, speaking(as_flag):
        raise InputError("config.setting_says", setting=Setting("data.path"), reason="no")
    assert str(raised.value) == "--data-path: no"
    assert speller() is as_key
    with pytest.raises(ValueError, match=r"^batch_size\b.*\b0$"):
        temper.train(batch_size=0)


def test_a_file_reads_of_its_keys_and_lines_through_any_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WORDS)
    path = tmp_path / "a.yaml"
    path.write_text("training:\n  batch_size: 0\n")
    for spell in (as_flag, as_keyword, as_key):
        with pytest.raises(ValueError, match=r"^training\.batch_size\b") as raised, speaking(spell):
            load_config(path, environment={})
        assert str(raised.value).endswith(f"({path}:2: training.batch_size)")


def test_arguments_of_an_export_are_spelled_as_the_function_or_the_command_takes_them() -> None:
    spelled = {
        ("part", "merged"): ("--as merged", 'part="merged"'),
        ("bits", "4"): ("--bits 4", "bits=4"),
        ("file_format", "gguf"): ("--format gguf", 'file_format="gguf"'),
    }
    assert {one: (as_flag(*one), as_keyword(*one)) for one in spelled} == spelled
    takes = inspect.signature(colab.export).parameters
    assert {key for key, _ in spelled} <= takes.keys()
