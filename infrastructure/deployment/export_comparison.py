"""An exported model read back as others read it, and compared with what it was made of.

Compared are the logits of three questions, written as in training, and these written questions
themselves. The distance is relative: of the logits less their mean, the norm of the difference over
the norm. A random other model is about 1.4 away from any; weights of fewer bits are allowed more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from infrastructure.core.errors import CheckpointError
from infrastructure.core.messages import phrase
from infrastructure.evaluation.plain_reading import (
    HALF,
    HALF_TOLERANCE,
    NUM_QUESTIONS,
    PLAIN_TOLERANCE,
    QUESTIONS,
    Expected,
    Trained,
    about_picture,
    distance,
    fixed_picture,
    fixed_questions,
)
from infrastructure.training.data.encoding.picture_tokens import PictureTokens
from infrastructure.training.data.encoding.tokenization import ConversationEncoder
from infrastructure.training.data.readers.rows import Turn
from infrastructure.training.models.added_modules import added_modules

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_TOKENS = 64
TOLERANCES = {16: HALF_TOLERANCE, 8: 0.2, 4: 0.6}

LogitsOf = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Reference:
    """What the trained model gives.

    Attributes:
        prompts: token ids, (1, tokens) each.
        logits: (tokens, vocabulary) of each prompt, fp32.
        tolerance: of the same weights in the same format.
        expected: what it answers; None: it writes no text.
    """

    prompts: list[torch.Tensor]
    logits: list[torch.Tensor]
    tolerance: float
    expected: Expected | None = None

    @classmethod
    def of(
        cls,
        model: torch.nn.Module,
        tokenizer: "PreTrainedTokenizerBase | None",
        pictures: PictureTokens | None = None,
        end_ids: Sequence[int] = (),
    ) -> "Reference":
        """Measure a model; it is in evaluation mode afterwards.

        Args:
            end_ids: what ends its answers.
        """
        model.eval()
        prompts = prompts_of(model, tokenizer, pictures)
        weights = next(p for p in model.parameters() if p.is_floating_point())
        tolerance = TOLERANCES[16] if weights.dtype in HALF else PLAIN_TOLERANCE
        expected = None
        # Plain transformers does not compute with the weights of extensions.
        is_plain = hasattr(model, "generate") and not added_modules(model)
        if tokenizer is not None and is_plain and end_ids:
            questions = fixed_questions(tokenizer, pictures=pictures)
            trained = Trained(model, tokenizer, questions, end_ids, pictures=pictures)
            expected = Expected.of(trained)
        logits = [logits_of(model, pictures)(ids) for ids in prompts]
        return cls(prompts, logits, tolerance, expected)


@dataclass(frozen=True)
class Comparison:
    """How near the export is.

    Attributes:
        by: what read it.
        distance: the largest over the questions.
        same_choice: share of tokens after which both would write the same one.
        same_answers: of `NUM_QUESTIONS`, as plain transformers gives them, token for token with
            their ends; None: it cannot be asked.
        same_prompt: whether its tokenizer writes the questions to the same tokens; None: the format
            brings no tokenizer.
    """

    by: str
    distance: float
    same_choice: float
    same_prompt: bool | None = None
    same_answers: int | None = None

    def facts(self) -> dict[str, object]:
        """As they are written beside the model."""
        return {
            "read_by": self.by,
            "logits_distance": float(f"{self.distance:.2g}"),
            "same_choice": round(self.same_choice, 4),
            "same_prompt": self.same_prompt,
            "same_answers": self.same_answers,
        }

    def words(self) -> str:
        """For a person."""
        prompt = {True: "the same prompts", False: "other prompts", None: "no tokenizer"}
        same = (
            "" if self.same_answers is None else f", {self.same_answers} of {NUM_QUESTIONS} answers"
        )
        return phrase(
            "deployment.export_read_back",
            reader=self.by,
            distance=self.distance,
            percent=100 * self.same_choice,
            answers=same,
            prompts=prompt[self.same_prompt],
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
        self,
        by: str,
        logits: LogitsOf,
        prompts: Sequence[torch.Tensor] | None = None,
        folder: Path | None = None,
    ) -> Comparison:
        """Compare what `logits` gives, and refuse what is not the model.

        Args:
            by: what reads the export.
            prompts: as the export's own tokenizer writes the questions; None: it has none.
            folder: where plain transformers reads it and asks; None: it does not read this format.
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
                "deployment.export_differs_from_model",
                comparison=compared.words(),
                tolerance=tolerance,
            )
        if same_prompt is False:
            raise CheckpointError("deployment.export_prompts_differ", reader=by)
        if folder is not None and self.reference.expected is not None:
            same = self.reference.expected.compare(folder, tolerance)
            compared = replace(compared, same_answers=same)
        self.made.append(compared)
        return compared


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
        turn = about_picture(QUESTIONS[0])
        shown = [torch.tensor([encoder.prompt_ids([turn], images=[fixed_picture()])])]
    return [*(torch.tensor([ids[:longest]]) for ids in written), *shown]


def logits_of(model: Any, pictures: PictureTokens | None = None) -> LogitsOf:
    """Of a language model of transformers, or of one that sees."""

    @torch.no_grad()
    def logits(ids: torch.Tensor) -> torch.Tensor:
        device = next(model.parameters()).device
        given: dict[str, torch.Tensor] = {}
        if pictures is not None and pictures.mark_id in ids:
            given = pictures.pixels_of([fixed_picture()]) | pictures.kinds(ids)
            given = {name: value.to(device) for name, value in given.items()}
            if (pixels := given.get("pixel_values")) is not None:
                given["pixel_values"] = pixels.to(model.dtype)
        output: torch.Tensor = model(input_ids=ids.to(device), use_cache=False, **given).logits[0]
        return output.float().cpu()

    return logits
