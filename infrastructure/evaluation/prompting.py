"""Questions of a person's own to a saved model, answered as it was trained to answer."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.core.console import show_beside
from infrastructure.core.errors import InputError
from infrastructure.core.json_text import as_object, parse_json
from infrastructure.core.messages import phrase
from infrastructure.evaluation.generation import Answer, generate_answers
from infrastructure.evaluation.run_settings import (
    background_of_run,
    precision_of_run,
    quantization_of_run,
)
from infrastructure.optimization.gpu_capability import best_precision
from infrastructure.training.core.precision import Precision, choose_device
from infrastructure.training.data.encoding.chat_format import special_tokens
from infrastructure.training.data.encoding.picture_tokens import PictureTokens
from infrastructure.training.data.encoding.row_accounting import CAUSE
from infrastructure.training.data.encoding.tokenization import ConversationEncoder
from infrastructure.training.data.readers.pictures import (
    PictureError,
    decisions_in_words,
    picture_source,
    read_picture,
)
from infrastructure.training.data.readers.rows import PICTURE_PART, Turn
from infrastructure.training.data.store.examples import GenerationPrompt, Picture
from infrastructure.training.models.model_manager import ModelManager
from infrastructure.training.models.processor import sees_pictures
from infrastructure.training.models.saved_model import SourceKind
from infrastructure.training.models.source import (
    find_source,
)

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedTokenizerBase


def answer_questions(
    model: str | Path,
    questions: Sequence[str],
    max_tokens: int = 64,
    device: str = "auto",
    system: str | None = None,
) -> list[str]:
    """What `Answerer` answers; what the model does not read of the prompts is told on standard
    error."""
    if not questions:
        return []
    answerer = Answerer(model, max_tokens, device)
    answers = answerer.answer(questions, system)
    for note in answerer.notes:
        show_beside(note)
    return answers


class Answerer:
    """A saved model that is loaded once, and answers greedily, each question by itself, written as
    in training.

    Args:
        model: a finished run, its `final/`, any model folder, or a hub name.
        max_tokens: the longest answer; one that does not end by then is cut.
        images: files of pictures that each question is about.

    Attributes:
        notes: a sentence for each kind of text that the model did not read of its prompts.

    Raises:
        ValueError: there is no such model, it writes no text, `max_tokens` is not positive, or a
            picture cannot be used.
    """

    def __init__(
        self,
        model: str | Path,
        max_tokens: int = 64,
        device: str = "auto",
        images: Sequence[Path] = (),
    ) -> None:
        if max_tokens < 1:
            raise InputError("evaluation.max_tokens_too_small", max_tokens=max_tokens)
        chosen_device = choose_device(device)
        quantization: Any = quantization_of_run(Path(model))
        config = ModelConfig(name=str(model), quantization=quantization)
        manager = ModelManager(config, device=chosen_device, seed=0)
        # layers of any width, which 4 bits do not have on a CPU
        manager.dequantizes = quantization is not None and chosen_device.type == "cpu"
        source = find_source(str(model))
        is_of_hub = source.kind is SourceKind.HUB
        manager.sees = sees_pictures(source) or (is_of_hub and bool(images))
        if images and not manager.sees:
            raise InputError("evaluation.model_reads_no_images", model=model, image=images[0])
        background = self._background = background_of_run(Path(model))
        read = [_read(path, background) for path in images]
        self._pictures = tuple(picture for picture, _ in read)
        self._images = [image for _, image in read]
        loaded = manager.load()
        if loaded.tokenizer is None or not hasattr(loaded.model, "generate"):
            raise InputError("evaluation.model_generates_no_text", model=model)
        self._model, self._tokenizer = loaded.model, loaded.tokenizer
        self._seeing = None
        if manager.sees:
            self._seeing = PictureTokens(manager.processor, str(model), background=background)
        self._encoder = ConversationEncoder(
            loaded.tokenizer, max_length=max_tokens, pictures=self._seeing
        )
        self._left_out: dict[str, str] = {}
        self._max_tokens, self._positions = max_tokens, positions_of(loaded.model)
        self._ends = stop_token_ids(loaded.tokenizer, str(model))
        self._precision = _precision(Path(model), chosen_device)

    def answer(self, questions: Sequence[str], system: str | None = None) -> list[str]:
        """As `answers`, in plain words."""
        return [answer.text.strip() for answer in self.answers(questions, system)]

    def answers(self, questions: Sequence[str], system: str | None = None) -> list[Answer]:
        """An answer to each; prompt formats and chat templates are added here.

        Args:
            system: the system prompt before each question; None: none is written.

        Raises:
            ValueError: a question leaves the model no position to answer at.
        """
        before = [Turn("system", system)] if system else []
        for text in questions:
            for one in self._encoder.prompt_account([*before, self._shown(text)]).missing:
                self._left_out.setdefault(
                    one.kind, phrase("evaluation.prompt_part_not_read", part=one, cause=CAUSE)
                )
        prompts = [
            GenerationPrompt(
                text,
                self._encoder.prompt_ids([*before, self._shown(text)], images=self._images),
                "",
                self._max_tokens,
                pictures=self._pictures,
            )
            for text in questions
        ]
        with self._precision.autocast():
            return generate_answers(
                self._model,
                self._tokenizer,
                prompts,
                self._ends,
                max_tokens=min(map(self._longest, prompts)),
                pictures=self._seeing,
            )

    @property
    def notes(self) -> list[str]:
        return [*self._left_out.values()]

    def picture_notes(self) -> list[str]:
        """What was decided about the pictures that each question is about."""
        decided = Counter(kind for picture in self._pictures for kind in picture.decided)
        return decisions_in_words(decided, self._background, "picture")

    def why_cut(self, answer: Answer) -> str:
        """What ended an answer that is cut, and what gives it more."""
        longest = self._longest(answer.question)
        if longest < self._max_tokens:
            return phrase(
                "evaluation.answer_cut_at_positions", tokens=longest, positions=self._positions
            )
        return phrase("evaluation.answer_cut_at_max_tokens", tokens=longest)

    def _longest(self, prompt: GenerationPrompt) -> int:
        """The most tokens that an answer may have: past its positions a model writes noise."""
        if self._positions is None:
            return self._max_tokens
        left = self._positions - len(prompt.prompt_ids)
        if left < 1:
            raise InputError(
                "evaluation.question_too_long",
                tokens=len(prompt.prompt_ids),
                positions=self._positions,
            )
        return min(self._max_tokens, left)

    def _shown(self, question: str) -> Turn:
        """The question with the pictures before it."""
        if not self._images:
            return Turn("user", question)
        parts = [{"type": PICTURE_PART}] * len(self._images) + [{"type": "text", "text": question}]
        return Turn("user", question, json.dumps({"content": parts}))


def positions_of(model: Any) -> int | None:
    """Tokens that the model can see at once, question and answer; None: it does not say."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    positions = getattr(text, "max_position_embeddings", None)
    return positions if isinstance(positions, int) and positions > 0 else None


