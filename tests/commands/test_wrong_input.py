"""Whatever a person gets wrong ends in exit code 2 and one sentence: what, where, what to do.

A row: what is wrong, the files it needs, the command line, words that the sentence must have.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from infrastructure.commands.main import main
from infrastructure.core.exit_codes import ExitCode

Files = dict[str, bytes | str]


@dataclass(frozen=True)
class Wrong:
    what: str
    command: str
    words: list[str]
    files: Files = field(default_factory=dict)


GOOD_ROW = json.dumps({"prompt": "Say a.", "completion": "a"})
GOOD_DATA = "\n".join([GOOD_ROW] * 40)
CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
PREFERENCE = {"prompt": "a", "chosen": "b", "rejected": "c"}
ROW = {"prompt": "Say b.", "completion": "b"}
REAL_TOKENIZER = "the tokenizer of the tests' small model"
RUN = json.dumps({"configuration": {"values": {}, "sources": {}}})
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}

DEEP = "[" * 5000 + "]" * 5000
LAUGHS = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n + 1}: &a{n + 1} {{x: *a{n}, y: *a{n}}}\n" for n in range(30)
)

CONFIGURATION = [
    Wrong("unknown flag", "train --batchsize 4", ["--batchsize", "--batch-size"]),
    Wrong("unknown command", "tran", ["tran", "train"]),
    Wrong("text for a number", "config --batch-size many", ["batch_size", "many"]),
    Wrong("number out of range", "config --batch-size 0", ["batch_size", "at least 1"]),
    Wrong("share out of range", "config --validation-split 1.5", ["validation_split", "1.5"]),
    Wrong("unknown choice", "config --scheduler-type cosin", ["scheduler_type", "cosine"]),
    Wrong("negative learning rate", "config --learning-rate -1", ["learning_rate"]),
    Wrong("a folder that is no UTF-8", "train --output runs\udce9", ["output_dir", "UTF-8"]),
    Wrong("a place that is no UTF-8", "train --backup-place \udce9", ["backup.place", "UTF-8"]),
    Wrong("a model that is no UTF-8", "train --model ./m\udce9", ["model.name", "UTF-8"]),
    Wrong("infinite learning rate", "config --learning-rate inf", ["learning_rate"]),
    Wrong("one checkpoint only", "config --keep-checkpoints 1", ["keep_checkpoints", "2"]),
    Wrong("flag without value", "config --batch-size", ["--batch-size"]),
    Wrong("config file missing", "config --config nowhere.yaml", ["nowhere.yaml"]),
    Wrong(
        "config file is not YAML",
        "config --config bad.yaml",
        ["bad.yaml:3", "not valid YAML"],
        {"bad.yaml": "training:\n  batch_size: [1\n"},
    ),
    Wrong(
        "config file is a list",
        "config --config list.yaml",
        ["list.yaml"],
        {"list.yaml": "- 1\n- 2\n"},
    ),
    Wrong(
        "unknown key in a file",
        "config --config typo.yaml",
        ["bath_size", "batch_size"],
        {"typo.yaml": "training:\n  bath_size: 4\n"},
    ),
    Wrong(
        "unknown section in a file",
        "config --config typo.yaml",
        ["unknown key 'trainning'; did you mean 'training'?"],
        {"typo.yaml": "trainning:\n  batch_size: 4\n"},
    ),
    Wrong(
        "a key twice",
        "config --config twice.yaml",
        ["twice.yaml", "batch_size"],
        {"twice.yaml": "training:\n  batch_size: 4\n  batch_size: 8\n"},
    ),
    Wrong(
        "aliases that stand for a billion values",
        "config --config laughs.yaml",
        ["laughs.yaml:", "stands for more than 5000 values"],
        {"laughs.yaml": LAUGHS},
    ),
    Wrong(
        "5,000 nested brackets",
        "config --config deep.yaml",
        ["deep.yaml", "nested deeper than 50 levels"],
        {"deep.yaml": "training: " + DEEP},
    ),
    Wrong(
        "5,000 nested brackets in a flag",
        f"config --metrics-sinks {DEEP}",
        ["metrics_sinks must be a list"],
    ),
    Wrong(
        "two spellings that disagree",
        "config --config two.yaml",
        ["data.batch_size", "training.batch_size"],
        {"two.yaml": "training:\n  batch_size: 4\ndata:\n  batch_size: 8\n"},
    ),
    Wrong(
        "epochs and steps for one thing",
        "config --checkpoint-interval 2 --checkpoint-frequency 100",
        ["checkpoint_interval", "checkpoint_frequency"],
    ),
    Wrong("a size that is none", "config --memory-limit 8XB", ["memory_limit", "8XB"]),
    Wrong("a sink twice", "config --metrics-sinks csv,csv", ["metrics_sinks", "once"]),
    Wrong("too many to count", f"config --batch-size {10**12}", ["batch_size", "2147483647"]),
    Wrong("a setting without effect", "train --buffer-size 9", ["buffer_size", "streaming"]),
    Wrong("a value of later", "train --model-adapter dialogue", ["adapter", "not there yet"]),
    Wrong("a secret for a name", f"train --run-name hf_{'aB' * 17}", ["run_name must be a name"]),
    Wrong("a mode that there is not", "train --mode sidewise", ["mode", "blockwise"]),
    Wrong(
        "a strategy with a slip",
        "train --strategy progresive",
        ["training.strategy", "did you mean 'progressive'?", "auto"],
    ),
    Wrong("a storage that there is not", "train --quantization-type nf_fp4", ["nf_fp8", "nf4"]),
    Wrong("a corruption that there is not", "train --corruption maks", ["did you mean 'mask'?"]),
    Wrong("QLoRA of other tools", "train --qlora", ["--lora --quantization 4bit"]),
    Wrong("two LoRAs", "train --qlora-enabled --lora", ["model.lora_config"]),
    Wrong("weights that cannot train", "train --quantization-enabled", ["qlora_enabled"]),
    Wrong("what there is not", "train --fsdp", ["not split over GPUs", "--num-processes"]),
    Wrong("no command", "search", ["unknown command 'search'", "train-resume"]),
    Wrong(
        "llama.cpp's model",
        "train rows.jsonl --model m.gguf",
        ["is a GGUF file", "temper export", "convert_hf_to_gguf.py"],
        {"rows.jsonl": GOOD_DATA, "m.gguf": b"GGUF"},
    ),
    Wrong("a GPU that is not there", "train --device cuda:7", ["cuda:7"]),
    Wrong("fp16 on a CPU", "train --mixed-precision fp16 --device cpu", ["fp16", "GPU"]),
]

DATA = [
    Wrong(
        "a web address for data",
        "train https://me:letmein@example.org/rows.jsonl",
        ["https://***@example.org/rows.jsonl", "is a web address"],
    ),
    Wrong("a file that is no UTF-8 missing", "train no\udce9.jsonl", ["there is no"]),
    Wrong("data file missing", "train nowhere.jsonl", ["nowhere.jsonl"]),
    Wrong("data file empty", "train empty.jsonl", ["empty.jsonl"], {"empty.jsonl": ""}),
    Wrong(
        "preferences as text",
        "train pairs.jsonl",
        ["preference training", "data.prompt_column=prompt and data.answer_column=chosen"],
        {"pairs.jsonl": "\n".join([json.dumps(PREFERENCE)] * 9)},
    ),
    Wrong(
        "preferences as chats",
        "train chats.jsonl",
        ["preference training", "write 'chosen' into a column 'messages'"],
        {"chats.jsonl": "\n".join([json.dumps({"chosen": CHAT, "rejected": CHAT})] * 9)},
    ),
    Wrong("data folder empty", "train folder", ["folder"], {"folder/.keep": ""}),
    Wrong(
        "a zip archive for data",
        "train data.zip",
        ["data.zip is no whole zip archive", "cut off"],
        {"data.zip": b"PK\x03\x04" + bytes(30)},
    ),
    Wrong("unknown extension", "train data.xyz", ["data.xyz"], {"data.xyz": "hello"}),
    Wrong(
        "mostly broken JSON",
        "train broken.jsonl",
        ["broken.jsonl", "max_bad_rows_percent"],
        {"broken.jsonl": "\n".join([GOOD_ROW, "{", "[", '{"prompt": 1'])},
    ),
    Wrong(
        "invalid UTF-8",
        "train latin.jsonl",
        ["latin.jsonl", "UTF-8"],
        {"latin.jsonl": b'{"prompt": "\xe4\xf6", "completion": "\xff"}\n' * 9},
    ),
    Wrong(
        "a page instead of data",
        "train page.jsonl",
        ["page.jsonl", "web page", "fetch the raw file"],
        {"page.jsonl": "<!DOCTYPE html><html><body>404</body></html>"},
    ),
    Wrong(
        "columns that say nothing",
        "train odd.jsonl",
        ["odd.jsonl", "alpha", "beta"],
        {"odd.jsonl": '{"alpha": "1", "beta": "2"}\n' * 20},
    ),
    Wrong(
        "a prompt column that is not there",
        "train data.jsonl --prompt-column questoin",
        ["questoin"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "an unknown shape",
        "train data.jsonl --data-shape alpacca",
        ["alpacca", "alpaca"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "an unknown format",
        "train data.jsonl --data-format jsonn",
        ["jsonn", "json"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "empty answers",
        "train hollow.jsonl",
        ["hollow.jsonl"],
        {"hollow.jsonl": '{"prompt": "a", "completion": ""}\n' * 20},
    ),
    Wrong(
        "held-out file missing",
        "train data.jsonl --eval-data nowhere.jsonl",
        ["nowhere.jsonl"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a damaged Parquet file",
        "train data.parquet",
        ["data.parquet"],
        {"data.parquet": b"PAR1 not really PAR1"},
    ),
    Wrong(
        "a damaged HDF5 file",
        "train data.h5",
        ["data.h5"],
        {"data.h5": b"\x89HDF\r\n\x1a\n" + b"\0" * 64},
    ),
    Wrong(
        "5,000 nested brackets in each row",
        "train deep.jsonl",
        ["deep.jsonl:1", "nested deeper than 100 levels"],
        {"deep.jsonl": f'{{"prompt": {DEEP}, "completion": "a"}}\n' * 9},
    ),
    Wrong(
        "5,000 nested brackets in a document",
        "train deep.json",
        ["deep.json:1", "nested deeper than 100 levels"],
        {"deep.json": f'[{{"prompt": {DEEP}}}]'},
    ),
    Wrong(
        "a CSV whose rows are too short",
        "train ragged.csv",
        ["ragged.csv"],
        {"ragged.csv": "prompt,completion\n" + "only one\n" * 20},
    ),
    Wrong("a model that needs data", "train --model-name ./folder", ["folder"]),
]

MODEL = [
    Wrong(
        "model folder missing",
        "train data.jsonl --model ./nowhere",
        ["nowhere", "no such folder"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "folder without a model",
        "train data.jsonl --model ./folder",
        ["folder", "config.json"],
        {"data.jsonl": GOOD_DATA, "folder/readme.txt": "hello"},
    ),
    Wrong(
        "a file for a model",
        "train data.jsonl --model ./data.jsonl",
        ["data.jsonl", "folder"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "model without weights",
        "train data.jsonl --model ./folder",
        ["folder", "weights"],
        {
            "data.jsonl": GOOD_DATA,
            "folder/config.json": json.dumps(LLAMA),
            "folder/tokenizer.json": REAL_TOKENIZER,
            "folder/tokenizer_config.json": REAL_TOKENIZER,
        },
    ),
    Wrong(
        "pickled weights",
        "train data.jsonl --model ./folder",
        ["folder", "pickled", "safe_serialization"],
        {
            "data.jsonl": GOOD_DATA,
            "folder/config.json": json.dumps(LLAMA),
            "folder/tokenizer.json": REAL_TOKENIZER,
            "folder/tokenizer_config.json": REAL_TOKENIZER,
            "folder/pytorch_model.bin": b"\x80\x04.",
        },
    ),
    Wrong(
        "damaged weights",
        "train data.jsonl --model ./folder",
        ["model.safetensors", "damaged"],
        {
            "data.jsonl": GOOD_DATA,
            "folder/config.json": json.dumps(LLAMA),
            "folder/tokenizer.json": REAL_TOKENIZER,
            "folder/tokenizer_config.json": REAL_TOKENIZER,
            "folder/model.safetensors": b"\xff" * 100,
        },
    ),
    Wrong(
        "model configuration that is no JSON",
        "train data.jsonl --model ./folder",
        ["folder"],
        {"data.jsonl": GOOD_DATA, "folder/config.json": "{"},
    ),
    *(
        Wrong(
            f"5,000 nested brackets in {name}",
            "train data.jsonl --model ./folder",
            ["folder", words],
            {
                "data.jsonl": GOOD_DATA,
                "folder/config.json": json.dumps(LLAMA),
                "folder/tokenizer.json": REAL_TOKENIZER,
                "folder/tokenizer_config.json": REAL_TOKENIZER,
                f"folder/{name}": f'{{"a": {DEEP}}}',
            },
        )
        for name, words in (
            ("config.json", "nested deeper than 100 levels"),
            ("tokenizer_config.json", "tokenizer cannot be loaded"),
            ("adapter_config.json", "nested deeper than 100 levels"),
            ("model.safetensors.index.json", "nested deeper than 100 levels"),
            ("tokenizer.json", "tokenizer cannot be loaded"),
        )
    ),
    Wrong(
        "heads that do not divide the width",
        "train --embedded-hidden-size 100 --embedded-num-heads 7",
        ["hidden_size", "num_heads"],
    ),
    Wrong("output that is a file", "train --output file", ["file"], {"file": ""}),
]

VERSION = f"{3:012d}-blake3-{'ab' * 32}"
CHECKPOINT = [
    Wrong("no run to go on with", "train-resume", ["runs", "temper train"]),
    Wrong("a run that is not there", "train-resume nowhere", ["nowhere"]),
    Wrong(
        "a run without checkpoints",
        "train-resume runs/a",
        ["no checkpoint"],
        {"runs/a/run.json": RUN},
    ),
    Wrong(
        "a step that was not saved",
        "train-resume a@7",
        ["step '7'"],
        {"runs/a/run.json": "{}"},
    ),
    Wrong(
        "a damaged run.json",
        "train-resume runs/a",
        ["run.json"],
        {"runs/a/run.json": "{", f"runs/a/checkpoints/versions/{VERSION}.json": "{}"},
    ),
    Wrong(
        "a damaged checkpoint",
        f"train-resume runs/a/checkpoints/versions/{VERSION}.json",
        ["manifest", "not what was written"],
        {"runs/a/run.json": RUN, f"runs/a/checkpoints/versions/{VERSION}.json": "{}"},
    ),
    Wrong(
        "no whole checkpoint",
        "train-resume runs/a",
        ["manifest", "nothing to resume from"],
        {"runs/a/run.json": RUN, f"runs/a/checkpoints/versions/{VERSION}.json": "{}"},
    ),
    Wrong(
        "a checkpoint that is not there",
        f"train-resume runs/a/checkpoints/versions/{VERSION}.json",
        [VERSION],
        {"runs/a/run.json": RUN},
    ),
    Wrong(
        "a run.json of 5,000 nested brackets",
        "train-resume runs/a",
        ["run.json", "nested deeper than 100 levels"],
        {
            "runs/a/run.json": f'{{"configuration": {DEEP}}}',
            f"runs/a/checkpoints/versions/{VERSION}.json": "{}",
        },
    ),
    Wrong(
        "a quantum problem of 5,000 nested brackets",
        "quantum solve deep.json",
        ["deep.json", "nested deeper than 100 levels"],
        {"deep.json": f'{{"linear": {DEEP}}}'},
    ),
    Wrong(
        "a run.json of something else",
        "train-resume runs/a",
        ["run.json", "configuration"],
        {"runs/a/run.json": "{}"},
    ),
    Wrong("an unknown thing to accept", "train --accept learnig_rate", ["learning_rate"]),
    Wrong("no checkpoint to verify", "checkpoints verify", ["runs", "temper train"]),
    Wrong("half a command", "checkpoints", ["ACTION"]),
    Wrong("an unknown action", "backup lst", ["lst", "list"]),
    Wrong("a run that nobody has", "checkpoints list nowhere", ["nowhere"]),
    Wrong("exporting nothing", "export", ["RUN"]),
    Wrong("exporting nowhere", "export a", ["FOLDER"]),
    Wrong(
        "exporting over other files",
        "export runs/a mine",
        ["mine", "holds other files"],
        {"runs/a/run.json": RUN, "mine/notes.txt": "keep me"},
    ),
    Wrong(
        "exporting a run without checkpoints",
        "export runs/a model",
        ["nothing to resume from"],
        {"runs/a/run.json": RUN},
    ),
    Wrong("restoring from nowhere", "backup restore", ["--place"]),
    Wrong("restoring from an empty place", "backup restore --place .", ["no run at"]),
    Wrong(
        "a backup of a run without a place",
        "backup create runs/a",
        ["--place"],
        {"runs/a/run.json": RUN},
    ),
    Wrong("a setting of backups without a place", "train --backup-keep 3", ["backup.place"]),
    Wrong("evaluating nothing", "train-eval", ["MODEL"]),
    Wrong(
        "evaluating a model that is not there",
        "train-eval ./nowhere data.jsonl",
        ["nowhere"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "evaluating on other data than the data",
        "train-eval runs/a data.jsonl --eval-data data.jsonl",
        ["data.eval_path", "--eval-data", "DATA"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "evaluating with a setting of a later part",
        "train-eval runs/a data.jsonl --model-adapter dialogue",
        ["adapter", "not there yet"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "evaluating an unfinished run",
        "train-eval runs/a data.jsonl",
        ["runs/a", "train-resume"],
        {"runs/a/run.json": "{}", "data.jsonl": GOOD_DATA},
    ),
]

TABLE = CONFIGURATION + DATA + MODEL + CHECKPOINT


def test_the_table_is_long_enough() -> None:
    assert len(TABLE) >= 40
    assert len({wrong.what for wrong in TABLE}) == len(TABLE)


@pytest.mark.parametrize("wrong", TABLE, ids=lambda wrong: wrong.what)
def test_wrong_input_ends_in_one_sentence(
    wrong: Wrong,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    restore_logging: Callable[[], None],
    saved_llama: Path,
) -> None:
    for name, content in wrong.files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content == REAL_TOKENIZER:
            content = (saved_llama / path.name).read_bytes()
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TEMPER_CACHE__DIRECTORY", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code = main(wrong.command.split())
    error = capsys.readouterr().err.strip().splitlines()
    assert code == ExitCode.WRONG_INPUT, error
    sentence = error[-1]
    assert sentence.startswith("temper: ")
    assert "Traceback" not in "".join(error)
    for words in wrong.words:
        assert words in sentence
