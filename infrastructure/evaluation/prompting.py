"""Question answering with a saved model, in the prompt format of its training."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.core.console import show_beside
from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.data.encoding.chat_format import special_tokens
from infrastructure.data.encoding.picture_tokens import PictureTokens
from infrastructure.data.encoding.row_accounting import CAUSE
from infrastructure.data.encoding.tokenization import ConversationEncoder
from infrastructure.data.readers.pictures import (
    PictureError,
    decisions_in_words,
    picture_source,
    read_picture,
)
from infrastructure.data.readers.rows import PICTURE_PART, Turn
from infrastructure.data.store.examples import GenerationPrompt, Picture
from infrastructure.evaluation.generation import Answer, generate_answers, refused_if_not_finite
from infrastructure.evaluation.run_settings import (
    background_of_run,
    precision_of_run,
    quantization_of_run,
    record_of_run,
)
from infrastructure.models.model_manager import ModelManager
from infrastructure.models.processor import sees_pictures
from infrastructure.models.saved_model import SourceKind
from infrastructure.models.source import (
    find_source,
)
from infrastructure.optimization.gpu_capability import best_precision
from infrastructure.training.core.precision import Precision, choose_device

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
    """Load a model, and return its answers to questions.

    If the model does not read a part of the questions, a note is printed to standard error.
    """
    if not questions:
        return []
    answerer = Answerer(model, max_tokens, device)
    answers = answerer.answer(questions, system)
    for note in answerer.notes:
        show_beside(note)
    return answers


class Answerer:
    """A saved model that answers questions, each separately and with greedy decoding.

    Questions are formatted as in training.

    Args:
        model: a finished run, its `final/` folder, any model folder, or a Hub name.
        max_tokens: the maximum length of an answer; a longer one is cut.
        images: image files that are shown with each question.

    Attributes:
        notes: a sentence for each kind of text in the prompts that the model did not read.

    Raises:
        ValueError: the model does not exist or generates no text, `max_tokens` is not positive, or
            an image cannot be used.
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
        # 4-bit kernels on a CPU support only some layer widths
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
        self._name = str(model)

    def answer(self, questions: Sequence[str], system: str | None = None) -> list[str]:
        """Return the texts of `answers`, without surrounding whitespace."""
        return [answer.text.strip() for answer in self.answers(questions, system)]

    def answers(self, questions: Sequence[str], system: str | None = None) -> list[Answer]:
        """Return the answer to each question, which is formatted as in training or by the chat
        template.

        Args:
            system: the system prompt before each question; None: no system prompt.

        Raises:
            ValueError: a question is so long that no position is left for an answer, or the model
                computes values that are NaN or infinite.
        """
        before = [Turn("system", system)] if system else []
        for text in questions:
            for one in self._encoder.prompt_account([*before, self._shown(text)]).missing:
                self._left_out.setdefault(
                    one.kind,
                    phrase("evaluation.prompt_part_not_read", part=one, cause=phrase(CAUSE)),
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
        with self._precision.autocast(), refused_if_not_finite(self._model, self._name):
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
        """Return notes on how the images were converted, such as removed transparency."""
        decided = Counter(kind for picture in self._pictures for kind in picture.decided)
        return decisions_in_words(decided, self._background, "picture")

    def why_cut(self, answer: Answer) -> str:
        """Return the reason why an answer was cut, and how to get a longer one."""
        longest = self._longest(answer.question)
        if longest < self._max_tokens:
            return phrase(
                "evaluation.answer_cut_at_positions", tokens=longest, positions=self._positions
            )
        return phrase("evaluation.answer_cut_at_max_tokens", tokens=longest)

    def _longest(self, prompt: GenerationPrompt) -> int:
        """Return the maximum number of tokens of an answer to this prompt.

        The length is limited by the model's context length, beyond which a model generates noise.
        """
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
        """Return the question as a user turn, preceded by the images."""
        if not self._images:
            return Turn("user", question)
        parts = [{"type": PICTURE_PART}] * len(self._images) + [{"type": "text", "text": question}]
        return Turn("user", question, json.dumps({"content": parts}))


def positions_of(model: Any) -> int | None:
    """Return the context length of a model in tokens; None if its configuration has none."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    positions = getattr(text, "max_position_embeddings", None)
    return positions if isinstance(positions, int) and positions > 0 else None


def _precision(model: Path, device: torch.device) -> Precision:
    """Return the run's dtype if it is this device's best one, else that of the weights.

    In another dtype, the order of two tokens with similar probability can change.
    """
    of_run = precision_of_run(model)
    is_here = of_run is not None and of_run == best_precision(device)
    return Precision(str(of_run) if is_here else "fp32", device.type)


def _read(path: Path, background: str) -> "tuple[Picture, Image]":
    try:
        return read_picture(picture_source(str(path), str(path)), Path(), background)
    except PictureError as error:
        raise InputError(str(error)) from error


def stop_token_ids(tokenizer: "PreTrainedTokenizerBase", name: str) -> list[int]:
    """Return the tokens that end an answer, according to the tokenizer and to the model's run."""
    ends = {tokenizer.eos_token, *_ends_in_run(name)}
    return sorted(number for number, token in special_tokens(tokenizer).items() if token in ends)


def _ends_in_run(name: str) -> list[str]:
    """Return the tokens that ended answers in training; empty if the model belongs to no run."""
    data = record_of_run(Path(find_source(name).location)).get("data")
    ends = data.get("end_tokens") if isinstance(data, dict) else None
    return [*ends] if isinstance(ends, dict) else []
