"""Verification of a saved model, loaded by transformers and PEFT alone, from its own files only.

The loaded model answers a few prompts, and stops at the end tokens that its own files define. The
trained model in memory must generate the same tokens, greedily and in the same dtype. Any
difference is reported, and the run does not count as finished. Different tokens count as equal if
their logits are equal within rounding. For a vision-language model, the
processor in the folder prepares the images.
"""

import gc
import hashlib
import io
import itertools
import json
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from infrastructure.core.errors import CheckpointError
from infrastructure.core.messages import phrase
from infrastructure.core.optional import require
from infrastructure.data.encoding.picture_tokens import PictureTokens
from infrastructure.data.encoding.tokenization import ConversationEncoder
from infrastructure.data.readers.rows import PICTURE_PART, Turn
from infrastructure.data.store.examples import GenerationPrompt, Picture
from infrastructure.evaluation.generation import (
    ANSWER_MARGIN_TOKENS,
    before_stop,
    generate_greedily,
)
from infrastructure.evaluation.prompting import positions_of
from infrastructure.models.added_modules import added_modules
from infrastructure.models.answer_end import GENERATION_FILE, known_ends
from infrastructure.models.model_inputs import inner_model, is_sharded
from infrastructure.models.preserve import preserve
from infrastructure.models.progress_bars import without_progress_bars
from infrastructure.models.quantization import keep_trainable_layout
from infrastructure.models.router_logits import ROUTER_LOGITS, has_router_logits
from infrastructure.models.saved_model import rounded_beside
from infrastructure.models.saving import SCORING, is_scoring
from infrastructure.models.transformers_backend import base_of_lora
from infrastructure.monitoring.drawing.formatting import format_bytes
from infrastructure.optimization.memory_prediction import MemoryBudget
from infrastructure.optimization.memory_readings import release_memory, resident_bytes

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedTokenizerBase

NUM_QUESTIONS = 3
MAX_TOKENS = 32  # per answer: this is a check, not a measurement
QUESTIONS = ("What is the capital of France?", "Write 12 + 30 as a number.", "Say: так, 東京!")
PICTURE_SIDE = 48  # pixels
OF_TEXT = ("input_ids", "attention_mask")  # the processor outputs that are not about images
PIXEL_TOLERANCE = 0.02  # for the same image, processed by an image processor of another library
PLAIN_TOLERANCE = 1e-3  # for the same weights, summed in another order
HALF_TOLERANCE = 0.05  # the same for 16-bit formats
HALF = (torch.bfloat16, torch.float16)
FAR = 10  # times the tolerance: beyond it the weights differ, even if they choose the same tokens
SPARE = 1.2  # times the size of the weights: free memory needed for them and a few tokens

Autocast = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Trained:
    """The trained model in memory, with which the saved model is compared.

    Attributes:
        questions: the prompts that both models answer.
        end_ids: tokens that end an answer when Temper evaluates the model.
        autocast: the dtype in which Temper evaluates the model.
        pictures: turns the images of the questions into pixels.
    """

    model: Any
    tokenizer: "PreTrainedTokenizerBase"
    questions: Sequence[GenerationPrompt]
    end_ids: Sequence[int]
    autocast: Autocast = nullcontext
    pictures: PictureTokens | None = None


def fixed_questions(
    tokenizer: "PreTrainedTokenizerBase",
    longest: int = MAX_TOKENS,
    pictures: PictureTokens | None = None,
) -> list[GenerationPrompt]:
    """Return built-in questions, formatted as in training, for runs without held-out questions.

    Args:
        pictures: the image encoder of a vision-language model; the first question then comes with
            an image.
    """
    encoder = ConversationEncoder(tokenizer, max_length=2 * longest, pictures=pictures)
    written = [encoder.prompt_ids([Turn("user", text)])[:longest] for text in QUESTIONS]
    questions = [GenerationPrompt(t, ids, "", 8) for t, ids in zip(QUESTIONS, written, strict=True)]
    if pictures is not None:
        ids = encoder.prompt_ids([about_picture(QUESTIONS[0])], images=[fixed_picture()])
        questions[0] = replace(questions[0], prompt_ids=ids, pictures=(_encoded(fixed_picture()),))
    return questions


def about_picture(question: str) -> Turn:
    """Return a turn with an image and a question about it."""
    parts = [{"type": PICTURE_PART}, {"type": "text", "text": question}]
    return Turn("user", question, json.dumps({"content": parts}))


def fixed_picture() -> "Image":
    """Return an image with stripes of all colors."""
    images = require("PIL.Image", "evaluation.comparing_images")
    stripes = torch.arange(PICTURE_SIDE**2 * 3, dtype=torch.int64) * 7 % 256
    pixels = stripes.to(torch.uint8).reshape(PICTURE_SIDE, PICTURE_SIDE, 3)
    image: Image = images.fromarray(pixels.numpy())
    return image


