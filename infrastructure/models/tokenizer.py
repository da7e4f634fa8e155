"""Training of a tokenizer on texts: byte-level BPE with a chat template.

Encoding and decoding preserve any text. Each digit is a separate token. The template marks answers
with `{% generation %}`.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from infrastructure.core.errors import InputError
from infrastructure.core.importing import importing

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

PAD, BEGIN, END, USER, ASSISTANT, SYSTEM = SPECIAL_TOKENS = (
    "<|pad|>",
    "<|begin|>",
    "<|end|>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
)

# How text is split before merging: contractions, words, single digits, punctuation, white space
# (the GPT-2 pattern, with single digits).
PIECES = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # codespell:ignore
)

MAX_RUN = 1000
LONG_RUN = re.compile(rf"\S{{{MAX_RUN + 1},}}|\s{{{MAX_RUN + 1},}}")

# A space before each message, so that its first word is the same token as inside a sentence.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "<|assistant|>{% generation %} {{ message['content'] }}{{ eos_token }}{% endgeneration %}"
    "{% else %}"
    "<|{{ message['role'] }}|> {{ message['content'] }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> "PreTrainedTokenizerBase":
    """Train a `PreTrainedTokenizerFast` of at most `vocab_size` tokens.

    The same texts give the same tokenizer.

    Raises:
        ValueError: `vocab_size` is too small for the 256 bytes and the special tokens.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    smallest = len(alphabet) + len(SPECIAL_TOKENS)
    if vocab_size < smallest:
        raise InputError("models.vocab_size_too_small", vocab_size=vocab_size, smallest=smallest)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_in_short_words(texts), trainer)
    return _with_template(tokenizer)


def read_tokenizer(path: Path) -> "PreTrainedTokenizerBase":
    """Load a tokenizer that `train_tokenizer` made from its saved `backend_tokenizer` file."""
    from tokenizers import Tokenizer

    return _with_template(Tokenizer.from_file(str(path)))


def _with_template(tokenizer: "Tokenizer") -> "PreTrainedTokenizerBase":
    with importing():
        from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BEGIN,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT, SYSTEM],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _in_short_words(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts with a leading space, split if they contain very long words.

    Training time grows with the square of a word's length, and parts of a long word are as useful
    as the whole word.
    """
    for text in texts:
        if LONG_RUN.search(text):
            yield from (text[i : i + MAX_RUN] for i in range(0, len(text), MAX_RUN))
        else:
            yield " " + text
