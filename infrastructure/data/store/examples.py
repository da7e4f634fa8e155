"""The types of examples that other packages use: token examples, and prompts for generation."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infrastructure.core.errors import DataError

EXAMPLES = "examples"  # of a batch that names its examples: those that it was made of


@dataclass(frozen=True, slots=True)
class Picture:
    """An image of an example: the location and the hash of its encoded bytes (PNG, JPEG and the
    like).

    Attributes:
        path: the file that contains the bytes; "" while they are only in `content`.
        start: the offset of the bytes in the file.
        decided: codes of the conversions of its pixels (see `readers.pictures`); set only while
            data is prepared.
    """

    sha256: str
    num_bytes: int
    path: str = ""
    start: int = 0
    content: bytes = b""
    decided: tuple[str, ...] = field(default=(), compare=False)

    def read(self) -> bytes:
        """Return the encoded image.

        Raises:
            DataError: the file is missing, or contains another image than when the data was
                prepared.
        """
        content = self.content or self._from_file()
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise DataError("data.image_changed", path=self.path)
        return content

    def _from_file(self) -> bytes:
        try:
            with Path(self.path).open("rb") as file:
                file.seek(self.start)
                return file.read(self.num_bytes)
        except OSError as error:
            raise DataError(
                "data.image_no_longer_readable", path=self.path, reason=error.strerror or error
            ) from error


@dataclass(frozen=True, slots=True, eq=False)
class TokenizedExample:
    """A tokenized example, with a mask of the trained tokens.

    Attributes:
        input_ids: int32 (n,).
        supervised: bool (n,); True if token i is a loss target. The first token never is.
        task: the kind of task, or "".
        pictures: its images, in the order of their tokens.
    """

    input_ids: npt.NDArray[np.int32]
    supervised: npt.NDArray[np.bool_]
    task: str = ""
    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """A held-out row as text: the prompt and the expected answer.

    Attributes:
        messages: everything before the last answer, in the form that chat templates take.
        inputs: other inputs of the chat template, as in `Conversation.inputs`.
    """

    messages: list[dict[str, Any]]
    answer: str
    task: str = ""
    inputs: str = ""


@dataclass(frozen=True, slots=True)
class GenerationPrompt:
    """A prompt for generating an answer, with the expected answer.

    Attributes:
        prompt: everything before the answer, for display.
        prompt_ids: everything before the answer, tokenized as in training.
        expected: the expected answer.
        expected_length: length of the expected answer in tokens, without the end token.
        place: file:line of the row; "" for a user's own prompt.
        pictures: the images whose tokens are in `prompt_ids`, in their order.
    """

    prompt: str
    prompt_ids: list[int]
    expected: str
    expected_length: int
    task: str = ""
    place: str = ""
    pictures: tuple[Picture, ...] = ()
