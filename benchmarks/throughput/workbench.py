"""What every system of a scenario is given: a saved model, and rows as token ids with labels."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.data.data_pipeline import DataPipeline
from infrastructure.models.quantization import quantization_config

VOCAB_SIZE = 8192
NUM_TOKENIZER_ROWS = 640
PACKED_LENGTH = 512  # of TRL's packed rows
# 12.71 million parameters: 2 x 8192 x 384 in embedding and head, 1.6 million in each layer.
MODEL: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 384,
    "intermediate_size": 880,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
LORA = LoraConfig(r=8, alpha=16, dropout=0.0)
Row = dict[str, list[int]]  # input_ids; labels, -100 where nothing is learnt
TextRow = dict[str, str]  # question, answer


@dataclass(frozen=True)
class Scenario:
    """One way to train, that all systems are compared in.

    Attributes:
        batch_size: examples of a step.
        joined: rows of the file that make one example.
        is_short: of each row, the last sentence of the question and the result.
        packs: whether TRL's packing is something to compare with.
        shows_fp32: whether others train in fp32 beside bf16, where the processor has bf16.
        shape: of the model, where it is not `MODEL`'s.
    """

    title: str
    train_on: Literal["all", "answers"] = "all"
    max_length: int = 512
    batch_size: int = 8
    joined: int = 1
    is_short: bool = False
    packs: bool = False
    shows_fp32: bool = False
    lora: LoraConfig | None = None
    quantization: Literal["4bit"] | None = None
    shape: dict[str, Any] = field(default_factory=dict)


SCENARIOS = {
    "all": Scenario("all tokens", packs=True, shows_fp32=True),
    "answers": Scenario("answers only", train_on="answers"),
    "lora": Scenario("LoRA, r=8", lora=LORA),
    "4bit-lora": Scenario(
        "4-bit LoRA, r=8",
        lora=LORA,
        quantization="4bit",
        shape={"intermediate_size": 896},  # bitsandbytes' kernel takes whole blocks of 64
    ),
    "long": Scenario("rows of up to 2048 tokens", max_length=2048, batch_size=1, joined=14),
    "short": Scenario(
        "rows of up to 64 tokens", max_length=64, batch_size=32, is_short=True, packs=True
    ),
}


@dataclass
class Workbench:
    """The rows, and their token ids in the order in which Temper trains on them."""

    scenario: Scenario
    folder: Path
    examples: list[Row] = field(default_factory=list)

    @property
    def rows(self) -> Path:
        return self.folder / "rows.jsonl"

    @property
    def cache(self) -> CacheConfig:
        return CacheConfig(directory=str(self.folder / "cache"))

    @property
    def model_folder(self) -> Path:
        return self.folder / "model"

    @property
    def data_config(self) -> DataConfig:
        return DataConfig(
            path=str(self.rows),
            train_on=self.scenario.train_on,
            validation_split=0.0,
            max_length=self.scenario.max_length,
            num_workers=0,
        )

    @property
    def model_config(self) -> ModelConfig:
        return ModelConfig(
            name=str(self.model_folder),
            lora_config=self.scenario.lora,
            quantization=self.scenario.quantization,
        )

    def batch(self, step: int) -> list[Row]:
        size = self.scenario.batch_size
        return self.examples[step * size :][:size]

    def create_base(self, dtype: torch.dtype) -> Any:
        """The model without LoRA: fp32, or its large layers 4-bit and computing in `dtype`."""
        from transformers import AutoModelForCausalLM

        kind = self.scenario.quantization
        options: dict[str, Any] = {}
        if kind is not None:
            options["quantization_config"] = quantization_config(kind, dtype)
        name = self.model_folder
        return AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, **options).train()

    def create_model(self, dtype: torch.dtype) -> Any:
        """The model with what trains, as PEFT makes it."""
        base = self.create_base(dtype)
        if self.scenario.lora is None:
            return base
        from peft import get_peft_model

        base.requires_grad_(False)
        return get_peft_model(base, peft_config(self.scenario.lora)).train()


def peft_config(lora: LoraConfig) -> Any:
    from peft import LoraConfig as PeftConfig

    return PeftConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        task_type="CAUSAL_LM",
    )


def prepare(scenario: Scenario, data: Path, num_steps: int, folder: Path) -> Workbench:
    """Rows, a tokenizer trained on some of them, a new model, and the examples.

    Raises:
        ValueError: the file has too few rows for so many steps.
    """
    folder.mkdir(parents=True, exist_ok=True)
    workbench = Workbench(scenario, folder)
    source = [json.loads(line) for line in data.read_text().splitlines()]
    rows = shaped(source, scenario)[: num_rows(scenario, num_steps)]
    workbench.rows.write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = [f"{row['question']}\n{row['answer']}" for row in source[:NUM_TOKENIZER_ROWS]]
    tokenizer = train_tokenizer(texts)
    save_model(workbench.model_folder, {**MODEL, **scenario.shape}, tokenizer)
    pipeline = DataPipeline(workbench.data_config, tokenizer, cache_config=workbench.cache)
    pipeline.prepare()
    batches = pipeline.train_batches(epoch=0, start_example=0, batch_size=scenario.batch_size)
    workbench.examples = [to_row(example) for batch in batches for example in batch]
    if len(workbench.examples) < num_steps * scenario.batch_size:
        raise ValueError(
            f"{data} has too few rows for {num_steps} steps of {scenario.title}: give more rows,"
            " or fewer --steps"
        )
    return workbench


def num_rows(scenario: Scenario, num_steps: int) -> int:
    """Enough for all steps; TRL's packed rows take more short ones."""
    rows = (num_steps + 1) * scenario.batch_size
    return max(rows * 3 // 2, NUM_TOKENIZER_ROWS // scenario.joined)


def shaped(source: list[TextRow], scenario: Scenario) -> list[TextRow]:
    """The file's rows in the lengths that the scenario is about."""
    if scenario.is_short:
        return [shortened(row) for row in source]
    groups = [source[i : i + scenario.joined] for i in range(0, len(source), scenario.joined)]
    return [joined(group) for group in groups if len(group) == scenario.joined]


def shortened(row: TextRow) -> TextRow:
    """The last sentence of the question, and the number that answers it."""
    sentences = re.split(r"(?<=[.!?])\s+", row["question"].strip())
    return {"question": sentences[-1], "answer": row["answer"].rpartition("####")[2].strip()}


def joined(group: list[TextRow]) -> TextRow:
    """One row whose answer goes on with further questions and answers."""
    first, *others = group
    further = [f"{row['question']}\n{row['answer']}" for row in others]
    return {
        "question": first["question"],
        "answer": "\n\n".join([first["answer"], *further]),
    }


def train_tokenizer(texts: list[str]) -> Any:
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        texts, VOCAB_SIZE, special_tokens=["<pad>", "<eos>"], show_progress=False
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer, pad_token="<pad>", eos_token="<eos>"
    )


def save_model(folder: Path, shape: dict[str, Any], tokenizer: Any) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**shape)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def to_row(tokenized: Any) -> Row:
    labels = np.where(tokenized.supervised, tokenized.input_ids, -100)
    return {"input_ids": tokenized.input_ids.tolist(), "labels": labels.tolist()}
