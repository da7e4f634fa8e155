"""Real tokenizers trained on a few sentences, and data files, for the tests of the data part."""

import json
import string
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.data.data_pipeline import DataPipeline

SENTENCES = [
    "How many apples does Anna have?\nAnna has 3 apples.",
    "What is the capital of France? The capital of France is Paris.",
    "Add 12 and 30: the sum is 42.\n\n",
    "Wie heißt du? Ich heiße Jörg. 你好 user assistant system",
]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] }}{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>"]


@cache
def _byte_level_json() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    return str(tokenizer.to_str())


def byte_level_tokenizer(template: str | None = None, **special: Any) -> Any:
    """Like GPT-2's: bytes, no BOS, EOS "<|endoftext|>"."""
    special = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", **special}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_byte_level_json()), **special
    )
    tokenizer.chat_template = template
    return tokenizer


@cache
def _metaspace_json() -> str:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=[*string.printable, *"äßé你"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return str(tokenizer.to_str())


def _with_own_tokens(template: str | None) -> str | None:
    """A template of the tests in the special tokens that the tokenizer has."""
    return template and template.replace("<|im_start|>", "").replace("<|im_end|>", "</s>")


def metaspace_tokenizer(template: str | None = None) -> Any:
    """Like Llama 2's: a mark before the first word, BOS put there by the tokenizer."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_metaspace_json()),
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )
    tokenizer.chat_template = _with_own_tokens(template)
    return tokenizer


def slow_tokenizer(template: str | None = None) -> Any:
    """A tokenizer in Python: one token a byte."""
    tokenizer = ByT5Tokenizer()
    tokenizer.chat_template = _with_own_tokens(template)
    return tokenizer


def write_jsonl(path: Path, rows: Iterable[Any]) -> Path:
    """Rows as JSON lines; a row that is a text already is written as it stands."""
    lines = (row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), "utf-8")
    return path


def pairs(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Rows with a question and an answer, all different, of two tasks."""
    return [
        {
            "question": f"What is {n} and {n + 1}?",
            "answer": f"The sum is {2 * n + 1}.",
            "task": "even" if n % 2 == 0 else "odd",
        }
        for n in range(start, start + count)
    ]


def texts(prepared: DataPipeline, batches: Any) -> list[str]:
    """Examples of batches as text."""
    return [prepared.tokenizer.decode(e.input_ids) for batch in batches for e in batch]


def epoch(prepared: DataPipeline, number: int = 0, start: int = 0, size: int = 8) -> list[str]:
    """The training examples of an epoch as text, in order."""
    return texts(prepared, prepared.train_batches(number, start, size))


def held_out(prepared: DataPipeline) -> list[str]:
    """The held-out examples as text, in order."""
    return texts(prepared, prepared.evaluation_batches(8))


def pipeline(
    path: Path | str,
    cache_directory: Path,
    tokenizer: Any = None,
    *,
    seed: int = 0,
    memory_size: int = 1000,
    **settings: Any,
) -> DataPipeline:
    """A pipeline over `path`, in this process unless told otherwise."""
    return DataPipeline(
        DataConfig(path=str(path), **{"num_workers": 0, **settings}),
        tokenizer or byte_level_tokenizer(),
        cache_config=CacheConfig(directory=str(cache_directory), memory_size=memory_size),
        seed=seed,
    )
