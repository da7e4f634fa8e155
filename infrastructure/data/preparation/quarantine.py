"""Skipped rows: each is recorded with file, line and reason, and never dropped silently.

All skipped rows are counted, but only the first MAX_KEPT are stored, so that a file full of garbage
cannot fill the memory.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from infrastructure.core.errors import InputError
from infrastructure.core.files import write_text
from infrastructure.core.messages import phrase
from infrastructure.data.readers.rows import OVER_LONG, UNLEARNABLE, BadRow, excerpt

MAX_KEPT = 10_000
NUM_EXAMPLES = 3
NUM_SHOWN, DETAIL_CHARACTERS = 2, 200  # a template's error message ends with the remedy


@dataclass
class Quarantine:
    """The rows of a dataset that are skipped because they cannot be used.

    Attributes:
        bad_rows: the first MAX_KEPT skipped rows, in the order of the files.
        counts: reason → the number of all rows skipped for this reason.
    """

    bad_rows: list[BadRow] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, rows: Iterable[BadRow]) -> None:
        """Record skipped rows."""
        for row in rows:
            self.counts[row.reason] += 1
            if len(self.bad_rows) < MAX_KEPT:
                self.bad_rows.append(row)

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def examples(self) -> list[BadRow]:
        """The first kept row of each reason, the most frequent reasons first."""
        firsts = {row.reason: row for row in reversed(self.bad_rows)}
        common = [firsts[reason] for reason, _ in self.counts.most_common() if reason in firsts]
        return common[:NUM_EXAMPLES]

    def write(self, path: Path) -> None:
        """Write one JSON object per kept row: source, line, reason, detail and excerpt.

        Rows that are not UTF-8 also have `encoding`.
        """
        lines = [json.dumps(_plain(row), ensure_ascii=False) for row in self.bad_rows]
        left_out = self.total - len(self.bad_rows)
        if left_out:
            lines.append(json.dumps({"left_out": left_out, "counts": dict(self.counts)}))
        write_text(path, "".join(line + "\n" for line in lines))

    @classmethod
    def read(cls, path: Path, counts: dict[str, int]) -> "Quarantine":
        """Read what `write` wrote, and combine it with the counts that were stored separately."""
        records = [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]
        rows = [BadRow(**record) for record in records if "left_out" not in record]
        return cls(rows, Counter(counts))

    def check(
        self,
        num_rows: int,
        max_percent: float,
        listed: Path | None = None,
        *,
        max_unlearnable_percent: float | None = None,
        cuts_prompts: bool = True,
    ) -> None:
        """Raise if too large a share of the rows is bad.

        Args:
            listed: the file that lists the bad rows; None if there is none yet.
            max_unlearnable_percent: the limit for rows whose answers would not be learned as
                written; None: `max_percent`.
            cuts_prompts: whether the error may recommend data.over_length=truncate.

        Raises:
            ValueError: the share is too large; the message has count, share, first rows and
                remedies.
        """
        percent = 100 * self.total / max(1, num_rows)
        lost = Counter({reason: self.counts[reason] for reason in UNLEARNABLE & {*self.counts}})
        limit = max_percent if max_unlearnable_percent is None else max_unlearnable_percent
        is_lossy = 100 * lost.total() / max(1, num_rows) > limit
        if percent <= max_percent and not is_lossy:
            return
        common = (lost if is_lossy else self.counts).most_common(1)[0][0]
        first = next((row for row in self.bad_rows if row.reason == common), None)
        remedy = (first.remedy if first else "") or phrase("data.fix_rows")
        if common == OVER_LONG:
            remedy = phrase("data.raise_max_length")
            remedy += phrase("data.truncate_instead") * cuts_prompts
        now = min(limit, max_percent) if is_lossy else max_percent
        some = phrase("data.skip_bad_rows", now=now)
        some = some if self.total < num_rows else ""  # nothing would be left
        where = phrase("data.skipped_rows_listed", file=listed) if listed else ""
        raise InputError(
            "data.too_many_bad_rows",
            num_bad=self.total,
            num_rows=num_rows,
            percent=percent,
            reasons=self._shown(),
            remedy=remedy,
            skip_hint=some,
            listing=where,
        )

    def none_left(self, path: str) -> ValueError:
        """Return the error for data in which not a single row is usable."""
        reason = ""
        if self.total:
            reason = phrase("data.no_rows_because", count=self.total, reasons=self._shown())
        return ValueError(phrase("data.no_rows_left", path=path, reason=reason))

    def _shown(self) -> str:
        """Return a text that lists the reasons, each with its number of rows and its first row."""
        shown = [
            f"{self.counts[row.reason]} {row.reason} ({row.place}"
            + (f", {excerpt(row.detail, DETAIL_CHARACTERS)})" if row.detail else ")")
            for row in self.examples[:NUM_SHOWN]
        ]
        others = len(self.counts) - len(shown)
        reasons = "; ".join(shown)
        if others <= 0:
            return reasons
        return phrase("data.more_reasons", reasons=reasons, count=others)


def _plain(row: BadRow) -> dict[str, object]:
    fields = {key: value for key, value in asdict(row).items() if key != "offset"}
    rare = ("encoding", "advice")
    return {key: value for key, value in fields.items() if value or key not in rare}
