"""The models that stack-wise training is measured on, and a training of one in one process.

They have the proportions of published ones: every width and the vocabulary are divided by one
number, so that the shares of layers, embedding and head stay what they are. Qwen2.5-0.5B ties its
head to an embedding that is 28% of its weights; Llama-3.1-8B has each of its own, 7% and 7%.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Hook

# Their configurations, as they are; of Llama's heads a quarter, which are wide enough when divided
# by 32.
PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen2.5-0.5B": {
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "vocab_size": 151_936,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "Llama-3.1-8B": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "vocab_size": 128_256,
        "num_hidden_layers": 32,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "tie_word_embeddings": False,
    },
}
DIVIDED = ("hidden_size", "intermediate_size", "vocab_size")


@dataclass(frozen=True)
class Shape:
    """How much of a published model there is, and how much it is given in a step.

    Attributes:
        divisor: of widths and vocabulary.
        num_layers: None: all.
        steps: of an epoch.
    """

    model: str = "Qwen2.5-0.5B"
    divisor: int = 4
    num_layers: int | None = None
    length: int = 64
    batch_size: int = 2
    steps: int = 2


def save_model(folder: Path, shape: Shape) -> None:
    """New weights in bf16, as the published ones are, and a byte-level tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    values = dict(PUBLISHED[shape.model])
    values |= {name: values[name] // shape.divisor for name in DIVIDED}
    values["num_hidden_layers"] = shape.num_layers or values["num_hidden_layers"]
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        **values,
        max_position_embeddings=2048,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<pad>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>"
    ).save_pretrained(folder)


def trainer_of(
    folder: Path,
    shape: Shape,
    training: dict[str, Any],
    dtype: Literal["fp32", "bf16"] = "fp32",
    hooks: Sequence[Hook] = (),
    lora: LoraConfig | None = None,
) -> EnhancedTrainer:
    """A training of the model in `folder`, whose steps are all of the same size."""
    rows = ({"text": f"{i:09d}" * shape.length} for i in range(shape.batch_size * shape.steps))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"num_epochs": 1, "batch_size": shape.batch_size, "warmup_steps": 0, **training}
    return EnhancedTrainer(
        ModelConfig(name=str(folder), dtype=dtype, lora_config=lora),
        TrainingConfig(**settings),
        DataConfig(
            path=str(folder / "rows.jsonl"),
            max_length=shape.length,
            over_length="truncate",
            train_on="all",
            validation_split=0.0,
            num_workers=0,
        ),
        device="cpu",
        cache_config=CacheConfig(directory=str(folder / "cache")),
        hooks=hooks,
    )