def _encoded(image: "Image") -> Picture:
    file = io.BytesIO()
    image.save(file, "PNG")
    content = file.getvalue()
    return Picture(hashlib.sha256(content).hexdigest(), len(content), content=content)


class OtherAnswersError(CheckpointError):
    """An error for a saved model whose answers differ from those of the trained model.

    Args:
        difference: a text with the question and both answers.
    """

    def __init__(self, folder: Path, difference: str) -> None:
        super().__init__("evaluation.saved_model_differs", folder=folder, difference=difference)
        self.difference = difference


def check_saved(folder: Path, trained: Trained) -> list[str]:
    """Check that the model in `folder`, loaded by transformers and PEFT, answers like the trained
    one.

    Returns:
        A note with the reason if the model could not be loaded for the comparison.

    Raises:
        CheckpointError: the answers or their end tokens differ, or the model cannot be loaded.
    """
    folder = rounded_beside(folder) or folder
    if reason := _why_not(trained.model):
        return [phrase("evaluation.saved_model_not_verified", folder=folder.name, reason=reason)]
    with preserve(trained.model, random=next(trained.model.parameters()).device, modes=True):
        trained.model.eval()
        Expected.of(trained).compare(folder)
    return []


def _why_not(model: torch.nn.Module) -> str | None:
    if is_sharded(model):
        return phrase("evaluation.model_is_sharded")
    if added_modules(model):
        return phrase("evaluation.extension_weights_unread")
    device = next(model.parameters()).device
    release_memory()
    needed = round(SPARE * sum(p.numel() * p.element_size() for p in model.parameters()))
    there = MemoryBudget().size_bytes(device)
    there -= torch.cuda.memory_allocated(device) if device.type == "cuda" else resident_bytes()
    if needed > there:
        return phrase("evaluation.memory_too_small_to_verify", needed=format_bytes(needed))
    return None


