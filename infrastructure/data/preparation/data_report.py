"""The report on prepared data, which is written before training begins."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

from infrastructure.core.json_text import JsonObject
from infrastructure.core.messages import phrase
from infrastructure.data.encoding.row_accounting import LeftOut
from infrastructure.data.encoding.token_survival import Survivals
from infrastructure.data.preparation.quarantine import Quarantine

MAX_TASKS_SHOWN = 12


@dataclass
class DataReport:
    """Facts about prepared data.

    Attributes:
        files: the files read, with format and number of rows.
        shape, shape_reason: how rows were interpreted, and why.
        rows_read: the number of all rows: `num_train + num_evaluation + quarantine.total`.
        tokens, supervised_tokens: totals of the training examples of one epoch.
        length_quantiles: share ("5%", "50%", "95%") → length in tokens that this share of the
            training examples does not exceed.
        task_counts: training examples by task.
        end_tokens: each token that ends answers, at which generation must stop → how often it does.
            Empty if all answers were cut before their end.
        truncated: examples that were cut to the maximum length.
        duplicates: training rows with the same content as an earlier one.
        leaked: training rows with the same content as a held-out one.
        system_prompt: the system prompt that every row begins with; None if there is none, or
            several.
        has_context: a column holds the context that the questions are about.
        special_text_rows: rows whose text contains the text of a special token.
        unread: a sentence about fields of the rows that the chat template does not read; "" if
            there are none.
        left_out: texts of usable rows that the model never reads, as `LeftOut.to_json` returns
            them.
        survivals: changes of trained texts by the tokenizer, from `Survivals.to_json`.
        losses: file:line → descriptions of the texts that the model does not read, for the first
            such rows.
        undetermined_rows: number of rows for which it is unknown whether the model reads every
            text.
        unused_columns: a text that lists the columns that nothing uses; "" if there are none.
        notes: further sentences for the user.
        fingerprint: hash of the training examples in their order.
        from_cache: the data was already in the cache.
    """

    files: list[JsonObject] = field(default_factory=list)
    shape: str = ""
    shape_reason: str = ""
    rows_read: int = 0
    num_train: int = 0
    num_evaluation: int = 0
    quarantine: Quarantine = field(default_factory=Quarantine)
    tokens: int = 0
    supervised_tokens: int = 0
    length_quantiles: dict[str, int] = field(default_factory=dict)
    longest: int = 0
    max_length: int = 0
    task_counts: dict[str, int] = field(default_factory=dict)
    end_tokens: dict[str, int] = field(default_factory=dict)
    truncated: int = 0
    truncated_examples: list[str] = field(default_factory=list)
    duplicates: int = 0
    leaked: int = 0
    system_prompt: str | None = None
    has_context: bool = False
    special_text_rows: int = 0
    unread: str = ""
    left_out: list[JsonObject] = field(default_factory=list)
    survivals: JsonObject = field(default_factory=dict)
    losses: dict[str, list[str]] = field(default_factory=dict)
    undetermined_rows: int = 0
    unused_columns: str = ""
    notes: list[str] = field(default_factory=list)
    fingerprint: str = ""
    from_cache: bool = False
    seconds: float = 0.0

    @property
    def supervised_share(self) -> float:
        """The share of the training tokens that contribute to the loss."""
        return self.supervised_tokens / self.tokens if self.tokens else 0.0

    def to_dict(self) -> JsonObject:
        """Return the report as JSON values, with the counts of skipped rows but not the rows."""
        facts = {key: value for key, value in vars(self).items() if key != "quarantine"}
        return {**facts, "quarantined": dict(self.quarantine.counts)}

    @classmethod
    def from_dict(cls, facts: dict[str, Any], quarantine: Quarantine) -> Self:
        """Rebuild a report from the result of `to_dict` and the stored quarantine."""
        known = {key: value for key, value in facts.items() if key != "quarantined"}
        return cls(**known, quarantine=quarantine)

    def lines(self, is_verbose: bool = True) -> list[str]:
        """Return the lines of the report for the user.

        Args:
            is_verbose: return all lines; otherwise only those that should be read before every run.
        """
        warnings = [*([self.unread] if self.unread else []), *self._warnings()]
        warnings += self.notes  # always shown before step 1: they decide what is learned
        if not is_verbose:
            return [*self._short_lines(), *warnings]
        sections = [*self._rows(), *self._tokens(), *self._quarantined(), *warnings]
        origin = (
            phrase("data.read_from_cache")
            if self.from_cache
            else phrase("data.prepared_in", seconds=self.seconds)
        )
        return [*sections, *self._unused(), origin]

    def _unused(self) -> list[str]:
        if not self.unused_columns:
            return []
        return [phrase("data.unused_columns", columns=self.unused_columns)]

    def _short_lines(self) -> list[str]:
        _, _, counts = self._rows()
        tokens, *_ = self._tokens()
        set_aside, *examples = self._quarantined() or [""]
        first = [
            phrase("data.first_skipped", skipped=set_aside, example=example.strip())
            for example in examples[:1]
        ]
        shape = self.shape_reason
        if columns := self.unused_columns:
            shape = phrase("data.columns_unused_too", shape=shape, columns=columns)
        line = phrase("data.data_line", counts=counts, names=self._names(), shape=shape)
        return [line, tokens, *first]

    def _names(self) -> str:
        names = [*dict.fromkeys(f"{file['name']} ({file['format']})" for file in self.files)]
        if len(names) <= 3:
            return ", ".join(names)
        return phrase("data.more_files", names=names[:3], count=len(names) - 3)

    def _rows(self) -> list[str]:
        return [
            phrase("data.rows_read", count=self.rows_read, names=self._names()),
            f"{self.shape_reason[:1].upper()}{self.shape_reason[1:]}",
            phrase(
                "data.split_counts",
                num_train=self.num_train,
                num_held_out=self.num_evaluation,
            ),
        ]

    def _tokens(self) -> list[str]:
        quantiles = ", ".join(f"{share} ≤ {n}" for share, n in self.length_quantiles.items())
        ends = phrase("data.answers_without_end")
        if self.end_tokens:
            ends = phrase("data.answers_end_with", tokens=", ".join(self.end_tokens))
        lines = [
            phrase(
                "data.trained_token_share",
                tokens=self.tokens,
                trained=self.supervised_tokens,
                percent=100 * self.supervised_share,
                ends=ends,
            ),
            phrase(
                "data.length_quantiles",
                quantiles=quantiles,
                longest=self.longest,
                max_length=self.max_length,
            ),
        ]
        if set(self.task_counts) - {""}:
            common = Counter(self.task_counts).most_common(MAX_TASKS_SHOWN)
            rest = len(self.task_counts) - len(common)
            without = phrase("data.no_task")
            tasks = ", ".join(f"{task or without} {count:,}" for task, count in common)
            tasks = phrase("data.more_names", names=tasks, count=rest) if rest > 0 else tasks
            lines.append(phrase("data.tasks", tasks=tasks))
        return lines

    def _quarantined(self) -> list[str]:
        if not self.quarantine.total:
            return []
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in self.quarantine.counts.most_common())
        share = 100 * self.quarantine.total / self.rows_read
        total = self.quarantine.total
        lines = [phrase("data.rows_skipped", count=total, percent=share, reasons=reasons)]
        return lines + [f"  {row}" for row in self.quarantine.examples]

    def _warnings(self) -> list[str]:
        lines = LeftOut.from_json(self.left_out).lines()
        lines += Survivals.from_json(self.survivals).lines()
        other = [row for row in self.quarantine.bad_rows if row.encoding]
        if other:
            lines.append(
                phrase("data.file_read_partly", file=other[0].source, remedy=other[0].remedy)
            )
        if self.truncated:
            where = ", ".join(self.truncated_examples)
            if self.truncated > len(self.truncated_examples):
                where += ", …"
            lines.append(
                phrase(
                    "data.rows_truncated",
                    count=self.truncated,
                    max_length=self.max_length,
                    places=where,
                )
            )
        counts = {
            "data.rows_repeated": self.duplicates,
            "data.rows_also_held_out": self.leaked,
            "data.special_token_rows": self.special_text_rows,
        }
        return lines + [phrase(code, count=count) for code, count in counts.items() if count]
