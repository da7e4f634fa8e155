"""A saved model read by plain transformers and PEFT, from its own files alone, and compared.

It answers a few prompts, and stops where its own files say that an answer ends. These tokens are
those of the trained model in memory, as Temper measures it: greedy, in the same number format. What
differs is named, and the model is not called finished. Where the two choose different tokens whose
logits are as near as rounding makes them, they count as the same.
"""

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from infrastructure.core.errors import CheckpointError
from infrastructure.core.optional import require
from infrastructure.evaluation.generation import (
    ANSWER_MARGIN_TOKENS,
    before_stop,
    write_tokens,
)
from infrastructure.monitoring.drawing.formatting import format_bytes
from infrastructure.optimization.memory_prediction import MemoryBudget
from infrastructure.optimization.memory_readings import release_memory, resident_bytes
from infrastructure.training.core.preserve import preserve
from infrastructure.training.data.encoding.picture_tokens import PictureTokens
from infrastructure.training.data.encoding.tokenization import ConversationEncoder
from infrastructure.training.data.readers.rows import Turn
from infrastructure.training.data.store.examples import GenerationPrompt
from infrastructure.training.models.added_modules import added_modules
from infrastructure.training.models.answer_end import GENERATION_FILE
from infrastructure.training.models.model_inputs import inner_model, is_sharded
from infrastructure.training.models.progress_bars import without_progress_bars
from infrastructure.training.models.quantization import keep_trainable_layout
from infrastructure.training.models.router_logits import ROUTER_LOGITS, asks_for_router_logits
from infrastructure.training.models.saved_model import rounded_beside
from infrastructure.training.models.source import read_json
from infrastructure.training.models.transformers_backend import base_of_lora

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NUM_QUESTIONS = 3
MAX_TOKENS = 32  # of an answer: a check, not a measurement
QUESTIONS = ("What is the capital of France?", "Write 12 + 30 as a number.", "Say: так, 東京!")
PLAIN_TOLERANCE = 1e-3  # of the same weights, in sums of another order
HALF_TOLERANCE = 0.05  # the same in 16 bits
HALF = (torch.bfloat16, torch.float16)
SPARE = 1.2  # times the weights: what has to be free for them and a few tokens

Autocast = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Trained:
    """The model in memory that a folder has to give again.

    Attributes:
        questions: what both are asked.
        end_ids: what ends an answer where Temper measures.
        autocast: the number format that Temper measures in.
        pictures: what makes pixels of those of the questions.
        tolerance: how far logits may be apart where they choose different tokens; None: as far as
            its number format makes them.
    """

    model: Any
    tokenizer: "PreTrainedTokenizerBase"
    questions: Sequence[GenerationPrompt]
    end_ids: Sequence[int]
    autocast: Autocast = nullcontext
    pictures: PictureTokens | None = None
    tolerance: float | None = None

    @property
    def allowed(self) -> float:
        """The distance of logits that rounding explains."""
        if self.tolerance is not None:
            return self.tolerance
        weights = next(p for p in self.model.parameters() if p.is_floating_point())
        with self.autocast():
            in_half = torch.is_autocast_enabled(weights.device.type)
        is_plain = weights.dtype not in HALF and not in_half
        return PLAIN_TOLERANCE if is_plain else HALF_TOLERANCE


def fixed_questions(
    tokenizer: "PreTrainedTokenizerBase", longest: int = MAX_TOKENS
) -> list[GenerationPrompt]:
    """Questions where there are no held-out ones, written as in training."""
    encoder = ConversationEncoder(tokenizer, max_length=2 * longest)
    written = [encoder.prompt_ids([Turn("user", text)])[:longest] for text in QUESTIONS]
    return [GenerationPrompt(t, ids, "", 8) for t, ids in zip(QUESTIONS, written, strict=True)]


def check_saved(folder: Path, trained: Trained) -> list[str]:
    """Compare the model in `folder`, read by plain transformers and PEFT, with the trained one.

    Returns:
        A note where it could not be read back, and why.

    Raises:
        CheckpointError: it answers or ends otherwise, or cannot be read; says what differs.
    """
    folder = rounded_beside(folder) or folder
    if reason := _why_not(trained.model):
        return [f"note: {folder.name}/ was not read back: {reason}"]
    with preserve(trained.model, random=trained.model.device, modes=True):
        trained.model.eval()
        differing = differences(folder, trained)
    if differing:
        raise CheckpointError(
            f"{folder}: what was saved is not the model that was trained: {differing[0]}"
        )
    return []


def _why_not(model: torch.nn.Module) -> str | None:
    if is_sharded(model):
        return "no process holds all of the model"
    if added_modules(model):
        return "plain transformers does not compute with the weights of extensions"
    device = next(model.parameters()).device
    release_memory()
    needed = round(SPARE * sum(p.numel() * p.element_size() for p in model.parameters()))
    there = MemoryBudget().size_bytes(device)
    there -= torch.cuda.memory_allocated(device) if device.type == "cuda" else resident_bytes()
    if needed > there:
        return f"that takes {format_bytes(needed)} beside the trained model, and there is less"
    return None