@dataclass(frozen=True)
class Expected:
    """The trained model's answers, kept so that the model itself can be freed.

    Attributes:
        answers: the tokens of each answer, including its end token; empty for a model that
            generates no text.
        logits: the logits of each answer, (tokens, vocabulary); the scores, for a model that scores
            texts.
        tolerance: the largest distance between logits at which different tokens count as equal.
        loading: options for loading the saved model, and its base model if it is a LoRA.
    """

    trained: Trained
    answers: list[list[int]]
    logits: list[torch.Tensor]
    tolerance: float
    loading: "PlainLoading"

    @classmethod
    def of(cls, trained: Trained) -> "Expected":
        """Generate the answers of the trained model, which must be in evaluation mode."""
        model = trained.model
        weights = next(p for p in model.parameters() if p.is_floating_point())
        with trained.autocast():
            is_half = weights.dtype in HALF or torch.is_autocast_enabled(weights.device.type)
            ends = sorted({*trained.end_ids, *known_ends(model)})
            answers, logits = _written_by(model, trained, ends)
        tolerance = HALF_TOLERANCE if is_half else PLAIN_TOLERANCE
        # Keep no reference to the model, whose memory may be needed.
        kept = replace(trained, model=None)
        return cls(kept, answers, logits, tolerance, PlainLoading.like(model))

    def compare(self, folder: Path, tolerance: float = 0.0) -> int:
        """Ask the model in `folder` the same questions, and compare its answers.

        Args:
            tolerance: a tolerance that replaces the default tolerance if it is larger.

        Returns:
            The number of answers in which every token is equal.

        Raises:
            CheckpointError: the answers or their end tokens differ, or the model cannot be loaded.
        """
        allowed = max(self.tolerance, tolerance)
        try:
            model, tokenizer = self.loading.read(folder)
            seeing = self._seeing_of(folder)
        except Exception as error:  # loading may raise anything
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            unreadable = phrase("evaluation.saved_model_unreadable", reason=reason)
            raise _differs(folder, unreadable) from error
        self._compare_files(folder, model, tokenizer)
        if seeing is not None:
            self._compare_seeing(folder, seeing)
        with self.trained.autocast():
            answers, logits = _written_by(model, self.trained, None)
        del model
        gc.collect()
        differing = (self._difference(n, answers, logits, allowed) for n in range(len(logits)))
        if (how := next(filter(None, differing), None)) is not None:
            raise OtherAnswersError(folder, how)
        return sum(map(operator.eq, self.answers, answers)) if answers else len(logits)

    def _difference(
        self, number: int, answers: list[list[int]], logits: list[torch.Tensor], allowed: float
    ) -> str | None:
        """Describe how a loaded model's answer differs from the trained model's; None if equal."""
        prompt = self.trained.questions[number].prompt
        near = num_near(self.logits[number], logits[number], allowed)
        if not self.answers:
            scores = f"{logits[number].tolist()}, not {self.logits[number].tolist()}"
            return (
                None
                if near
                else phrase("evaluation.saved_score_differs", prompt=prompt, scores=scores)
            )
        ours, theirs = self.answers[number], answers[number]
        num_equal = _num_first(map(operator.eq, ours, theirs))
        if num_equal < near:  # rounding explains the different token
            return None
        if ours == theirs:
            far = num_near(self.logits[number], logits[number], FAR * allowed) < len(ours)
            return phrase("evaluation.saved_logits_differ", prompt=prompt) if far else None
        texts = [self.trained.tokenizer.decode(ids) for ids in (theirs, ours)]
        return phrase(
            "evaluation.saved_answer_differs", prompt=prompt, saved=texts[0], trained=texts[1]
        )

    def _compare_files(
        self, folder: Path, model: Any, tokenizer: "PreTrainedTokenizerBase"
    ) -> None:
        """Compare the other files of the folder: end tokens, chat template and tokenizer."""
        ours = self.trained.tokenizer
        if self.answers and (missing := {*self.trained.end_ids} - {*known_ends(model)}):
            names = ", ".join(map(str, ours.convert_ids_to_tokens(sorted(missing))))
            raise _differs(
                folder, phrase("evaluation.saved_ends_missing", file=GENERATION_FILE, names=names)
            )
        is_text = self.trained.pictures is None  # else the processor's template counts
        if is_text and ours.chat_template != tokenizer.chat_template:
            raise _differs(folder, phrase("evaluation.saved_tokenizer_template_differs"))
        for question in self.trained.questions:
            if tokenizer(question.prompt)["input_ids"] != ours(question.prompt)["input_ids"]:
                raise _differs(
                    folder, phrase("evaluation.saved_tokens_differ", prompt=question.prompt)
                )

    def _seeing_of(self, folder: Path) -> PictureTokens | None:
        """Return the processor in the folder, as an encoder of images; None for a text model."""
        ours = self.trained.pictures
        if ours is None:
            return None
        processor = self.loading.read_processor(folder)
        return PictureTokens(processor, str(folder), background=ours.background)

    def _compare_seeing(self, folder: Path, theirs: PictureTokens) -> None:
        """Compare the processor in the folder with the trained model's.

        The chat template, and the tokens and pixels for an image, must be equal.

        Raises:
            CheckpointError: one of these differs.
        """
        ours = self.trained.pictures
        assert ours is not None
        if ours.processor.chat_template != theirs.processor.chat_template:
            raise _differs(folder, phrase("evaluation.saved_processor_template_differs"))
        shown = [picture for question in self.trained.questions for picture in question.pictures]
        for image in (fixed_picture(), *ours.images(shown)):
            is_same = ours.ids_of(image) == theirs.ids_of(image)
            name = _other_input(ours, theirs, image) if is_same else "tokens"
            if name is not None:
                size = {"width": image.width, "height": image.height}
                raise _differs(
                    folder, phrase("evaluation.saved_processor_differs", name=name, **size)
                )


def _other_input(ours: PictureTokens, theirs: PictureTokens, image: "Image") -> str | None:
    """Return the name of the first model input for which two processors give different values for
    an image.

    The whole processor is called, as users call it. Differences within rounding are allowed,
    because image processors that use PIL and torchvision round differently.
    """
    kinds = {type(one.processor.image_processor) for one in (ours, theirs)}
    allowed = PIXEL_TOLERANCE if len(kinds) > 1 else 0.0
    read = theirs.processor(
        text=[theirs.mark], images=[image], add_special_tokens=False, return_tensors="pt"
    )
    given = ours.pixels_of([image]) | ours.kinds(torch.tensor([ours.ids_of(image)]))
    expected = {n: torch.as_tensor(v).double() for n, v in given.items()}
    actual = {n: torch.as_tensor(v).double() for n, v in read.items() if n not in OF_TEXT}
    for name in sorted(expected.keys() | actual.keys()):
        if name not in expected or name not in actual:
            return name
        one, other = expected[name], actual[name]
        if one.shape != other.shape or (one - other).norm() > allowed * one.norm():
            return name
    return None


def _differs(folder: Path, how: str) -> CheckpointError:
    return CheckpointError(phrase("evaluation.saved_model_differs", folder=folder, difference=how))


def num_near(ours: torch.Tensor, theirs: torch.Tensor, allowed: float) -> int:
    """Return the number of tokens before the first one whose logits differ by too much."""
    pairs = zip(ours, theirs, strict=False)  # one answer may be shorter
    are_near = (distance(b[None], a[None]) <= allowed for a, b in pairs)
    return _num_first(are_near)


def _num_first(holds: Iterable[bool]) -> int:
    """Return the number of true values before the first false one."""
    return sum(1 for _ in itertools.takewhile(bool, holds))


