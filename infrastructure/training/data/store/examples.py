"""What the data part gives to the others: token examples to train on, questions to ask."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infrastructure.core.errors import DataError


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of an example, as it was when the data was prepared: where its encoded bytes (PNG,
    JPEG and the like) are, and their hash.

    Attributes:
        path: the file that holds them; "" while they are in `content` alone.
        start: at which byte of the file they begin.
        decided: about its pixels, as `readers.pictures` names it; known while data is prepared.
    """

    sha256: str
    num_bytes: int
    path: str = ""
    start: int = 0
    content: bytes = b""
    decided: tuple[str, ...] = field(default=(), compare=False)

    def read(self) -> bytes:
        """The encoded picture.

        Raises:
            DataError: the file is gone, or holds another picture by now.
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
    """One example.

    Attributes:
        input_ids: int32 (n,).
        supervised: bool (n,); whether token i is a loss target. The first one never is.
        task: kind of task, or "".
        pictures: in the order in which their tokens stand.
    """

    input_ids: npt.NDArray[np.int32]
    supervised: npt.NDArray[np.bool_]
    task: str = ""
    pictures: tuple[Picture, ...] = ()


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
        prompt: everything before the answer, for people.
        prompt_ids: everything before the answer, tokenised as in training.
        expected: the right answer.
        expected_length: of that answer, in tokens, without the one that ends it.
        place: file:line of the row; "" of a question of somebody's own.
        pictures: whose tokens are in `prompt_ids`, in their order.
    """

    prompt: str
    prompt_ids: list[int]
    expected: str
    expected_length: int
    task: str = ""
    place: str = ""
    pictures: tuple[Picture, ...] = ()