def differences(folder: Path, trained: Trained) -> list[str]:
    """What the model in `folder` does otherwise than the trained one, in words."""
    model = trained.model
    questions = [*trained.questions]
    longest = max(question.expected_length for question in questions) + ANSWER_MARGIN_TOKENS
    lengths = [min(MAX_TOKENS, longest)] * len(questions)
    ends = [*trained.end_ids]
    with trained.autocast():
        ours = write_tokens(model, trained.tokenizer, questions, lengths, trained.pictures, ends)
    try:
        plain, tokenizer = read_plainly(folder, model)
    except Exception as error:  # whatever a reader of it would meet
        reason = " ".join(str(error).split())[:300]
        return [f"plain transformers cannot read it ({type(error).__name__}: {reason})"]
    own_ends = _ends_of(plain)
    if missing := {*ends} - {*own_ends}:
        names = ", ".join(map(str, trained.tokenizer.convert_ids_to_tokens(sorted(missing))))
        return [f"its {GENERATION_FILE} does not end answers with {names}"]
    is_text = trained.pictures is None  # else the processor's template is the one that counts
    if is_text and trained.tokenizer.chat_template != tokenizer.chat_template:
        return ["its tokenizer has another chat template"]
    for question in questions:
        if tokenizer(question.prompt)["input_ids"] != trained.tokenizer(question.prompt)["input_ids"]:
            return [f"its tokenizer writes {question.prompt!r} to other tokens"]
    with trained.autocast():
        theirs = write_tokens(plain, trained.tokenizer, questions, lengths, trained.pictures)
        found = [
            _difference(trained, plain, question, first, second, own_ends)
            for question, first, second in zip(questions, ours, theirs, strict=True)
        ]
    del plain
    gc.collect()
    return [one for one in found if one is not None]


def _difference(
    trained: Trained,
    plain: Any,
    question: GenerationPrompt,
    ours: list[int],
    theirs: list[int],
    own_ends: Sequence[int],
) -> str | None:
    ours, theirs = _answer(ours, trained.end_ids), _answer(theirs, own_ends)
    if ours == theirs:
        return None
    pairs = enumerate(zip(ours, theirs, strict=False))
    first = next((n for n, (a, b) in pairs if a != b), None)
    if first is not None:
        ids = [*question.prompt_ids, *ours[:first]]
        logits = [_last_logits(m, ids, question, trained.pictures) for m in (trained.model, plain)]
        if distance(logits[1], logits[0]) <= trained.allowed:
            return None
    texts = [trained.tokenizer.decode(ids) for ids in (ours, theirs)]
    return f"to {question.prompt!r} it writes {texts[1]!r}, and the trained model {texts[0]!r}"


def _answer(ids: list[int], ends: Sequence[int]) -> list[int]:
    """What was written, with what ends it."""
    return ids[: len(before_stop(ids, [*ends])) + 1]


@torch.no_grad()
def _last_logits(
    model: Any, ids: list[int], question: GenerationPrompt, pictures: PictureTokens | None
) -> torch.Tensor:
    device = next(model.parameters()).device
    row = torch.tensor([ids])
    given = {} if pictures is None else pictures.inputs(row, [*question.pictures])
    given = {name: value.to(device) for name, value in given.items()}
    output = model(input_ids=row.to(device), use_cache=True, **given)
    logits: torch.Tensor = output.logits[0, -1:].float().cpu()
    return logits


def distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Of logits (tokens, vocabulary): a constant added to all of a token's changes nothing."""
    centred = expected - expected.mean(-1, keepdim=True)
    difference = actual - actual.mean(-1, keepdim=True) - centred
    return float(difference.norm() / centred.norm().clamp_min(1e-12))


def _ends_of(model: Any) -> list[int]:
    known = inner_model(model).generation_config.eos_token_id  # type: ignore[union-attr]
    return [] if known is None else [known] if isinstance(known, int) else [*known]


def read_plainly(folder: Path, like: Any) -> tuple[Any, "PreTrainedTokenizerBase"]:
    """Load a saved model as the lines of its card do, by transformers and PEFT alone.

    Args:
        like: the trained model: its device, number format and attention are taken, and of a LoRA
            how its base is quantised.
    """
    transformers = require("transformers", "reading a saved model")
    inner: Any = inner_model(like)
    is_lora = (folder / "adapter_config.json").is_file()
    base = base_of_lora(folder) if is_lora else None
    place = str(folder) if base is None else base.location
    auto = _auto_class(transformers, inner)
    options: dict[str, Any] = {
        "dtype": next(p.dtype for p in inner.parameters() if p.is_floating_point()),
        "attn_implementation": inner.config._attn_implementation,
        "trust_remote_code": inner.config.__module__.startswith("transformers_modules"),
    }
    if base is not None and base.revision is not None:
        options["revision"] = base.revision
    device = next(inner.parameters()).device
    quantized = getattr(inner.config, "quantization_config", None)
    if is_lora and quantized is not None:
        options["quantization_config"] = quantized
    if quantized is not None or device.type != "cpu":
        options["device_map"] = {"": device}
    if is_lora and asks_for_router_logits(inner):
        options[ROUTER_LOGITS] = False
    with without_progress_bars():
        model = auto.from_pretrained(place, **options)
        keep_trainable_layout(model)
        if is_lora:
            peft = require("peft", "reading a saved LoRA")
            model = peft.PeftModel.from_pretrained(model, str(folder))
            if (folder / GENERATION_FILE).is_file():
                ends = transformers.GenerationConfig.from_pretrained(folder)
                inner_model(model).generation_config = ends
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


def _auto_class(transformers: Any, model: Any) -> Any:
    """The auto class that a model is loaded with."""
    if type(model).__name__.endswith("ForSequenceClassification"):
        return transformers.AutoModelForSequenceClassification
    sees = hasattr(model.config, "vision_config")
    name = "AutoModelForImageTextToText" if sees else "AutoModelForCausalLM"
    return getattr(transformers, name)