@torch.no_grad()
def _written_by(
    model: Any, trained: Trained, end_ids: list[int] | None
) -> tuple[list[list[int]], list[torch.Tensor]]:
    """Return a model's answers and their logits; for a model that scores texts, the scores.

    Args:
        end_ids: tokens that end an answer; None: those in the model's own files.
    """
    questions = trained.questions
    if not inner_model(model).can_generate():  # type: ignore[operator]
        device = next(model.parameters()).device
        rows = [torch.tensor([q.prompt_ids], device=device) for q in questions]
        scores = [model(input_ids=row).logits.float().cpu() for row in rows]
        return [], [torch.cat([one, torch.zeros_like(one)], -1) for one in scores]
    longest = max(question.expected_length for question in questions) + ANSWER_MARGIN_TOKENS
    longest = min(MAX_TOKENS, longest)
    if (positions := positions_of(model)) is not None:
        longest = max(1, min(longest, positions - max(len(q.prompt_ids) for q in questions)))
    lengths = [longest] * len(questions)
    more = {"return_dict_in_generate": True, "output_logits": True}
    output, width = generate_greedily(
        model, trained.tokenizer, questions, lengths, trained.pictures, end_ids, **more
    )
    ends = known_ends(model) if end_ids is None else end_ids
    rows = output.sequences[:, width:].tolist()
    answers = [row[: len(before_stop(row, ends)) + 1] for row in rows]
    steps = torch.stack([step.float().cpu() for step in output.logits], 1)
    return answers, [logits[: len(row)] for logits, row in zip(steps, answers, strict=True)]


def distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the norm of the difference of logits (tokens, vocabulary), relative to the expected
    ones.

    A constant added to all logits of a token has no effect.
    """
    centred = expected - expected.mean(-1, keepdim=True)
    difference = actual - actual.mean(-1, keepdim=True) - centred
    return float(difference.norm() / centred.norm().clamp_min(1e-12))


@dataclass(frozen=True)
class PlainLoading:
    """The options for loading a saved model with only transformers and PEFT, as its card describes.

    Attributes:
        auto_class: the name of a class of transformers.
        options: arguments for every model.
        of_base: further arguments for the base model of a LoRA, because its files do not record how
            it was loaded in training.
    """

    auto_class: str
    options: dict[str, Any]
    of_base: dict[str, Any]

    @classmethod
    def like(cls, model: Any) -> "PlainLoading":
        """Return options that load a model with the device, attention and format of `model`."""
        inner: Any = inner_model(model)
        weights = next(p for p in inner.parameters() if p.is_floating_point())
        options: dict[str, Any] = {
            "attn_implementation": inner.config._attn_implementation,
            "trust_remote_code": inner.config.__module__.startswith("transformers_modules"),
        }
        if weights.device.type != "cpu":
            options["device_map"] = {"": weights.device}
        of_base: dict[str, Any] = {"dtype": weights.dtype}
        if (quantized := getattr(inner.config, "quantization_config", None)) is not None:
            of_base |= {"quantization_config": quantized, "device_map": {"": weights.device}}
        if has_router_logits(inner):
            of_base[ROUTER_LOGITS] = False
        kind = _auto_class(inner)
        if kind == SCORING:
            of_base["num_labels"] = inner.config.num_labels
        return cls(kind, options, of_base)

    def read(self, folder: Path) -> tuple[Any, "PreTrainedTokenizerBase"]:
        """Load the model in a folder with its tokenizer, and return both."""
        transformers = require("transformers", "evaluation.reading_saved_model")
        is_lora = (folder / "adapter_config.json").is_file()
        place, options = str(folder), self.options
        if is_lora:
            base = base_of_lora(folder)
            place, options = base.location, options | self.of_base | {"revision": base.revision}
        with without_progress_bars(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a problem would show in the answers
            model = getattr(transformers, self.auto_class).from_pretrained(place, **options)
            keep_trainable_layout(model)
            if is_lora:
                peft = require("peft", "evaluation.reading_saved_lora")
                model = peft.PeftModel.from_pretrained(model, str(folder))
                if (folder / GENERATION_FILE).is_file():
                    ends = transformers.GenerationConfig.from_pretrained(folder)
                    inner_model(model).generation_config = ends
        return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)

    def read_processor(self, folder: Path) -> Any:
        """Load the processor in a folder."""
        transformers = require("transformers", "evaluation.reading_saved_model")
        trusted = {"trust_remote_code": self.options["trust_remote_code"]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return transformers.AutoProcessor.from_pretrained(folder, **trusted)


def _auto_class(model: Any) -> str:
    if is_scoring(model):
        return SCORING
    sees = hasattr(model.config, "vision_config")
    return "AutoModelForImageTextToText" if sees else "AutoModelForCausalLM"
