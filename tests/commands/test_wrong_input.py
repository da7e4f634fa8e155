"""Whatever a person gets wrong ends in exit code 2 and one sentence: what, where, what to do.

A row: what is wrong, the command line, words that the sentence must have, the files and variables
it needs, and whose language the sentence speaks. Each row has another cause: the line of the
project that refuses it; `SAME_CAUSE` names those that are there for another reason.
"""

import base64
import io
import json
import re
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infrastructure.commands import main as commands
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.core.exit_codes import ExitCode
from infrastructure.deployment.deploy_training import TrainingDeployment
from tests.commands.causes import cause_of, places_of_sentences
from tests.training.seeing_models import encoded, picture

Files = dict[str, bytes | str]


class Language(Enum):
    """How a sentence names what was given: as it was given."""

    FLAG = r"(?<![\w-])--[a-z]"
    FILE = r"\.yaml(:\d+)?: | \S+\.yaml\b|\(\S+\.yaml:\d+: "
    VARIABLE = r"\b[A-Z]+_[A-Z_]+\b"
    WORDS = r"\w"  # of a file, a folder or a run that a command was given


@dataclass(frozen=True)
class Wrong:
    what: str
    command: str | list[str]
    words: list[str]
    files: Files = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    speaks: Language = Language.FLAG


def npz(**arrays: list[object]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **{name: np.array(values) for name, values in arrays.items()})
    return file.getvalue()


GOOD_ROW = json.dumps({"prompt": "Say a.", "completion": "a"})
ROW_B = json.dumps({"prompt": "Say b.", "completion": "b"})
GOOD_DATA = "\n".join([GOOD_ROW] * 40)
CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
PREFERENCE = {"prompt": "a", "chosen": "b", "rejected": "c"}
ROW = {"prompt": "Say b.", "completion": "b"}
REAL_TOKENIZER = "the tokenizer of the tests' small model"
RUN = json.dumps({"configuration": {"values": {}, "sources": {}}})
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
NO_WEIGHTS = {  # a folder in order, as far as it is read before PyTorch is
    "m/config.json": json.dumps(LLAMA | {"max_position_embeddings": 64}),
    "m/tokenizer.json": "{}",
    "m/tokenizer_config.json": "{}",
    "m/model.safetensors": (2).to_bytes(8, "little") + b"{}",
}

DEEP = "[" * 5000 + "]" * 5000
LAUGHS = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n + 1}: &a{n + 1} {{x: *a{n}, y: *a{n}}}\n" for n in range(30)
)

