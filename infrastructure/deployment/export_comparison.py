"""An exported model read back as others read it, and compared with what it was made of.

Compared are the logits of three questions, written as in training, and these written questions
themselves. The distance is relative: of the logits less their mean, the norm of the difference over
the norm. A random other model is about 1.4 away from any; weights of fewer bits are allowed more.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from infrastructure.core.errors import CheckpointError
from infrastructure.core.optional import require
from infrastructure.training.data.encoding.picture_tokens import PictureTokens
from infrastructure.training.data.encoding.tokenization import ConversationEncoder
from infrastructure.training.data.readers.rows import PICTURE_PART, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

QUESTIONS = ("What is the capital of France?", "Write 12 + 30 as a number.", "Say: так, 東京!")
MAX_TOKENS = 64
PICTURE_SIDE = 48  # pixels
PLAIN_TOLERANCE = 1e-3  # of the same weights, in sums of another order
TOLERANCES = {16: 0.05, 8: 0.2, 4: 0.6}
HALF = (torch.bfloat16, torch.float16)

LogitsOf = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Reference:
    """What the trained model gives.

    Attributes:
        prompts: token ids, (1, tokens) each.
        logits: (tokens, vocabulary) of each prompt, fp32.
        tolerance: of the same weights in the same format.
    """

    prompts: list[torch.Tensor]
    logits: list[torch.Tensor]
    tolerance: float

    @classmethod
    def of(
        cls,
        model: torch.nn.Module,
        tokenizer: "PreTrainedTokenizerBase | None",
        pictures: PictureTokens | None = None,
    ) -> "Reference":
        """Measure a model; it is in evaluation mode afterwards."""
        model.eval()
        prompts = prompts_of(model, tokenizer, pictures)
        weights = next(p for p in model.parameters() if p.is_floating_point())
        tolerance = TOLERANCES[16] if weights.dtype in HALF else PLAIN_TOLERANCE
        return cls(prompts, [logits_of(model, pictures)(ids) for ids in prompts], tolerance)


@dataclass(frozen=True)
class Comparison:
    """How near the export is.

    Attributes:
        by: what read it.
        distance: the largest over the questions.
        same_choice: share of tokens after which both would write the same one.
        same_prompt: whether its tokenizer writes the questions to the same tokens; None: the format
            brings no tokenizer.
    """

    by: str
    distance: float
    same_choice: float
    same_prompt: bool | None = None

    def facts(self) -> dict[str, object]:
        """As they are written beside the model."""
        return {
            "read_by": self.by,
            "logits_distance": float(f"{self.distance:.2g}"),
            "same_choice": round(self.same_choice, 4),
            "same_prompt": self.same_prompt,
        }

    def words(self) -> str:
        """For a person."""
        prompt = {True: "the same prompts", False: "other prompts", None: "no tokenizer"}
        return (
            f"read back by {self.by}: logits {self.distance:.2g} away,"
            f" {100 * self.same_choice:.0f} % of next tokens the same, {prompt[self.same_prompt]}"
        )


@dataclass
class Comparer:
    """Compares exports with one reference.

    Raises:
        CheckpointError: an export is too far away, or writes prompts otherwise.
    """

    reference: Reference
    bits: int | None
    made: list[Comparison] = field(default_factory=list)

    def __call__(
        self, by: str, logits: LogitsOf, prompts: Sequence[torch.Tensor] | None = None
    ) -> Comparison:
        """Compare what `logits` gives, and refuse what is not the model.

        Args:
            by: what reads the export.
            prompts: as the export's own tokenizer writes the questions; None: it has none.
        """
        distances, choices = [], []
        for ids, expected in zip(self.reference.prompts, self.reference.logits, strict=True):
            actual = logits(ids)
            width = min(actual.shape[-1], expected.shape[-1])  # a vocabulary may be padded
            actual, expected = actual[:, :width].float(), expected[:, :width]
            distances.append(distance(actual, expected))
            choices.append((actual.argmax(-1) == expected.argmax(-1)).float())
        same_prompt = None
        if prompts is not None:
            pairs = zip(prompts, self.reference.prompts, strict=True)
            same_prompt = all(torch.equal(ours, theirs) for ours, theirs in pairs)
        compared = Comparison(by, max(distances), float(torch.cat(choices).mean()), same_prompt)
        tolerance = max(self.reference.tolerance, TOLERANCES.get(self.bits or 0, 0.0))
        if not compared.distance <= tolerance:
            raise CheckpointError(
                f"the export is not the model that was trained: {compared.words()}, where"
                f" {tolerance:g} is allowed; nothing was kept"
            )
        if same_prompt is False:
            raise CheckpointError(
                f"the export writes prompts otherwise than the training did ({by}); nothing was"
                " kept"
            )
        self.made.append(compared)
        return compared


def distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Of logits (tokens, vocabulary): a constant added to all of a token's changes nothing."""
    centred = expected - expected.mean(-1, keepdim=True)
    difference = actual - actual.mean(-1, keepdim=True) - centred
    return float(difference.norm() / centred.norm().clamp_min(1e-12))


def prompts_of(
    model: Any, tokenizer: "PreTrainedTokenizerBase | None", pictures: PictureTokens | None = None
) -> list[torch.Tensor]:
    """The questions as tokens, (1, tokens) each; of a model without text, some tokens. A model that
    sees is asked the first one once more, about a picture."""
    if tokenizer is None:
        return [torch.arange(8).unsqueeze(0)]
    encoder = ConversationEncoder(tokenizer, max_length=MAX_TOKENS, pictures=pictures)
    positions = getattr(getattr(model, "config", None), "max_position_embeddings", MAX_TOKENS)
    longest = min(MAX_TOKENS, int(positions or MAX_TOKENS))
    written = (encoder.prompt_ids([Turn("user", question)]) for question in QUESTIONS)
    shown = []
    if pictures is not None:
        parts = [{"type": PICTURE_PART}, {"type": "text", "text": QUESTIONS[0]}]
        turn = Turn("user", QUESTIONS[0], json.dumps({"content": parts}))
        shown = [torch.tensor([encoder.prompt_ids([turn], images=[_picture()])])]
    return [*(torch.tensor([ids[:longest]]) for ids in written), *shown]


def _picture() -> Any:
    """Stripes of all colours."""
    images = require("PIL.Image", "comparing what a model sees")
    stripes = torch.arange(PICTURE_SIDE**2 * 3, dtype=torch.int64) * 7 % 256
    pixels = stripes.to(torch.uint8).reshape(PICTURE_SIDE, PICTURE_SIDE, 3)
    return images.fromarray(pixels.numpy())


def logits_of(model: Any, pictures: PictureTokens | None = None) -> LogitsOf:
    """Of a language model of transformers, or of one that sees."""

    @torch.no_grad()
    def logits(ids: torch.Tensor) -> torch.Tensor:
        device = next(model.parameters()).device
        given: dict[str, torch.Tensor] = {}
        if pictures is not None and pictures.mark_id in ids:
            given = pictures.pixels_of([_picture()]) | pictures.kinds(ids)
            given = {name: value.to(device) for name, value in given.items()}
            if (pixels := given.get("pixel_values")) is not None:
                given["pixel_values"] = pixels.to(model.dtype)
        output: torch.Tensor = model(input_ids=ids.to(device), use_cache=False, **given).logits[0]
        return output.float().cpu()

    return logits
