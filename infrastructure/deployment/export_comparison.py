"""The comparison of an exported model, loaded as users load it, with the trained model.

Both models get three questions, formatted as in training. The token ids of the questions and the
logits of the models are compared. The distance is the norm of the difference between mean-centered
logits, divided by their norm. An unrelated model has a distance of about 1.4. Weights with fewer
bits have a higher tolerance.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from infrastructure.core.errors import CheckpointError
from infrastructure.core.messages import phrase
from infrastructure.data.encoding.picture_tokens import PictureTokens
from infrastructure.data.encoding.tokenization import ConversationEncoder
from infrastructure.data.readers.rows import Turn
from infrastructure.evaluation.plain_reading import (
    HALF,
    HALF_TOLERANCE,
    NUM_QUESTIONS,
    PLAIN_TOLERANCE,
    QUESTIONS,
    Expected,
    OtherAnswersError,
    Trained,
    about_picture,
    distance,
    fixed_picture,
    fixed_questions,
)
from infrastructure.models.added_modules import added_modules

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_TOKENS = 64
ROUNDED = {
    8: "deployment.export_in_8_bits_answers_differ",
    4: "deployment.export_in_4_bits_answers_differ",
}
TOLERANCES = {16: HALF_TOLERANCE, 8: 0.2, 4: 0.6}

LogitsOf = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Reference:
    """The outputs of the trained model.

    Attributes:
        prompts: the token ids of each prompt, of shape (1, tokens).
        logits: the logits for each prompt, of shape (tokens, vocabulary), fp32.
        tolerance: the tolerated distance for the same weights in the same format.
        expected: the answers of the model, or None if it generates no text.
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
        """Compute the reference outputs of a model. The model stays in evaluation mode.

        Args:
            end_ids: the tokens that end an answer.
        """
        model.eval()
        prompts = prompts_of(model, tokenizer, pictures)
        weights = next(p for p in model.parameters() if p.is_floating_point())
        tolerance = TOLERANCES[16] if weights.dtype in HALF else PLAIN_TOLERANCE
        expected = None
        # Plain transformers does not use the weights that extensions add.
        is_plain = hasattr(model, "generate") and not added_modules(model)
        if tokenizer is not None and is_plain and end_ids:
            questions = fixed_questions(tokenizer, pictures=pictures)
            trained = Trained(model, tokenizer, questions, end_ids, pictures=pictures)
            expected = Expected.of(trained)
        logits = [logits_of(model, pictures)(ids) for ids in prompts]
        return cls(prompts, logits, tolerance, expected)


# Whether the export encodes prompts as the trained model does; None: it has no tokenizer.
PROMPTS = {
    True: "deployment.export_prompts_same",
    False: "deployment.export_prompts_other",
    None: "deployment.export_without_tokenizer",
}


@dataclass(frozen=True)
class Comparison:
    """The result of comparing an export with the trained model.

    Attributes:
        by: the library that loaded the export.
        distance: the largest distance over the questions.
        same_choice: the share of positions at which both models choose the same next token.
        same_answers: how many of the `NUM_QUESTIONS` answers of plain transformers are the same
            token for token, including their ends, or None if not available.
        same_prompt: whether the export's tokenizer encodes the questions in the same way, or None
            if the format contains no tokenizer.
    """

    by: str
    distance: float
    same_choice: float
    same_prompt: bool | None = None
    same_answers: int | None = None

    def facts(self) -> dict[str, object]:
        """Return the result as entries of the file that is saved with the exported model."""
        return {
            "read_by": self.by,
            "logits_distance": float(f"{self.distance:.2g}"),
            "same_choice": round(self.same_choice, 4),
            "same_prompt": self.same_prompt,
            "same_answers": self.same_answers,
        }

    def words(self) -> str:
        """Return the result as text for the user."""
        same = ""
        if self.same_answers is not None:
            same = phrase(
                "deployment.export_same_answers",
                num_same=self.same_answers,
                num_answers=NUM_QUESTIONS,
            )
        return phrase(
            "deployment.export_read_back",
            reader=self.by,
            distance=self.distance,
            percent=100 * self.same_choice,
            answers=same,
            prompts=phrase(PROMPTS[self.same_prompt]),
        )


@dataclass
class Comparer:
    """A function that compares exports with one reference.

    Attributes:
        bits: the bits of each exported weight, or None for the trained format.
        target: the folder to name in error messages; None for the compared folder.

    Raises:
        CheckpointError: if an export is too far from the reference, or encodes prompts differently.
    """

    reference: Reference
    bits: int | None
    target: Path | None = None
    made: list[Comparison] = field(default_factory=list)

    def __call__(
        self,
        by: str,
        logits: LogitsOf,
        prompts: Sequence[torch.Tensor] | None = None,
        folder: Path | None = None,
    ) -> Comparison:
        """Compare the logits of an export with those of the reference model.

        Args:
            by: the library that loads the export.
            logits: computes the export's logits from token ids.
            prompts: the questions, encoded by the export's own tokenizer, or None if it has none.
            folder: the folder from which plain transformers loads the model and answers, or None if
                it does not support the format.

        Raises:
            CheckpointError: if the outputs differ by more than the tolerance.
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
            try:
                same = self.reference.expected.compare(folder, tolerance)
            except OtherAnswersError as error:
                raise self._other_answers(error, folder, compared.distance, tolerance) from error
            compared = replace(compared, same_answers=same)
        self.made.append(compared)
        return compared

    def _other_answers(
        self, error: OtherAnswersError, folder: Path, distance: float, tolerance: float
    ) -> CheckpointError:
        """Return the error for an export whose answers differ. If weights were rounded, the error
        says so.

        The error names `target`, because `folder` is temporary.
        """
        if self.bits not in ROUNDED:
            return OtherAnswersError(self.target or folder, error.difference)
        return CheckpointError(
            ROUNDED[self.bits],
            folder=self.target or folder,
            difference=error.difference,
            distance=distance,
            tolerance=tolerance,
        )


def prompts_of(
    model: Any, tokenizer: "PreTrainedTokenizerBase | None", pictures: PictureTokens | None = None
) -> list[torch.Tensor]:
    """Return the test questions of a comparison as token ids, each of shape (1, tokens).

    Without a tokenizer, these are arbitrary tokens. A vision-language model also gets the first
    question with an image.
    """
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
    """Return a function that computes the logits of a language model or vision-language model."""

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
