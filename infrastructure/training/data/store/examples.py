"""What the data part gives to the others: token examples to train on, questions to ask."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class TokenizedExample:
    """One example.

    Attributes:
        input_ids: int32 (n,).
        supervised: bool (n,); whether token i is a loss target. The first one never is.
        task: kind of task, or "".
    """

    input_ids: npt.NDArray[np.int32]
    supervised: npt.NDArray[np.bool_]
    task: str = ""


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """A held-out row as text: what is asked, and what the answer should be.

    Attributes:
        messages: everything before the last answer, as chat templates want it.
        inputs: what else the chat template is given, as `Conversation.inputs`.
    """

    messages: list[dict[str, Any]]
    answer: str
    task: str = ""
    inputs: str = ""


@dataclass(frozen=True, slots=True)
class GenerationPrompt:
    """A held-out row for generation.

    Attributes:
        prompt: the last thing said before the answer.
        prompt_ids: everything before the answer, tokenised as in training.
        expected: the right answer.
        expected_length: of that answer, in tokens, without the one that ends it.
        place: file:line of the row; "" of a question of somebody's own.
    """

    prompt: str
    prompt_ids: list[int]
    expected: str
    expected_length: int
    task: str = ""
    place: str = ""
