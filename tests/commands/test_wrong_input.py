"""Whatever a person gets wrong ends in exit code 2 and one sentence: what, where, what to do.

A row: what is wrong, the command line, the code of the sentence and what it is about, and the
files and variables it needs. `AS_GIVEN` shows how sentences spell the settings that were
given.
"""

import base64
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from infrastructure.commands import main as commands
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import WORDS
from infrastructure.deployment.deploy_training import TrainingDeployment
from tests.training.seeing_models import encoded, picture

Files = dict[str, bytes | str]


@dataclass(frozen=True)
class Wrong:
    what: str
    command: str | list[str]
    about: list[str]
    files: Files = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


GOOD_ROW = json.dumps({"prompt": "Say a.", "completion": "a"})
ROW_B = json.dumps({"prompt": "Say b.", "completion": "b"})
GOOD_DATA = "\n".join([GOOD_ROW] * 40)
CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
PREFERENCE = {"prompt": "a", "chosen": "b", "rejected": "c"}
ROW = {"prompt": "Say b.", "completion": "b"}
REAL_TOKENIZER = "the tokenizer of the tests' small model"
RUN = json.dumps({"configuration": {"values": {}, "sources": {}, "masked": []}})
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
    Wrong(
        "unknown flag",
        "train --batchsize 4",
        ["commands.unknown_argument", "arguments='--batchsize'", "meant=--batch-size"],
    ),
    Wrong(
        "the report",
        "report nope",
        ["commands.unknown_command_advice", "commands.report_is_a_file", "word=report"],
    ),
    Wrong(
        "unknown command",
        "tran",
        ["commands.unknown_command_meant", "word=tran", "meant=temper train"],
    ),
    Wrong(
        "text for a number",
        "config --batch-size many",
        ["config.wrong_value", "setting=training.batch_size", 'value="many"'],
    ),
    Wrong(
        "number out of range",
        "config --batch-size 0",
        ["config.wrong_value", "setting=training.batch_size", 'value="0"'],
    ),
    Wrong(
        "share out of range",
        "config --validation-split 1.5",
        ["config.wrong_value", "setting=data.validation_split", 'value="1.5"'],
    ),
    Wrong(
        "unknown choice",
        "config --scheduler-type cosin",
        ["core.unknown_plugin", "setting=training.scheduler_type", "name=cosin", "meant=cosine"],
    ),
    Wrong(
        "negative learning rate",
        "config --learning-rate -1",
        ["config.wrong_value", "setting=training.learning_rate", 'value="-1"'],
    ),
    Wrong(
        "a folder that is no UTF-8",
        "train --output runs\udce9",
        ["config.wrong_value", "setting=output_dir", 'value="runs\\udce9"'],
    ),
    Wrong(
        "a place that is no UTF-8",
        "train --backup-place \udce9",
        ["config.wrong_value", "setting=backup.place", 'value="\\udce9"'],
    ),
    Wrong(
        "a model that is no UTF-8",
        "train --model ./m\udce9",
        ["config.wrong_value", "setting=model.name", 'value="./m\\udce9"'],
    ),
    Wrong(
        "infinite learning rate",
        "config --learning-rate inf",
        ["config.wrong_value", "setting=training.learning_rate", 'value="inf"'],
    ),
    Wrong(
        "one checkpoint only",
        "config --keep-checkpoints 1",
        ["config.wrong_value", "setting=training.keep_checkpoints", 'value="1"', "at least 2"],
    ),
    Wrong(
        "flag without value",
        "config --batch-size",
        ["commands.wrong_arguments", "argument --batch-size"],
    ),
    Wrong(
        "config file missing",
        "config --config nowhere.yaml",
        ["config.file_not_found", "path=nowhere.yaml"],
    ),
    Wrong(
        "config file is not YAML",
        "config --config bad.yaml",
        ["config.yaml_invalid", "place=bad.yaml:3"],
        {"bad.yaml": "training:\n  batch_size: [1\n"},
    ),
    Wrong(
        "config file is a list",
        "config --config list.yaml",
        ["config.yaml_not_a_mapping", "path=list.yaml", "line=1"],
        {"list.yaml": "- 1\n- 2\n"},
    ),
    Wrong(
        "unknown key in a file",
        "config --config typo.yaml",
        [
            "config.unknown_key_meant",
            "key=training.bath_size",
            "meant='training.batch_size'",
            "typo.yaml:2: training.bath_size",
        ],
        {"typo.yaml": "training:\n  bath_size: 4\n"},
    ),
    Wrong(
        "unknown section in a file",
        "config --config typo.yaml",
        ["config.unknown_key_meant", "key=trainning", "meant='training'", "typo.yaml:1: trainning"],
        {"typo.yaml": "trainning:\n  batch_size: 4\n"},
    ),
    Wrong(
        "a key twice",
        "config --config twice.yaml",
        [
            "config.yaml_duplicate_key",
            "path=twice.yaml",
            "line=3",
            "key=training.batch_size",
            "other_line=2",
        ],
        {"twice.yaml": "training:\n  batch_size: 4\n  batch_size: 8\n"},
    ),
    Wrong(
        "aliases that stand for a billion values",
        "config --config laughs.yaml",
        ["config.yaml_invalid", "place=laughs.yaml:2", "reason=config.yaml_alias()"],
        {"laughs.yaml": LAUGHS},
    ),
    Wrong(
        "5,000 nested brackets",
        "config --config deep.yaml",
        ["config.yaml_invalid", "place=deep.yaml:1", "reason=config.yaml_too_deep(max_depth=50)"],
        {"deep.yaml": "training: " + DEEP},
    ),
    Wrong(
        "5,000 nested brackets in a flag",
        f"config --metrics-sinks {DEEP}",
        ["config.wrong_value", "setting=training.metrics_sinks"],
    ),
    Wrong(
        "two spellings that disagree",
        "config --config two.yaml",
        [
            "config.both_mean",
            "first_source=two.yaml:2: training.batch_size",
            "first=4",
            "second_source=two.yaml:4: data.batch_size",
            "second=8",
            "setting=training.batch_size",
        ],
        {"two.yaml": "training:\n  batch_size: 4\ndata:\n  batch_size: 8\n"},
    ),
    Wrong(
        "epochs and steps for one thing",
        "config --checkpoint-interval 2 --checkpoint-frequency 100",
        [
            "config.interval_in_epochs_and_steps",
            "first=2",
            "second=100",
            "in_epochs=training.checkpoint_interval",
            "in_steps=training.checkpoint_frequency",
        ],
    ),
    Wrong(
        "a size that is none",
        "config --memory-limit 8XB",
        ["config.wrong_value", "setting=data.memory_limit", 'value="8XB"'],
    ),
    Wrong(
        "a sink twice",
        "config --metrics-sinks csv,csv",
        ["config.wrong_value", "setting=training.metrics_sinks", 'value="csv,csv"'],
    ),
    Wrong(
        "too many to count",
        f"config --batch-size {10**12}",
        [
            "config.wrong_value",
            "setting=training.batch_size",
            'value="1000000000000"',
            "largest=2147483647",
        ],
    ),
    Wrong(
        "a setting without effect",
        "train --buffer-size 9",
        [
            "config.setting_without_effect",
            "config.unused_streaming_is_off",
            "setting=data.buffer_size=9",
        ],
    ),
    Wrong(
        "a secret for a name",
        f"train --run-name hf_{'aB' * 17}",
        ["config.wrong_value", "setting=run_name", 'value="***"'],
    ),
    Wrong(
        "a mode that there is not",
        "train --mode sidewise",
        ["config.wrong_value", "setting=training.mode", 'value="sidewise"'],
    ),
    Wrong(
        "a strategy with a slip",
        "train --strategy progresive",
        [
            "config.setting_says",
            "setting=training.strategy",
            "what=training strategy, name=progresive,",
            "meant=progressive",
        ],
    ),
    Wrong(
        "a storage that there is not",
        "train --stack-quantization-type nf_fp",
        [
            "config.setting_says",
            "setting=training.quantization_type",
            "what=quantization, name=nf_fp,",
            "meant=nf_fp8",
        ],
    ),
    Wrong(
        "a corruption that there is not",
        "train --corruption maks",
        [
            "config.setting_says",
            "setting=training.corruption",
            "what=corruption, name=maks,",
            "meant=mask",
        ],
    ),
    Wrong(
        "QLoRA of other tools",
        "train --qlora",
        ["commands.unknown_argument", "config.called_here", "'--qlora'", "--quantization 4bit"],
    ),
    Wrong("two LoRAs", "train --stack-qlora --lora", ["stackwise.stacks_with_lora"]),
    Wrong(
        "weights that cannot train",
        "train --stack-quantization",
        ["stackwise.quantization_freezes_everything"],
    ),
    Wrong(
        "what there is not",
        "train --tensor-parallel",
        ["commands.unknown_argument", "config.no_model_parallel", "arguments='--tensor-parallel'"],
    ),
    Wrong("no command", "search", ["commands.unknown_command", "word=search", "resume, "]),
    Wrong(
        "llama.cpp's model",
        "train rows.jsonl --model m.gguf",
        ["models.gguf_cannot_be_trained", "config.gguf_is_exported", "path=m.gguf"],
        {"rows.jsonl": GOOD_DATA, "m.gguf": b"GGUF"},
    ),
    Wrong(
        "a GPU that is not there",
        "train --device cuda:7",
        ["core.pytorch_sees_no_gpu", "device=cuda:7"],
    ),
    Wrong(
        "a GPU by a number that is not there",
        "train --cuda-visible-devices 3",
        ["config.visible_device_not_found", "devices=3"],
    ),
    Wrong("fp16 on a CPU", "train --mixed-precision fp16 --device cpu", ["core.fp16_needs_gpu"]),
    Wrong(
        "4 bits of the small model",
        "train --quantization 4bit",
        [
            "models.setting_no_effect",
            "models.no_trained_weights",
            "key=model.quantization",
            "name=embedded",
        ],
    ),
    Wrong(
        "weights of 4 bits that train",
        "train d.jsonl --model ./m --quantization 4bit",
        ["models.quantized_without_lora", "quantization=4bit"],
        {"d.jsonl": GOOD_DATA, **NO_WEIGHTS},
    ),
    Wrong(
        "flash attention on a CPU",
        "train --attention flash_attention_2 --device cpu",
        ["models.flash_attention_unavailable"],
    ),
    Wrong(
        "longer than the model sees",
        "train d.jsonl --model ./m --max-length 100",
        ["models.max_length_beyond_positions", "max_length=100", "num_positions=64", "name=./m"],
        {"d.jsonl": GOOD_DATA, **NO_WEIGHTS},
    ),
    Wrong(
        "a data set of the Hub that is nowhere",
        "train nobody/no-data",
        ["data.hub_unreachable", "name=nobody/no-data"],
    ),
    Wrong(
        "a curriculum of a stream",
        "train d.jsonl --strategy curriculum --streaming",
        ["curriculum.with_streaming"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a curriculum and a quantum selection",
        "train d.jsonl --strategy curriculum --optimization-frequency 5"
        " --quantum-problem data_selection",
        ["quantum.curriculum_with_data_selection"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a curriculum that stops early",
        "train d.jsonl --strategy curriculum --early-stopping-patience 2",
        ["curriculum.with_early_stopping"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a curriculum that ends in its first stage",
        "train d.jsonl --strategy curriculum --max-steps 2 --batch-size 8 --model embedded",
        ["curriculum.last_stage_not_reached", "total_steps=2", "num_stages=3", "earliest=10"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "more stages than rows",
        "train d.jsonl --strategy curriculum --curriculum-stages 60 --model embedded",
        ["curriculum.too_few_examples_for_stages", "num_examples=40", "num_stages=60"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "DoRA by unsloth",
        "train d.jsonl --model org/m --lora --lora-use-dora --backend unsloth",
        ["config.lora_variant_with_unsloth", "lora_variant=model.lora_config.use_dora"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "rounded weights beside a LoRA",
        "train d.jsonl --quantization-aware int4 --lora",
        ["quantization_aware.with_lora", "quantization_aware=int4"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "rounded weights by unsloth",
        "train d.jsonl --model org/m --quantization-aware int4 --backend unsloth",
        ["quantization_aware.with_unsloth", "quantization_aware=int4"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "rounded weights stack by stack",
        "train d.jsonl --quantization-aware int4 --strategy progressive",
        ["quantization_aware.with_strategy", "quantization_aware=int4"],
        {"d.jsonl": GOOD_DATA},
    ),
    Wrong(
        "rows that share no scale",
        "train d.jsonl --quantization-aware int4 --embedded-hidden-size 48"
        " --embedded-num-heads 2 --max-length 64",
        [
            "quantization_aware.embedded_width",
            "group_size=32",
            "setting=model.embedded.hidden_size",
            "width=48",
        ],
        {"d.jsonl": GOOD_DATA},
    ),
]

DATA = [
    Wrong(
        "a web address for data",
        "train https://me:letmein@example.org/rows.jsonl",
        ["config.web_address_given", "key=data.path", 'value="https://***@example.org/rows.jsonl"'],
    ),
    Wrong(
        "a file that is no UTF-8 missing",
        "train no\udce9.jsonl",
        ["data.path_not_found", "what=training data"],
    ),
    Wrong(
        "data file missing",
        "train nowhere.jsonl",
        ["data.path_not_found", "what=training data", "path=nowhere.jsonl"],
    ),
    Wrong(
        "data file empty",
        "train empty.jsonl",
        ["data.file_not_text", "path=empty.jsonl", "kind=data.kind_empty()"],
        {"empty.jsonl": ""},
    ),
    Wrong(
        "preferences as text",
        "train pairs.jsonl",
        [
            "data.preference_pairs",
            "config.learns_from_pairs",
            "data.set_pair_columns",
            "file=pairs.jsonl",
            "columns='chosen' and 'rejected'",
            "prompt=prompt",
            "answer=chosen",
        ],
        {"pairs.jsonl": "\n".join([json.dumps(PREFERENCE)] * 9)},
    ),
    Wrong(
        "preferences as chats",
        "train chats.jsonl",
        [
            "data.preference_pairs",
            "config.learns_from_pairs",
            "data.put_into_messages",
            "file=chats.jsonl",
            "columns='chosen' and 'rejected'",
            "chosen=chosen",
        ],
        {"chats.jsonl": "\n".join([json.dumps({"chosen": CHAT, "rejected": CHAT})] * 9)},
    ),
    Wrong(
        "answers that all lose their end",
        "train long.jsonl --max-length 48",
        [
            "testing.every_answer_truncated",
            "testing.fit_answer_ends",
            "tokens='<|end|>'",
            "max_length=48",
        ],
        {
            "long.jsonl": "".join(
                json.dumps({"question": f"{n}?", "answer": f"{n} " * 99}) + "\n" for n in range(9)
            )
        },
    ),
    Wrong(
        "data folder empty",
        "train folder",
        ["data.folder_without_data_files", "folder=folder", "names=nothing"],
        {"folder/.keep": ""},
    ),
    Wrong(
        "a zip archive for data",
        "train data.zip",
        ["data.zip_truncated", "path=data.zip"],
        {"data.zip": b"PK\x03\x04" + bytes(30)},
    ),
    Wrong(
        "unknown extension",
        "train data.xyz",
        ["data.unknown_file_extension", "path=data.xyz"],
        {"data.xyz": "hello"},
    ),
    Wrong(
        "mostly broken JSON",
        "train broken.jsonl",
        ["data.too_many_bad_rows", "data.skip_bad_rows", "num_bad=3", "num_rows=5"],
        {"broken.jsonl": "\n".join([GOOD_ROW, ROW_B, "{", "[", '{"prompt": 1'])},
    ),
    Wrong(
        "invalid UTF-8",
        "train latin.jsonl",
        ["data.windows_text", "latin.jsonl:1: invalid UTF-8", "encoding=cp1252"],
        {"latin.jsonl": b'{"prompt": "\xe4\xf6", "completion": "\xff"}\n' * 9},
    ),
    Wrong(
        "a page instead of data",
        "train page.jsonl",
        ["data.file_not_text", "data.web_page_downloaded", "path=page.jsonl"],
        {"page.jsonl": "<!DOCTYPE html><html><body>404</body></html>"},
    ),
    Wrong(
        "columns that say nothing",
        "train odd.jsonl",
        [
            "data.unrecognized_rows",
            "data.in_no_known_shape",
            "data.set_prompt_and_answer",
            "file=odd.jsonl",
            "columns=alpha, beta",
            "first=alpha",
            "second=beta",
        ],
        {"odd.jsonl": '{"alpha": "1", "beta": "2"}\n' * 20},
    ),
    Wrong(
        "a prompt column that is not there",
        "train data.jsonl --prompt-column questoin",
        [
            "data.unrecognized_file",
            "config.setting_says",
            "file=data.jsonl",
            "setting=data.prompt_column",
            "what=column, name=questoin,",
        ],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "an unknown shape",
        "train data.jsonl --data-shape alpacca",
        [
            "data.unrecognized_file",
            "data.unknown_shape",
            "file=data.jsonl",
            "what=shape, name=alpacca,",
            "meant=alpaca",
        ],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "an unknown format",
        "train data.jsonl --data-format jsonn",
        [
            "config.setting_says",
            "core.unknown_plugin",
            "setting=data.format",
            "what=data format, name=jsonn,",
            "meant=json",
        ],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "empty answers",
        "train hollow.jsonl",
        ["data.too_many_bad_rows", "num_rows=20", "20 empty (hollow.jsonl:1", "column=completion"],
        {"hollow.jsonl": '{"prompt": "a", "completion": ""}\n' * 20},
    ),
    Wrong(
        "held-out file missing",
        "train data.jsonl --eval-data nowhere.jsonl",
        ["data.path_not_found", "what=held-out data", "path=nowhere.jsonl"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a damaged Parquet file",
        "train data.parquet",
        ["data.parquet_damaged", "file=data.parquet"],
        {"data.parquet": b"PAR1 not really PAR1"},
    ),
    Wrong(
        "a damaged HDF5 file",
        "train data.h5",
        ["hdf5.damaged", "file=data.h5"],
        {"data.h5": b"\x89HDF\r\n\x1a\n" + b"\0" * 64},
    ),
    Wrong(
        "5,000 nested brackets in each row",
        "train deep.jsonl",
        ["data.no_readable_row", "core.nested_too_deep", "deep.jsonl:1: broken JSON"],
        {"deep.jsonl": f'{{"prompt": {DEEP}, "completion": "a"}}\n' * 9},
    ),
    Wrong(
        "5,000 nested brackets in a document",
        "train deep.json",
        ["data.json_broken", "core.nested_too_deep", "file=deep.json", "line=1", "max_depth=100"],
        {"deep.json": f'[{{"prompt": {DEEP}}}]'},
    ),
    Wrong(
        "a CSV whose rows are too short",
        "train ragged.csv",
        ["data.no_readable_row", "ragged.csv:2: "],
        {"ragged.csv": "prompt,completion\n" + "only one\n" * 20},
    ),
    Wrong(
        "a model that needs data",
        "train --model-name ./folder",
        ["models.folder_missing", "name=./folder"],
    ),
]

MODEL = [
    Wrong(
        "model folder missing",
        "train data.jsonl --model ./nowhere",
        ["models.folder_missing", "name=./nowhere"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "folder without a model",
        "train data.jsonl --model ./folder",
        ["models.folder_has_no_model", "/folder"],
        {"data.jsonl": GOOD_DATA, "folder/readme.txt": "hello"},
    ),
    Wrong(
        "a file for a model",
        "train data.jsonl --model ./data.jsonl",
        ["models.model_is_a_file", "path=data.jsonl"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "model without weights",
        "train data.jsonl --model ./folder",
        ["models.weights_missing", "file=model.safetensors", "/folder"],
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
        ["models.weights_are_pickled", "file=pytorch_model.bin", "/folder"],
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
        ["models.weights_damaged", "/folder/model.safetensors"],
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
        ["models.invalid_json", "/folder/config.json"],
        {"data.jsonl": GOOD_DATA, "folder/config.json": "{"},
    ),
    *(
        Wrong(
            f"5,000 nested brackets in {name}",
            "train data.jsonl --model ./folder",
            [code, "core.nested_too_deep", "max_depth=100", f"/folder/{name}"],
            {
                "data.jsonl": GOOD_DATA,
                "folder/config.json": json.dumps(LLAMA),
                "folder/tokenizer.json": REAL_TOKENIZER,
                "folder/tokenizer_config.json": REAL_TOKENIZER,
                f"folder/{name}": f'{{"a": {DEEP}}}',
            },
        )
        for name, code in (
            ("config.json", "models.invalid_json"),
            ("tokenizer_config.json", "models.tokenizer_file_invalid"),
            ("adapter_config.json", "models.invalid_json"),
            ("model.safetensors.index.json", "models.invalid_json"),
            ("tokenizer.json", "models.tokenizer_file_invalid"),
        )
    ),
    Wrong(
        "heads that do not divide the width",
        "train --embedded-hidden-size 100 --embedded-num-heads 7",
        ["config.hidden_size_not_divisible", "hidden_size=100", "num_heads=7"],
    ),
    Wrong(
        "output that is a file",
        "train --output file",
        ["run.output_dir_not_writable", "run.output_dir_is_a_file", "output_dir=file"],
        {"file": ""},
    ),
    Wrong(
        "a memory of a stack at a time",
        "train data.jsonl --enabled-extensions memory --strategy progressive",
        [
            "stackwise.added_weights_with_stacks",
            "key=training.enabled_extensions=memory",
            "strategy=progressive",
        ],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a memory that is compiled",
        "train data.jsonl --enabled-extensions memory --compile-mode default",
        ["config.added_weights_with_compile", "key=training.enabled_extensions=memory"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a memory of Unsloth's layers",
        "train data.jsonl --enabled-extensions memory --backend unsloth --model ./folder --lora",
        ["config.added_weights_with_unsloth", "key=training.enabled_extensions=memory"],
        {"data.jsonl": GOOD_DATA, "folder/config.json": json.dumps(LLAMA)},
    ),
    Wrong(
        "a memory among hidden tokens",
        "train data.jsonl --enabled-extensions memory --time-step-masking",
        ["stackwise.added_weights_with_masking", "key=training.enabled_extensions=memory"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a memory of a rounded model",
        "train data.jsonl --enabled-extensions memory --quantization-aware int4",
        ["quantization_aware.with_added_weights", "key=training.enabled_extensions=memory"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a memory in eight bits",
        "train data.jsonl --enabled-extensions memory --mixed-precision fp8",
        ["config.added_weights_with_fp8", "key=training.enabled_extensions=memory"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a memory of several processes",
        "train data.jsonl --enabled-extensions memory --num-processes 2 --device cpu",
        ["config.added_weights_on_processes", "count=2", "names=memory"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a form that there is not",
        "export nope --format ggfu",
        ["commands.wrong_arguments", "what=value of --format, name=ggfu,", "meant=gguf"],
    ),
    Wrong(
        "a layer that the model has not",
        "train data.jsonl --enabled-extensions memory --memory-layer 99",
        ["key_value_memory.layer_out_of_range", "layer=99", "last=3"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "heads that do not divide the memory",
        "train data.jsonl --enabled-extensions memory --memory-heads 7",
        ["key_value_memory.heads_not_divisor", "heads=7", "width=128"],
        {"data.jsonl": GOOD_DATA},
    ),
]

VERSION = f"{3:012d}-blake3-{'ab' * 32}"
CHECKPOINT = [
    Wrong("no run to go on with", "resume", ["monitoring.no_runs", "output_dir=runs"]),
    Wrong(
        "a run that is not there",
        "resume nowhere",
        [
            "monitoring.unknown_run_or_checkpoint",
            "output_dir=runs",
            "what=run or checkpoint, name=nowhere)",
        ],
    ),
    Wrong(
        "a run without checkpoints",
        "resume runs/a",
        ["run.nothing_to_resume_from", "run.no_checkpoint_saved_yet", "/runs/a/checkpoints"],
        {"runs/a/run.json": RUN},
    ),
    Wrong(
        "a step that was not saved",
        "resume a@7",
        ["run.no_such_checkpoint", "run=a", "'7'", "steps=none"],
        {"runs/a/run.json": "{}"},
    ),
    Wrong(
        "a damaged run.json",
        "resume runs/a",
        ["core.record_not_json", "/runs/a/run.json"],
        {"runs/a/run.json": "{", f"runs/a/checkpoints/versions/{VERSION}.json": "{}"},
    ),
    Wrong(
        "a damaged checkpoint",
        f"resume runs/a/checkpoints/versions/{VERSION}.json",
        ["backup.manifest_changed"],
        {"runs/a/run.json": RUN, f"runs/a/checkpoints/versions/{VERSION}.json": "{}"},
    ),
    Wrong(
        "no whole checkpoint",
        "resume runs/a",
        ["run.nothing_to_resume_from", "000000000003: backup.manifest_changed"],
        {"runs/a/run.json": RUN, f"runs/a/checkpoints/versions/{VERSION}.json": "{}"},
    ),
    Wrong(
        "a checkpoint that is not there",
        f"resume runs/a/checkpoints/versions/{VERSION}.json",
        ["run.no_such_checkpoint", "run=a", f"which={VERSION}"],
        {"runs/a/run.json": RUN},
    ),
    Wrong(
        "a run.json of 5,000 nested brackets",
        "resume runs/a",
        ["core.record_not_json", "core.nested_too_deep", "max_depth=100", "/runs/a/run.json"],
        {
            "runs/a/run.json": f'{{"configuration": {DEEP}}}',
            f"runs/a/checkpoints/versions/{VERSION}.json": "{}",
        },
    ),
    Wrong(
        "a run.json of something else",
        "resume runs/a",
        ["run.run_file_without_configuration", "/runs/a/run.json"],
        {"runs/a/run.json": "{}"},
    ),
    Wrong(
        "an unknown thing to accept",
        "train --accept learnig_rate",
        ["run.unknown_accepted_name", "name=learnig_rate", "meant=learning_rate"],
    ),
    Wrong(
        "no checkpoint to verify", "checkpoints verify", ["monitoring.no_runs", "output_dir=runs"]
    ),
    Wrong("half a command", "checkpoints", ["commands.wrong_arguments", "required: ACTION"]),
    Wrong(
        "an unknown action",
        "backup lst",
        ["commands.unknown_command_meant", "word=lst", "meant=temper backup list"],
    ),
    Wrong(
        "a run that nobody has",
        "checkpoints list nowhere",
        [
            "monitoring.unknown_run_or_checkpoint",
            "output_dir=runs",
            "what=run or checkpoint, name=nowhere)",
        ],
    ),
    Wrong("exporting nothing", "export", ["commands.wrong_arguments", "required: RUN"]),
    Wrong("exporting nowhere", "export a", ["commands.no_export_target"]),
    Wrong(
        "exporting over other files",
        "export runs/a mine",
        ["core.folder_not_empty", "folder=mine"],
        {"runs/a/run.json": RUN, "mine/notes.txt": "keep me"},
    ),
    Wrong(
        "exporting a run without checkpoints",
        "export runs/a model",
        ["run.nothing_to_resume_from", "run.no_checkpoint_saved_yet", "/runs/a/checkpoints"],
        {"runs/a/run.json": RUN},
    ),
    Wrong(
        "restoring from nowhere",
        "backup restore",
        ["commands.backup_location_unknown", "variable=TEMPER_BACKUP__PLACE"],
    ),
    Wrong(
        "restoring from an empty place", "backup restore --place .", ["run.no_run_at_destination"]
    ),
    Wrong(
        "a backup of a run without a place",
        "backup create runs/a",
        ["commands.run_has_no_destination", "run_id=a"],
        {"runs/a/run.json": RUN},
    ),
    Wrong(
        "a setting of backups without a place",
        "train --backup-keep 3",
        [
            "config.setting_without_effect",
            "config.unused_no_backup_destination",
            "setting=backup.keep=3",
        ],
    ),
    Wrong("evaluating nothing", "eval", ["commands.wrong_arguments", "required: MODEL"]),
    Wrong(
        "evaluating a model that is not there",
        "eval ./nowhere data.jsonl",
        ["models.folder_missing", "name=./nowhere"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "evaluating on other data than the data",
        "eval ./m data.jsonl --eval-data data.jsonl",
        ["evaluation.flag_no_effect", "key=data.eval_path", "data_is_evaluated"],
        {"data.jsonl": GOOD_DATA, **NO_WEIGHTS},
    ),
    Wrong(
        "evaluating an unfinished run",
        "eval runs/a data.jsonl",
        ["models.run_has_no_final", "path=runs/a"],
        {"runs/a/run.json": "{}", "data.jsonl": GOOD_DATA},
    ),
]

MEASURE = [
    Wrong("measuring on nothing", "eval some/model", ["commands.eval_data_missing"]),
    Wrong(
        "data besides tasks",
        "eval some/model data.jsonl --tasks gsm8k",
        ["lm_eval.data_besides_tasks", "data=data.jsonl"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "rows of no task",
        "eval some/model data.jsonl --limit 5",
        [
            "lm_eval.flag_without_effect",
            "lm_eval.only_used_by_tasks",
            "lm_eval.validation_prompts_limit_answers",
            "flag=--limit",
        ],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "measures of tasks",
        "eval some/model --tasks gsm8k --measures f1",
        [
            "lm_eval.flag_without_effect",
            "lm_eval.tasks_have_own_measures",
            "flag=--measures",
        ],
    ),
    Wrong(
        "an unknown measure",
        "eval some/model data.jsonl --measures rouge",
        ["what=measure, name=rouge,", "meant=rouge1"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "answers of no token",
        "eval some/model data.jsonl --max-tokens 0",
        ["evaluation.max_tokens_too_small", "max_tokens=0"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "comparing with a model that is not there",
        "eval some/model data.jsonl --against ./nowhere",
        ["models.folder_missing", "name=./nowhere"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "comparing a model with itself",
        "eval model data.jsonl --against ./model",
        ["evaluation.compared_with_itself", "name=./model"],
        {
            "data.jsonl": GOOD_DATA,
            "model/config.json": json.dumps(LLAMA),
            "model/model.safetensors": b"",
        },
    ),
    Wrong("no task", "eval some/model --tasks ,", ["lm_eval.no_tasks"]),
    Wrong(
        "tasks of a folder that is not there",
        "eval some/model --tasks mine --tasks-path nowhere",
        ["lm_eval.tasks_path_missing", "folder=nowhere"],
    ),
    Wrong(
        "no row of a task",
        "eval some/model --tasks gsm8k --limit 0",
        ["lm_eval.limit_too_small", "limit=0"],
    ),
    Wrong(
        "fewer than no examples",
        "eval some/model --tasks gsm8k --num-fewshot -1",
        ["lm_eval.num_fewshot_negative", "num_fewshot=-1"],
    ),
]

LORA_RUN = json.dumps(
    {
        "model": {"kind": "folder", "name": "m", "num_parameters": 9, "lora": {"r": 4}},
        "configuration": {"values": {}, "sources": {}, "masked": []},
    }
)
WHOLE_RUN = json.dumps(
    {
        "model": {"kind": "folder", "name": "m", "num_parameters": 9},
        "configuration": {"values": {}, "sources": {}, "masked": []},
    }
)
MEMORY_RUN = json.dumps(
    {
        "model": {"kind": "folder", "name": "m", "num_parameters": 9, "extensions": {"memory": {}}},
        "configuration": {"values": {}, "sources": {}, "masked": []},
    }
)
HUGE_RUN = json.dumps(
    {
        "model": {"kind": "folder", "name": "m", "num_parameters": 10**15},
        "configuration": {"values": {}, "sources": {}, "masked": []},
    }
)
OWN_RUN = json.dumps(
    {
        "model": {"kind": "registered", "name": "tactical_mappo", "num_parameters": 9},
        "configuration": {"values": {}, "sources": {}, "masked": []},
    }
)
NO_LLAMA_CPP = {"PATH": "", "HOME": "/nowhere", "LLAMA_CPP_DIR": ""}

EXPORT = [
    Wrong(
        "another number of bits",
        "export runs/a x --bits 5",
        ["commands.wrong_arguments", "what=value of --bits, name=5,"],
    ),
    Wrong(
        "a LoRA as GGUF",
        "export runs/a x --as lora --format gguf",
        ["deployment.export_lora_as_whole_model", "format=gguf"],
        {"runs/a/run.json": LORA_RUN},
    ),
    Wrong(
        "a LoRA in four bits",
        "export runs/a x --as lora --bits 4",
        ["deployment.export_lora_with_bits", "bits=4"],
        {"runs/a/run.json": LORA_RUN},
    ),
    Wrong(
        "ONNX in four bits",
        "export runs/a x --format onnx --bits 4",
        ["deployment.export_bits_unsupported", "format=onnx", "bits=4"],
        {"runs/a/run.json": LORA_RUN},
    ),
    Wrong(
        "a merged model with a memory",
        "export runs/a x --as merged",
        ["deployment.export_extension_weights", "run_id=a", "extensions=memory"],
        {"runs/a/run.json": MEMORY_RUN},
    ),
    Wrong(
        "a memory on the Hub",
        "export runs/a --push-to-hub me/it",
        ["publish.extension_weights", "run_id=a", "extensions=memory"],
        {"runs/a/run.json": MEMORY_RUN},
    ),
    Wrong(
        "the LoRA of a whole model",
        "export runs/a x --as lora",
        ["deployment.export_run_without_lora", "run_id=a"],
        {"runs/a/run.json": WHOLE_RUN},
    ),
    Wrong(
        "a module of one's own in another format",
        "export runs/a x --format torch-export",
        ["deployment.export_other_model_kind", "run_id=a", "model=tactical_mappo"],
        {"runs/a/run.json": OWN_RUN},
    ),
    Wrong(
        "an export that fits on no disk",
        "export runs/a x",
        ["deployment.export_disk_full", "folder=x"],
        {"runs/a/run.json": HUGE_RUN},
    ),
    Wrong(
        "no converter",
        "export runs/a x --format gguf",
        [
            "export_gguf.converter_missing",
            "script=convert_hf_to_gguf.py",
            "folder_variable=LLAMA_CPP_DIR",
        ],
        {"runs/a/run.json": WHOLE_RUN},
        NO_LLAMA_CPP,
    ),
]

FURTHER = [
    Wrong(
        "a config file that is no UTF-8",
        "config --config c.yaml",
        ["config.file_not_utf8", "path=c.yaml"],
        {"c.yaml": b"\xff\xfe"},
    ),
    Wrong(
        "a config file of 300 KB",
        "config --config c.yaml",
        ["config.yaml_file_too_large", "path=c.yaml"],
        {"c.yaml": "#" * 300_000},
    ),
    Wrong(
        "a folder for a config file",
        "config --config c",
        ["config.file_unreadable", "path=c", "reason=Is a directory"],
        {"c/x": ""},
    ),
    Wrong(
        "a list for a key",
        "config --config c.yaml",
        ["config.yaml_invalid_key", "path=c.yaml", "line=1", "key=[1, 2]"],
        {"c.yaml": "? [1, 2]\n: 3\n"},
    ),
    Wrong(
        "a number of 5,000 digits",
        "config --config c.yaml",
        ["config.yaml_invalid", "place=c.yaml:2", "config.number_too_long"],
        {"c.yaml": "training:\n  batch_size: " + "9" * 5000},
    ),
    Wrong(
        "a number for a section",
        "config --config c.yaml",
        ["config.value_for_a_section", "value=3", "c.yaml:1: training"],
        {"c.yaml": "training: 3\n"},
    ),
    Wrong(
        "a word for a switch",
        "config --config c.yaml",
        [
            "config.wrong_value",
            "setting=model.lora_config",
            'value="maybe"',
            "c.yaml:2: model.lora_config",
        ],
        {"c.yaml": "model:\n  lora_config: maybe\n"},
    ),
    Wrong("unknown preset", "config --preset quik", ["what=preset, name=quik,", "meant=quick"]),
    Wrong(
        "an unknown variable",
        "config",
        ["config.unknown_environment_variable", "variable=TEMPER_BATCH", "TEMPER_BATCH_SIZE"],
        environment={"TEMPER_BATCH": "3"},
    ),
    Wrong(
        "text in a variable",
        "config",
        ["config.wrong_value", "setting=training.batch_size", 'value="many"'],
        environment={"TEMPER_BATCH_SIZE": "many"},
    ),
    Wrong(
        "a truth value for a number",
        "config --config c.yaml",
        [
            "config.wrong_value",
            "setting=training.batch_size",
            "value=true",
            "c.yaml:2: training.batch_size",
        ],
        {"c.yaml": "training:\n  batch_size: true\n"},
    ),
    Wrong(
        "a time that is none",
        "config --deadline soon",
        ["config.wrong_value", "setting=training.deadline", 'value="soon"'],
    ),
    Wrong(
        "a price that is none",
        "config --price-per-hour cheap",
        ["config.wrong_value", "setting=price_per_hour", 'value="cheap"'],
    ),
    Wrong(
        "a size without a unit",
        "config --memory-limit 50",
        ["config.wrong_value", "setting=data.memory_limit", 'value="50"'],
    ),
    Wrong(
        "a share above all",
        "config --memory-limit 150%",
        ["config.wrong_value", "setting=data.memory_limit", 'value="150%"'],
    ),
    Wrong(
        "a list for a size",
        "config --config c.yaml",
        [
            "config.wrong_value",
            "setting=data.memory_limit",
            "value=1",
            "c.yaml:2: data.memory_limit",
        ],
        {"c.yaml": "data:\n  memory_limit: [1]\n"},
    ),
    Wrong(
        "settings json",
        "config --settings {bad",
        ["config.wrong_value", "setting=training.settings", 'value="{bad"'],
    ),
    Wrong(
        "settings own name",
        'config --settings {"batch_size":3}',
        ["config.own_setting_name_taken", "name=batch_size"],
    ),
    Wrong(
        "prometheus",
        "config --monitor-prometheus nowhere",
        ["config.wrong_value", "setting=monitor.prometheus", 'value="nowhere"'],
    ),
    Wrong(
        "empty path",
        ["config", "--output", ""],
        ["config.wrong_value", "setting=output_dir", 'value=""'],
    ),
    Wrong(
        "num proc device",
        "train --num-processes 2 --device cuda:0",
        ["config.processes_on_one_named_gpu", "num_processes=2", "device=cuda:0"],
    ),
    Wrong(
        "num proc visible",
        "train --num-processes 3 --cuda-visible-devices 0,1",
        ["config.too_few_visible_gpus", "num_processes=3", "count=2"],
    ),
    Wrong(
        "attention both",
        "train --memory-efficient-attention --attention eager",
        ["config.attention_settings_disagree", "given=true", "wanted=sdpa", "attention=eager"],
    ),
    Wrong(
        "compile",
        "train --compile-mode auto --no-gpu-optimization",
        ["config.auto_compile_not_measured"],
    ),
    Wrong("budget 1", "train --quantum-data-budget 1", ["quantum.data_budget_keeps_everything"]),
    Wrong(
        "sampler",
        "train --quantum-solver azure_quantum",
        ["quantum.sampler_access_missing", "setting=quantum.solver", "name=azure_quantum"],
    ),
    Wrong(
        "too long",
        "train --max-length 9000",
        ["config.max_length_exceeds_model", "max_length=9000", "longest=512"],
    ),
    Wrong(
        "stackwise quant",
        "train --strategy progressive --quantization 4bit",
        ["stackwise.stacks_with_quantized_model"],
    ),
    Wrong(
        "stackwise compile",
        "train --mode layerwise --compile-mode default",
        ["stackwise.stacks_with_compile"],
    ),
    Wrong(
        "stackwise streaming",
        "train --mode layerwise --stack-cache-activations --streaming",
        ["stackwise.cache_with_streaming"],
    ),
    Wrong(
        "reconstruct rack",
        "train --strategy end_to_end --end-to-end-scope rackwise --local-loss reconstruct",
        ["stackwise.reconstruct_with_one_loss"],
    ),
    Wrong("cache nothing", "train --stack-cache-activations", ["stackwise.cache_with_all_layers"]),
    Wrong(
        "plugin no module",
        "train --loss nowhere_module:loss",
        [
            "core.plugin_module_not_found",
            "setting=training.loss",
            "kind=loss",
            "address=nowhere_module:loss",
            "module=nowhere_module",
        ],
    ),
    Wrong(
        "plugin no name",
        "train --loss json:nothing",
        ["core.plugin_attribute_missing", "kind=loss", "address=json:nothing", "attribute=nothing"],
    ),
    Wrong(
        "plugin scheme",
        "train --backup-place ftpx://a/b",
        ["backup.unknown_url_scheme", "url=ftpx://a/b", "what=scheme, name=ftpx,", "meant=ftp"],
    ),
    Wrong(
        "watch 0",
        "watch --every 0 runs/a",
        ["monitoring.watch_interval_not_positive", "seconds=0.0"],
        {"runs/a/run.json": "{}"},
    ),
    Wrong(
        "dashboard port",
        "dashboard --port 99999",
        ["dashboard.port_unavailable", "dashboard.port_out_of_range", "port=99999"],
    ),
    Wrong(
        "optimize len",
        "bench ./m --length 0",
        ["inference.size_too_small", "flag=--length", "value=0"],
        {"m/config.json": "{}"},
    ),
    Wrong(
        "backup step",
        "backup restore a@x --place .",
        ["run.malformed_checkpoint_name", "run=a", "version=x"],
    ),
    Wrong(
        "backup create none",
        "backup create runs/a --place p",
        ["commands.nothing_to_back_up", "run_id=a"],
        {"runs/a/run.json": RUN},
    ),
    Wrong(
        "backup verify a",
        "backup verify runs/a",
        ["commands.nothing_to_verify", "run_id=a"],
        {"runs/a/run.json": RUN},
    ),
    Wrong(
        "backup prune",
        "backup prune runs/a",
        ["commands.nothing_to_prune", "run_id=a"],
        {"runs/a/run.json": RUN},
    ),
    Wrong(
        "ckpt trainer",
        "resume runs/a",
        ["run.run_of_a_trainer", "/runs/a", "monitoring.run_your_script_again()"],
        {"runs/a/run.json": '{"trainer": {"class":"x"}}'},
    ),
    Wrong(
        "gz bad",
        "train d.jsonl.gz",
        ["data.compressed_file_damaged", "path=d.jsonl.gz", "kind=gzip"],
        {"d.jsonl.gz": b"\x1f\x8bnope"},
    ),
    Wrong(
        "json broken",
        "train d.json",
        [
            "data.json_broken",
            "file=d.json",
            "data.json_error_on_line(error=Expecting value, line=1)",
        ],
        {"d.json": '[{"prompt":'},
    ),
    Wrong(
        "csv no header",
        "train d.csv",
        ["data.table_without_header", "file=d.csv"],
        {"d.csv": ",,\n1,2,3\n"},
    ),
    Wrong(
        "csv col twice",
        "train d.csv",
        ["data.table_column_twice", "file=d.csv", "column=a"],
        {"d.csv": "a,a\n1,2\n"},
    ),
    Wrong(
        "csv never closed",
        "train d.csv",
        ["data.quote_never_closed", "file=d.csv", "line=6"],
        {"d.csv": 'prompt,completion\n"a,b\n' * 3},
    ),
    Wrong(
        "mixed",
        "train d.jsonl",
        ["data.mixed_shapes", "data.shapes_of_first_rows", "file=d.jsonl", "num_rows=40"],
        {
            "d.jsonl": '{"prompt": "a", "completion": "b"}\n{"instruction": "a", "output": "b"}\n'
            * 20
        },
    ),
    Wrong(
        "text col and pair",
        "train data.jsonl --text-column prompt --prompt-column prompt",
        ["data.text_and_pair_columns", "file=data.jsonl"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "text col and shape",
        "train data.jsonl --text-column prompt --data-shape alpaca",
        ["data.text_column_with_shape", "file=data.jsonl", "shape=alpaca"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "pair and messages",
        "train data.jsonl --prompt-column prompt --data-shape messages",
        ["data.pair_columns_with_shape", "file=data.jsonl", "shape=messages"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "label",
        "train d.jsonl",
        ["data.text_with_label", "file=d.jsonl", "text=text", "label=label"],
        {"d.jsonl": '{"text": "good film", "label": 1}\n' * 30},
    ),
    Wrong(
        "kto",
        "train d.jsonl",
        ["data.answers_labeled_good_or_bad", "file=d.jsonl", "label=label", "shape=prompt"],
        {"d.jsonl": '{"prompt": "good film", "completion": "b", "label": true}\n' * 30},
    ),
    Wrong(
        "h5 none",
        "train d.h5",
        ["data.file_not_of_format", "data.but_text", "path=d.h5", "format=HDF5", "format=csv"],
        {"d.h5": "H5NONE"},
    ),
    Wrong(
        "vocab",
        "train data.jsonl --embedded-vocab-size 20",
        ["models.vocab_size_too_small", "vocab_size=20", "smallest=262"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "webhook",
        "train data.jsonl --monitor-alert-sinks webhook",
        ["notifications.sink_without_address", "sink=webhook", "variable=ALERT_WEBHOOK_URL"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "a file with one row",
        "train data.jsonl",
        ["data.file_has_one_row", "data.confirm_small_data", "file=data.jsonl"],
        {"data.jsonl": GOOD_ROW},
    ),
    Wrong(
        "place file",
        "train data.jsonl --backup-place file",
        [
            "backup.destination_unusable",
            "reason=Not a directory",
            "backup.or_allow_missing_destination",
        ],
        {"data.jsonl": GOOD_DATA, "file": ""},
    ),
    Wrong(
        "s3",
        "train data.jsonl --backup-place s3://bucket/x",
        ["backup.destination_package_missing", "url=s3://bucket/x"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "hub place",
        "train data.jsonl --backup-place hf://nobody",
        ["backup.invalid_hub_url", "url=hf://nobody"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "hub model offline",
        "train data.jsonl --model nobody/nothing",
        ["models.model_not_found", "models.hub_unreachable", "name=nobody/nothing"],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong("fifo", "train /dev/null", ["data.not_a_regular_file", "path=/dev/null"]),
    Wrong(
        "time steps",
        "train data.jsonl --num-time-steps 3 --time-step-bins 9 --time-step-masking",
        [
            "stackwise.time_step_bin_out_of_range",
            "time_step=9",
            "num_time_steps=3",
        ],
        {"data.jsonl": GOOD_DATA},
    ),
    Wrong(
        "checkpoints verify none",
        "checkpoints verify runs/a",
        ["commands.no_checkpoint_to_verify", "run_id=a"],
        {"runs/a/run.json": RUN},
    ),
    Wrong(
        "resume masked",
        "resume runs/a",
        [
            "run.recorded_configuration_invalid",
            "config.recorded_value_masked",
            "keys=run_name",
            "/runs/a/run.json",
        ],
        {
            "runs/a/run.json": RUN.replace('"masked": []', '"masked": ["run_name"]'),
            f"runs/a/checkpoints/versions/{VERSION}.json": "{}",
        },
    ),
    Wrong(
        "own syntax",
        "train data.jsonl --strategy mine_a:X",
        [
            "core.plugin_import_failed",
            "kind=training strategy",
            "address=mine_a:X",
            "module=mine_a",
        ],
        {"data.jsonl": GOOD_DATA, "mine_a.py": "def (:\n"},
    ),
    Wrong(
        "own kind",
        "train data.jsonl --strategy mine_c:X",
        ["core.plugin_not_a_class_or_function", "training strategy 'mine_c:X'"],
        {"data.jsonl": GOOD_DATA, "mine_c.py": "X = 3\n"},
    ),
    Wrong(
        "own abstract",
        "train data.jsonl --metrics-sinks mine_d:X",
        [
            "core.plugin_incomplete",
            "metrics sink 'mine_d:X'",
            "missing=write, close, name, truncate_after",
        ],
        {"data.jsonl": GOOD_DATA, "mine_d.py": "class X:\n    pass\n"},
    ),
]

PAIRS = "\n".join([json.dumps(PREFERENCE)] * 9)
TEACHER = {"m/config.json": json.dumps(LLAMA | {"vocab_size": 300})}


def method(
    what: str,
    flags: str,
    about: list[str],
    data: str | None = None,
    files: Files | None = None,
    **others: Any,
) -> Wrong:
    """A training by TRL of a Llama in m/, which is never loaded."""
    prepared = {"d.jsonl": data or PAIRS, "m/config.json": json.dumps(LLAMA), **(files or {})}
    model = "" if "--model" in flags else " --model m"
    return Wrong(what, f"train d.jsonl{model} --method {flags}", about, prepared, **others)


METHODS = [
    method(
        "a memory in TRL",
        "dpo --enabled-extensions memory",
        ["config.added_weights_with_trl", "key=training.enabled_extensions=memory", "method=dpo"],
    ),
    method(
        "a model with a memory in TRL",
        "dpo",
        [
            "methods.model_has_extension_weights",
            "key=model.name",
            "name=m",
            "manifest=extensions.json",
        ],
        files={"m/extensions.json": "{}"},
    ),
    method(
        "a setting that TRL cannot carry out",
        "dpo --compile-mode default",
        [
            "methods.setting_not_supported",
            "methods.only_own_loop",
            "setting=training.compile_mode=default",
            "method=dpo",
        ],
    ),
    method(
        "a batch that TRL would have to measure",
        "dpo --batch-size auto",
        ["methods.batch_size_auto", "method=dpo"],
    ),
    method("KTO of one", "kto --batch-size 1", ["methods.batch_too_small"]),
    method(
        "answers in parts",
        "grpo --num-generations 5 --batch-size 8",
        ["methods.num_generations_not_divisor", "num_generations=5", "per_step=8"],
        GOOD_DATA,
    ),
    method(
        "no place for a prompt",
        "rloo --max-completion-length 600",
        ["methods.completion_leaves_no_prompt", "longest=600", "max_length=512", "suggested=256"],
        GOOD_DATA,
    ),
    method(
        "a beta beyond reverse KL",
        "distillation --beta 2",
        ["distillation.beta_above_one", "beta=2.0"],
        GOOD_DATA,
    ),
    method(
        "another GPU",
        "dpo --device cuda:1",
        ["methods.device_not_first_gpu", "device=cuda:1", "index=1"],
    ),
    method(
        "nothing that trains",
        "dpo --quantization 4bit",
        ["methods.quantization_without_lora", "quantization=4bit"],
    ),
    method(
        "a quantum step in TRL's loop",
        "dpo --enabled-extensions quantum",
        ["methods.extension_needs_own_loop", "method=dpo"],
    ),
    Wrong(
        "a reference that moves",
        [
            *["train", "d.jsonl", "--model", "m", "--method", "dpo"],
            "--method-settings",
            '{"sync_ref_model": true}',
        ],
        ["methods.argument_not_supported", "methods.ref_model_not_saved", "name=sync_ref_model"],
        {"d.jsonl": PAIRS, "m/config.json": json.dumps(LLAMA)},
    ),
    Wrong(
        "an argument that is a setting",
        [
            *["train", "d.jsonl", "--model", "m", "--method", "dpo"],
            "--method-settings",
            '{"learning_rate": 1}',
        ],
        ["methods.argument_has_setting", "name=learning_rate", "setting=training.learning_rate"],
        {"d.jsonl": PAIRS, "m/config.json": json.dumps(LLAMA)},
    ),
    Wrong(
        "an argument that TRL does not have",
        [
            *["train", "d.jsonl", "--model", "m", "--method", "dpo"],
            "--method-settings",
            '{"los_type": "ipo"}',
        ],
        ["methods.unknown_argument", "name=los_type", "meant=loss_type"],
        {"d.jsonl": PAIRS, "m/config.json": json.dumps(LLAMA)},
    ),
    method(
        "a process of a launcher",
        "dpo",
        ["methods.launcher_not_supported", "method=dpo"],
        environment={
            "RANK": "0",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "1",
        },
    ),
    method(
        "a model without knowledge", "dpo --model embedded", ["methods.embedded_model_untrained"]
    ),
    method(
        "a LoRA to begin with",
        "reward",
        ["methods.whole_model_needed", "key=model.name", "name=m"],
        files={"m/adapter_config.json": "{}"},
    ),
    method(
        "an encoder with a decoder",
        "dpo",
        ["methods.encoder_decoder_model", "key=model.name", "name=m"],
        files={"m/config.json": '{"model_type": "t5", "is_encoder_decoder": true}'},
    ),
    method(
        "a model of pictures",
        "dpo",
        ["methods.model_reads_images", "key=model.name", "name=m"],
        files={"m/config.json": '{"model_type": "llava", "vision_config": {}}'},
    ),
    method(
        "a model without text",
        "dpo",
        ["methods.model_reads_no_text", "key=model.name", "name=m"],
        files={"m/temper_model.json": '{"model": "tactical_mappo"}'},
    ),
    method("no teacher", "distillation", ["distillation.teacher_missing"], GOOD_DATA),
    method(
        "a teacher that is not there",
        "distillation --teacher ./nowhere",
        ["distillation.teacher_folder_missing", "teacher=./nowhere"],
        GOOD_DATA,
    ),
    method(
        "a teacher of itself",
        "distillation --teacher m",
        ["distillation.teacher_is_model", "teacher=m"],
        GOOD_DATA,
    ),
    method("no reward", "grpo", ["methods.no_rewards", "built_in=exact_answer"], GOOD_DATA),
    method(
        "an unknown reward",
        "grpo --reward exact_anwser",
        ["methods.unknown_reward", "what=reward, name=exact_anwser,", "meant=exact_answer"],
        GOOD_DATA,
    ),
    method(
        "half a reward",
        "grpo --reward format=",
        ["methods.reward_without_value", "kind=format"],
        GOOD_DATA,
    ),
    method(
        "no regular expression",
        "grpo --reward format=(",
        ["methods.reward_regex_invalid", "kind=format", "pattern=(", "missing )"],
        GOOD_DATA,
    ),
    method(
        "a schema that is not there",
        "rloo --reward json_schema=nowhere.json",
        ["methods.reward_schema_missing", "file=nowhere.json"],
        GOOD_DATA,
    ),
    method(
        "no schema",
        "rloo --reward json_schema=s.json",
        [
            "methods.reward_schema_invalid",
            "file=s.json",
            "reason=3 is not valid under any of the given schemas",
        ],
        GOOD_DATA,
        {"s.json": '{"type": 3}'},
    ),
    method(
        "a reward that is a number",
        "grpo --reward mine_e:X",
        ["methods.reward_not_callable", "name=mine_e:X"],
        GOOD_DATA,
        {"mine_e.py": "X = 3\n"},
    ),
    method(
        "nothing to be exact with",
        "grpo --reward exact_answer",
        [
            "methods.exact_answer_without_answers",
            "methods.no_column_answers",
            "reason=data.recognized_prompt(column=prompt)",
        ],
        '{"prompt": "1 + 1"}\n' * 9,
    ),
    method(
        "answers instead of pairs",
        "dpo",
        ["methods.pairs_missing", "file=d.jsonl", "method=dpo", "columns=prompt, completion"],
        GOOD_DATA,
    ),
    method(
        "two answers and no winner",
        "orpo",
        ["methods.better_answer_unknown", "file=d.jsonl", "first=response_a", "second=response_b"],
        '{"prompt": "a", "response_a": "b", "response_b": "c"}\n' * 9,
    ),
    method(
        "labels instead of pairs",
        "reward",
        ["methods.labels_instead_of_pairs", "file=d.jsonl", "column=label", "method=reward"],
        '{"prompt": "a", "completion": "b", "label": true}\n' * 9,
    ),
    method(
        "KTO without labels",
        "kto",
        ["methods.label_column_missing", "file=d.jsonl", "columns=prompt, completion"],
        GOOD_DATA,
    ),
    method(
        "KTO of texts",
        "kto",
        [
            "methods.answer_columns_unknown",
            "data.recognized_plain_text",
            "file=d.jsonl",
            "method=training.method=kto",
            "column=text",
        ],
        '{"text": "a", "label": true}\n' * 9,
    ),
    method(
        "pairs for rewards",
        "grpo --reward exact_answer",
        [
            "methods.pairs_instead_of_prompts",
            "file=d.jsonl",
            "better=chosen",
            "worse=rejected",
            "method=grpo",
        ],
    ),
    method(
        "no prompts",
        "rloo --reward format=a",
        ["methods.prompt_column_missing", "file=d.jsonl", "method=rloo", "columns=text"],
        '{"text": "a"}\n' * 9,
    ),
    method(
        "one answer of a pair",
        "dpo --answer-column chosen",
        ["methods.answer_column_no_effect", "file=d.jsonl", "method=dpo"],
    ),
    method(
        "a column that the pairs do not have",
        "dpo --prompt-column promt",
        [
            "methods.data_file_unusable",
            "config.setting_says",
            "file=d.jsonl",
            "setting=data.prompt_column",
            "what=column, name=promt,",
            "meant=prompt",
        ],
    ),
    Wrong(
        "TRL's method in a command of the own loop",
        "check d.jsonl --method dpo",
        ["training.method_needs_trl_trainer", "method=dpo"],
        {"d.jsonl": GOOD_DATA},
    ),
]

NO_CONVERSATION, SECOND = (
    "models.no_row_is_a_conversation",
    "data.place_message(number=2, column=messages)",
)
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
        ["models.dialogue_adapter_plain_text", "data.recognized_plain_text", "column=text"],
        {"chats.jsonl": '{"text": "Once upon a time."}\n' * 9},
    ),
    Wrong("no preview at all", "check --preview 0", ["commands.preview_needs_an_example"]),
    Wrong("a preview that checks", "check --preview --quick", ["commands.preview_runs_no_checks"]),
    *(
        Wrong(what, TALKS, [NO_CONVERSATION, "source=chats.jsonl", "line=1", *about], files)
        for what, about, files in (
            (
                "an unknown role",
                [SECOND, "wrong type", "data.message_role_unknown", "role=wizard"],
                talk(FROM_USER, {"role": "wizard", "content": "b"}),
            ),
            (
                "a text for a message",
                [SECOND, "wrong type", "data.message_not_object", "kind=text"],
                talk(FROM_USER, "b"),
            ),
            (
                "a message of nobody",
                [SECOND, "missing column", "data.message_without_role"],
                talk(FROM_USER, {"content": "b"}),
            ),
            (
                "nobody who answers",
                ["no supervised token"],
                talk(FROM_USER, FROM_USER),
            ),
            (
                "answers that say nothing",
                [SECOND, "empty", "data.value_empty"],
                talk(FROM_USER, answering(content="")),
            ),
            (
                "a call without a name",
                ["wrong type", "data.calls_without_names", SECOND],
                talk(FROM_USER, calling(a=1)),
            ),
            (
                "arguments that are no JSON",
                ["data.tool_arguments_not_json", "name=f", SECOND],
                talk(FROM_USER, calling(name="f", arguments="{a")),
            ),
            (
                "arguments that are a list",
                ["data.tool_arguments_not_object", "name=f", SECOND, "kind=a list"],
                talk(FROM_USER, calling(name="f", arguments=[1])),
            ),
            (
                "a call as it was before tools",
                ["data.function_call_replaced", SECOND],
                talk(FROM_USER, answering(function_call={"name": "f"})),
            ),
            (
                "half a weight",
                [SECOND, "wrong type", "data.weight_not_0_or_1", "value=0.5"],
                talk(FROM_USER, answering(weight=0.5)),
            ),
            (
                "a picture in a talk",
                ["data.row_without_image_column"],
                talk({"role": "user", "content": [{"type": "image"}]}, answering()),
            ),
            (
                "a tool without a name",
                ["wrong type", "data.tools_without_names(column=tools)"],
                talk(FROM_USER, answering(), tools=[{}]),
            ),
            (
                "tools that are no list",
                ["wrong type", "data.column_of_wrong_type(column=tools, kind=an object"],
                talk(FROM_USER, answering(), tools={"name": "f"}),
            ),
        )
    ),
    Wrong(
        "a template that refuses",
        [*TALKS.split(), "--chat-template", "{{ raise_exception('not so') }}"],
        ["data.template_refuses", "source=chats.jsonl", "line=1", "not so"],
        talk(FROM_USER, answering()),
    ),
    Wrong(
        "a template that writes history anew",
        [
            *TALKS.split(),
            "--chat-template",
            "{% for m in messages %}{{ loop.revindex }}{{ m.role }}: {{ m.content }}\n{% endfor %}",
        ],
        [
            "data.template_rewrites_earlier",
            "source=chats.jsonl",
            "line=1",
        ],
        talk(FROM_USER, answering()),
    ),
    Wrong(
        "a template that is none",
        f"{TALKS} --chat-template nowhere.jinja",
        ["data.invalid_chat_template", "value=nowhere.jinja"],
        talk(FROM_USER, answering()),
    ),
    Wrong(
        "a dialogue without a template",
        f"{TALKS} --model ./folder",
        ["data.dialogue_needs_template"],
        {
            **talk(FROM_USER, answering()),
            "folder/config.json": json.dumps(LLAMA),
            "folder/tokenizer.json": REAL_TOKENIZER,
            "folder/tokenizer_config.json": REAL_TOKENIZER,
        },
    ),
]

FURTHER += [
    Wrong(
        "a deadline without a unit",
        "train --deadline 11",
        ["config.wrong_value", "setting=training.deadline", 'value="11"'],
    ),
    Wrong(
        "an unknown encoding",
        "train --encoding cp9999",
        ["config.wrong_value", "setting=data.encoding", 'value="cp9999"'],
    ),
    Wrong(
        "UTF-8 in another encoding",
        "train d.csv --encoding cp1252",
        ["data.utf8_despite_encoding", "path=d.csv", "encoding=cp1252"],
        {"d.csv": "prompt,completion\nFünf?,5\n"},
    ),
    Wrong(
        "UTF-16 without a mark",
        "train d.csv",
        [
            "data.file_not_text",
            "data.utf16_without_bom",
            "data.set_encoding",
            "path=d.csv",
            "encoding=utf-16-le",
        ],
        {"d.csv": "prompt,completion\n5?,5\n".encode("utf-16-le")},
    ),
    Wrong(
        "a place among the runs",
        "train data.jsonl --backup-place runs/copies",
        ["config.destination_inside_output_dir", 'place="runs/copies"', "output_dir=runs"],
        {"data.jsonl": GOOD_DATA},
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
    about: list[str],
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
    return Wrong(what, f"train d.jsonl{model} {flags}", about, prepared, **others)


GIVEN_A_TOWER = "--enabled-extensions multimodal --multimodal-vision-tower t"
PICTURES = [
    seeing(
        "a tower without a name",
        "--enabled-extensions multimodal",
        ["vision_tower.not_set"],
    ),
    seeing(
        "a tower that is nowhere",
        "--enabled-extensions multimodal --multimodal-vision-tower nobody/no-tower",
        [
            "vision_tower.unusable",
            "models.model_not_found",
            "models.hub_unreachable",
            "name=nobody/no-tower",
        ],
    ),
    seeing(
        "a LoRA as a tower",
        "--enabled-extensions multimodal --multimodal-vision-tower l",
        ["vision_tower.not_a_vision_model", "name=l"],
        {"l/adapter_config.json": "{}"},
    ),
    seeing(
        "a tower without its image processor",
        "--enabled-extensions multimodal --multimodal-vision-tower e",
        ["vision_tower.image_processor_missing"],
        {"e/config.json": "{}", "e/model.safetensors": NO_TENSORS},
    ),
    seeing(
        "a text model as a tower",
        "--enabled-extensions multimodal --multimodal-vision-tower m",
        [
            "vision_tower.without_patches",
            "model_type=llama",
        ],
        {"m/preprocessor_config.json": "{}"},
    ),
    seeing(
        "a tower for rows of text",
        GIVEN_A_TOWER,
        ["vision_tower.rows_without_images", "path=d.jsonl"],
        data=GOOD_DATA,
    ),
    seeing(
        "a tower on a new model",
        f"--model embedded {GIVEN_A_TOWER}",
        ["vision_tower.on_new_model"],
    ),
    seeing(
        "a tower on weights of 4 bits",
        f"{GIVEN_A_TOWER} --lora --quantization 4bit",
        ["vision_tower.with_quantized_model"],
    ),
    seeing(
        "a tower by Unsloth",
        f"{GIVEN_A_TOWER} --backend unsloth",
        ["vision_tower.with_unsloth"],
    ),
    seeing(
        "a tower by TRL",
        f"{GIVEN_A_TOWER} --method dpo",
        ["methods.extension_needs_own_loop"],
    ),
    seeing(
        "a tower on an adapter of text",
        f"{GIVEN_A_TOWER} --model-adapter dialogue",
        ["vision_tower.adapter_without_images", "adapter=dialogue"],
    ),
    seeing(
        "a tower in stages",
        f"{GIVEN_A_TOWER} --strategy curriculum",
        ["vision_tower.strategy_has_phases", "strategy=curriculum"],
    ),
    seeing(
        "a second tower",
        GIVEN_A_TOWER,
        [
            "vision_tower.model_reads_images",
            "name=m",
            "model_class=LlavaForConditionalGeneration",
        ],
        {"m/config.json": json.dumps(SEEING)},
    ),
    seeing(
        "pictures for a model of text",
        "",
        ["models.text_model_for_images", "model_class=LlamaForCausalLM"],
    ),
    seeing(
        "pictures for an adapter of text",
        "--model-adapter standard",
        [
            "models.text_adapter_for_images",
            "name=standard",
            "shown=data.place_column(column=image)",
        ],
    ),
    seeing(
        "a model that sees without its processor",
        "",
        ["models.processor_missing"],
        {"m/config.json": json.dumps(SEEING), "m/tokenizer.json": REAL_TOKENIZER},
    ),
    seeing(
        "a vision part of a model of text",
        "--train-vision",
        [
            "models.setting_no_effect",
            "models.not_trained_on_images",
            "key=model.train_vision",
            "name=m",
        ],
        data=GOOD_DATA,
    ),
    seeing(
        "hidden tokens beside pictures",
        "--time-step-masking",
        ["models.masked_diffusion_with_images"],
    ),
    seeing(
        "pictures that are not there",
        GIVEN_A_TOWER,
        ["data.image_not_found", "path=d.jsonl", "fault=d.jsonl:1", "name=2.png"],
        data=SHOWN.replace("1.png", "2.png"),
    ),
    seeing(
        "broken pictures alone",
        GIVEN_A_TOWER,
        ["data.unsupported_image_format", "path=d.jsonl", "fault=d.jsonl:1", "1.png"],
        {"1.png": b"GIF?"},
    ),
    seeing(
        "a column of pictures that is not there",
        f"{GIVEN_A_TOWER} --image-column photo",
        [
            "data.unrecognized_file",
            "config.setting_says",
            "file=d.jsonl",
            "setting=data.image_column",
            "what=column, name=photo,",
        ],
    ),
    Wrong(
        "a picture for a model of text",
        ["ask", "m", "What is it?", "--image", "1.png"],
        ["evaluation.model_reads_no_images", "model=m", "image=1.png"],
        {"m/config.json": json.dumps(LLAMA)},
    ),
    *(
        Wrong(
            what,
            ["ask", "m", "What is it?", "--image", "1.png"],
            [code, "1.png"],
            {"m/config.json": json.dumps({**SEEING, "vision_config": {}}), **files},
        )
        for what, code, files in (
            ("a picture that is not there", "data.image_not_found", {}),
            ("a picture that is none", "data.unsupported_image_format", {"1.png": "none"}),
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
    about: list[str],
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
    return Wrong(what, command, about, files, **others)


# Method, data, model and library that do not go together, besides METHODS.
FITTING = [
    fitting(
        "rounded weights of a GPT-2",
        "--quantization-aware int4",
        ["quantization_aware.conv1d_layers", "model_type=gpt2"],
        SMALL_GPT2,
    ),
    fitting(
        "rounded weights of a model of pictures",
        "--quantization-aware int4",
        ["quantization_aware.text_models_only"],
        SMALL_LLAVA,
        RED_ROWS,
    ),
    fitting(
        "pictures by unsloth",
        "--backend unsloth",
        ["models.unsloth_with_images"],
        SMALL_LLAVA,
        RED_ROWS,
    ),
    fitting(
        "text for a model of pictures",
        "",
        [
            "models.not_a_causal_model",
            "models.hint_text_rows",
            "model_class=LlavaForConditionalGeneration",
        ],
        SMALL_LLAVA,
    ),
    fitting(
        "4 bits of narrow layers",
        "--quantization 4bit --lora",
        ["models.width_for_4bit_on_cpu", "multiple=64", "width=32"],
        {**SMALL_LLAMA, "hidden_size": 32},
    ),
    fitting(
        "4 bits of what is quantised",
        "--quantization 4bit --lora",
        ["models.already_quantized", "quantization=4bit"],
        {**SMALL_LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 4}},
    ),
    fitting(
        "a LoRA of layers of another family",
        "--lora --lora-target-modules c_attn",
        [
            "models.lora_targets_invalid",
            "models.not_a_linear_layer",
            "layer=c_attn",
            "name=LlamaForCausalLM",
        ],
    ),
    fitting(
        "DoRA of experts",
        "--lora --lora-use-dora",
        [
            "models.lora_option_on_experts",
            "name=model.lora_config.use_dora",
            "layers=down_proj, gate_up_proj",
            "model=MixtralForCausalLM",
        ],
        SMALL_MIXTRAL,
    ),
    fitting(
        "an attention by unsloth",
        "--attention eager --backend unsloth",
        ["models.unsloth_chooses_attention", "attention=eager"],
    ),
    fitting("a folder of something else", "", ["models.no_model_type", "/m/config.json"], {"a": 1}),
    fitting(
        "a family that transformers does not know",
        "",
        ["models.model_not_loaded", "model type `llamo`"],
        {"model_type": "llamo"},
    ),
    fitting(
        "a tokenizer of a larger model",
        "",
        ["models.tokenizer_larger_than_model", "name=m", "largest=299", "num_tokens=200"],
        {**SMALL_LLAMA, "vocab_size": 200},
    ),
    fitting(
        "too few prompts for a step",
        "--method grpo --reward exact_answer --num-generations 2 --batch-size 200"
        " --max-completion-length 8",
        ["methods.too_few_prompts", "data=d.jsonl", "count=40", "needed=100"],
    ),
    Wrong(
        "a registered model in dialogue",
        "train --model tactical_mappo --model-adapter dialogue",
        ["models.registered_model_adapter", "adapter=dialogue", "model=tactical_mappo"],
    ),
    Wrong(
        "hidden tokens of a model without any",
        "train --model tactical_mappo --time-step-masking",
        ["stackwise.masking_needs_text", "name=tactical_mappo"],
    ),
]

TABLE = (
    PICTURES
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
LEAST_PAIRINGS = 92
LEAST_CAUSES = 193
KEYS = [key for key in schema_of(DeploymentConfig).fields if "." in key]
# What was given, spelled as it was given: a flag, a key in a file, a variable, a word.
AS_GIVEN = {
    "text for a number": ["--batch-size must be", 'not "many"'],
    "a setting without effect": ["--buffer-size 9", "streaming"],
    "a curriculum of a stream": ["--strategy curriculum", "--streaming"],
    "time steps": ["--stack-time-step-bins", "--stack-num-time-steps 3"],
    "a truth value for a number": [
        "training.batch_size must be",
        "(c.yaml:2: training.batch_size)",
    ],
    "two spellings that disagree": ["two.yaml:2: training.batch_size", "two.yaml:4: data.batch_"],
    "an unknown variable": ["TEMPER_BATCH", "TEMPER_BATCH_SIZE"],
    "text in a variable": ["TEMPER_BATCH_SIZE"],
    "evaluating on other data than the data": ["--eval-data", "DATA"],
    "no reward": ["--reward", "exact_answer"],
}


def test_the_table_is_long_enough() -> None:
    assert len({wrong.what for wrong in TABLE}) == len(TABLE)
    assert len({wrong.about[0] for wrong in TABLE}) >= LEAST_CAUSES
    assert len({wrong.about[0] for wrong in PAIRINGS}) >= LEAST_PAIRINGS


@pytest.mark.parametrize("wrong", TABLE, ids=lambda wrong: wrong.what)
def test_wrong_input_ends_in_one_sentence(
    wrong: Wrong,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    saved_llama: Path,
) -> None:
    prepare(wrong, tmp_path, monkeypatch, saved_llama)
    check_sentence(wrong, capsys)


@pytest.mark.parametrize("what", AS_GIVEN)
def test_a_setting_is_spelled_as_it_was_given(
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    saved_llama: Path,
) -> None:
    (wrong,) = (wrong for wrong in TABLE if wrong.what == what)
    prepare(wrong, tmp_path, monkeypatch, saved_llama)
    monkeypatch.delenv(WORDS)
    sentence = refusal(wrong, capsys)
    for part in AS_GIVEN[what]:
        assert part in sentence
    if ".yaml" not in sentence:
        keys = [key for key in KEYS if re.search(rf"(?<![\w.-]){re.escape(key)}(?!\w)", sentence)]
        assert keys == [], "keys are for who writes a file"


def prepare(wrong: Wrong, folder: Path, monkeypatch: pytest.MonkeyPatch, saved_llama: Path) -> None:
    """Write the files of a row; nothing here may begin to train."""
    for name, content in wrong.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content == REAL_TOKENIZER:
            content = (saved_llama / path.name).read_bytes()
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TEMPER_CACHE__DIRECTORY", str(folder / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name, text in wrong.environment.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(TrainingDeployment, "_measure", None)
    if wrong in PAIRINGS:
        monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", None)


def check_sentence(wrong: Wrong, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = refusal(wrong, capsys)
    assert [part for part in wrong.about if not is_about(sentence, part)] == [], sentence


def is_about(sentence: str, part: str) -> bool:
    """Whether a sentence has a code or a value, and not just a longer one that begins like it."""
    end = r"(?!\w)" if part[-1].isalnum() else ""
    return re.search(re.escape(part) + end, sentence) is not None


def refusal(wrong: Wrong, capsys: pytest.CaptureFixture[str]) -> str:
    """The sentence that a row is refused with; a problem beside others has a line of its own."""
    words = wrong.command if isinstance(wrong.command, list) else wrong.command.split()
    sys.stderr.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # as it really is
    code = commands.main(words)
    error = capsys.readouterr().err.strip()
    assert code == ExitCode.WRONG_INPUT, error
    assert "Traceback" not in error
    _, begin, sentence = error.rpartition("temper: ")
    assert begin
    return sentence
