"""Questions of a person's own to a saved model, answered as it was trained to answer."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.core.json_text import as_object, parse_json
from infrastructure.evaluation.generation import ANSWER_MARGIN_TOKENS, generate_answers
from infrastructure.training.core.precision import choose_device
from infrastructure.training.data.encoding.chat_format import special_tokens
from infrastructure.training.data.encoding.tokenization import ConversationEncoder
from infrastructure.training.data.readers.rows import Turn
from infrastructure.training.data.store.examples import GenerationPrompt
from infrastructure.training.models.model_manager import ModelManager
from infrastructure.training.models.source import (
    find_source,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def answer_questions(
    model: str | Path, questions: Sequence[str], max_tokens: int = 64, device: str = "auto"
) -> list[str]:
    """What `Answerer` answers."""
    return Answerer(model, max_tokens, device).answer(questions) if questions else []


class Answerer:
    """A saved model that is loaded once, and answers greedily, each question by itself, written as
    in training.

    Args:
        model: a finished run, its `final/`, any model folder, or a hub name.
        max_tokens: the longest answer; one that does not end by then is cut.

    Raises:
        ValueError: there is no such model, it writes no text, or `max_tokens` is not positive.
    """

    def __init__(self, model: str | Path, max_tokens: int = 64, device: str = "auto") -> None:
        if max_tokens < 1:
            raise ValueError(f"max_tokens is {max_tokens}; an answer needs at least 1")
        config = ModelConfig(name=str(model))
        loaded = ModelManager(config, device=choose_device(device), seed=0).load()
        if loaded.tokenizer is None or not hasattr(loaded.model, "generate"):
            raise ValueError(f"model {model}: it writes no text, so it cannot be asked")
        self._model, self._tokenizer = loaded.model, loaded.tokenizer
        self._encoder = ConversationEncoder(loaded.tokenizer, max_length=max_tokens)
        self._length = max_tokens - ANSWER_MARGIN_TOKENS  # which generating adds
        self._ends = stop_token_ids(loaded.model, loaded.tokenizer, str(model))

    def answer(self, questions: Sequence[str], system: str | None = None) -> list[str]:
        """An answer to each, in plain words; prompt formats and chat templates are added here.

        Args:
            system: the system prompt before each question; None: none is written.
        """
        before = [Turn("system", system)] if system else []
        prompts = [
            GenerationPrompt(
                text, self._encoder.prompt_ids([*before, Turn("user", text)]), "", self._length
            )
            for text in questions
        ]
        answers = generate_answers(self._model, self._tokenizer, prompts, self._ends)
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
        return list(as_object(as_object(as_object(recorded)["data"])["end_tokens"]))
    except (OSError, ValueError, KeyError, TypeError):
        return []
