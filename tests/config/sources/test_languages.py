"""A sentence about settings speaks the language of whoever gave them."""

from keyword import iskeyword
from pathlib import Path

import pytest

import temper
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.flags import key_of_keyword
from infrastructure.config.sources.languages import in_flags, in_keys, in_keywords
from infrastructure.config.sources.load import load_config


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ('training.batch_size must be above 0, not "0" (--bs)', '--bs must be above 0, not "0"'),
        (
            'data.buffer_size = 9 (--buffer-size) has no effect: set data.streaming, or "none"',
            '--buffer-size 9 has no effect: set --streaming, or "none"',
        ),
        ("data.eval_path = x (argument data.path) is no file", "--eval-data x is no file"),
        ("data.path must be a path (argument data.path)", "DATA must be a path"),
        ("model.lora_config = false (--no-lora) is odd", "--no-lora is odd"),
        ("give a machine more memory, or training.packed", "give a machine more memory, or "),
        ("device must be cpu (--device)", "--device must be cpu"),
        ("the device must be warm", "the device must be warm"),
        ('training.batch_size must be x, not "a" (environment BATCH_SIZE)', "BATCH_SIZE must be x"),
        ("something is odd (--bs)", "something is odd (--bs)"),  # named nowhere else
        ("it is odd (environment BATCH_SIZE)", "it is odd (environment BATCH_SIZE)"),
        ("give run_name, or output_dir.", "give --name, or --output."),
        ("runs/data.path/x and data.pathology stay", "runs/data.path/x and data.pathology stay"),
        (
            "training.batch_size must be x (a.yaml:2: training.batch_size); or data.packing",
            "training.batch_size must be x (a.yaml:2: training.batch_size); or data.packing",
        ),
    ],
)
def test_a_command_line_reads_of_flags(sentence: str, shown: str) -> None:
    assert in_flags(sentence).startswith(shown)


def test_python_reads_of_keywords() -> None:
    sentence = "data.packing = true (keyword data.packing) needs data.max_length; --new-run helps"
    assert in_keywords(sentence) == "packing=True needs max_length; new_run=True helps"
    assert in_keywords("--help and --no-lora") == "--help and lora=False"
    with pytest.raises(ValueError, match=r"^batch_size must be a whole number .*, not 0$"):
        temper.train(batch_size=0)


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        (
            "set data.shape=text, or data.prompt_column=a.b",
            'set data_shape="text", or prompt_column="a.b"',
        ),
        ('data.text_column="my text" (or', 'text_column="my text" (or'),
        ("data.path = rows/a.jsonl is", 'data="rows/a.jsonl" is'),
        ("training.rewards is empty", "rewards is empty"),
        ("training.compile_mode = none", "compile_mode=None"),
        ("model.lora_config.r must be 8", "lora_r must be 8"),
        ("add --accept data,seed", 'add accept=["data", "seed"]'),
        ("add --accept data --accept seed", 'add accept=["data", "seed"]'),
        ("--accept 'sed': no", 'accept=["sed"]: no'),
        ("with --compile-mode none --accept seed", 'with compile_mode=None, accept=["seed"]'),
        ("`temper train DATA --new-run` trains", "new_run=True in temper.train trains"),
        ("a.yaml:2: data.path; --new-run", "a.yaml:2: data.path; new_run=True"),
        ("--epochs 12, or a higher --learning-rate", "epochs=12, or a higher learning_rate"),
        ("--name has no effect", "name has no effect"),
        ("--num-processes auto takes all", 'num_processes="auto" takes all'),
        ("unknown key 'x'; did you mean 'data.path'?", "unknown keyword 'x'; did you mean 'data'?"),
        ("unknown key 'x'; did you mean 'y.z'?", "unknown keyword 'x'; did you mean 'y.z'?"),
        ("temper ask runs/a --system 'b'", "temper ask runs/a --system 'b'"),
    ],
)
def test_python_reads_what_it_can_be_given(sentence: str, shown: str) -> None:
    assert in_keywords(sentence) == shown


def test_every_setting_has_a_keyword_of_its_own() -> None:
    for key in schema_of(DeploymentConfig).fields:
        keyword = in_keywords(f"{key} must be so").removesuffix(" must be so")
        assert keyword.isidentifier()
        assert not iskeyword(keyword)
        assert keyword == "data" or key_of_keyword(keyword) == key


def test_an_argument_that_is_no_setting_is_a_keyword_too() -> None:
    sentence = "4 answers were cut; --max-tokens gives them more; --as is not Python's"
    assert (
        in_keywords(sentence)
        == "4 answers were cut; max_tokens gives them more; --as is not Python's"
    )
    assert in_flags(sentence) == sentence


def test_a_file_reads_of_its_keys_and_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("training:\n  batch_size: 0\n")
    with pytest.raises(ValueError, match=r"training\.batch_size must be ") as raised:
        load_config(path, environment={})
    sentence = str(raised.value)
    assert sentence.endswith(f"({path}:2: training.batch_size)")
    assert in_flags(sentence) == in_keywords(sentence) == sentence


def test_who_made_a_configuration_reads_of_its_keys() -> None:
    given = "20 steps are few: --epochs 12, or a higher --learning-rate; backup.place copies --help"
    assert in_keys(given) == (
        "20 steps are few: training.num_epochs 12, or a higher training.learning_rate;"
        " backup.place copies --help"
    )