def _precision(model: Path, device: torch.device) -> Precision:
    """The number format that the run of the model has answered in, where this device has it; else
    the format of its weights. Two likely words can change places from one format to another."""
    of_run = precision_of_run(model)
    is_here = of_run is not None and of_run == best_precision(device)
    return Precision(str(of_run) if is_here else "fp32", device.type)


def _read(path: Path, background: str) -> "tuple[Picture, Image]":
    try:
        return read_picture(picture_source(str(path), str(path)), Path(), background)
    except PictureError as error:
        raise ValueError(str(error)) from error


def stop_token_ids(tokenizer: "PreTrainedTokenizerBase", name: str) -> list[int]:
    """What ends an answer: of the tokenizer, and of the run that the model lies in."""
    ends = {tokenizer.eos_token, *_ends_in_run(name)}
    return sorted(number for number, token in special_tokens(tokenizer).items() if token in ends)


def _ends_in_run(name: str) -> list[str]:
    """What the answers of the training ended with; nothing where the model lies in no run."""
    source = find_source(name)
    try:
        recorded = parse_json((Path(source.location).parent / "run.json").read_text())
        return list(as_object(as_object(as_object(recorded)["data"])["end_tokens"]))
    except (OSError, ValueError, KeyError, TypeError):
        return []
