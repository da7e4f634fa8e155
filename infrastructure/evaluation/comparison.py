"""Paired comparison of two models on the same rows: differences, and whether chance explains them.

Only rows on which both models were measured are compared.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from infrastructure.config.measures import MEASURES, PERPLEXITY, Of, is_greater_better
from infrastructure.evaluation.intervals import Interval, mcnemar, paired_difference
from infrastructure.evaluation.rows import ALL, SHARES, MeasuredRow, ModelRows, sums_of

UNLIKELY = 0.05  # a lower p-value counts as significant, consistent with the 95% intervals

Pair = tuple[MeasuredRow, MeasuredRow]


@dataclass(frozen=True)
class MeasureDifference:
    """The difference of one measure, second model minus first, over the `num_rows` common rows.

    Attributes:
        first, second: the value of each model on these rows.
        only_first, only_second: the number of rows that only this model answers correctly; None if
            the measure is not a matter of right or wrong.
        chance: McNemar's p-value: the probability of such a difference between equally good models.
    """

    measure: str
    num_rows: int
    first: float
    second: float
    difference: Interval
    only_first: int | None = None
    only_second: int | None = None
    chance: float | None = None

    @property
    def verdict(self) -> str:
        """A text that says which model is better.

        The text is "no clear difference" if the interval contains zero or McNemar's test does not
        exclude chance.
        """
        is_by_chance = self.chance is not None and self.chance >= UNLIKELY
        if is_by_chance or not self.difference.excludes_zero:
            return "no clear difference"
        is_second = (self.difference.value > 0) == is_greater_better(self.measure)
        return "second is better" if is_second else "first is better"


def paired(first: ModelRows, second: ModelRows) -> list[Pair]:
    """Return pairs of the two models' measurements of the same row, matched by file and line."""
    waiting: dict[str, list[MeasuredRow]] = {}
    for row in second.rows:
        waiting.setdefault(row.place, []).append(row)
    return [
        (row, of_second.pop(0)) for row in first.rows if (of_second := waiting.get(row.place, []))
    ]


def compare(first: ModelRows, second: ModelRows) -> dict[str, list[MeasureDifference]]:
    """Return the difference of each measure for all common rows ("all"), then for each task.

    Means over tokens are compared only if both models have the same number of trained tokens in
    each row. Otherwise they are means over different tokens, and `unlike_tokens` returns True.
    """
    pairs = paired(first, second)
    groups = {ALL: pairs}
    groups |= {task: [pair for pair in pairs if pair[0].task == task] for task in first.tasks}
    compared = {group: _differences(of_group) for group, of_group in groups.items()}
    return {group: differences for group, differences in compared.items() if differences}


def unlike_tokens(pairs: Sequence[Pair]) -> bool:
    """Return whether the two models have a different number of trained tokens in any row."""
    return any(
        a.loss is not None and b.loss is not None and a.loss.num_tokens != b.loss.num_tokens
        for a, b in pairs
    )


def _differences(pairs: Sequence[Pair]) -> list[MeasureDifference]:
    cannot = unlike_tokens(pairs)
    differing = (
        _difference(measure, pairs)
        for measure, of in MEASURES.items()
        if measure != PERPLEXITY and not (of is Of.TOKENS and cannot)  # it follows from loss
    )
    return [difference for difference in differing if difference is not None]


def _difference(measure: str, pairs: Sequence[Pair]) -> MeasureDifference | None:
    if MEASURES[measure] is Of.ROWS:
        both = [(a, b) for a, b in pairs if measure in a.scores and measure in b.scores]
    else:
        both = [(a, b) for a, b in pairs if a.loss is not None and b.loss is not None]
    sums_a, counts = sums_of([a for a, _ in both], measure)
    sums_b, _ = sums_of([b for _, b in both], measure)
    if len(sums_a) == 0 or math.isclose(counts.sum(), 0):
        return None
    mean_a, mean_b = (float(sums.sum() / counts.sum()) for sums in (sums_a, sums_b))
    known = MeasureDifference(
        measure, len(sums_a), mean_a, mean_b, paired_difference(sums_a, sums_b, counts)
    )
    if measure not in SHARES:
        return known
    only_a, only_b = int((sums_a > sums_b).sum()), int((sums_b > sums_a).sum())
    chance = mcnemar(only_a, only_b)
    return replace(known, only_first=only_a, only_second=only_b, chance=chance)
