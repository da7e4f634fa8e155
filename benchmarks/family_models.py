"""A tiny model of each family, made from its configuration, with a real tokenizer: byte pairs that
were learnt from the sample tasks, the family's own marks and its way to write a conversation.

Models of image and text are those of `tests/training/seeing_models.py`.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from infrastructure.data.samples import SAMPLE_TRAIN

WIDTH, NUM_BYTES_AND_PAIRS, LONGEST = 64, 480, 256
SIZES: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": LONGEST,
}
ROLES = "{% for m in messages %}"
OPENED = "{% if add_generation_prompt %}"


@dataclass(frozen=True)
class Family:
    """A family of language models.

    Attributes:
        title: as people write it.
        config_class: of transformers.
        sizes: arguments of it.
        template: how it writes a conversation; `end` closes an answer.
        marks: what else its template writes as one token.
    """

    title: str
    config_class: str
    template: str
    end: str
    sizes: dict[str, Any]
    marks: tuple[str, ...] = ()


FAMILIES = {
    "llama": Family(
        "Llama",
        "LlamaConfig",
        ROLES + "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>"
        "{% endfor %}" + OPENED + "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
        "<|eot_id|>",
        SIZES,
        ("<|start_header_id|>", "<|end_header_id|>"),
    ),
    "qwen": Family(
        "Qwen3",
        "Qwen3Config",
        ROLES + "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "" + OPENED + "<|im_start|>assistant\n{% endif %}",
        "<|im_end|>",
        {**SIZES, "head_dim": WIDTH // 2},
        ("<|im_start|>",),
    ),
    "gemma": Family(
        "Gemma 3",
        "Gemma3TextConfig",
        ROLES + "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
        "{{ m.content }}<end_of_turn>\n{% endfor %}" + OPENED + "<start_of_turn>model\n{% endif %}",
        "<end_of_turn>",
        {
            **SIZES,
            "head_dim": WIDTH // 2,
            "sliding_window": 32,
            "query_pre_attn_scalar": WIDTH // 2,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        ("<start_of_turn>",),
    ),
    "phi": Family(
        "Phi-3",
        "Phi3Config",
        ROLES + "<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
        "" + OPENED + "<|assistant|>\n{% endif %}",
        "<|end|>",
        SIZES,
        ("<|user|>", "<|assistant|>", "<|system|>"),
    ),
    "gpt2": Family(
        "GPT-2",
        "GPT2Config",
        ROLES + "{{ m.role }}: {{ m.content }}<|endoftext|>\n{% endfor %}"
        "" + OPENED + "assistant: {% endif %}",
        "<|endoftext|>",
        {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": LONGEST},
    ),
    "mixtral": Family(
        "Mixtral",
        "MixtralConfig",
        ROLES + "{% if m.role == 'assistant' %}{{ m.content }}</s>"
        "{% else %}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}",
        "</s>",
        {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2},
        ("[INST]", "[/INST]"),
    ),
}
SEEING = {"llava": "Llava", "idefics3": "Idefics3 (SmolVLM)", "qwen2_vl": "Qwen2-VL"}
WITH_TORCHVISION = ("idefics3", "qwen2_vl")  # their processors need it


def save_seeing_model(name: str, folder: Path) -> Path:
    """Write an untrained model of image and text and its processor."""
    from tests.training import seeing_models

    save = {
        "llava": seeing_models.save_llava,
        "idefics3": seeing_models.save_idefics3,
        "qwen2_vl": seeing_models.save_qwen_vl,
    }
    return save[name](folder, WIDTH)


@cache
def _trained_pairs(marks: tuple[str, ...]) -> str:
    """A tokenizer as JSON, trained on the sample tasks; `marks` are its first tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    rows = map(json.loads, SAMPLE_TRAIN.read_text().splitlines())
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_BYTES_AND_PAIRS + len(marks),
        special_tokens=[*marks],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((f"{r['prompt']}\n{r['completion']}" for r in rows), trainer)
    return str(tokenizer.to_str())


def save_language_model(name: str, folder: Path) -> Path:
    """Write an untrained model of a family and its tokenizer."""
    import transformers
    from tokenizers import Tokenizer

    family = FAMILIES[name]
    marks = ("<pad>", "<bos>", family.end, *family.marks)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained_pairs(marks)),
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token=family.end,
        additional_special_tokens=[*family.marks],
    )
    tokenizer.chat_template = family.template
    config = getattr(transformers, family.config_class)(
        **family.sizes,
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