CONFIGURATION = [
    Wrong("unknown flag", "train --batchsize 4", ["--batchsize", "--batch-size"]),
    Wrong("the report", "report nope", ["report.html in the run"], speaks=Language.WORDS),
    Wrong("unknown command", "tran", ["tran", "train"], speaks=Language.WORDS),
    Wrong("text for a number", "config --batch-size many", ["--batch-size", "many"]),
    Wrong("number out of range", "config --batch-size 0", ["--batch-size", "at least 1"]),
    Wrong("share out of range", "config --validation-split 1.5", ["--validation-split", "1.5"]),
    Wrong("unknown choice", "config --scheduler-type cosin", ["--scheduler-type", "cosine"]),
    Wrong("negative learning rate", "config --learning-rate -1", ["--learning-rate"]),
    Wrong("a folder that is no UTF-8", "train --output runs\udce9", ["--output", "UTF-8"]),
    Wrong("a place that is no UTF-8", "train --backup-place \udce9", ["--backup-place", "UTF-8"]),
    Wrong("a model that is no UTF-8", "train --model ./m\udce9", ["--model", "UTF-8"]),
    Wrong("infinite learning rate", "config --learning-rate inf", ["--learning-rate"]),
    Wrong("one checkpoint only", "config --keep-checkpoints 1", ["--keep-checkpoints", "2"]),
    Wrong("flag without value", "config --batch-size", ["--batch-size"]),
    Wrong(
        "config file missing",
        "config --config nowhere.yaml",
        ["nowhere.yaml"],
        speaks=Language.FILE,
    ),
    Wrong(
        "config file is not YAML",
        "config --config bad.yaml",
        ["bad.yaml:3", "not valid YAML"],
        {"bad.yaml": "training:\n  batch_size: [1\n"},
        speaks=Language.FILE,
    ),
    Wrong(
        "config file is a list",
        "config --config list.yaml",
        ["list.yaml"],
        {"list.yaml": "- 1\n- 2\n"},
        speaks=Language.FILE,
    ),
    Wrong(
        "unknown key in a file",
        "config --config typo.yaml",
        ["bath_size", "batch_size"],
        {"typo.yaml": "training:\n  bath_size: 4\n"},
        speaks=Language.FILE,
    ),
    Wrong(
        "unknown section in a file",
        "config --config typo.yaml",
        ["unknown key 'trainning'; did you mean 'training'?"],
        {"typo.yaml": "trainning:\n  batch_size: 4\n"},
        speaks=Language.FILE,
    ),
    Wrong(
        "a key twice",
        "config --config twice.yaml",
        ["twice.yaml", "batch_size"],
        {"twice.yaml": "training:\n  batch_size: 4\n  batch_size: 8\n"},
        speaks=Language.FILE,
    ),
    Wrong(
        "aliases that stand for a billion values",
        "config --config laughs.yaml",
        ["laughs.yaml:", "stands for more than 5000 values"],
        {"laughs.yaml": LAUGHS},
        speaks=Language.FILE,
    ),
    Wrong(
        "5,000 nested brackets",
        "config --config deep.yaml",
        ["deep.yaml", "nested deeper than 50 levels"],
        {"deep.yaml": "training: " + DEEP},
        speaks=Language.FILE,
    ),
    Wrong(
        "5,000 nested brackets in a flag",
        f"config --metrics-sinks {DEEP}",
        ["--metrics-sinks must be a list"],
    ),
    Wrong(
        "two spellings that disagree",
        "config --config two.yaml",
        ["data.batch_size", "training.batch_size"],
        {"two.yaml": "training:\n  batch_size: 4\ndata:\n  batch_size: 8\n"},
        speaks=Language.FILE,
    ),
    Wrong(
        "epochs and steps for one thing",
        "config --checkpoint-interval 2 --checkpoint-frequency 100",
        ["--checkpoint-interval", "--checkpoint-frequency"],
    ),
    Wrong("a size that is none", "config --memory-limit 8XB", ["--memory-limit", "8XB"]),
    Wrong("a sink twice", "config --metrics-sinks csv,csv", ["--metrics-sinks", "once"]),
    Wrong("too many to count", f"config --batch-size {10**12}", ["--batch-size", "2147483647"]),
    Wrong("a setting without effect", "train --buffer-size 9", ["--buffer-size", "streaming"]),
    Wrong("a secret for a name", f"train --run-name hf_{'aB' * 17}", ["--run-name must be a name"]),
    Wrong("a mode that there is not", "train --mode sidewise", ["mode", "blockwise"]),
    Wrong(
        "a strategy with a slip",
        "train --strategy progresive",
        ["--strategy", "did you mean 'progressive'?", "auto"],
    ),
    Wrong("a storage that there is not", "train --quantization-type nf_fp4", ["nf_fp8", "nf4"]),
    Wrong("a corruption that there is not", "train --corruption maks", ["did you mean 'mask'?"]),
    Wrong("QLoRA of other tools", "train --qlora", ["--lora --quantization 4bit"]),
    Wrong("two LoRAs", "train --qlora-enabled --lora", ["--lora"]),
    Wrong("weights that cannot train", "train --quantization-enabled", ["--qlora-enabled"]),
    Wrong("what there is not", "train --tensor-parallel", ["not cut over GPUs", "--num-processes"]),
    Wrong(
        "no command", "search", ["unknown command 'search'", "train-resume"], speaks=Language.WORDS
    ),
    Wrong(
        "llama.cpp's model",
        "train rows.jsonl --model m.gguf",
        ["is a GGUF file", "temper export", "convert_hf_to_gguf.py"],
        {"rows.jsonl": GOOD_DATA, "m.gguf": b"GGUF"},
        speaks=Language.WORDS,
    ),
    Wrong("a GPU that is not there", "train --device cuda:7", ["cuda:7"], speaks=Language.WORDS),
    Wrong(
        "a GPU by a number that is not there",
        "train --cuda-visible-devices 3",
        ["--cuda-visible-devices 3", "PyTorch sees no such GPU here", "--device cpu"],
    ),
    Wrong("fp16 on a CPU", "train --mixed-precision fp16 --device cpu", ["fp16", "GPU"]),
    Wrong(
        "4 bits of the small model",
        "train --quantization 4bit",
        ["--quantization", "'embedded' has no trained weights"],
    ),
    Wrong(
        "weights of 4 bits that train",
        "train d.jsonl --model ./m --quantization 4bit",
        ["--quantization", "freezes the weights", "--lora"],
        {"d.jsonl": GOOD_DATA, **NO_WEIGHTS},
    ),
    Wrong(
        "a value of another flag",
        "export some-run folder --as onnx",
        ["--as onnx", "--format onnx"],
    ),
    Wrong(
        "flash attention on a CPU",
        "train --attention flash_attention_2 --device cpu",
        ["--attention", "pip install flash-attn"],
    ),
    Wrong(
        "longer than the model sees",
        "train d.jsonl --model ./m --max-length 100",
        ["--max-length", "more than the 64 positions", "set it to 64 or less"],
        {"d.jsonl": GOOD_DATA, **NO_WEIGHTS},
    ),
    Wrong(
        "a data set of the Hub that is nowhere",
        "train nobody/no-data",
        ["nobody/no-data is no file or folder here", "cannot be reached"],
        speaks=Language.WORDS,
    ),
    Wrong(
        "a curriculum of a stream",
        "train d.jsonl --strategy curriculum --streaming",
        ["--strategy curriculum", "--streaming"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a curriculum and a quantum selection",
        "train d.jsonl --strategy curriculum --optimization-frequency 5"
        " --quantum-problem data_selection",
        ["--strategy curriculum", "both choose"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a curriculum that stops early",
        "train d.jsonl --strategy curriculum --early-stopping-patience 2",
        ["--early-stopping-patience", "last stage"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a curriculum by tasks without their order",
        "train d.jsonl --strategy curriculum --curriculum-by task",
        ["--curriculum-by task", "--curriculum-order"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a task that the data does not have",
        "train d.jsonl --strategy curriculum --curriculum-by task --curriculum-order easy,hard"
        " --task-column level --model embedded",
        ["--curriculum-order", "unknown task 'hard'"],
        {"d.jsonl": "\n".join([json.dumps({**ROW, "level": "easy"})] * 40)},
    ),
    Wrong(
        "a task without a stage",
        "train d.jsonl --strategy curriculum --curriculum-by task --curriculum-order easy,hard"
        " --task-column level --model embedded",
        ["--curriculum-order", "no place for the task 'new'"],
        {
            "d.jsonl": "\n".join(
                json.dumps({**ROW, "level": level}) for level in ["easy", "hard", "new"] * 20
            )
        },
    ),
    Wrong(
        "a curriculum that ends in its first stage",
        "train d.jsonl --strategy curriculum --max-steps 2 --batch-size 8 --model embedded",
        ["--max-steps", "3 stages"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "more stages than rows",
        "train d.jsonl --strategy curriculum --curriculum-stages 60 --model embedded",
        ["--curriculum-stages", "60 stages"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "PiSSA of rounded weights",
        "train d.jsonl --model org/m --lora --lora-init-lora-weights pissa --quantization 4bit",
        ["--lora-init-lora-weights pissa", "--quantization 4bit"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "PiSSA of new weights",
        "train d.jsonl --model embedded --lora --lora-init-lora-weights pissa",
        ["--lora-init-lora-weights pissa", "new"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "LoftQ of whole weights",
        "train d.jsonl --model org/m --lora --lora-init-lora-weights loftq",
        ["--lora-init-lora-weights loftq", "--quantization 4bit"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "LoftQ on a CPU",
        "train d.jsonl --model m --lora --lora-init-lora-weights loftq --quantization 4bit"
        " --device cpu",
        ["--lora-init-lora-weights loftq", "GPU"],
        {
            "d.jsonl": GOOD_DATA,
            "m/config.json": json.dumps(LLAMA),
            "m/model.safetensors": (2).to_bytes(8, "little") + b"{}",
        },
    ),
    Wrong(
        "DoRA of a PiSSA",
        "train d.jsonl --model org/m --lora --lora-init-lora-weights pissa --lora-use-dora",
        ["--lora-use-dora", "lengths"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "PiSSA with dropout",
        "train d.jsonl --model org/m --lora --lora-init-lora-weights pissa --lora-dropout 0.1",
        ["--lora-init-lora-weights pissa", "--lora-dropout"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "DoRA by unsloth",
        "train d.jsonl --model org/m --lora --lora-use-dora --backend unsloth",
        ["--lora-use-dora", "--backend transformers"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "components taken out of a DoRA",
        "train d.jsonl --model embedded --lora --lora-use-dora --optimization-frequency 5"
        " --quantum-problem rank_allocation",
        ["--lora-use-dora", "rank_allocation"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a router where there are no experts",
        "train d.jsonl --model embedded --lora --lora-router --max-length 64",
        ["--lora-router", "no mixture of experts"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "rounded weights beside a LoRA",
        "train d.jsonl --quantization-aware int4 --lora",
        ["--quantization-aware int4", "--lora"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "rounded weights by unsloth",
        "train d.jsonl --model org/m --quantization-aware int4 --backend unsloth",
        ["--quantization-aware int4", "--backend unsloth"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "rounded weights stack by stack",
        "train d.jsonl --quantization-aware int4 --strategy progressive",
        ["--quantization-aware int4", "stack-wise"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "rows that share no scale",
        "train d.jsonl --quantization-aware int4 --embedded-hidden-size 48"
        " --embedded-num-heads 2 --embedded-num-kv-heads 2 --max-length 64",
        ["--quantization-aware", "a multiple of 32"],
        {"d.jsonl": GOOD_DATA},
    ),
]

DATA = [
    Wrong(
        "a web address for data",
        "train https://me:letmein@example.org/rows.jsonl",
        ["https://***@example.org/rows.jsonl", "is a web address"],
    ),
    Wrong(
        "a file that is no UTF-8 missing",
        "train no\udce9.jsonl",
        ["there is no"],
        speaks=Language.WORDS,
    ),
    Wrong("data file missing", "train nowhere.jsonl", ["nowhere.jsonl"], speaks=Language.WORDS),
    Wrong(
        "data file empty",
        "train empty.jsonl",
        ["empty.jsonl"],
        {"empty.jsonl": ""},
        speaks=Language.WORDS,
    ),
    Wrong(
        "preferences as text",
        "train pairs.jsonl",
        ["--method dpo", "--prompt-column prompt and --answer-column chosen"],
        {"pairs.jsonl": "\n".join([json.dumps(PREFERENCE)] * 9)},
    ),
    Wrong(
        "preferences as chats",
        "train chats.jsonl",
        ["--method dpo", "write 'chosen' into a column 'messages'"],
        {"chats.jsonl": "\n".join([json.dumps({"chosen": CHAT, "rejected": CHAT})] * 9)},
    ),
    Wrong(
        "answers that all lose their end",
        "train long.jsonl --max-length 48",
        ["every answer is cut before its end", "raise --max-length", "--no-testing"],
        {
            "long.jsonl": "".join(
                json.dumps({"question": f"{n}?", "answer": f"{n} " * 99}) + "\n" for n in range(9)
            )
        },
    ),
    Wrong(
        "data folder empty", "train folder", ["folder"], {"folder/.keep": ""}, speaks=Language.WORDS
    ),
    Wrong(
        "a zip archive for data",
        "train data.zip",
        ["data.zip is no whole zip archive", "cut off"],
        {"data.zip": b"PK\x03\x04" + bytes(30)},
        speaks=Language.WORDS,
    ),
    Wrong("unknown extension", "train data.xyz", ["data.xyz"], {"data.xyz": "hello"}),
    Wrong(
        "mostly broken JSON",
        "train broken.jsonl",
        ["broken.jsonl", "--max-bad-rows-percent"],
        {"broken.jsonl": "\n".join([GOOD_ROW, ROW_B, "{", "[", '{"prompt": 1'])},
    ),
    Wrong(
        "invalid UTF-8",
        "train latin.jsonl",
        ["latin.jsonl", "UTF-8"],
        {"latin.jsonl": b'{"prompt": "\xe4\xf6", "completion": "\xff"}\n' * 9},
        speaks=Language.WORDS,
    ),
    Wrong(
        "a page instead of data",
        "train page.jsonl",
        ["page.jsonl", "web page", "fetch the raw file"],
        {"page.jsonl": "<!DOCTYPE html><html><body>404</body></html>"},
        speaks=Language.WORDS,
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
        speaks=Language.WORDS,
    ),
    Wrong(
        "held-out file missing",
        "train data.jsonl --eval-data nowhere.jsonl",
        ["nowhere.jsonl"],
        {"data.jsonl": GOOD_DATA},
        speaks=Language.WORDS,
    ),
    Wrong(
        "a damaged Parquet file",
        "train data.parquet",
        ["data.parquet"],
        {"data.parquet": b"PAR1 not really PAR1"},
        speaks=Language.WORDS,
    ),
    Wrong(
        "a damaged HDF5 file",
        "train data.h5",
        ["data.h5"],
        {"data.h5": b"\x89HDF\r\n\x1a\n" + b"\0" * 64},
        speaks=Language.WORDS,
    ),
    Wrong(
        "5,000 nested brackets in each row",
        "train deep.jsonl",
        ["deep.jsonl:1", "nested deeper than 100 levels"],
        {"deep.jsonl": f'{{"prompt": {DEEP}, "completion": "a"}}\n' * 9},
        speaks=Language.WORDS,
    ),
    Wrong(
        "5,000 nested brackets in a document",
        "train deep.json",
        ["deep.json:1", "nested deeper than 100 levels"],
        {"deep.json": f'[{{"prompt": {DEEP}}}]'},
        speaks=Language.WORDS,
    ),
    Wrong(
        "a CSV whose rows are too short",
        "train ragged.csv",
        ["ragged.csv"],
        {"ragged.csv": "prompt,completion\n" + "only one\n" * 20},
        speaks=Language.WORDS,
    ),
    Wrong(
        "a model that needs data", "train --model-name ./folder", ["folder"], speaks=Language.WORDS
    ),
]

MODEL = [
    Wrong(
        "model folder missing",
        "train data.jsonl --model ./nowhere",
        ["nowhere", "no such folder"],
        {"data.jsonl": GOOD_DATA},
        speaks=Language.WORDS,
    ),
    Wrong(
        "folder without a model",
        "train data.jsonl --model ./folder",
        ["folder", "config.json"],
        {"data.jsonl": GOOD_DATA, "folder/readme.txt": "hello"},
        speaks=Language.WORDS,
    ),
    Wrong(
        "a file for a model",
        "train data.jsonl --model ./data.jsonl",
        ["data.jsonl", "folder"],
        {"data.jsonl": GOOD_DATA},
        speaks=Language.WORDS,
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
        speaks=Language.WORDS,
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
        speaks=Language.WORDS,
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
        speaks=Language.WORDS,
    ),
    Wrong(
        "model configuration that is no JSON",
        "train data.jsonl --model ./folder",
        ["folder"],
        {"data.jsonl": GOOD_DATA, "folder/config.json": "{"},
        speaks=Language.WORDS,
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
            speaks=Language.WORDS,
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
        ["--embedded-hidden-size", "--embedded-num-heads"],
    ),
    Wrong("output that is a file", "train --output file", ["file"], {"file": ""}),
    Wrong(
        "a memory of a stack at a time",
        "train data.jsonl --enabled-extensions memory --strategy progressive",
        ["memory", "a stack of layers at a time", "standard or finetune"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a memory that is compiled",
        "train data.jsonl --enabled-extensions memory --compile-mode default",
        ["memory", "leave --compile-mode out"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a memory of Unsloth's layers",
        "train data.jsonl --enabled-extensions memory --backend unsloth --model ./folder --lora",
        ["memory", "set --backend transformers"],
        {"data.jsonl": GOOD_DATA, "folder/config.json": json.dumps(LLAMA)},
    ),
    Wrong(
        "a memory among hidden tokens",
        "train data.jsonl --enabled-extensions memory --time-step-masking",
        ["memory", "hides tokens in both directions"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a memory of a rounded model",
        "train data.jsonl --enabled-extensions memory --quantization-aware int4",
        ["memory", "cannot hold weights of extensions"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a memory in eight bits",
        "train data.jsonl --enabled-extensions memory --mixed-precision fp8",
        ["memory", "give bf16"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a memory of several processes",
        "train data.jsonl --enabled-extensions memory --num-processes 2 --device cpu",
        ["--num-processes 2", "memory", "by gradients"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a form that there is not",
        "export nope --format ggfu",
        ["value of --format 'ggfu'; did you mean 'gguf'?"],
    ),
    Wrong(
        "a layer that the model has not",
        "train data.jsonl --enabled-extensions memory --memory-layer 99",
        ["--memory-layer 99", "0 to"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "heads that do not divide the memory",
        "train data.jsonl --enabled-extensions memory --memory-heads 7",
        ["--memory-heads 7", "--memory-width"],
        {"data.jsonl": GOOD_DATA},
    ),
]

VERSION = f"{3:012d}-blake3-{'ab' * 32}"
CHECKPOINT = [
    Wrong("no run to go on with", "train-resume", ["runs", "temper train"], speaks=Language.WORDS),
    Wrong("a run that is not there", "train-resume nowhere", ["nowhere"], speaks=Language.WORDS),
    Wrong(
        "a run without checkpoints",
        "train-resume runs/a",
        ["no checkpoint"],
        {"runs/a/run.json": RUN},
        speaks=Language.WORDS,
    ),
    Wrong(
        "a step that was not saved",
        "train-resume a@7",
        ["step '7'"],
        {"runs/a/run.json": "{}"},
        speaks=Language.WORDS,
    ),
    Wrong(
        "a damaged run.json",
        "train-resume runs/a",
        ["run.json"],
        {"runs/a/run.json": "{", f"runs/a/checkpoints/versions/{VERSION}.json": "{}"},
        speaks=Language.WORDS,
    ),
    Wrong(
        "a damaged checkpoint",
        f"train-resume runs/a/checkpoints/versions/{VERSION}.json",
        ["manifest", "not what was written"],
        {"runs/a/run.json": RUN, f"runs/a/checkpoints/versions/{VERSION}.json": "{}"},
        speaks=Language.WORDS,
    ),
    Wrong(
        "no whole checkpoint",
        "train-resume runs/a",
        ["manifest", "nothing to resume from"],
        {"runs/a/run.json": RUN, f"runs/a/checkpoints/versions/{VERSION}.json": "{}"},
        speaks=Language.WORDS,
    ),
    Wrong(
        "a checkpoint that is not there",
        f"train-resume runs/a/checkpoints/versions/{VERSION}.json",
        [VERSION],
        {"runs/a/run.json": RUN},
        speaks=Language.WORDS,
    ),
    Wrong(
        "a run.json of 5,000 nested brackets",
        "train-resume runs/a",
        ["run.json", "nested deeper than 100 levels"],
        {
            "runs/a/run.json": f'{{"configuration": {DEEP}}}',
            f"runs/a/checkpoints/versions/{VERSION}.json": "{}",
        },
        speaks=Language.WORDS,
    ),
    Wrong(
        "a quantum problem of 5,000 nested brackets",
        "quantum solve deep.json",
        ["deep.json", "nested deeper than 100 levels"],
        {"deep.json": f'{{"linear": {DEEP}}}'},
        speaks=Language.WORDS,
    ),
    Wrong(
        "a run.json of something else",
        "train-resume runs/a",
        ["run.json", "configuration"],
        {"runs/a/run.json": "{}"},
        speaks=Language.WORDS,
    ),
    Wrong("an unknown thing to accept", "train --accept learnig_rate", ["learning_rate"]),
    Wrong(
        "no checkpoint to verify",
        "checkpoints verify",
        ["runs", "temper train"],
        speaks=Language.WORDS,
    ),
    Wrong("half a command", "checkpoints", ["ACTION"]),
    Wrong("an unknown action", "backup lst", ["lst", "list"], speaks=Language.WORDS),
    Wrong("a run that nobody has", "checkpoints list nowhere", ["nowhere"], speaks=Language.WORDS),
    Wrong("exporting nothing", "export", ["RUN"]),
    Wrong("exporting nowhere", "export a", ["FOLDER"]),
    Wrong(
        "exporting over other files",
        "export runs/a mine",
        ["mine", "holds other files"],
        {"runs/a/run.json": RUN, "mine/notes.txt": "keep me"},
        speaks=Language.WORDS,
    ),
    Wrong(
        "exporting a run without checkpoints",
        "export runs/a model",
        ["nothing to resume from"],
        {"runs/a/run.json": RUN},
        speaks=Language.WORDS,
    ),
    Wrong("restoring from nowhere", "backup restore", ["--place"]),
    Wrong(
        "restoring from an empty place",
        "backup restore --place .",
        ["no run at"],
        speaks=Language.WORDS,
    ),
    Wrong(
        "a backup of a run without a place",
        "backup create runs/a",
        ["--place"],
        {"runs/a/run.json": RUN},
    ),
    Wrong("a setting of backups without a place", "train --backup-keep 3", ["--backup-place"]),
    Wrong("evaluating nothing", "train-eval", ["MODEL"]),
    Wrong(
        "evaluating a model that is not there",
        "train-eval ./nowhere data.jsonl",
        ["nowhere"],
        {"data.jsonl": GOOD_DATA},
        speaks=Language.WORDS,
    ),
    Wrong(
        "evaluating on other data than the data",
        "train-eval ./m data.jsonl --eval-data data.jsonl",
        ["--eval-data", "--eval-data", "DATA"],
        {"data.jsonl": GOOD_DATA, **NO_WEIGHTS},
    ),
    Wrong(
        "evaluating an unfinished run",
        "train-eval runs/a data.jsonl",
        ["runs/a", "train-resume"],
        {"runs/a/run.json": "{}", "data.jsonl": GOOD_DATA},
        speaks=Language.WORDS,
    ),
]

MEASURE = [
    Wrong("measuring on nothing", "train-eval some/model", ["DATA"], speaks=Language.WORDS),
    Wrong(
        "data besides tasks",
        "train-eval some/model data.jsonl --tasks gsm8k",
        ["--tasks", "leave data.jsonl out"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "rows of no task",
        "train-eval some/model data.jsonl --limit 5",
        ["--limit", "--tasks", "--validation-prompts"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "measures of tasks",
        "train-eval some/model --tasks gsm8k --measures f1",
        ["--measures", "their own measures"],
    ),
    Wrong(
        "an unknown measure",
        "train-eval some/model data.jsonl --measures rouge",
        ["measure 'rouge'", "rouge1"],
        {"data.jsonl": GOOD_DATA},
        speaks=Language.WORDS,
    ),
    Wrong(
        "answers of no token",
        "train-eval some/model data.jsonl --max-tokens 0",
        ["max_tokens", "at least 1"],
        {"data.jsonl": GOOD_DATA},
        speaks=Language.WORDS,
    ),
    Wrong(
        "comparing with a model that is not there",
        "train-eval some/model data.jsonl --against ./nowhere",
        ["nowhere"],
        {"data.jsonl": GOOD_DATA},
        speaks=Language.WORDS,
    ),
    Wrong(
        "comparing a model with itself",
        "train-eval model data.jsonl --against ./model",
        ["./model", "name another one"],
        {
            "data.jsonl": GOOD_DATA,
            "model/config.json": json.dumps(LLAMA),
            "model/model.safetensors": b"",
        },
        speaks=Language.WORDS,
    ),
    Wrong("no task", "train-eval some/model --tasks ,", ["gsm8k"], speaks=Language.WORDS),
    Wrong(
        "tasks of a folder that is not there",
        "train-eval some/model --tasks mine --tasks-path nowhere",
        ["nowhere", "no such folder"],
        speaks=Language.WORDS,
    ),
    Wrong(
        "no row of a task",
        "train-eval some/model --tasks gsm8k --limit 0",
        ["limit", "at least 1 row"],
        speaks=Language.WORDS,
    ),
    Wrong(
        "fewer than no examples",
        "train-eval some/model --tasks gsm8k --num-fewshot -1",
        ["num_fewshot", "0 or more"],
        speaks=Language.WORDS,
    ),
]

LORA_RUN = json.dumps(
    {
        "model": {"kind": "folder", "name": "m", "num_parameters": 9, "lora": {"r": 4}},
        "configuration": {"values": {}, "sources": {}},
    }
)
WHOLE_RUN = json.dumps(
    {
        "model": {"kind": "folder", "name": "m", "num_parameters": 9},
        "configuration": {"values": {}, "sources": {}},
    }
)
MEMORY_RUN = json.dumps(
    {
        "model": {"kind": "folder", "name": "m", "num_parameters": 9, "extensions": {"memory": {}}},
        "configuration": {"values": {}, "sources": {}},
    }
)
HUGE_RUN = json.dumps(
    {
        "model": {"kind": "folder", "name": "m", "num_parameters": 10**15},
        "configuration": {"values": {}, "sources": {}},
    }
)
OWN_RUN = json.dumps(
    {
        "model": {"kind": "registered", "name": "tactical_mappo", "num_parameters": 9},
        "configuration": {"values": {}, "sources": {}},
    }
)
NO_LLAMA_CPP = {"PATH": "", "HOME": "/nowhere", "LLAMA_CPP_DIR": ""}

EXPORT = [
    Wrong("another number of bits", "export runs/a x --bits 5", ["--bits", "16"]),
    Wrong(
        "a LoRA as GGUF",
        "export runs/a x --as lora --format gguf",
        ["--as lora", "--as merged"],
        {"runs/a/run.json": LORA_RUN},
    ),
    Wrong(
        "a LoRA in four bits",
        "export runs/a x --as lora --bits 4",
        ["--bits 4", "--as merged"],
        {"runs/a/run.json": LORA_RUN},
    ),
    Wrong(
        "ONNX in four bits",
        "export runs/a x --format onnx --bits 4",
        ["--format onnx", "--bits 4", "gguf"],
        {"runs/a/run.json": LORA_RUN},
    ),
    Wrong(
        "a converter for nothing",
        "export runs/a x --converter convert.py",
        ["--converter", "--format gguf"],
        {"runs/a/run.json": LORA_RUN},
    ),
    Wrong(
        "a merged model with a memory",
        "export runs/a x --as merged",
        ["weights of extensions (memory)", "no other format holds"],
        {"runs/a/run.json": MEMORY_RUN},
    ),
    Wrong(
        "a memory on the Hub",
        "export runs/a --push-to-hub me/it",
        ["--push-to-hub", "without them", "FOLDER"],
        {"runs/a/run.json": MEMORY_RUN},
    ),
    Wrong(
        "the LoRA of a whole model",
        "export runs/a x --as lora",
        ["has no LoRA", "--as lora"],
        {"runs/a/run.json": WHOLE_RUN},
    ),
    Wrong(
        "a module of one's own in another format",
        "export runs/a x --format torch-export",
        ["tactical_mappo", "no model of transformers"],
        {"runs/a/run.json": OWN_RUN},
    ),
    Wrong(
        "an export that fits on no disk",
        "export runs/a x",
        ["needs about", "free there"],
        {"runs/a/run.json": HUGE_RUN},
        speaks=Language.WORDS,
    ),
    Wrong(
        "a converter that is not there",
        "export runs/a x --format gguf --converter nowhere.py",
        ["--converter nowhere.py", "git clone"],
        {"runs/a/run.json": WHOLE_RUN},
    ),
    Wrong(
        "no converter",
        "export runs/a x --format gguf",
        ["--format gguf", "LLAMA_CPP_DIR", "git clone"],
        {"runs/a/run.json": WHOLE_RUN},
        NO_LLAMA_CPP,
    ),
    Wrong(
        "a converter that does not run",
        "export runs/a x --format gguf --converter .",
        ["convert_hf_to_gguf.py", "does not run here", "nobody_has"],
        {"runs/a/run.json": WHOLE_RUN, "convert_hf_to_gguf.py": "import nobody_has"},
        speaks=Language.WORDS,
    ),
    Wrong(
        "a model that the converter does not know",
        "export runs/a x --format gguf --converter convert_hf_to_gguf.py",
        ["knows no GPT2LMHeadModel", "--format safetensors"],
        {
            "runs/a/run.json": WHOLE_RUN.replace(
                '"folder"', '"folder", "architecture": "GPT2LMHeadModel"'
            ),
            "convert_hf_to_gguf.py": "print('- LlamaForCausalLM')",
        },
    ),
    Wrong(
        "four bits without a quantizer",
        "export runs/a x --format gguf --bits 4 --converter convert_hf_to_gguf.py",
        ["--bits 4", "llama-quantize"],
        {"runs/a/run.json": WHOLE_RUN, "convert_hf_to_gguf.py": "print('- LlamaForCausalLM')"},
        NO_LLAMA_CPP,
    ),
]

FURTHER = [
    Wrong(
        "a config file that is no UTF-8",
        "config --config c.yaml",
        ["c.yaml", "save it as UTF-8"],
        {"c.yaml": b"\xff\xfe"},
        speaks=Language.FILE,
    ),
    Wrong(
        "a config file of 300 KB",
        "config --config c.yaml",
        ["c.yaml", "no configuration"],
        {"c.yaml": "#" * 300_000},
        speaks=Language.FILE,
    ),
    Wrong(
        "a folder for a config file",
        "config --config c",
        ["Is a directory"],
        {"c/x": ""},
        speaks=Language.WORDS,
    ),
    Wrong(
        "a merge of no anchor",
        "config --config c.yaml",
        ["c.yaml", "*name) or a list of such anchors"],
        {"c.yaml": "training:\n  <<: 3\n"},
        speaks=Language.FILE,
    ),
    Wrong(
        "a list for a key",
        "config --config c.yaml",
        ["c.yaml", "[1, 2] cannot be a key"],
        {"c.yaml": "? [1, 2]\n: 3\n"},
        speaks=Language.FILE,
    ),
    Wrong(
        "an anchor inside itself",
        "config --config c.yaml",
        ["c.yaml", "an anchor that contains itself"],
        {"c.yaml": "a: &a\n  b: *a\n"},
        speaks=Language.FILE,
    ),
    Wrong(
        "a number of 5,000 digits",
        "config --config c.yaml",
        ["c.yaml", "a number too long"],
        {"c.yaml": "training:\n  batch_size: " + "9" * 5000},
        speaks=Language.FILE,
    ),
    Wrong(
        "a number for a section",
        "config --config c.yaml",
        ["c.yaml", "training is a section with keys of its own, not"],
        {"c.yaml": "training: 3\n"},
        speaks=Language.FILE,
    ),
    Wrong(
        "a word for a switch",
        "config --config c.yaml",
        ["c.yaml", "model.lora_config)"],
        {"c.yaml": "model:\n  lora_config: maybe\n"},
        speaks=Language.FILE,
    ),
    Wrong(
        "unknown preset",
        "config --preset quik",
        ["--preset", "ci, none, quick, small_memory, thorough)"],
    ),
    Wrong(
        "an unknown variable",
        "config",
        ["did you mean TEMPER_BATCH_SIZE?"],
        environment={"TEMPER_BATCH": "3"},
        speaks=Language.VARIABLE,
    ),
    Wrong(
        "a truth value for a number",
        "config --config c.yaml",
        ["c.yaml", "training.batch_size)"],
        {"c.yaml": "training:\n  batch_size: true\n"},
        speaks=Language.FILE,
    ),
    Wrong(
        "a time that is none",
        "config --deadline soon",
        ["--deadline", 'a duration with its unit, such as "11h"', 'not "soon"'],
    ),
    Wrong(
        "a price that is none",
        "config --price-per-hour cheap",
        ["--price-per-hour", '2.5, $2.50, "2.5 EUR" or none, not "cheap"'],
    ),
    Wrong(
        "a size without a unit",
        "config --memory-limit 50",
        ["--memory-limit must be a size of at least 1MB"],
    ),
    Wrong(
        "a share above all",
        "config --memory-limit 150%",
        ["--memory-limit must be a size of at least 1MB"],
    ),
    Wrong(
        "a list for a size",
        "config --config c.yaml",
        ["c.yaml", "data.memory_limit)"],
        {"c.yaml": "data:\n  memory_limit: [1]\n"},
        speaks=Language.FILE,
    ),
    Wrong("settings json", "config --settings {bad", ["--settings", '3}, not "{bad"']),
    Wrong(
        "settings own name",
        'config --settings {"batch_size":3}',
        ["choose another one"],
        speaks=Language.WORDS,
    ),
    Wrong(
        "prometheus",
        "config --monitor-prometheus nowhere",
        ["--monitor-prometheus must be a port such as"],
    ),
    Wrong(
        "empty path", ["config", "--output", ""], ['--output must be a path of UTF-8 text, not ""']
    ),
    Wrong(
        "kv heads",
        "config --embedded-num-heads 4 --embedded-num-kv-heads 3",
        ["--embedded-num-heads 4 must be a multiple of"],
    ),
    Wrong(
        "num proc device",
        "train --num-processes 2 --device cuda:0",
        ["--num-processes", "say device cuda"],
    ),
    Wrong(
        "num proc visible",
        "train --num-processes 3 --cuda-visible-devices 0,1",
        ["--num-processes", "name as many"],
    ),
    Wrong(
        "testing off",
        "train --no-testing --testing-interval 5min",
        ["--testing-interval", "switch that on, or leave it out"],
    ),
    Wrong(
        "attention both",
        "train --memory-efficient-attention --attention eager",
        ["--memory-efficient-attention", "give one of them"],
    ),
    Wrong(
        "compile",
        "train --compile-mode auto --no-gpu-optimization",
        ["--compile-mode", "switch that on, or name a mode"],
    ),
    Wrong(
        "streaming balance",
        "train data.jsonl --streaming --balance-by task",
        ["--balance-by", "set one of the two"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "quantum answer",
        "train --quantum-answer gredy",
        ["--quantum-answer", "deduplicate_then_top, greedy,"],
    ),
    Wrong(
        "budget 1",
        "train --quantum-data-budget 1",
        ["--quantum-data-budget", "give a smaller share, or leave the quantum step"],
    ),
    Wrong(
        "background",
        "train --quantum-background --epochs 1",
        ["--quantum-background", "switch it off, or train longer"],
    ),
    Wrong(
        "sampler",
        "train --quantum-solver leap_hybrid",
        ["--quantum-solver", "set DWAVE_API_TOKEN in the environment"],
    ),
    Wrong(
        "too long", "train --max-length 9000", ["--max-length", "raise --embedded-max-positions"]
    ),
    Wrong(
        "stackwise quant",
        "train --strategy progressive --quantization 4bit",
        ["leave it out, or give --quantization-enabled"],
    ),
    Wrong(
        "stackwise compile",
        "train --mode layerwise --compile-mode default",
        ["--compile-mode", "leave it out"],
    ),
    Wrong(
        "stackwise streaming",
        "train --mode layerwise --cache-activations --streaming",
        ["--cache-activations", "switch one of them off"],
    ),
    Wrong(
        "reconstruct rack",
        "train --strategy end_to_end --end-to-end-scope rackwise --local-loss reconstruct",
        ["--local-loss", "give stackwise"],
    ),
    Wrong(
        "reconstruct top",
        "train --mode layerwise --local-loss reconstruct --with-top 1",
        ["--local-loss", "leave out --with-top, --mode fused and growth"],
    ),
    Wrong(
        "with top",
        "train --strategy progressive --with-top 1",
        ["--with-top", "give --mode instead"],
    ),
    Wrong("cache nothing", "train --cache-activations", ["--cache-activations", "leave it out"]),
    Wrong(
        "plugin no module",
        "train --loss nowhere_module:loss",
        ["--loss", "put nowhere_module.py into the current folder,"],
    ),
    Wrong(
        "plugin no name",
        "train --loss json:nothing",
        ["the loss json:nothing cannot be loaded"],
        speaks=Language.WORDS,
    ),
    Wrong(
        "plugin scheme",
        "train --backup-place ftpx://a/b",
        ["--backup-place", "unknown scheme 'ftpx'; did you mean 'ftp'"],
    ),
    Wrong(
        "watch 0",
        "watch --every 0 runs/a",
        ["--every must be more than 0 seconds, not 0.0"],
        {"runs/a/run.json": "{}"},
    ),
    Wrong(
        "dashboard port", "dashboard --port 99999", ["choose another with --host and --port, or"]
    ),
    Wrong(
        "optimize len",
        "optimize ./m --length 0",
        ["--length", "give a whole number of at least 1"],
        {"m/config.json": "{}"},
    ),
    Wrong(
        "optimize save",
        "optimize ./m --save x.txt",
        ["name a file with one of the endings .pt2, .ts"],
        {"m/config.json": "{}"},
        speaks=Language.WORDS,
    ),
    Wrong(
        "optimize save there",
        "optimize ./m --save x.pt2",
        ["x.pt2", "name another file"],
        {"m/config.json": "{}", "x.pt2": ""},
        speaks=Language.WORDS,
    ),
    Wrong(
        "quantum solve none",
        "quantum solve nowhere.json",
        ["there is no such file"],
        speaks=Language.WORDS,
    ),
    Wrong(
        "quantum solve ext",
        "quantum solve x.txt",
        ["x.txt", "name a file with one of the endings .bqm, .npz,"],
        {"x.txt": ""},
        speaks=Language.WORDS,
    ),
    Wrong(
        "qs list",
        "quantum solve x.json",
        ["x.json", "it is no JSON object"],
        {"x.json": "[]"},
        speaks=Language.WORDS,
    ),
    Wrong(
        "qs key",
        "quantum solve x.json",
        ["x.json", "linear, offset, quadratic, vartype)"],
        {"x.json": '{"lin": {}}'},
        speaks=Language.WORDS,
    ),
    Wrong(
        "qs entry",
        "quantum solve x.json",
        ["x.json", "[1, 2] is no [variable, variable, number]"],
        {"x.json": '{"quadratic": [[1,2]]}'},
        speaks=Language.WORDS,
    ),
    Wrong(
        "qs number",
        "quantum solve x.json",
        ["x.json", '"b" is no finite number'],
        {"x.json": '{"linear": {"a": "b"}}'},
        speaks=Language.WORDS,
    ),
    Wrong(
        "qs vartype",
        "quantum solve x.json",
        ["x.json", "give one of BINARY, SPIN"],
        {"x.json": '{"vartype": "TERNARY"}'},
        speaks=Language.WORDS,
    ),
    Wrong(
        "qs broken",
        "quantum solve x.json",
        ["x.json", "line 1 column 2"],
        {"x.json": "{"},
        speaks=Language.WORDS,
    ),
    Wrong(
        "qs npz",
        "quantum solve x.npz",
        ["x.npz", "it is no archive of arrays, as numpy.savez"],
        {"x.npz": b"nope"},
        speaks=Language.WORDS,
    ),
    Wrong(
        "qs bqm",
        "quantum solve x.bqm",
        ["x.bqm", "it does not begin as dimod's format does"],
        {"x.bqm": b"nope"},
        speaks=Language.WORDS,
    ),
    Wrong(
        "qs time",
        "quantum solve x.json --time-limit 0",
        ["--time-limit", "give seconds, more than 0"],
        {"x.json": '{"linear": {"a": 1}}'},
    ),
    Wrong(
        "qs sampler",
        "quantum solve x.json --sampler nosuch",
        ["aer_qaoa, auto, azure_quantum, dense_annealer,"],
        {"x.json": '{"linear": {"a": 1}}'},
        speaks=Language.WORDS,
    ),
    Wrong(
        "qs ones",
        "quantum solve x.json --num-ones 9",
        ["the model has 1 variables"],
        {"x.json": '{"linear": {"a": 1}}'},
        speaks=Language.WORDS,
    ),
    Wrong(
        "backup step",
        "backup restore a@x --place .",
        ["a step is a number, as in RUN@120"],
        speaks=Language.WORDS,
    ),
    Wrong(
        "backup create none",
        "backup create runs/a --place p",
        ["there is nothing to copy"],
        {"runs/a/run.json": RUN},
        speaks=Language.WORDS,
    ),
    Wrong(
        "backup verify a",
        "backup verify runs/a",
        ["nothing to verify"],
        {"runs/a/run.json": RUN},
        speaks=Language.WORDS,
    ),
    Wrong(
        "backup prune",
        "backup prune runs/a",
        ["there is nothing to prune"],
        {"runs/a/run.json": RUN},
        speaks=Language.WORDS,
    ),
    Wrong(
        "ckpt trainer",
        "train-resume runs/a",
        ["runs", "run its own script or notebook again to go on"],
        {"runs/a/run.json": '{"trainer": {"class":"x"}}'},
        speaks=Language.WORDS,
    ),
    Wrong(
        "gz bad",
        "train d.jsonl.gz",
        ["d.jsonl.gz", "Compressed file ended before the end-of-stream"],
        {"d.jsonl.gz": b"\x1f\x8bnope"},
        speaks=Language.WORDS,
    ),
    Wrong(
        "json broken",
        "train d.json",
        ["d.json", "mend the file or write it as JSON lines"],
        {"d.json": '[{"prompt":'},
        speaks=Language.WORDS,
    ),
    Wrong(
        "csv no header",
        "train d.csv",
        ["d.csv", "the table has no header line that names its"],
        {"d.csv": ",,\n1,2,3\n"},
        speaks=Language.WORDS,
    ),
    Wrong(
        "csv col twice",
        "train d.csv",
        ["d.csv", "rename one of them"],
        {"d.csv": "a,a\n1,2\n"},
        speaks=Language.WORDS,
    ),
    Wrong(
        "csv never closed",
        "train d.csv",
        ["d.csv", "close or double it"],
        {"d.csv": 'prompt,completion\n"a,b\n' * 3},
        speaks=Language.WORDS,
    ),
    Wrong(
        "mixed",
        "train d.jsonl",
        ["d.jsonl", "bring them into one shape, or train on one"],
        {
            "d.jsonl": '{"prompt": "a", "completion": "b"}\n{"instruction": "a", "output": "b"}\n'
            * 20
        },
        speaks=Language.WORDS,
    ),
    Wrong(
        "text col and pair",
        "train data.jsonl --text-column prompt --prompt-column prompt",
        ["--text-column", "set one of the two kinds"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "text col and shape",
        "train data.jsonl --text-column prompt --data-shape alpaca",
        ["data.jsonl", "--text-column does not go with --data-shape"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "pair and messages",
        "train data.jsonl --prompt-column prompt --data-shape messages",
        ["data.jsonl", "--prompt-column, --answer-column and"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "label",
        "train d.jsonl",
        ["d.jsonl", "set --prompt-column text and --answer-column"],
        {"d.jsonl": '{"text": "good film", "label": 1}\n' * 30},
    ),
    Wrong(
        "kto",
        "train d.jsonl",
        ["d.jsonl", "leave the bad ones out, or set --data-shape"],
        {"d.jsonl": '{"prompt": "good film", "completion": "b", "label": true}\n' * 30},
    ),
    Wrong(
        "h5 none",
        "train d.h5",
        ["d.h5", "but text: give it the ending"],
        {"d.h5": "H5NONE"},
        speaks=Language.WORDS,
    ),
    Wrong(
        "vocab",
        "train data.jsonl --embedded-vocab-size 20",
        ["--embedded-vocab-size", "bytes and special tokens alone are 262"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "webhook",
        "train data.jsonl --monitor-alert-sinks webhook",
        ["--monitor-alert-sinks", "put its address into the variable"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a file with one row",
        "train data.jsonl",
        ["one row", "--accept-small-data"],
        {"data.jsonl": GOOD_ROW},
    ),
    Wrong(
        "place file",
        "train data.jsonl --backup-place file",
        ["--backup-place", "that is a file", "--allow-missing-place trains without it until"],
        {"data.jsonl": GOOD_DATA, "file": ""},
    ),
    Wrong(
        "s3",
        "train data.jsonl --backup-place s3://bucket/x",
        ["pip install s3fs"],
        {"data.jsonl": GOOD_DATA},
        speaks=Language.WORDS,
    ),
    Wrong(
        "hub place",
        "train data.jsonl --backup-place hf://nobody",
        ["--backup-place", "write hf://buckets/OWNER/NAME (a bucket)"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "hub model offline",
        "train data.jsonl --model nobody/nothing",
        ["no folder of that name here, and the Hugging"],
        {"data.jsonl": GOOD_DATA},
        speaks=Language.WORDS,
    ),
    Wrong("fifo", "train /dev/null", ["give a file or a folder"], speaks=Language.WORDS),
    Wrong(
        "time steps",
        "train data.jsonl --num-time-steps 3 --time-step-bins 9 --time-step-masking",
        ["--time-step-bins", "--num-time-steps 3 allows 0 to 2"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "checkpoints verify none",
        "checkpoints verify runs/a",
        ["run a has no checkpoint to verify"],
        {"runs/a/run.json": RUN},
        speaks=Language.WORDS,
    ),
    Wrong(
        "resume masked",
        "train-resume runs/a",
        ["--name", "start a new run without it"],
        {
            "runs/a/run.json": RUN.replace("}}}", '}, "masked": ["run_name"]}}'),
            f"runs/a/checkpoints/versions/{VERSION}.json": "{}",
        },
    ),
    Wrong(
        "own syntax",
        "train data.jsonl --strategy mine_a:X",
        ["mine_a.py", "invalid syntax"],
        {"data.jsonl": GOOD_DATA, "mine_a.py": "def (:\n"},
        speaks=Language.WORDS,
    ),
    Wrong(
        "own kind",
        "train data.jsonl --strategy mine_c:X",
        ["training strategy 'mine_c:X'"],
        {"data.jsonl": GOOD_DATA, "mine_c.py": "X = 3\n"},
        speaks=Language.WORDS,
    ),
    Wrong(
        "own abstract",
        "train data.jsonl --metrics-sinks mine_d:X",
        ["it lacks write, close, name, truncate_after"],
        {"data.jsonl": GOOD_DATA, "mine_d.py": "class X:\n    pass\n"},
        speaks=Language.WORDS,
    ),
    Wrong(
        "npz unknown",
        "quantum solve x.npz",
        ["x.npz", "columns, linear, offset, quadratic, rows,"],
        {"x.npz": npz(foo=[1.0])},
        speaks=Language.WORDS,
    ),
    Wrong(
        "npz shape",
        "quantum solve x.npz",
        ["x.npz", "quadratic has the shape"],
        {"x.npz": npz(quadratic=[[1.0, 2.0]])},
        speaks=Language.WORDS,
    ),
    Wrong(
        "npz linear",
        "quantum solve x.npz",
        ["x.npz", "linear has the shape"],
        {"x.npz": npz(quadratic=[[1.0, 2.0], [0.0, 1.0]], linear=[1.0])},
        speaks=Language.WORDS,
    ),
    Wrong(
        "npz labels",
        "quantum solve x.npz",
        ["x.npz", "variables are 1 labels for 2 variables"],
        {"x.npz": npz(linear=[1.0, 2.0], quadratic=[[0.0, 1.0], [0.0, 0.0]], variables=["a", "a"])},
        speaks=Language.WORDS,
    ),
    Wrong(
        "npz lengths",
        "quantum solve x.npz",
        ["x.npz", "rows, columns and quadratic have different"],
        {"x.npz": npz(quadratic=[1.0], rows=[0, 1], columns=[1])},
        speaks=Language.WORDS,
    ),
    Wrong(
        "npz whole",
        "quantum solve x.npz",
        ["x.npz", "rows and columns are to be whole numbers"],
        {"x.npz": npz(quadratic=[1.0], rows=[0.5], columns=[1.0])},
        speaks=Language.WORDS,
    ),
    Wrong(
        "npz negative",
        "quantum solve x.npz",
        ["x.npz", "rows and columns are numbers of variables from"],
        {"x.npz": npz(quadratic=[1.0], rows=[-1], columns=[1])},
        speaks=Language.WORDS,
    ),
    Wrong(
        "npz inf",
        "quantum solve x.npz",
        ["x.npz", "a coefficient is no finite number"],
        {"x.npz": npz(quadratic=[[0.0, float("inf")], [0.0, 0.0]])},
        speaks=Language.WORDS,
    ),
]

PAIRS = "\n".join([json.dumps(PREFERENCE)] * 9)
TEACHER = {"m/config.json": json.dumps(LLAMA | {"vocab_size": 300})}


def method(
    what: str,
    flags: str,
    words: list[str],
    data: str | None = None,
    files: Files | None = None,
    **others: Any,
) -> Wrong:
    """A training by TRL of a Llama in m/, which is never loaded."""
    prepared = {"d.jsonl": data or PAIRS, "m/config.json": json.dumps(LLAMA), **(files or {})}
    model = "" if "--model" in flags else " --model m"
    return Wrong(what, f"train d.jsonl{model} --method {flags}", words, prepared, **others)


METHODS = [
    method("a memory in TRL", "dpo --enabled-extensions memory", ["memory", "neither train nor"]),
    method(
        "a model with a memory in TRL",
        "dpo",
        ["weights of extensions", "TRL's trainers do not load"],
        files={"m/extensions.json": "{}"},
    ),
    method(
        "a setting that TRL cannot carry out",
        "dpo --compile-mode default",
        ['--compile-mode "default" cannot be carried out with --method dpo', "leave it out"],
    ),
    method("a batch that TRL would have to measure", "dpo --batch-size auto", ["such as 4"]),
    method("KTO of one", "kto --batch-size 1", ["--batch-size 1", "give 2 or more"]),
    method(
        "answers in parts",
        "grpo --num-generations 5 --batch-size 8",
        ["--num-generations 5 does not divide the 8", "--batch-size 5"],
        GOOD_DATA,
    ),
    method(
        "no place for a prompt",
        "rloo --max-completion-length 600",
        [
            "--max-completion-length 600 leaves nothing of --max-length 512",
            "lower --max-completion-length, such as to 256",
        ],
        GOOD_DATA,
    ),
    method(
        "a beta beyond reverse KL",
        "distillation --beta 2",
        ["--beta 2", "1 (reverse KL)"],
        GOOD_DATA,
    ),
    method("another GPU", "dpo --device cuda:1", ["--cuda-visible-devices 1"]),
    method("nothing that trains", "dpo --quantization 4bit", ["--quantization 4bit", "--lora"]),
    method(
        "a quantum step in TRL's loop",
        "dpo --enabled-extensions quantum",
        ["--enabled-extensions quantum", "--method dpo is a trainer of TRL"],
    ),
    Wrong(
        "a reference that moves",
        [
            *["train", "d.jsonl", "--model", "m", "--method", "dpo"],
            "--method-settings",
            '{"sync_ref_model": true}',
        ],
        ["--method-settings: sync_ref_model is not taken", "in no checkpoint"],
        {"d.jsonl": PAIRS, "m/config.json": json.dumps(LLAMA)},
    ),
    Wrong(
        "an argument that is a setting",
        [
            *["train", "d.jsonl", "--model", "m", "--method", "dpo"],
            "--method-settings",
            '{"learning_rate": 1}',
        ],
        ["learning_rate is --learning-rate here"],
        {"d.jsonl": PAIRS, "m/config.json": json.dumps(LLAMA)},
    ),
    Wrong(
        "an argument that TRL does not have",
        [
            *["train", "d.jsonl", "--model", "m", "--method", "dpo"],
            "--method-settings",
            '{"los_type": "ipo"}',
        ],
        ["DPOConfig of TRL has no argument los_type", "did you mean loss_type?"],
        {"d.jsonl": PAIRS, "m/config.json": json.dumps(LLAMA)},
    ),
    method(
        "a process of a launcher",
        "dpo",
        ["--method dpo trains in one process", "start temper train by itself"],
        environment={
            "RANK": "0",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "1",
        },
    ),
    method("a model without knowledge", "dpo --model embedded", ["--method sft", "as --model"]),
    method(
        "a LoRA to begin with",
        "reward",
        ["m is a LoRA beside its base", "--as merged"],
        files={"m/adapter_config.json": "{}"},
    ),
    method(
        "an encoder with a decoder",
        "dpo",
        ["m is an encoder with a decoder"],
        files={"m/config.json": '{"model_type": "t5", "is_encoder_decoder": true}'},
    ),
    method(
        "a model of pictures",
        "dpo",
        ["m reads pictures"],
        files={"m/config.json": '{"model_type": "llava", "vision_config": {}}'},
    ),
    method(
        "a model without text",
        "dpo",
        ["m reads no text"],
        files={"m/temper_model.json": '{"model": "tactical_mappo"}'},
    ),
    method("no teacher", "distillation", ["--teacher"], GOOD_DATA),
    method(
        "a teacher that is not there",
        "distillation --teacher ./nowhere",
        ["--teacher: there is no folder './nowhere'"],
        GOOD_DATA,
    ),
    method(
        "a teacher of itself",
        "distillation --teacher m",
        ["--teacher is the model itself (m)"],
        GOOD_DATA,
    ),
    method(
        "a teacher of other tokens",
        "distillation --teacher t",
        ["--teacher knows 200 tokens and --model 300"],
        GOOD_DATA,
        {**TEACHER, "t/config.json": json.dumps(LLAMA | {"vocab_size": 200})},
    ),
    method("no reward", "grpo", ["--reward is empty", "exact_answer, format=REGEX"], GOOD_DATA),
    method(
        "an unknown reward",
        "grpo --reward exact_anwser",
        ["--reward: unknown reward 'exact_anwser'; did you mean 'exact_answer'?"],
        GOOD_DATA,
    ),
    method("half a reward", "grpo --reward format=", ["format needs what to compare"], GOOD_DATA),
    method(
        "no regular expression",
        "grpo --reward format=(",
        ["format=( is no regular expression (missing )"],
        GOOD_DATA,
    ),
    method(
        "a schema that is not there",
        "rloo --reward json_schema=nowhere.json",
        ["there is no JSON schema at 'nowhere.json'"],
        GOOD_DATA,
    ),
    method(
        "no schema",
        "rloo --reward json_schema=s.json",
        ["s.json is no JSON schema"],
        GOOD_DATA,
        {"s.json": '{"type": 3}'},
    ),
    method(
        "a reward that is a number",
        "grpo --reward mine_e:X",
        ["mine_e:X is no function"],
        GOOD_DATA,
        {"mine_e.py": "X = 3\n"},
    ),
    method(
        "nothing to be exact with",
        "grpo --reward exact_answer",
        ["exact_answer compares with the answers", "--answer-column"],
        '{"prompt": "1 + 1"}\n' * 9,
    ),
    method(
        "answers instead of pairs",
        "dpo",
        ["d.jsonl", "no columns chosen and rejected", "--method sft"],
        GOOD_DATA,
    ),
    method(
        "two answers and no winner",
        "orpo",
        ["'response_a' and 'response_b'", "call the better one chosen"],
        '{"prompt": "a", "response_a": "b", "response_b": "c"}\n' * 9,
        speaks=Language.WORDS,
    ),
    method(
        "labels instead of pairs",
        "reward",
        ["column 'label'", "--method kto"],
        '{"prompt": "a", "completion": "b", "label": true}\n' * 9,
    ),
    method("KTO without labels", "kto", ["there is no column label"], GOOD_DATA),
    method(
        "KTO of texts",
        "kto",
        ["--method kto answers prompts", "'text' is plain text"],
        '{"text": "a", "label": true}\n' * 9,
    ),
    method("pairs for rewards", "grpo --reward exact_answer", ["--method dpo learns from such"]),
    method(
        "no prompts",
        "rloo --reward format=a",
        ["no column of prompts is known (there are: text)", "--prompt-column"],
        '{"text": "a"}\n' * 9,
    ),
    method("one answer of a pair", "dpo --answer-column chosen", ["--answer-column has no effect"]),
    method(
        "a column that the pairs do not have",
        "dpo --prompt-column promt",
        ["--prompt-column: unknown column 'promt'; did you mean 'prompt'?"],
    ),
    Wrong(
        "TRL's method in a command of the own loop",
        "check d.jsonl --method dpo",
        ["--method dpo is a trainer of TRL", "use temper train"],
        {"d.jsonl": GOOD_DATA},
    ),
]

TALKS = "train chats.jsonl --model-adapter dialogue"
FROM_USER = {"role": "user", "content": "a"}


def talk(*messages: object, **columns: object) -> Files:
    return {"chats.jsonl": "\n".join([json.dumps({"messages": messages, **columns})] * 9)}


def answering(**message: object) -> dict[str, object]:
    return {"role": "assistant", "content": "b", **message}


def calling(**function: object) -> dict[str, object]:
    return {"role": "assistant", "content": None, "tool_calls": [function]}


CONVERSATIONS = [
    Wrong(
        "plain text for a dialogue",
        TALKS,
        ["--model-adapter dialogue trains on conversations", "plain text"],
        {"chats.jsonl": '{"text": "Once upon a time."}\n' * 9},
    ),
    Wrong("no preview at all", "check --preview 0", ["--preview shows at least 1 example"]),
    Wrong("a preview that checks", "check --preview --quick", ["--preview checks nothing"]),
    *(
        Wrong(what, TALKS, ["chats.jsonl:1", *words], files, speaks=Language.WORDS)
        for what, words, files in (
            (
                "an unknown role",
                ["unknown role 'wizard'"],
                talk(FROM_USER, {"role": "wizard", "content": "b"}),
            ),
            ("a text for a message", ["is text, not an object"], talk(FROM_USER, "b")),
            ("a message of nobody", ["names no role"], talk(FROM_USER, {"content": "b"})),
            ("nobody who answers", ["no message of the assistant"], talk(FROM_USER, FROM_USER)),
            (
                "answers that say nothing",
                ["message 2", "is empty"],
                talk(FROM_USER, answering(content="")),
            ),
            (
                "a call without a name",
                ["no list of calls with names"],
                talk(FROM_USER, calling(a=1)),
            ),
            (
                "arguments that are no JSON",
                ["arguments of 'f' in message 2", "no JSON"],
                talk(FROM_USER, calling(name="f", arguments="{a")),
            ),
            (
                "arguments that are a list",
                ["arguments of 'f'", "a list, not an object"],
                talk(FROM_USER, calling(name="f", arguments=[1])),
            ),
            (
                "a call as it was before tools",
                ["write it as tool_calls"],
                talk(FROM_USER, answering(function_call={"name": "f"})),
            ),
            ("half a weight", ["it can be 0 or 1"], talk(FROM_USER, answering(weight=0.5))),
            (
                "a picture in a talk",
                ["chats.jsonl:1: picture", "no column"],
                talk({"role": "user", "content": [{"type": "image"}]}, answering()),
            ),
            (
                "a tool without a name",
                ["'tools' is no list of tools"],
                talk(FROM_USER, answering(), tools=[{}]),
            ),
            (
                "tools that are no list",
                ["'tools' is an object, not a list"],
                talk(FROM_USER, answering(), tools={"name": "f"}),
            ),
        )
    ),
    Wrong(
        "a template that refuses",
        [*TALKS.split(), "--chat-template", "{{ raise_exception('not so') }}"],
        ["the template refuses the conversation", "not so"],
        talk(FROM_USER, answering()),
        speaks=Language.WORDS,
    ),
    Wrong(
        "a template that writes history anew",
        [
            *TALKS.split(),
            "--chat-template",
            "{% for m in messages %}{{ loop.revindex }}{{ m.role }}: {{ m.content }}\n{% endfor %}",
        ],
        ["differently once the conversation goes on"],
        talk(FROM_USER, answering()),
    ),
    Wrong(
        "a template that is none",
        f"{TALKS} --chat-template nowhere.jinja",
        ["--chat-template", "is no file and no Jinja template"],
        talk(FROM_USER, answering()),
    ),
    Wrong(
        "a dialogue without a template",
        f"{TALKS} --model ./folder",
        ["needs a chat template", "--chat-template"],
        {
            **talk(FROM_USER, answering()),
            "folder/config.json": json.dumps(LLAMA),
            "folder/tokenizer.json": REAL_TOKENIZER,
            "folder/tokenizer_config.json": REAL_TOKENIZER,
        },
    ),
]

FURTHER += [
    Wrong("a deadline without a unit", "train --deadline 11", ["--deadline", '"11h"', 'not "11"']),
    Wrong("an unknown encoding", "train --encoding cp9999", ["--encoding", "cp1252"]),
    Wrong(
        "UTF-8 in another encoding",
        "train d.csv --encoding cp1252",
        ["d.csv is UTF-8", "--encoding"],
        {"d.csv": "prompt,completion\nFünf?,5\n"},
    ),
    Wrong(
        "UTF-16 without a mark",
        "train d.csv",
        ["d.csv is UTF-16 without a byte order mark", "--encoding utf-16-le"],
        {"d.csv": "prompt,completion\n5?,5\n".encode("utf-16-le")},
    ),
    Wrong(
        "a place among the runs",
        "train data.jsonl --backup-place runs/copies",
        ["--backup-place", "runs"],
        {"data.jsonl": GOOD_DATA},
    ),
]

SWEEPS = [
    Wrong("a sweep of nothing", "sweep", ["--search learning_rate="]),
    Wrong("a search without values", "sweep --search lr", ["lr", "KEY=VALUES"]),
    Wrong("a search of what there is not", "sweep --search learn_rate=1,2", ["learn_rate"]),
    Wrong("a search twice", "sweep --search lr=1,2 --search lr=3,4", ["given twice"]),
    Wrong("one value to search", "sweep --search lora_r=4", ["--search", "two values"]),
    Wrong("a value that is none", "sweep --search lora_r=4,many", ["--lora-r", '"many"']),
    Wrong("a range of words", "sweep --search optimizer=a..b", ["--search", "with commas"]),
    Wrong("a range that falls", "sweep --search lr=1e-3..1e-5", ["--search", "not below"]),
    Wrong("a range of no numbers", "sweep --search lr=1e-5..high", ["'high' is no number"]),
    Wrong("a step too wide", "sweep --search num_epochs=1..3:9", ["--search", "width"]),
    Wrong("a step between", "sweep --search embedded_num_layers=2..8:0.5", ["whole numbers"]),
    Wrong("a logarithm of zero", "sweep --search lora_dropout=0..0.5:log", ["above 0"]),
    Wrong("JSON to search", ["sweep", "--search", "lora_r=[4,"], ["--search", "JSON"]),
    Wrong("a search without effect", "sweep --search log_level=INFO,DEBUG", ["nothing"]),
    Wrong("a search of what is fixed", "sweep --lr 1 --search lr=1,2", ["--lr fixes"]),
    Wrong("other rows in each trial", "sweep --search seed=1,2", ["rows are held out"]),
    Wrong("other tokens in each trial", "sweep --search max_length=64,128", ["tokens"]),
    Wrong("no trials", "sweep --search lr=1,2 --trials 0", ["--trials 0", "at least 1"]),
    Wrong("a new run of a sweep", "sweep --search lr=1,2 --new-run", ["--new-run", "--name"]),
    Wrong(
        "a sweep without held-out data",
        "sweep --search lr=1,2 --validation-split 0",
        ["--validation-split", "--eval-data"],
    ),
    Wrong(
        "a grid of endlessly many",
        "sweep --search lr=1e-5..1e-3 --sampler grid",
        ["endlessly many"],
    ),
    Wrong(
        "a grid of too many",
        "sweep --search lora_r=1..2000 --sampler grid",
        ["--sampler grid", "1000"],
    ),
    Wrong(
        "an architecture of a model that has its own",
        "sweep --model some/model --search embedded_num_layers=2..4",
        ["--embedded-num-layers", "no effect"],
    ),
]

PICTURE_ROW = {"image": "1.png", "question": "What is it?", "answer": "a cat"}
SHOWN = "\n".join([json.dumps(PICTURE_ROW)] * 9)
NO_TENSORS = (2).to_bytes(8, "little") + b"{}"
SEEING = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"]}
TOWER: Files = {
    "t/config.json": '{"model_type": "clip_vision_model"}',
    "t/model.safetensors": NO_TENSORS,
    "t/preprocessor_config.json": "{}",
}


def seeing(
    what: str,
    flags: str,
    words: list[str],
    files: Files | None = None,
    data: str = SHOWN,
    **others: Any,
) -> Wrong:
    """A training on pictures of the Llama in m/, which is never loaded whole."""
    prepared = {
        "d.jsonl": data,
        "m/config.json": json.dumps(LLAMA),
        "m/model.safetensors": NO_TENSORS,
        **TOWER,
        "1.png": encoded(picture("red")),
        **(files or {}),
    }
    model = "" if "--model " in flags else " --model m"
    return Wrong(what, f"train d.jsonl{model} {flags}", words, prepared, **others)


GIVEN_A_TOWER = "--enabled-extensions multimodal --multimodal-vision-tower t"
PICTURES = [
    seeing(
        "a tower without a name",
        "--enabled-extensions multimodal",
        ["--multimodal-vision-tower names none", "google/siglip"],
    ),
    seeing(
        "a tower that is nowhere",
        "--enabled-extensions multimodal --multimodal-vision-tower nobody/no-tower",
        ["--multimodal-vision-tower: model 'nobody/no-tower'", "hub cannot", "preprocessor_config"],
    ),
    seeing(
        "a LoRA as a tower",
        "--enabled-extensions multimodal --multimodal-vision-tower l",
        ["--multimodal-vision-tower: l is a lora folder, no vision model"],
        {"l/adapter_config.json": "{}"},
    ),
    seeing(
        "a tower without its image processor",
        "--enabled-extensions multimodal --multimodal-vision-tower e",
        ["has no image processor", "image_processor.save_pretrained"],
        {"e/config.json": "{}", "e/model.safetensors": NO_TENSORS},
    ),
    seeing(
        "a text model as a tower",
        "--enabled-extensions multimodal --multimodal-vision-tower m",
        ["is a llama, no vision model", "give a CLIP"],
        {"m/preprocessor_config.json": "{}"},
    ),
    seeing("a tower for rows of text", GIVEN_A_TOWER, ["d.jsonl hold none"], data=GOOD_DATA),
    seeing("a tower on a new model", f"--model embedded {GIVEN_A_TOWER}", ["new and random"]),
    seeing(
        "a tower on weights of 4 bits",
        f"{GIVEN_A_TOWER} --lora --quantization 4bit",
        ["--quantization: ", "weights as they were"],
    ),
    seeing("a tower by Unsloth", f"{GIVEN_A_TOWER} --backend unsloth", ["makes one that sees"]),
    seeing("a tower by TRL", f"{GIVEN_A_TOWER} --method dpo", ["--method dpo", "of TRL"]),
    seeing(
        "a tower on an adapter of text",
        f"{GIVEN_A_TOWER} --model-adapter dialogue",
        ["is not one for pictures"],
    ),
    seeing(
        "a tower in stages",
        f"{GIVEN_A_TOWER} --strategy curriculum",
        ["curriculum has phases of its own", "standard or finetune"],
    ),
    seeing(
        "a tower alone",
        f"{GIVEN_A_TOWER} --train-extensions-only",
        ["--train-extensions-only: ", "projector alone"],
    ),
    seeing(
        "a second tower",
        GIVEN_A_TOWER,
        ["which sees already", "leave multimodal out"],
        {"m/config.json": json.dumps(SEEING)},
    ),
    seeing("pictures for a model of text", "", ["reads text only", "give a model that sees"]),
    seeing(
        "pictures for an adapter of text",
        "--model-adapter standard",
        ["reads text only, and the rows hold pictures (column 'image')"],
    ),
    seeing(
        "a model that sees without its processor",
        "",
        ["has no processor (processor_config.json is missing)"],
        {"m/config.json": json.dumps(SEEING), "m/tokenizer.json": REAL_TOKENIZER},
        speaks=Language.WORDS,
    ),
    seeing(
        "a vision part of a model of text",
        "--train-vision",
        ["--train-vision: ", "is not trained on pictures"],
        data=GOOD_DATA,
    ),
    seeing(
        "hidden tokens beside pictures",
        "--time-step-masking",
        ["hides tokens of text, and the rows hold pictures"],
    ),
    seeing(
        "pictures that are not there",
        GIVEN_A_TOWER,
        ["the first 9 rows cannot be used; d.jsonl:1: there is no picture '2.png'"],
        data=SHOWN.replace("1.png", "2.png"),
        speaks=Language.WORDS,
    ),
    seeing(
        "broken pictures alone",
        GIVEN_A_TOWER,
        ["the first 9 rows cannot be used; d.jsonl:1: the picture '1.png' is none of BMP"],
        {"1.png": b"GIF?"},
        speaks=Language.WORDS,
    ),
    seeing(
        "a column of pictures that is not there",
        f"{GIVEN_A_TOWER} --image-column photo",
        ["photo"],
    ),
    Wrong(
        "a picture for a model of text",
        ["ask", "m", "What is it?", "--image", "1.png"],
        ["m: reads text only", "1.png", "a model that sees"],
        {"m/config.json": json.dumps(LLAMA)},
        speaks=Language.WORDS,
    ),
    *(
        Wrong(
            what,
            ["ask", "m", "What is it?", "--image", "1.png"],
            ["1.png", reason],
            {"m/config.json": json.dumps({**SEEING, "vision_config": {}}), **files},
            speaks=Language.WORDS,
        )
        for what, reason, files in (
            ("a picture that is not there", "there is no picture", {}),
            ("a picture that is none", "is none of BMP", {"1.png": "none"}),
        )
    ),
]
SIZES = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
SMALL_LLAMA = {**LLAMA, **SIZES}
SMALL_GPT2 = {
    **{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 300},
    **{"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 128},
}
SMALL_MIXTRAL = {
    **SIZES,
    **{"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4},
}
SMALL_LLAVA = {
    "model_type": "llava",
    "architectures": ["LlavaForConditionalGeneration"],
    "text_config": {**SIZES, "model_type": "llama"},
    "vision_config": {
        **{"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64},
        **{"num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16, "patch_size": 8},
    },
}
RED = base64.b64encode(encoded(picture("red"))).decode()
RED_ROWS = "\n".join([json.dumps({"image": RED, "question": "Which?", "answer": "red"})] * 40)


def fitting(
    what: str,
    flags: str,
    words: list[str],
    model: dict[str, Any] = SMALL_LLAMA,
    data: str = GOOD_DATA,
    **others: Any,
) -> Wrong:
    """A training of a model in m/, whose weights are empty: they are never loaded."""
    files: Files = {
        "d.jsonl": data,
        "m/config.json": json.dumps(model),
        "m/tokenizer.json": REAL_TOKENIZER,
        "m/tokenizer_config.json": REAL_TOKENIZER,
        "m/model.safetensors": (2).to_bytes(8, "little") + b"{}",
    }
    command = f"train d.jsonl --model m --device cpu --max-length 64 {flags}"
    return Wrong(what, command, words, files, **others)


# Method, data, model and library that do not go together, besides METHODS.
FITTING = [
    fitting(
        "rounded weights of a GPT-2",
        "--quantization-aware int4",
        ["--quantization-aware", "those of gpt2 are Conv1D"],
        SMALL_GPT2,
    ),
    fitting(
        "rounded weights of a model of pictures",
        "--quantization-aware int4",
        ["--quantization-aware: is for models of text alone"],
        SMALL_LLAVA,
        RED_ROWS,
    ),
    fitting(
        "pictures by unsloth",
        "--backend unsloth",
        ["--backend unsloth loads models of text here", "set --backend transformers"],
        SMALL_LLAVA,
        RED_ROWS,
    ),
    fitting(
        "text for a model of pictures",
        "",
        ["LlavaForConditionalGeneration, no causal language model", "--model-adapter multimodal"],
        SMALL_LLAVA,
    ),
    fitting(
        "4 bits of narrow layers",
        "--quantization 4bit --lora",
        ["--quantization '4bit'", "multiple of 64, and this one's is 32"],
        {**SMALL_LLAMA, "hidden_size": 32},
    ),
    fitting(
        "4 bits of what is quantised",
        "--quantization 4bit --lora",
        ["--quantization '4bit': these weights are already quantised"],
        {**SMALL_LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 4}},
    ),
    fitting(
        "a LoRA of layers of another family",
        "--lora --lora-target-modules c_attn",
        ["--lora-target-modules: 'c_attn' is no linear layer of LlamaForCausalLM", "q_proj"],
    ),
    fitting(
        "DoRA of experts",
        "--lora --lora-use-dora",
        ["--lora-use-dora: PEFT has none for down_proj, gate_up_proj", "--lora-experts"],
        SMALL_MIXTRAL,
    ),
    fitting(
        "ranks of blocks that are not there",
        '--lora --lora-rank-pattern {"9":4}',
        ["--lora-rank-pattern: '9' means no layer", "blocks are 0 to 1"],
    ),
    fitting(
        "an attention by unsloth",
        "--attention eager --backend unsloth",
        ["unsloth chooses the attention itself", "--attention"],
    ),
    fitting(
        "a folder of something else",
        "",
        ["config.json names no model_type"],
        {"a": 1},
        speaks=Language.WORDS,
    ),
    fitting(
        "a family that transformers does not know",
        "",
        ["model type `llamo`"],
        {"model_type": "llamo"},
        speaks=Language.WORDS,
    ),
    fitting(
        "a tokenizer of a larger model",
        "",
        ["its tokenizer has token 299, but the model knows only 200 tokens"],
        {**SMALL_LLAMA, "vocab_size": 200},
        speaks=Language.WORDS,
    ),
    fitting(
        "too few prompts for a step",
        "--method grpo --reward exact_answer --num-generations 2 --batch-size 200"
        " --max-completion-length 8",
        ["fewer than the 100 that one step takes", "--num-generations"],
    ),
    Wrong(
        "a registered model in dialogue",
        "train --model tactical_mappo --model-adapter dialogue",
        ["--model-adapter dialogue", "has an adapter of its own (tactical_mappo)"],
    ),
    Wrong(
        "hidden tokens of a model without any",
        "train --model tactical_mappo --time-step-masking",
        ["--time-step-masking: model 'tactical_mappo' is no language model"],
    ),
]

TABLE = (
    SWEEPS
    + PICTURES
    + FITTING
    + CONVERSATIONS
    + CONFIGURATION
    + DATA
    + MODEL
    + CHECKPOINT
    + MEASURE
    + EXPORT
    + FURTHER
    + METHODS
)
# Of method, data, model and library that do not go together; refused before the model loads.
_FIRST = next(n for n, row in enumerate(CONFIGURATION) if row.what == "fp16 on a CPU")
PAIRINGS = [*METHODS, *PICTURES, *FITTING, *CONFIGURATION[_FIRST:]]
LEAST_PAIRINGS = 95
# What one line of the project answers counts once: the row, and the row that has its cause.
SAME_CAUSE = {
    "a form that there is not": "flag without value",
    "a tower that is nowhere": "hub model offline",
    "a vision part of a model of text": "4 bits of the small model",
    "a value that is none": "text for a number",
    "number out of range": "text for a number",
    "share out of range": "text for a number",
    "unknown choice": "text for a number",
    "negative learning rate": "text for a number",
    "a place that is no UTF-8": "a folder that is no UTF-8",
    "a model that is no UTF-8": "a folder that is no UTF-8",
    "infinite learning rate": "text for a number",
    "one checkpoint only": "text for a number",
    "unknown section in a file": "unknown key in a file",
    "epochs and steps for one thing": "two spellings that disagree",
    "too many to count": "text for a number",
    "a mode that there is not": "text for a number",
    "a storage that there is not": "a strategy with a slip",
    "a corruption that there is not": "a strategy with a slip",
    "QLoRA of other tools": "unknown flag",
    "what there is not": "unknown flag",
    "no command": "unknown command",
    "the report": "unknown command",
    "data file missing": "a file that is no UTF-8 missing",
    "preferences as chats": "preferences as text",
    "a page instead of data": "data file empty",
    "empty answers": "mostly broken JSON",
    "held-out file missing": "a file that is no UTF-8 missing",
    "5,000 nested brackets in each row": "invalid UTF-8",
    "a CSV whose rows are too short": "invalid UTF-8",
    "model folder missing": "a model that needs data",
    "5,000 nested brackets in config.json": "5,000 nested brackets in a flag",
    "5,000 nested brackets in adapter_config.json": "5,000 nested brackets in a flag",
    "5,000 nested brackets in model.safetensors.index.json": "5,000 nested brackets in a flag",
    "5,000 nested brackets in tokenizer_config.json": "5,000 nested brackets in a flag",
    "5,000 nested brackets in tokenizer.json": "5,000 nested brackets in a flag",
    "UTF-16 without a mark": "data file empty",
    "no whole checkpoint": "a run without checkpoints",
    "a checkpoint that is not there": "a step that was not saved",
    "a run.json of 5,000 nested brackets": "5,000 nested brackets in a flag",
    "a quantum problem of 5,000 nested brackets": "5,000 nested brackets in a flag",
    "no checkpoint to verify": "no run to go on with",
    "half a command": "flag without value",
    "an unknown action": "unknown command",
    "a run that nobody has": "a run that is not there",
    "exporting nothing": "flag without value",
    "exporting a run without checkpoints": "a run without checkpoints",
    "a setting of backups without a place": "a setting without effect",
    "evaluating nothing": "flag without value",
    "evaluating a model that is not there": "a model that needs data",
    "comparing with a model that is not there": "a model that needs data",
    "measures of tasks": "rows of no task",
    "another number of bits": "flag without value",
    "qs sampler": "an unknown measure",
    "broken pictures alone": "pictures that are not there",
    "a column of pictures that is not there": "a prompt column that is not there",
}
LEAST_CAUSES = 194
KEYS = [key for key in schema_of(DeploymentConfig).fields if "." in key]
OF_A_FILE = re.compile(r"\.ya?ml\b")


@pytest.fixture(scope="module")
def causes() -> dict[str, str]:
    """Which row has which cause, of those that were tried; no two may have one."""
    return {}


def test_the_table_is_long_enough() -> None:
    names = {wrong.what for wrong in TABLE}
    assert len(names) == len(TABLE)
    assert {*SAME_CAUSE, *SAME_CAUSE.values()} <= names
    assert not {*SAME_CAUSE} & {*SAME_CAUSE.values()}
    assert len(TABLE) - len(SAME_CAUSE) >= LEAST_CAUSES
    pairings = {wrong.what for wrong in PAIRINGS}
    assert len(pairings - SAME_CAUSE.keys() - {*SAME_CAUSE.values()}) >= LEAST_PAIRINGS


@pytest.mark.parametrize("wrong", TABLE, ids=lambda wrong: wrong.what)
def test_wrong_input_ends_in_one_sentence(
    wrong: Wrong,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    saved_llama: Path,
    causes: dict[str, str],
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
    for name, text in wrong.environment.items():
        monkeypatch.setenv(name, text)
    errors: list[BaseException] = []
    fail = commands._fail

    def note(error: BaseException, code: ExitCode) -> ExitCode:
        errors.append(error)
        return fail(error, code)

    monkeypatch.setattr(commands, "_fail", note)
    monkeypatch.setattr(TrainingDeployment, "_measure", None)  # nothing here may begin to train
    if wrong in PAIRINGS:
        monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", None)
    words = wrong.command if isinstance(wrong.command, list) else wrong.command.split()
    with places_of_sentences(monkeypatch) as sentences:
        code = commands.main(words)
    error = capsys.readouterr().err.strip().splitlines()
    assert code == ExitCode.WRONG_INPUT, error
    sentence = error[-1]
    assert sentence.startswith("temper: ")
    assert "Traceback" not in "".join(error)
    for part in wrong.words:
        assert part in sentence
    _check_language(wrong, sentence)
    _check_cause(wrong, cause_of(errors[0], sentences), causes)


def _check_language(wrong: Wrong, sentence: str) -> None:
    assert re.search(wrong.speaks.value, sentence), f"it does not speak as a {wrong.speaks.name}"
    if OF_A_FILE.search(sentence) is None:
        text = re.sub(r"/\S+", "", sentence)
        keys = [key for key in KEYS if re.search(rf"(?<![\w.-]){re.escape(key)}(?![\w.])", text)]
        assert keys == [], "keys are for who writes a file"


def _check_cause(wrong: Wrong, cause: str, causes: dict[str, str]) -> None:
    assert cause, "nothing of the project has refused it"
    row = SAME_CAUSE.get(wrong.what, wrong.what)
    assert causes.setdefault(cause, row) == row, f"{cause} answers both"
    assert [c for c, other in causes.items() if other == row] == [cause]
