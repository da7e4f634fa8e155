"""Questions of a person's own to a saved model, answered as it was trained to answer."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.core.json_text import as_list, as_object, as_text, parse_json
from infrastructure.evaluation.generation import ANSWER_MARGIN_TOKENS, generate_answers
from infrastructure.training.core.precision import choose_device
from infrastructure.training.data.encoding.chat_format import special_tokens
from infrastructure.training.data.encoding.tokenization import ConversationEncoder
from infrastructure.training.data.readers.rows import Turn
from infrastructure.training.data.store.examples import GenerationPrompt
from infrastructure.training.models.model_manager import ModelManager
from infrastructure.training.models.source import find_source

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def answer_questions(
    model: str | Path, questions: Sequence[str], max_tokens: int = 64, device: str = "auto"
) -> list[str]:
    """Greedy answers, each to its question alone, written as in training.

    Args:
        model: a finished run, its `final/`, any model folder, or a hub name.
        questions: what is asked, in plain words; prompt formats and chat templates are added here.
        max_tokens: the longest answer; one that does not end by then is cut.

    Raises:
        ValueError: there is no such model, it reads no text, or `max_tokens` is not positive.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}; an answer needs at least 1")
    if not questions:
        return []
    config = ModelConfig(name=str(model))
    loaded = ModelManager(config, device=choose_device(device), seed=0).load()
    if loaded.tokenizer is None or not hasattr(loaded.model, "generate"):
        raise ValueError(f"model {model}: it writes no text, so it cannot be asked")
    encoder = ConversationEncoder(loaded.tokenizer, max_length=max_tokens)
    length = max_tokens - ANSWER_MARGIN_TOKENS  # which generating adds
    prompts = [
        GenerationPrompt(text, encoder.prompt_ids([Turn("user", text)]), "", length)
        for text in questions
    ]
    ends = stop_token_ids(loaded.model, loaded.tokenizer, str(model))
    answers = generate_answers(loaded.model, loaded.tokenizer, prompts, ends)
    return [answer.text.strip() for answer in answers]


def stop_token_ids(model: Any, tokenizer: "PreTrainedTokenizerBase", name: str) -> list[int]:
    """What ends an answer: of the tokenizer, the model's own settings, and the run it lies in."""
    ends = {tokenizer.eos_token, *_ends_in_run(name)}
    token_ids = {number for number, token in special_tokens(tokenizer).items() if token in ends}
    configured = getattr(model.generation_config, "eos_token_id", None)
    token_ids.update(
        configured
        if isinstance(configured, list)
        else [configured]
        if isinstance(configured, int)
        else []
    )
    return sorted(token_ids)


def _ends_in_run(name: str) -> list[str]:
    """What the answers of the training ended with; nothing where the model lies in no run."""
    source = find_source(name)
    try:
        recorded = parse_json((Path(source.location).parent / "run.json").read_text())
        tokens = as_object(as_object(recorded)["data"])["end_tokens"]
        return [as_text(token) for token in as_list(tokens)]
    except (OSError, ValueError, KeyError, TypeError):
        return []
