"""The page of rounded training says what its own tables give."""

import re
import statistics
from pathlib import Path

import pytest

from benchmarks.quantization_aware import interval_of

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "quantization_aware.md"
ROW = re.compile(r"^\| (\d+) \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|$", re.MULTILINE)
SUMMARY = re.compile(
    r"Mean gain (\S+), 95% interval (\S+) to (\S+): better in (\d+) of (\d+) seeds"
)
HALF_A_DIGIT = 0.0011  # two losses and a difference, rounded to three digits


def test_the_interval_is_students_t_over_the_seeds() -> None:
    gains = [1.0, 2.0, 3.0]
    assert interval_of(gains) == pytest.approx((2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    with pytest.raises(KeyError):
        interval_of([1.0] * 11)  # of so many seeds t is not known


@pytest.mark.parametrize("kind", ["int4", "int8_int4"])
def test_the_page_agrees_with_its_table(kind: str) -> None:
    text = RESULTS.read_text("utf-8")
    section = text.partition(f"\n## {kind} ")[2].partition("\n## ")[0]
    rows = [[float(value) for value in row] for row in ROW.findall(section)]
    assert [row[0] for row in rows] == [*range(10)]
    for _, _, afterwards, aware, gain in rows:
        assert gain == pytest.approx(afterwards - aware, abs=HALF_A_DIGIT)
    gains = [row[-1] for row in rows]
    summary = SUMMARY.search(section)
    assert summary
    mean, low, high, better, seeds = (float(value) for value in summary.groups())
    expected = (statistics.fmean(gains), *interval_of(gains))
    assert (mean, low, high) == pytest.approx(expected, abs=HALF_A_DIGIT)
    assert (better, seeds) == (sum(gain > 0 for gain in gains), len(rows))
