"""Statistics of usable rows: a few numbers for each row, and the figures of the report."""

import hashlib
import sys
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from infrastructure.data.encoding.chat_format import special_tokens
from infrastructure.data.preparation.data_report import DataReport
from infrastructure.data.preparation.row_encoder import PreparedRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

QUANTILES = {"5%": 0.05, "50%": 0.5, "95%": 0.95}
NUM_END_TOKENS = 3

Mask = npt.NDArray[np.bool_]


class SharedSystemPrompt:
    """A check whether all rows begin with the same system prompt. It stores at most two prompts."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def add(self, text: str) -> None:
        """Add the system prompt of the next row; "" if the row has none."""
        if len(self._seen) < 2:
            self._seen.add(text)

    @property
    def text(self) -> str | None:
        """The system prompt that all rows share; None if they have none or different ones."""
        [*seen] = self._seen
        return seen[0] or None if len(seen) == 1 else None


@dataclass
class RowFacts:
    """The numbers recorded for each usable row, in order; about forty bytes per row."""

    content: "array[int]" = field(default_factory=lambda: array("Q"))
    is_evaluation: "array[int]" = field(default_factory=lambda: array("b"))
    length: "array[int]" = field(default_factory=lambda: array("i"))
    supervised: "array[int]" = field(default_factory=lambda: array("i"))
    end_token: "array[int]" = field(default_factory=lambda: array("i"))
    is_truncated: "array[int]" = field(default_factory=lambda: array("b"))
    task: list[str] = field(default_factory=list)

    def add(self, row: PreparedRow, is_evaluation: bool) -> None:
        """Record the numbers of the next row."""
        example = row.encoded.example
        self.content.append(row.content)
        self.is_evaluation.append(is_evaluation)
        self.length.append(len(example.input_ids))
        self.supervised.append(int(example.supervised.sum()))
        self.end_token.append(row.encoded.end_token)
        self.is_truncated.append(row.encoded.is_truncated)
        self.task.append(sys.intern(row.conversation.task))

    def content_hash(self, chosen: Mask) -> str:
        """Return a hash of the content of the chosen rows, in their order."""
        content = np.array(self.content, dtype="<u8")[chosen]
        return hashlib.sha256(content.tobytes()).hexdigest()

    def fill(
        self, report: DataReport, is_evaluation: Mask, tokenizer: "PreTrainedTokenizerBase"
    ) -> None:
        """Compute figures such as token counts and length quantiles, and set them in a report."""
        train = ~is_evaluation
        content = np.array(self.content, dtype=np.uint64)
        lengths = np.array(self.length, dtype=np.int64)[train]
        report.num_train, report.num_evaluation = int(train.sum()), int(is_evaluation.sum())
        report.tokens = int(lengths.sum())
        report.supervised_tokens = int(np.array(self.supervised, dtype=np.int64)[train].sum())
        if len(lengths):
            report.longest = int(lengths.max())
            levels = np.quantile(lengths, list(QUANTILES.values()), method="higher")
            report.length_quantiles = dict(zip(QUANTILES, map(int, levels), strict=True))
        report.duplicates = len(lengths) - len(np.unique(content[train]))
        report.leaked = int(np.isin(content[train], content[is_evaluation]).sum())
        tasks = (task for task, used in zip(self.task, train, strict=True) if used)
        report.task_counts = dict(sorted(Counter(tasks).items()))
        tokens = zip(self.end_token, self.is_truncated, strict=True)
        whole = [token for token, is_truncated in tokens if not is_truncated]
        special = special_tokens(tokenizer)  # a cut answer ends with any other token
        ends = Counter(whole or [t for t in self.end_token if t in special])
        report.end_tokens = {
            str(tokenizer.convert_ids_to_tokens(token)): count
            for token, count in ends.most_common(NUM_END_TOKENS)
        }
